"""What a sampler observes, before and after trials, and what it estimates."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ridgeline.records.space import Point


@dataclass(frozen=True, slots=True)
class Observation:
    """What one finished trial teaches. `score` is larger-is-better; None when the setting itself failed.

    `node_s` are the node-seconds it took, where that is known. `censored`: the score is only a bound, the true one is
    no better; a run that was ended by its time limit took at least as long.
    """

    point: Point
    score: float | None
    node_s: float | None = None
    censored: bool = False


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a model says one run of a point will measure: `score`, larger is better, and its standard deviation.

    `spread` is that of what is measured: how unsure the model is and the noise of one run, together; `in_logs`: of the
    logarithm of the score's size, else in its unit. As the model believes: how far that can be relied on, only the
    predictions that it made before tell (`stats/stated_range.py`). `to_beat` is the best score so far, as it believes.
    """

    score: float
    spread: float
    in_logs: bool
    to_beat: float | None = None


BEST_SO_FAR = "the best so far"  # in the reason of a proposal: the campaign puts the value in its place


@dataclass(frozen=True, slots=True)
class Proposal:
    point: Point
    why: str = ""
    predicted: Prediction | None = None  # None: nothing was predicted


_SAYS_NOTHING = 1.0  # a bound of more than twice the best is that of a model that has seen too little


@dataclass(frozen=True, slots=True)
class Prospect:
    """`chance` that a point not yet tried beats the best by more than `worth` (a share of it), and with `likely`
    percent probability nothing gains more than `gain` (a share too). `whole`: every legal point was considered."""

    chance: float
    worth: float
    gain: float
    likely: float = 0.95
    whole: bool = True
    gaining: bool = False  # lately something better was found: too early to end, whatever the model says

    def __str__(self) -> str:
        if self.gain > _SAYS_NOTHING:
            return "nothing can be said yet of what an untried setting would gain; more trials (budget.trials) tell"
        where = "" if self.whole else " among those considered"
        chance = "under 0.1%" if self.chance < 0.0005 else f"{self.chance:.1%}"  # drawn, so never quite none
        return (
            f"{chance} chance that an untried setting{where} is more than {self.worth:.0%} better; "
            f"{self.likely:.0%} sure that none gains more than {max(self.gain, 0.001):.1%}"
        )

    @property
    def over(self) -> bool:
        return not self.gaining and self.chance < 1.0 - self.likely


@dataclass(frozen=True, slots=True)
class Expectation:
    """What is expected of a setting before it runs, by a twin, a user's formula or an earlier study.

    `mean` of the goal and 90% interval `low` to `high`, in the goal's unit; None where only the chance is known.

    `chance` is that of passing at all.
    """

    mean: float | None = None
    low: float | None = None
    high: float | None = None
    chance: float = 1.0

    def __post_init__(self) -> None:
        for name in ("mean", "low", "high"):
            value = getattr(self, name)
            if value is not None and not math.isfinite(value):
                raise ValueError(f"{name} of an expectation is {value}, not a number")
        if not 0.0 <= self.chance <= 1.0:
            raise ValueError(f"a chance of {self.chance}; it lies between 0 and 1")
