"""How often a setting may still fail that has only passed: the rate that its runs rule out."""

from __future__ import annotations

import math

_FIRST, _LATER = 0.8, 0.75  # of the error that is left, what the first setting and each later one may spend


def shown_failure_rate(passes: int, chosen: int = 1, level: float = 0.95) -> float:
    """The largest failure rate (Clopper and Pearson's, one-sided) that so many passes without a failure leave open.

    Runs that led to the choice of the setting do not count: it was chosen for having passed. `chosen` says which choice
    it is: whoever chooses again after a failure has another chance to be lucky, so all choices share the error. It
    holds after every run, not only at a number that was fixed before: passing more runs is part of passing fewer.
    """
    return 1.0 - _error(chosen, level) ** (1 / passes) if passes else 1.0


def passes_needed(rate: float, chosen: int = 1, level: float = 0.95) -> int:
    """How many passes without a failure show that at most this share of runs fails."""
    return math.ceil(math.log(_error(chosen, level)) / math.log1p(-rate) - 1e-9)


def _error(chosen: int, level: float) -> float:
    later = chosen - 1
    return (1 - level) * (_FIRST if not later else (1 - _FIRST) * _LATER * (1 - _LATER) ** (later - 1))
