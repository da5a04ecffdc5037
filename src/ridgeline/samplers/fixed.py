"""Samplers that learn nothing: every legal point in turn (`grid`), or points that spread evenly (`random`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

from pydantic import Field

from ridgeline.errors import InputError
from ridgeline.records.expression import Value
from ridgeline.records.observation import Observation, Proposal
from ridgeline.records.space import Point, Space, point_key
from ridgeline.samplers.base import Refusal, Sampler, read_options
from ridgeline.samplers.sequence import Listing, SequenceSampler, filling, keys, legality, shuffled
from ridgeline.study.forms import Form


class _FixedSampler(Sampler):
    """Goes through a sequence, whatever was measured."""

    why: str

    def __init__(self, sequence: Iterator[dict[str, Value]]) -> None:
        self._walk = SequenceSampler(sequence)
        self._observed_keys: set[str] = set()

    def ask(self, pending: Sequence[Point] = ()) -> Proposal | None:
        point = self._walk.first_free(self._observed_keys, keys(pending))
        return None if point is None else Proposal(point, self.why)

    def tell(self, observation: Observation) -> None:
        self._observed_keys.add(point_key(observation.point))


class GridOptions(Form):
    """`sampler: grid` tries every legal point once; every knob needs listed values."""

    whose = "the sampler grid"
    order: Literal["listed", "shuffled"] = Field(
        default="listed",
        description="`listed`: as the study lists them, the last knob fastest. `shuffled`: in an order that the seed "
        "decides, so that a campaign cut short has seen a fair share.",
    )


class GridSampler(_FixedSampler):
    """Every legal point once, in the `order` of its options: for small spaces, where a full answer is affordable."""

    form = GridOptions
    why = "next of the grid"

    def __init__(self, space: Space, seed: int, options: Mapping[str, object], refusal: Refusal) -> None:
        asked = read_options(GridOptions, options)
        endless = [knob.name for knob in space.knobs if knob.count is None]
        if endless:
            raise InputError(
                f"grid cannot list the values of {', '.join(endless)}; give a step or a list of values, "
                "or use the sampler guided or random"
            )
        listing = Listing(space)
        numbers: Iterable[int] = range(listing.size) if asked.order == "listed" else shuffled(listing.size, seed)
        legal = legality(space, refusal)
        points = (listing.at(number) for number in numbers)
        super().__init__(point for point in points if point is not None and legal(point))


class RandomOptions(Form):
    """`sampler: random` spreads points evenly over the space, whatever was measured. It has no options."""

    whose = "the sampler random"


class RandomSampler(_FixedSampler):
    """A seeded low-discrepancy sequence; in a finite space it goes on until every legal point was tried."""

    form = RandomOptions
    why = "space-filling"

    def __init__(self, space: Space, seed: int, options: Mapping[str, object], refusal: Refusal) -> None:
        read_options(RandomOptions, options)
        super().__init__(filling(space, seed, legality(space, refusal)))
