"""Two sets of runs that were not interleaved: what their ratio is, and how sure that is as far as their scatter shows.

Weaker than `compare`: whatever else changed between the two (day, node, neighbours) is in the ratio too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ridgeline.stats.compare import Direction, mean_and_spread
from ridgeline.stats.student import interval
from ridgeline.stats.wording import ratio_range


@dataclass(frozen=True, slots=True)
class UnpairedRatio:
    """The second over the first, oriented so that above 1 is better. No interval where one side has a single run."""

    ratio: float
    low: float | None
    high: float | None
    runs: tuple[int, int]

    @property
    def verdict(self) -> str:
        if self.low is None or self.high is None:
            return "too few runs to tell"
        return "better" if self.low > 1 else "worse" if self.high < 1 else "no detectable difference"

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.ratio:.3f}x, {self.verdict}"
        shown, interval = ratio_range(self.ratio, self.low, self.high)
        return f"{shown} ({interval}), {self.verdict}"


def unpaired(
    first: Sequence[float], second: Sequence[float], direction: Direction, level: float = 0.95, among: int = 1
) -> UnpairedRatio | None:
    """Welch's interval of the logs, holding for all of `among` looks; None where a value is not positive.

    Of three runs against ten Welch's degrees of freedom, themselves an estimate, are too many as often as too few, and
    the first costs more. So they are averaged (harmonically) with those that the smaller side is sure to have.
    """
    if not first or not second or min(*first, *second) <= 0:
        return None
    sign = 1.0 if direction == "maximize" else -1.0
    (mean_a, sd_a), (mean_b, sd_b) = (mean_and_spread([sign * math.log(v) for v in side]) for side in (first, second))
    middle, sizes = mean_b - mean_a, (len(first), len(second))
    if min(sizes) < 2:
        return UnpairedRatio(math.exp(middle), None, None, sizes)
    parts = (sd_a**2 / sizes[0], sd_b**2 / sizes[1])
    if sum(parts) <= 0:
        return UnpairedRatio(math.exp(middle), math.exp(middle), math.exp(middle), sizes)
    freedom = sum(parts) ** 2 / sum(p**2 / (n - 1) for p, n in zip(parts, sizes, strict=True))
    freedom = 2 / (1 / freedom + 1 / (min(sizes) - 1))
    ends = interval(middle, math.sqrt(sum(parts)), freedom, 1 - (1 - level) / among, math.exp)
    return UnpairedRatio(math.exp(middle), *ends, sizes)


def together(ratios: Sequence[float], level: float = 0.95) -> tuple[float, float | None, float | None]:
    """Several settings as one: the mean of their ratios in logs, with the interval that their differences give."""
    mean, spread = mean_and_spread([math.log(ratio) for ratio in ratios])
    if len(ratios) < 3:
        return math.exp(mean), None, None
    return math.exp(mean), *interval(mean, spread / math.sqrt(len(ratios)), len(ratios) - 1, level, math.exp)
