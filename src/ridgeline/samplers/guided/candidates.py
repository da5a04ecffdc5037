"""Where the next trial may be: ever more of the space, evenly, and all around what went well."""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Iterable, Iterator, Sequence

import numpy as np

from ridgeline.records.expression import Value
from ridgeline.records.space import Discrete, Knob, Point, Space, point_key
from ridgeline.samplers.guided.features import Features
from ridgeline.samplers.guided.gaussian import Array
from ridgeline.samplers.sequence import Listing, filling, shuffled

FIRST, MORE, MOST = 4_000, 500, 20_000  # looks before the first observation, more for each, and points that are held
_END = object()
_STEPS_ALONG = 8  # values of one ordered knob tried on each side of a good point
PAIRS = 60  # neighbours two knobs away, drawn


class Pool:
    """Points that the study's rules allow, growing with the observations: a prefix of one sequence, so that the same
    number of them always gives the same points. What the campaign itself refuses is found out by asking, later."""

    def __init__(self, space: Space, features: Features, seed: int) -> None:
        self._space, self._features = space, features
        self._sequence = _looks(space, seed)
        self.points: list[Point] = []
        self.keys: list[str] = []
        self.exhausted = False  # whether the points last given are all there are, or all that are held
        self._end: int | None = None  # looks after which there are no more
        self._counts = [0]  # points found, by looks taken
        self._rows: Array = features.of([])

    def grown(self, observations: int) -> tuple[Sequence[Point], Sequence[str], Array]:
        """Points, their keys and features."""
        looks = FIRST + MORE * observations
        if len(self._counts) <= looks and self._end is None:
            fresh: list[Point] = []
            while len(self._counts) <= looks and self._end is None:
                point = next(self._sequence, _END)
                if point is _END or len(self.points) + len(fresh) == MOST:
                    self._end = len(self._counts)
                if isinstance(point, dict):
                    fresh.append(point)
                self._counts.append(len(self.points) + len(fresh))
            self.points += fresh
            self.keys += map(point_key, fresh)
            self._rows = np.concatenate([self._rows, self._features.of(fresh)])
        self.exhausted = self._end is not None and looks >= self._end
        size = self._counts[min(looks, len(self._counts) - 1)]
        return self.points[:size], self.keys[:size], self._rows[:size]


def _looks(space: Space, seed: int) -> Iterator[dict[str, Value] | None]:
    """A look at a time over the space, none twice: a point that no rule refuses, or None. A finite space is listed,
    since drawing from it would mostly draw again what it drew before."""
    if not math.isfinite(space.raw_size()):
        yield from filling(space, seed, lambda point: space.refusal(point) is None)
        return
    listing = Listing(space)
    for number in shuffled(listing.size, seed):
        point = listing.at(number)
        yield point if point is not None and space.refusal(point) is None else None


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
        singles = [
            _moved(space, centre, knob, value, rng)
            for knob in space.knobs
            if knob.name in centre
            for value in _others(knob, centre[knob.name], rng)
        ]
        for single in singles:
            take(single)
        for _ in range(PAIRS if singles else 0):
            base, knob = rng.choice(singles), rng.choice(space.knobs)
            if knob.name in base and (values := _others(knob, base[knob.name], rng)):
                take(_moved(space, base, knob, rng.choice(values), rng))
    return found


def _moved(space: Space, point: Point, knob: Knob, value: Value, rng: random.Random) -> dict[str, Value]:
    if len(point) == len(space.knobs) and all(other.when is None for other in space.knobs):
        return {**point, knob.name: value}
    # a knob that comes into being by the move takes a random value
    spare = {k.name: k.at(rng.random()) for k in space.knobs if k.name not in point}
    return space.restrict({**spare, **point, knob.name: value})


def _others(knob: Knob, value: Value, rng: random.Random) -> Sequence[Value]:
    if not isinstance(knob, Discrete):
        number, reach = float(value or 0.0), (knob.high - knob.low)
        if knob.log:
            return [knob.at(rng.random()) for _ in range(_STEPS_ALONG)]
        return [knob.rounded(number + reach * rng.gauss(0, width)) for width in (0.02, 0.05, 0.1, 0.3) for _ in "12"]
    if not knob.ordered:
        return [other for other in knob.values if other != value]
    index = knob.values.index(value)
    near = range(max(0, index - _STEPS_ALONG), min(len(knob.values), index + _STEPS_ALONG + 1))
    return [knob.values[i] for i in near if i != index]
