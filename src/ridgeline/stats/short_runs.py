"""What part of a run says of the whole: a run under way beside the best one, and a short run beside a long one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

PRIOR_SPREAD = 0.05  # of log ratios, before anything is known, counted as much as two settings
_PRIOR_WEIGHT = 2


@dataclass(frozen=True, slots=True)
class ShortRunRatio:
    """Half the work is not half the answer: start-up, warm-up and caches weigh more in a short run, and not the same
    for every setting. So the ratio has a spread, which is what a prediction from a short run is uncertain by.

    Logs: whole = short x exp(`log_ratio`), give or take a factor of exp(`spread`); from so many settings."""

    log_ratio: float
    spread: float
    settings: int

    def whole(self, short: float) -> float:
        return short * math.exp(self.log_ratio)


def short_run_ratio(pairs: Sequence[tuple[float, float]]) -> ShortRunRatio | None:
    """From (short, whole) values of the same settings; None where there are none, or values that have no ratio."""
    if not pairs or any(short <= 0 or whole <= 0 for short, whole in pairs):
        return None
    logs = [math.log(whole / short) for short, whole in pairs]
    mean = math.fsum(logs) / len(logs)
    squares = math.fsum((log - mean) ** 2 for log in logs) + _PRIOR_WEIGHT * PRIOR_SPREAD**2
    return ShortRunRatio(mean, math.sqrt(squares / (_PRIOR_WEIGHT + len(logs) - 1)), len(logs))


# Is a run that is under way clearly worse than the best one was at the same point of its life?

LEAST_VALUES = 5  # one strange value, or the first few of a program that warms up, decide nothing


def same_stretch_ratio(own: Sequence[float], best: Sequence[float], minimize: bool) -> float | None:
    """How many times `best`'s values `own`'s are over the later half of what `own` has so far; None: undecided.

    It is decided when even the most favourable value of that stretch is worse than the middle one of the best run.
    """
    if len(own) < LEAST_VALUES or len(best) < LEAST_VALUES:
        return None
    until = min(len(own), len(best))
    ours, theirs = own[len(own) // 2 :], best[until // 2 : until]
    middle = median(theirs)
    if middle <= 0 or min(ours) <= 0:
        return None
    favourable = min(ours) if minimize else max(ours)
    if (favourable <= middle) if minimize else (favourable >= middle):
        return None
    return median(ours) / middle


def times_worse(ratio: float, minimize: bool) -> float:
    """Of a ratio of values: above 1 for worse, whatever the direction."""
    return ratio if minimize else 1.0 / ratio
