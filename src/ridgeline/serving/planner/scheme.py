"""A number of equal engines, or of prefill and decode groups, and the slice of them that is simulated.

Copies of an engine behind a router do not talk to each other, so a slice stands for all: one engine, or the smallest
whole number of prefill and decode groups, with its share of the traffic.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

from ridgeline.serving.engines.deployment import Deployment
from ridgeline.serving.engines.layout import Layout
from ridgeline.serving.planner.candidates import PlanQuestion, Unit
from ridgeline.serving.planner.pairing import Pair
from ridgeline.serving.traffic.traffic import Traffic
from ridgeline.serving.twin.simulate import SimulationResult, simulate


@dataclass(frozen=True)
class Scheme:
    """An engine or a pair of groups, `copies` times."""

    question: PlanQuestion
    shape: Unit | Pair
    copies: int

    @property
    def units(self) -> tuple[Unit, ...]:
        return (self.shape.prefill, self.shape.decode) if isinstance(self.shape, Pair) else (self.shape,)

    @property
    def main(self) -> Unit:
        """The unit that holds running requests."""
        return self.units[-1]

    @cached_property
    def parts(self) -> tuple[int, int]:
        """Prefill and decode groups of one slice; (1, 0) where one engine does both."""
        if not isinstance(self.shape, Pair):
            return 1, 0
        common = math.gcd(self.shape.prefill_groups, self.shape.decode_groups)
        return self.shape.prefill_groups // common, self.shape.decode_groups // common

    @property
    def slices(self) -> int:
        if isinstance(self.shape, Pair):
            return self.copies * self.shape.prefill_groups // self.parts[0]
        return self.copies

    @property
    def whole_pair(self) -> Pair:
        """All groups of all copies, which stand in for each other."""
        assert isinstance(self.shape, Pair)
        p, d = self.copies * self.shape.prefill_groups, self.copies * self.shape.decode_groups
        return replace(self.shape, prefill_groups=p, decode_groups=d)

    @property
    def bound_s(self) -> float:
        """Requests per second that it could do at most, from step times alone."""
        return self.copies * self.shape.rate_s

    @property
    def loss_gpu(self) -> float:
        """Share of the capacity that is gone with one GPU."""
        return self.whole_pair.loss() if isinstance(self.shape, Pair) else 1 / self.copies

    @property
    def gpus(self) -> int:
        return self.copies * self.shape.gpus

    @property
    def layout(self) -> Layout:
        if isinstance(self.shape, Pair):
            p, d = self.shape.prefill_groups, self.shape.decode_groups
            return self.shape.layout(self.copies * p, self.copies * d)
        size = self.shape.layout.gpus_per_node
        return replace(self.shape.layout, dp=self.copies, nodes=max(1, -(-self.gpus // size)))

    def deployment(self) -> Deployment:
        """One slice, each role with the settings of its unit, from which its command is printed too."""
        q, shape = self.question, self.shape
        if not isinstance(shape, Pair):
            return Deployment(q.model, q.cluster, shape.layout, shape.settings)
        return Deployment(
            q.model,
            q.cluster,
            shape.layout(*self.parts),
            shape.decode.settings,
            prefill_settings=shape.prefill.settings,
            decode_settings=shape.decode.settings,
        )

    def run(self, traffic: Traffic) -> SimulationResult:
        """One slice under its own traffic."""
        return simulate(self.deployment(), traffic, self.question.calibration, self.question.slos)

    def with_slices(self, slices: int) -> Scheme:
        """The same slice so many times."""
        if not isinstance(self.shape, Pair):
            return replace(self, copies=slices)
        prefill, decode = self.parts
        shape = replace(self.shape, prefill_groups=prefill * slices, decode_groups=decode * slices)
        return replace(self, shape=shape, copies=1)
