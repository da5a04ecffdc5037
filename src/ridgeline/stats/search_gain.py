"""How much the best of a search gains, before it is confirmed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ridgeline.stats.compare import Direction, mean_and_spread
from ridgeline.stats.student import interval
from ridgeline.stats.wording import MetricText

_FEWEST_FOR_SHRINKING = 6  # settings below which the spread between settings is not known well enough to shrink by


@dataclass(frozen=True, slots=True)
class SearchGain:
    """How far the best of a search lies over the baseline, as a fraction: an estimate to search by, not a verdict.

    The largest of many noisy values is too large. `change` is therefore pulled toward the mean of the tried settings
    by the share of their spread that is noise; `seen` is the change as measured.
    """

    seen: float
    change: float
    low: float | None
    high: float | None
    level: float
    tried: int

    def text(self, goal: MetricText) -> str:
        """What was seen, and what is left of it: 'looks 1.03x baseline in the search; with one run a setting, chance
        alone could explain it'."""
        seen = f"looks {goal.ratio_to(f'{1 + self.seen:.2f}x', 'baseline')} in the search"
        if self.seen <= 0:
            return f"{seen}, no better than the baseline"
        if self.low is None or self.high is None:
            return f"{seen}; how far runs scatter is not known yet"
        if self.low == self.high:
            return seen
        if self.low <= 0:
            return f"{seen}; with one run a setting, chance alone could explain it"
        picked = f"allowing for having picked the best of {self.tried}, " if self.tried > 1 else ""
        return f"{seen}; {picked}{self.level * 100:g}%: {1 + self.low:.2f}x to {1 + self.high:.2f}x"


def search_gain(
    tried: Sequence[float],
    baseline: Sequence[float],
    direction: Direction = "maximize",
    level: float = 0.95,
) -> SearchGain | None:
    """The best of `tried` (one run per setting) against repeats of the baseline, sentinels included.

    None where there is nothing to compare or a value is not positive (no ratio).
    """
    if not tried or not baseline or any(v <= 0 for v in (*tried, *baseline)):
        return None
    sign = 1.0 if direction == "maximize" else -1.0
    logs = [sign * math.log(v) for v in tried]
    base, noise = mean_and_spread([sign * math.log(v) for v in baseline])
    best = max(logs)
    if len(baseline) < 2:
        return SearchGain(math.expm1(best - base), math.expm1(best - base), None, None, level, len(tried))
    centre, spread = mean_and_spread(logs)
    if len(tried) < _FEWEST_FOR_SHRINKING:
        # unshrunk, the winner of k is one of k chances to be far off
        estimate, error, alpha = best - base, noise * math.sqrt(1 + 1 / len(baseline)), (1 - level) / len(tried)
    else:
        noise_share = min(1.0, noise**2 / spread**2) if spread > 0 else 1.0
        kept = 1 - noise_share
        estimate = centre + kept * (best - centre) - base
        # both variances are estimates; with few repeats of the baseline the share of noise itself is uncertain
        doubt = noise_share * math.sqrt(2 / (len(baseline) - 1) + 2 / (len(tried) - 1)) * (best - centre)
        error = math.sqrt(noise**2 * (kept + 1 / len(baseline) + 1 / len(tried)) + doubt**2)
        alpha = 1 - level
    low, high = interval(estimate, error, len(baseline) - 1, 1 - alpha, math.expm1)
    return SearchGain(math.expm1(best - base), math.expm1(estimate), low, high, level, len(tried))
