"""Where the next trial may be: ever more of the space, evenly, and all around what went well."""

from __future__ import annotations

import itertools
import random
from collections.abc import Collection, Iterable, Iterator, Sequence

import numpy as np

from ridgeline.records.expression import Value
from ridgeline.records.space import Discrete, Knob, Point, Space, point_key
from ridgeline.samplers.filling import filling
from ridgeline.samplers.guided.features import Features
from ridgeline.samplers.guided.gaussian import Array

FIRST, MORE, MOST = 1_000, 250, 20_000  # points at the first look, more for each lesson, and in all
STEPS_ALONG = 8  # values of one ordered knob tried on each side of a good point
PAIRS = 200  # neighbours two knobs away, drawn


class Pool:
    """Points that the study's rules allow, growing with the lessons: a prefix of one sequence, so that the same
    number of lessons always gives the same points. What the campaign itself refuses is found out by asking, later."""

    def __init__(self, space: Space, features: Features, seed: int) -> None:
        self._space, self._features = space, features
        self._sequence = filling(space, seed, lambda point: space.refusal(point) is None)
        self.points: list[Point] = []
        self.keys: list[str] = []
        self.exhausted = False  # whether the sequence came to its end: the points are all there are
        self._rows: Array = features.of([])

    def grown(self, lessons: int) -> tuple[Sequence[Point], Sequence[str], Array]:
        """Points, their keys and features."""
        size = min(MOST, FIRST + MORE * lessons)
        if len(self.points) < size:
            fresh = list(itertools.islice(self._sequence, size - len(self.points)))
            self.exhausted = len(self.points) + len(fresh) < size
            self.points += fresh
            self.keys += map(point_key, fresh)
            self._rows = np.concatenate([self._rows, self._features.of(fresh)])
        return self.points[:size], self.keys[:size], self._rows[:size]


def around(
    space: Space, centres: Iterable[Point], rng: random.Random, known: Collection[str]
) -> dict[str, dict[str, Value]]:
    """Points one knob away from good ones, and some two knobs away, by key; none of `known`."""
    found: dict[str, dict[str, Value]] = {}

    def take(point: dict[str, Value]) -> None:
        key = point_key(point)
        if key not in known and key not in found and space.refusal(point) is None:
            found[key] = point

    for centre in centres:
        singles = [moved for knob in space.knobs for moved in _moves(space, centre, knob, rng)]
        for single in singles:
            take(single)
        for _ in range(PAIRS if singles else 0):
            base, knob = rng.choice(singles), rng.choice(space.knobs)
            further = list(_moves(space, base, knob, rng))
            if further:
                take(rng.choice(further))
    return found


def _moves(space: Space, point: Point, knob: Knob, rng: random.Random) -> Iterator[dict[str, Value]]:
    if knob.name not in point:
        return
    for value in _others(knob, point[knob.name], rng):
        # a knob that comes into being by the move takes a random value
        spare = {k.name: k.at(rng.random()) for k in space.knobs if k.name not in point}
        yield space.restrict({**spare, **point, knob.name: value})


def _others(knob: Knob, value: Value, rng: random.Random) -> Sequence[Value]:
    if not isinstance(knob, Discrete):
        number, reach = float(value or 0.0), (knob.high - knob.low)
        if knob.log:
            return [knob.at(rng.random()) for _ in range(STEPS_ALONG)]
        return [knob.rounded(number + reach * rng.gauss(0, width)) for width in (0.02, 0.05, 0.1, 0.3) for _ in "12"]
    if not knob.ordered:
        return [other for other in knob.values if other != value]
    index = knob.values.index(value)
    near = range(max(0, index - STEPS_ALONG), min(len(knob.values), index + STEPS_ALONG + 1))
    return [knob.values[i] for i in near if i != index]
