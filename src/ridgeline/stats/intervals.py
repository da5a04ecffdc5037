"""Intervals for repeated runs of one setting, and for the best of a search before it is confirmed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ridgeline.stats.compare import Direction, mean_and_spread
from ridgeline.stats.student import t_quantile
from ridgeline.stats.wording import percent, percent_range

FEWEST_FOR_SHRINKING = 6  # settings below which the spread between settings is not known well enough to shrink by


@dataclass(frozen=True, slots=True)
class Interval:
    """`low` and `high` are None where `runs` are too few for the level."""

    estimate: float
    low: float | None
    high: float | None
    level: float
    runs: int

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.estimate:.4g} ({self.runs} runs: too few for an interval)"
        return f"{self.estimate:.4g} ({self.level * 100:g}%: {self.low:.4g} to {self.high:.4g}; {self.runs} runs)"


def mean_interval(values: Sequence[float], level: float = 0.95) -> Interval:
    """Student's interval for the mean; in logs (a geometric mean) where all values are positive, as run times are."""
    if not values:
        raise ValueError("an interval needs at least one value")
    logs = all(v > 0 for v in values)
    mean, spread = mean_and_spread([math.log(v) for v in values] if logs else values)
    back = math.exp if logs else float
    if len(values) < 2:
        return Interval(back(mean), None, None, level, 1)
    half = t_quantile(0.5 + level / 2, len(values) - 1) * spread / math.sqrt(len(values))
    return Interval(back(mean), back(mean - half), back(mean + half), level, len(values))


def median_interval(values: Sequence[float], level: float = 0.95) -> Interval:
    """Order statistics that hold the median with at least `level`, whatever the distribution: 6 runs for 95%."""
    if not values:
        raise ValueError("an interval needs at least one value")
    ordered = sorted(values)
    n = len(ordered)
    middle = (ordered[(n - 1) // 2] + ordered[n // 2]) / 2
    outside, rank = 0.0, -1
    # the interval from the (r+1)th smallest to the (r+1)th largest misses the median with 2 P(Binomial(n, 1/2) <= r)
    for r in range(n // 2):
        outside += 2 * math.comb(n, r) / 2**n
        if outside > 1 - level:
            break
        rank = r
    if rank < 0:
        return Interval(middle, None, None, level, n)
    return Interval(middle, ordered[rank], ordered[n - 1 - rank], level, n)


def relative_noise(values: Sequence[float]) -> float | None:
    """Standard deviation of one run as a fraction (0.02 is 2%); None without two positive values."""
    if len(values) < 2 or any(v <= 0 for v in values):
        return None
    return mean_and_spread([math.log(v) for v in values])[1]


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

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{percent(self.seen)} over baseline (search estimate; noise not known yet)"
        interval = percent_range(self.low, self.high)
        return f"{percent(self.change)} over baseline ({self.level * 100:g}%: {interval}; search estimate)"


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
    if len(tried) < FEWEST_FOR_SHRINKING:
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
    half = t_quantile(1 - alpha / 2, len(baseline) - 1) * error
    low, high = math.expm1(estimate - half), math.expm1(estimate + half)
    return SearchGain(math.expm1(best - base), math.expm1(estimate), low, high, level, len(tried))
