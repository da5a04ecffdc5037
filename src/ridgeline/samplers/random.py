"""Points spread evenly over the space, whatever was measured: the yardstick for every cleverer sampler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ridgeline.records.observation import Observation, Proposal
from ridgeline.records.space import Point, Space, point_key
from ridgeline.samplers.base import Refusal
from ridgeline.samplers.filling import filling
from ridgeline.samplers.options import RandomOptions, read_options
from ridgeline.samplers.walk import SequenceSampler, keys, legality


class RandomSampler:
    """A seeded low-discrepancy sequence; in a finite space it goes on until every legal point was tried."""

    form = RandomOptions

    def __init__(self, space: Space, seed: int, options: Mapping[str, object], refusal: Refusal) -> None:
        read_options(RandomOptions, options)
        self._walk = SequenceSampler(filling(space, seed, legality(space, refusal)))
        self._observed_keys: set[str] = set()

    def ask(self, pending: Sequence[Point] = ()) -> Proposal | None:
        point = self._walk.first_free(self._observed_keys, keys(pending))
        return None if point is None else Proposal(point, "space-filling")

    def tell(self, observation: Observation) -> None:
        self._observed_keys.add(point_key(observation.point))
