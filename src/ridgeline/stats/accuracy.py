"""Did a setting keep the accuracy of the baseline? Decided question by question, with as few questions as it takes.

Both answered the same questions, so only those that one of them got right and the other wrong say anything. The
difference is looked at a few times while the questions come in, at a half, a quarter and so on of their number. The
chance of a wrong decision is shared out over the looks, little to the early ones; the shares add up to `ERROR`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

ERROR = 0.05  # the chance that a setting which loses more than is allowed passes
_FEWEST = 50  # questions before the first look
_SPENT_AS = 2.0  # of the chance of error, the share (n / all) ** 2 is spent by question n

_Decision = Literal["kept", "lost", "open"]


@dataclass(frozen=True, slots=True)
class AccuracyChange:
    """`broken` questions only the baseline answered correctly, `fixed` ones only the setting; of `asked`.

    `change` is what the setting gains, as a share of the questions; below `low`, or above `high`, it lies with the
    chance of error of this look.
    """

    asked: int
    broken: int
    fixed: int
    low: float
    high: float
    decision: _Decision

    @property
    def change(self) -> float:
        return (self.fixed - self.broken) / self.asked


def looks(total: int) -> list[int]:
    """After how many of `total` questions the difference is looked at."""
    found = [total]
    while (half := math.ceil(found[0] / 2)) >= _FEWEST and half < found[0]:
        found.insert(0, half)
    return found


def accuracy_change(asked: int, broken: int, fixed: int, total: int, allowed: float) -> AccuracyChange:
    """What is known after one of the looks. `allowed` is the share of the questions that a setting may lose.

    "kept" where a larger loss is ruled out, "lost" where one is shown, "open" where neither is: after the last
    question it was not shown to keep its accuracy.
    """
    at = looks(total)
    before = max((n for n in at if n < asked), default=0)
    share = ERROR * ((asked / total) ** _SPENT_AS - (before / total) ** _SPENT_AS)
    differing = _differing(asked, broken, fixed, allowed)
    half = NormalDist().inv_cdf(1 - share) * _error(asked, differing, allowed)
    change = (fixed - broken) / asked
    low, high = max(-1.0, change - half), min(1.0, change + half)
    decision: _Decision = "kept" if low > -allowed else "lost" if high < -allowed else "open"
    return AccuracyChange(asked, broken, fixed, low, high, decision)


def questions_needed(allowed: float, differing: float = 0.02) -> int:
    """So many that a setting as good as the baseline passes in 95 of 100 cases, where `differing` of them change."""
    passes, kept = NormalDist().inv_cdf(1 - ERROR * (1 - 0.5**_SPENT_AS)), NormalDist().inv_cdf(1 - ERROR)
    if_lost = _differing(1.0, differing / 2, differing / 2, allowed)
    total = _FEWEST
    while passes * _error(total, if_lost, allowed) + kept * math.sqrt(differing / total) > allowed:
        total += 10
    return total


def _differing(asked: float, broken: float, fixed: float, allowed: float) -> float:
    """The share of answers that differ, most probable for a setting which loses just what is allowed (Tango's score).

    The share as counted is lowest where few answers happened to break, and would then let a setting pass too easily.
    """
    b = (2 * asked - broken + fixed) * allowed - broken - fixed
    c = fixed * allowed * (1 - allowed)
    return (math.sqrt(b * b + 8 * asked * c) - b) / (2 * asked) + allowed * (1 - allowed)


def _error(asked: int, differing: float, allowed: float) -> float:
    """The standard error of the change; not below that of a setting which loses what is allowed and changes no more."""
    return math.sqrt(max(differing, allowed) / asked)
