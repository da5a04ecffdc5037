"""`nearest`: tries next what differs least from the best setting so far."""

import math
from collections.abc import Mapping, Sequence

from ridgeline.errors import InputError
from ridgeline.records.observation import Observation, Proposal
from ridgeline.records.space import Point, Space, point_key
from ridgeline.samplers.base import Refusal, Sampler


class NearestSampler(Sampler):
    def __init__(self, space: Space, seed: int, options: Mapping[str, object], refusal: Refusal) -> None:
        for name in options:
            raise InputError(f"{name}: nearest has no such option; remove it")
        for knob in space.knobs:
            if knob.count is None:
                raise InputError(f"nearest cannot list the values of {knob.name}; give it a list of values")
        self._space, self._refusal = space, refusal
        self._told: set[str] = set()
        self._best: Point | None = None
        self._best_score = -math.inf

    def ask(self, pending: Sequence[Point] = ()) -> Proposal | None:
        taken = self._told | {point_key(point) for point in pending}
        free = [point for point in self._space.points() if point_key(point) not in taken and self._may_run(point)]
        if not free:
            return None
        best = self._best
        if best is None:
            return Proposal(free[0], "the first")
        return Proposal(min(free, key=lambda point: _distance(point, best)), "nearest to the best so far")

    def tell(self, observation: Observation) -> None:
        self._told.add(point_key(observation.point))
        if observation.score is not None and observation.score > self._best_score:
            self._best, self._best_score = observation.point, observation.score

    def _may_run(self, point: Point) -> bool:
        return self._space.refusal(point) is None and self._refusal(point) is None


def _distance(one: Point, other: Point) -> int:
    """How many knobs differ."""
    return sum(one.get(name) != other.get(name) for name in {**one, **other})
