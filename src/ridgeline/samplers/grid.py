"""Every legal point once: for small spaces, where a full answer is affordable."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ridgeline.errors import InputError
from ridgeline.records.observation import Observation, Proposal
from ridgeline.records.space import Point, Space, point_key
from ridgeline.samplers.base import Refusal
from ridgeline.samplers.listing import Listing, shuffled
from ridgeline.samplers.options import GridOptions, read_options
from ridgeline.samplers.walk import SequenceSampler, keys, legality


class GridSampler:
    """Goes through the points in the `order` of its options."""

    form = GridOptions

    def __init__(self, space: Space, seed: int, options: Mapping[str, object], refusal: Refusal) -> None:
        asked = read_options(GridOptions, options)
        endless = [knob.name for knob in space.knobs if knob.count is None]
        if endless:
            raise InputError(
                f"grid cannot list the values of {', '.join(endless)}; give a step or a list of values, "
                "or use the sampler random or tpe"
            )
        listing = Listing(space)
        numbers: Iterable[int] = range(listing.size) if asked.order == "listed" else shuffled(listing.size, seed)
        legal = legality(space, refusal)
        points = (listing.at(number) for number in numbers)
        self._walk = SequenceSampler(point for point in points if point is not None and legal(point))
        self._observed_keys: set[str] = set()

    def ask(self, pending: Sequence[Point] = ()) -> Proposal | None:
        point = self._walk.first_free(self._observed_keys, keys(pending))
        return None if point is None else Proposal(point, "next of the grid")

    def tell(self, observation: Observation) -> None:
        self._observed_keys.add(point_key(observation.point))
