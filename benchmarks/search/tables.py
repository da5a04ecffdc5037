"""Whole configuration spaces that others measured, as spaces to search with a known truth.

A table is a CSV: a column per knob, then the goal (a name that ends in `-`, `time_ms` or `seconds`; smaller is better),
and where points can fail an `outcome`. A point that the table does not hold fails. The largest cost, where several rows
share it, is a time limit that those rows ran into. A table that holds less than a thousandth of
its own product is a sample of a space too large to measure: there a point is answered by the nearest row.
"""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ridgeline.records.expression import Value
from ridgeline.records.space import Discrete, Point, Space, point_key

SAMPLED = 1e-3  # share of the product below which a table is a sample
GOALS = ("time_ms", "seconds")
NOT_KNOBS = (*GOALS, "spread", "outcome")
SHARED = 4  # rows with exactly the largest cost: a limit, not a coincidence


@dataclass(frozen=True)
class Table:
    """`cost` is the goal of each row that works; every other point fails, or is answered by the nearest row."""

    name: str
    space: Space
    cost: Mapping[str, float]
    nearest: bool

    @cached_property
    def best(self) -> float:
        return min(self.cost.values())

    def truth(self, point: Point) -> float | None:
        """Log of the speed against the best row's: 0 for the best; None where the point fails."""
        found = self.cost.get(point_key(point))
        if found is None and self.nearest:
            found = self._rows.cost_near(self.space, point)
        return None if found is None else math.log(self.best / found)

    @cached_property
    def limit(self) -> float:
        """Log of the speed at the time limit, as `truth` gives it; minus infinity where no rows ran into one."""
        worst = max(self.cost.values())
        return math.log(self.best / worst) if sum(v == worst for v in self.cost.values()) >= SHARED else -math.inf

    @cached_property
    def _rows(self) -> _Rows:
        return _Rows(self)


class _Rows:
    """The rows as places in a cube, to find the nearest."""

    def __init__(self, table: Table) -> None:
        import json

        import numpy as np

        self._places = np.array([_place(table.space, json.loads(key)) for key in table.cost])
        self._costs = list(table.cost.values())

    def cost_near(self, space: Space, point: Point) -> float:
        import numpy as np

        return self._costs[int(np.abs(self._places - np.array(_place(space, point))).sum(axis=1).argmin())]


def _place(space: Space, point: Point) -> list[float]:
    knobs = [knob for knob in space.knobs if isinstance(knob, Discrete)]
    return [knob.values.index(point[knob.name]) / max(1, len(knob.values) - 1) for knob in knobs]


def read_tables(folder: Path) -> Iterator[Table]:
    for path in sorted(folder.glob("*.csv")):
        yield read_table(path)


def read_table(path: Path) -> Table:
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    goal = next(name for name in rows[0] if name in GOALS or name.endswith("-"))
    points = _one_knob_for_each_choice([{n: _number(row[n]) for n in row if _is_knob(n)} for row in rows])
    knobs = tuple(
        Discrete(name, values, all(not isinstance(v, str) for v in values))
        for name in points[0]
        if len(values := tuple(sorted({p[name] for p in points}, key=_order))) > 1
    )
    costs: dict[str, list[float]] = {}
    for row, point in zip(rows, points, strict=True):
        if row.get("outcome", "ok") == "ok":
            key = point_key({knob.name: point[knob.name] for knob in knobs})
            costs.setdefault(key, []).append(float(row[goal]))
    space = Space(knobs, {})
    cost = {key: statistics.median(values) for key, values in costs.items()}
    return Table(path.stem, space, cost, nearest=len(cost) < SAMPLED * space.raw_size())


def _is_knob(name: str) -> bool:
    return name not in NOT_KNOBS and not name.endswith("-")


def _number(text: str) -> Value:
    try:
        number = float(text)
    except ValueError:
        return text
    return int(number) if number == int(number) else number


def _order(value: Value) -> float | str:
    return value if isinstance(value, int | float | str) else str(value)


def _one_knob_for_each_choice(points: list[dict[str, Value]]) -> list[dict[str, Value]]:
    """Columns `knob_A`, `knob_B`, … of which each row sets exactly one are one knob with the values A, B, …"""
    families: dict[str, list[str]] = {}
    for name in points[0]:
        stem, _, choice = name.partition("_")
        if choice:
            families.setdefault(stem, []).append(name)
    choices = {
        stem: names
        for stem, names in families.items()
        if len(names) > 1 and all(sorted(str(p[n]) for n in names)[-2:] == ["0", "1"] for p in points)
    }
    return [_merged(point, choices) for point in points]


def _merged(point: dict[str, Value], choices: Mapping[str, list[str]]) -> dict[str, Value]:
    merged = dict(point)
    for stem, names in choices.items():
        chosen = next(name for name in names if point[name] == 1)
        for name in names:
            del merged[name]
        merged[stem] = chosen.partition("_")[2]
    return merged
