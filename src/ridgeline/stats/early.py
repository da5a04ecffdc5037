"""Is a run that is under way clearly worse than the best one was at the same point of its life?"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

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
