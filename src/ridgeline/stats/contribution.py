"""What brought it: the part of each knob in the way from baseline to winner, estimated from the search's trials.

The model is additive in logs: every knob contributes by itself. That is often wrong in detail (a large batch pays only
with enough memory), so these are hints for the reader, never verdicts; the sum need not be the confirmed ratio.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ridgeline.records.expression import Value
from ridgeline.records.space import Point
from ridgeline.stats.compare import Direction
from ridgeline.stats.regression import ridge
from ridgeline.stats.wording import percent, percent_range

FEWEST_TRIALS = 8
MANY_VALUES = 6  # a numeric knob with more different values than this enters as a curve, not value by value


@dataclass(frozen=True, slots=True)
class Contribution:
    """The change of speed, as a fraction, by moving this knob alone from the baseline's value to the winner's."""

    knob: str
    before: Value
    after: Value
    change: float
    low: float
    high: float
    level: float

    @property
    def detectable(self) -> bool:
        return self.low > 0 or self.high < 0

    def __str__(self) -> str:
        if not self.detectable:
            return f"{self.knob}: no detectable difference"
        return f"{self.knob} {percent(self.change)} ({percent_range(self.low, self.high)})"


def contributions(
    baseline: Point,
    winner: Point,
    trials: Sequence[tuple[Point, float]],
    direction: Direction,
    level: float = 0.95,
) -> list[Contribution]:
    """For each knob in which winner and baseline differ, largest first; empty with too few usable trials.

    `trials` are good runs with positive values, those of the baseline and of the winner included. A knob that does
    not exist at a point has the value None there.
    """
    usable = [(point, value) for point, value in trials if value > 0]
    names = sorted({name for point in (baseline, winner) for name in point})
    moved = [name for name in names if baseline.get(name) != winner.get(name)]
    if len(usable) < FEWEST_TRIALS or not moved:
        return []
    every = sorted({name for point, _ in usable for name in point} | set(names))
    columns = {
        name: _Column.of([p.get(name) for p in (baseline, winner, *(point for point, _ in usable))]) for name in every
    }
    sign = 1.0 if direction == "maximize" else -1.0
    rows = [[1.0, *(c for name in every for c in columns[name].code(point.get(name)))] for point, _ in usable]
    fit = ridge(rows, [sign * math.log(value) for _, value in usable], [False, *[True] * (len(rows[0]) - 1)])
    share = 1 - (1 - level) / len(moved)
    found = []
    for name in moved:
        contrast = [0.0]
        for other in every:
            after = columns[other].code(winner.get(other) if other == name else baseline.get(other))
            before = columns[other].code(baseline.get(other))
            contrast += [a - b for a, b in zip(after, before, strict=True)]
        change, low, high = (math.expm1(min(v, 50.0)) for v in fit.interval(contrast, share))
        found.append(Contribution(name, baseline.get(name), winner.get(name), change, low, high, level))
    return sorted(found, key=lambda c: (not c.detectable, -abs(c.change)))


@dataclass(frozen=True, slots=True)
class _Column:
    """How a knob enters the model: one indicator per value, or a line and a bow for a numeric knob of many values."""

    values: tuple[Value, ...]
    numeric: bool
    centre: float = 0.0
    width: float = 1.0
    log: bool = False

    @classmethod
    def of(cls, seen: Sequence[Value]) -> _Column:
        different = tuple(dict.fromkeys(seen))
        numbers = [float(v) for v in different if isinstance(v, int | float) and not isinstance(v, bool)]
        if len(numbers) < len(different) or len(different) <= MANY_VALUES:
            return cls(different, False)
        log = min(numbers) > 0 and max(numbers) / min(numbers) > 8
        scaled = [math.log(v) for v in numbers] if log else numbers
        low, high = min(scaled), max(scaled)
        return cls(different, True, (low + high) / 2, (high - low) / 2, log)

    def code(self, value: Value) -> Sequence[float]:
        if not self.numeric:
            return [float(value == v and type(value) is type(v)) for v in self.values]
        number = float(value)  # type: ignore[arg-type]  # `of` saw only numbers
        place = ((math.log(number) if self.log else number) - self.centre) / self.width
        return [place, place * place]


def text(found: Sequence[Contribution]) -> str:
    """One line: 'layout +41%, batch +12%; no detectable difference: NCCL'."""
    shown = ", ".join(f"{c.knob} {percent(c.change, 0)}" for c in found if c.detectable)
    rest = ", ".join(c.knob for c in found if not c.detectable)
    parts = [shown, f"no detectable difference: {rest}" if rest else ""]
    return "; ".join(part for part in parts if part)
