"""The answer of a search for the most load a server carries, and the terms on which it was sought."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ridgeline.errors import InputError
from ridgeline.load.probe import UNITS, Probe, ProbeVerdict

TAKE_OFF = 2.0


@dataclass(frozen=True, slots=True)
class GoodputTerms:
    """For how long the answer is held, and how long the search may take with that.

    `start` is a first guess on the axis that is walked; without one the search measures where to begin.
    """

    hold_s: float = 60.0
    within_s: float = 240.0
    start: float | None = None

    def __post_init__(self) -> None:
        if not (self.hold_s > 0 and math.isfinite(self.hold_s)):
            raise InputError(f"--hold {self.hold_s:g} holds nothing; use seconds above zero, for example --hold 60")
        if not self.within_s > self.hold_s:
            raise InputError(
                f"--within {self.within_s:g} leaves no time to hold an answer for {self.hold_s:g} s; raise it"
            )


def goodput_terms(
    wanted: bool, hold_s: float | None, within_s: float | None, start: float | None = None
) -> GoodputTerms | None:
    """The terms that the options ask for; None where no search was asked for."""
    if not wanted:
        if hold_s is not None or within_s is not None:
            raise InputError("--hold and --within are for --find-goodput; add it, or leave them out")
        return None
    usual = GoodputTerms()
    hold_s = usual.hold_s if hold_s is None else hold_s
    return GoodputTerms(hold_s, max(usual.within_s, 4 * hold_s) if within_s is None else within_s, start)


@dataclass(frozen=True, slots=True)
class Unjudged:
    """A load at which every run was void, and why."""

    load: float
    runs: int
    why: str


@dataclass(frozen=True, slots=True)
class Edge:
    """The highest load that held the SLO, for how long it did, and the lowest above it that did not.

    `fails` is None when no load tried was too much. `asked_s` is for how long the answer was to be held. `unjudged` is
    the lowest load, from the answer up, about which nothing can be said.
    """

    axis: str
    holds: float
    fails: float | None
    held_for_s: float
    asked_s: float
    took_s: float
    goodput_s: float
    knee: float | None
    probes: tuple[Probe, ...]
    unjudged: Unjudged | None = None
    out_of_time: bool = False
    interrupted: bool = False
    note: str = ""

    @property
    def unit(self) -> str:
        return UNITS[self.axis]

    @property
    def held(self) -> bool:
        """Whether it was held for as long as was asked."""
        return self.held_for_s >= 0.99 * self.asked_s

    @property
    def void_probes(self) -> int:
        return sum(p.verdict is ProbeVerdict.VOID for p in self.probes)

    def as_json(self) -> dict[str, object]:
        unjudged = self.unjudged
        return {
            "axis": self.axis,
            "unit": self.unit,
            "holds": self.holds,
            "fails": self.fails,
            "interval": [self.holds, self.fails],
            "held": self.held,
            "held_for_s": round(self.held_for_s, 3),
            "took_s": round(self.took_s, 3),
            "goodput_s": self.goodput_s,
            "knee": self.knee,
            "unjudged": None
            if unjudged is None
            else {"load": unjudged.load, "runs": unjudged.runs, "why": unjudged.why},
            "void_probes": self.void_probes,
            "out_of_time": self.out_of_time,
            "interrupted": self.interrupted,
            "note": self.note,
            "probes": [p.as_json() for p in self.probes],
        }


def take_off(points: Sequence[tuple[float, float | None]]) -> float | None:
    """The load at which the median TTFT is twice that of the lightest load, read off the curve; None if it never is.

    Between two measured loads the curve is taken as straight on logarithmic axes.
    """
    by_load: dict[float, list[float]] = {}
    for load, ttft_ms in points:
        if ttft_ms:
            by_load.setdefault(load, []).append(ttft_ms)
    curve = [(load, sorted(seen)[len(seen) // 2]) for load, seen in sorted(by_load.items())]
    for (left, before), (right, after) in pairwise(curve):
        limit = TAKE_OFF * curve[0][1]
        if before <= limit < after:
            share = math.log(limit / before) / math.log(after / before)
            return float(left * (right / left) ** share)
    return None
