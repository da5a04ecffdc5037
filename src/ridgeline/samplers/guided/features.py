"""Points as a Gaussian process sees them: each knob in [0, 1], unordered values all equally far apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ridgeline.records.expression import Value
from ridgeline.records.space import Discrete, Knob, Point, Space
from ridgeline.samplers.encoding import along, shape
from ridgeline.samplers.guided.gaussian import Array, Columns

APART = 0.5**0.5  # two one-hot rows are then 1 apart
ABSENT = 0.5  # where a knob does not exist it is in the middle, and a column of its own says so


class Features:
    """`columns` says which knob each feature belongs to, so that they share one length scale."""

    def __init__(self, space: Space) -> None:
        self._space = space
        self._places: list[_Places] = [_Places(knob) for knob in space.knobs]
        widths = [places.width for places in self._places]
        self.columns: Columns = np.repeat(np.arange(len(widths)), widths)
        self._before: tuple[Sequence[Point], Array] = (), self.of([])

    def of(self, points: Sequence[Point]) -> Array:
        """A row for each point; the points are of the space."""
        if not points:
            return np.zeros((0, self.columns.size), np.float32)
        blocks = [places.of([point.get(places.name) for point in points]) for places in self._places]
        return np.concatenate(blocks, axis=1).astype(np.float32)

    def of_told(self, points: Sequence[Point]) -> Array:
        """As `of`, for a list that mostly grows: what it began with last time is not worked out again."""
        before, rows = self._before
        if len(before) > len(points) or any(a is not b for a, b in zip(before, points, strict=False)):
            before, rows = (), self.of([])
        rows = np.concatenate([rows, self.of(points[len(before) :])])
        self._before = points, rows
        return rows


class _Places:
    def __init__(self, knob: Knob) -> None:
        self.name, self._knob, self._choice = knob.name, knob, shape(knob) == "choice"
        self._conditional = knob.when is not None
        count = len(knob.values) if isinstance(knob, Discrete) else 0
        self.width = (count if self._choice else 1) + self._conditional
        self._index: Mapping[tuple[bool, Value], int] = {}
        if isinstance(knob, Discrete) and not isinstance(knob.values, range):
            self._index = {(isinstance(value, bool), value): i for i, value in reversed([*enumerate(knob.values)])}
        self._known: dict[
            tuple[bool, Value], float
        ] = {}  # places of values met before: observations are many, values few

    def of(self, values: Sequence[Value | None]) -> Array:
        found = np.zeros((len(values), self.width))
        if self._choice:
            for row, value in enumerate(values):
                if value is not None:
                    found[row, self._index[isinstance(value, bool), value]] = APART
        else:
            found[:, 0] = [ABSENT if value is None else self._place(value) for value in values]
        if self._conditional:
            found[:, -1] = [value is None for value in values]
        return found

    def _place(self, value: Value) -> float:
        key = isinstance(value, bool), value
        place = self._known.get(key)
        if place is None:
            place = self._known[key] = self._along(value)
        return place

    def _along(self, value: Value) -> float:
        if shape(self._knob) == "share":
            return along(self._knob, value)
        assert isinstance(self._knob, Discrete)
        index = self._index[isinstance(value, bool), value] if self._index else self._knob.values.index(value)
        return index / max(1, len(self._knob.values) - 1)
