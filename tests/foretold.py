"""A plain function as what is expected of points."""

from __future__ import annotations

from collections.abc import Callable

from ridgeline.records.observation import Expectation
from ridgeline.records.space import Point
from ridgeline.samplers.base import Prior


class Foretold(Prior):
    def __init__(self, expected: Callable[[Point], Expectation | None]) -> None:
        self._expected = expected

    def __call__(self, point: Point) -> Expectation | None:
        return self._expected(point)
