"""What a sampler is told, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline.records.space import Point


@dataclass(frozen=True, slots=True)
class Lesson:
    """What one finished trial teaches. `score` is larger-is-better; None when the setting itself failed.

    `node_s` are the node-seconds it took, where that is known.
    """

    point: Point
    score: float | None
    node_s: float | None = None


@dataclass(frozen=True, slots=True)
class Proposal:
    point: Point
    why: str = ""


@dataclass(frozen=True, slots=True)
class Prospect:
    """`chance` that a point not yet tried beats the best by more than `worth` (a share of it), and with `likely`
    percent probability nothing gains more than `gain` (a share too). `whole`: every legal point was looked at."""

    chance: float
    worth: float
    gain: float
    likely: float = 0.95
    whole: bool = True

    def __str__(self) -> str:
        where = "" if self.whole else " among those looked at"
        return (
            f"{self.chance:.1%} chance that an untried setting{where} is more than {self.worth:.0%} better; "
            f"{self.likely:.0%} sure that none brings more than {self.gain:.1%}"
        )

    @property
    def over(self) -> bool:
        return self.chance < 1.0 - self.likely
