"""A number of equal engines, or of prefill and decode groups, and the slice of them that is simulated.

Copies of an engine behind a router do not talk to each other, so a slice stands for all: one engine, or the smallest
whole number of prefill and decode groups, with its share of the traffic.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ridgeline.serving.engines.base import engine_named
from ridgeline.serving.engines.deployment import Deployment
from ridgeline.serving.engines.layout import Layout, disaggregated
from ridgeline.serving.planner.candidates import PlanQuestion, Unit, units
from ridgeline.serving.traffic.requests import Summary
from ridgeline.serving.traffic.traffic import Traffic
from ridgeline.serving.twin.simulate import SimulationResult, run_to_end, simulate

# Which prefill and decode groups are worth simulating together.
#
# Every proportion of two kinds of groups that the GPUs allow is a candidate. What a candidate could carry at most, and
# what it loses with one GPU, follow from step times alone, so that thousands are compared before one is simulated.

# Queues stay short while groups are busy this share of the time.
BUSY = 0.65
# Shares of the capacity that a dead GPU takes, from all of it down: the best of each class is tried.
_LOSS_CLASSES = (0.99, 0.45, 0.3, 0.0)
# Groups of one side up to which every number is looked at; beyond it, proportions of numbers up to the second.
MOST_COUNTS, _LARGEST_PART = 13, 6


@dataclass(frozen=True)
class Pair:
    """A number of equal prefill groups and of equal decode groups."""

    prefill: Unit
    decode: Unit
    prefill_groups: int
    decode_groups: int

    @property
    def sides(self) -> tuple[tuple[Unit, int], tuple[Unit, int]]:
        return (self.prefill, self.prefill_groups), (self.decode, self.decode_groups)

    @property
    def gpus(self) -> int:
        return sum(groups * unit.gpus for unit, groups in self.sides)

    @property
    def rate_s(self) -> float:
        return min(groups * unit.rate_s for unit, groups in self.sides)

    def loss(self, *, node: bool = False) -> float:
        """Share of the capacity that is gone when one GPU, or one node, fails, on the side where that costs more."""
        rates = [unit.rate_s * groups for unit, groups in self.sides]
        left = []
        for side, (unit, groups) in enumerate(self.sides):
            gone = node_share(unit, groups) if node else 1 / groups
            left.append(min(rates[side] * (1 - gone), rates[1 - side]))
        return max(0.0, 1 - min(left) / min(rates))

    def layout(self) -> Layout:
        return disaggregated(*(copied(unit, groups) for unit, groups in self.sides))


def copied(unit: Unit, copies: int) -> Layout:
    """The layout of so many equal engines."""
    return replace(unit.layout, dp=copies, nodes=max(1, -(-copies * unit.gpus // unit.layout.gpus_per_node)))


def node_share(unit: Unit, copies: int) -> float:
    """Of `copies` engines, the share that stops with one node."""
    per_node = max(1, unit.layout.gpus_per_node // unit.gpus)
    return min(1.0, per_node / copies)


def pairs(question: PlanQuestion, gpus: int, rate_s: float | None = None) -> list[Pair]:
    """Prefill and decode groups within `gpus` GPUs, in all proportions that use them or waste nothing.

    Fastest first; with a rate, those that should carry it come first, the fewest GPUs in front.
    """
    if engine_named(question.settings.engine).planned_whole:
        return []
    prefill, decode = (_best_of_each_size(units(question, gpus, role)) for role in ("prefill", "decode"))
    found = [pair for p in prefill for d in decode for pair in _proportions(p, d, gpus, rate_s)]
    enough = (rate_s or math.inf) / BUSY
    return sorted(found, key=lambda p: (0, p.gpus, -p.rate_s) if p.rate_s >= enough else (1, -p.rate_s, p.gpus))


def varied_pairs(found: Sequence[Pair], each: int) -> list[Pair]:
    """The first `each` of every class of loss, with different prefill groups: a larger unit is a larger risk."""
    chosen: list[Pair] = []
    for high, low in zip((math.inf, *_LOSS_CLASSES), _LOSS_CLASSES, strict=False):
        seen: set[Layout] = set()
        for pair in found:
            if len(seen) < each and pair.prefill.layout not in seen and low <= pair.loss() < high:
                seen.add(pair.prefill.layout)
                chosen.append(pair)
    return sorted(chosen, key=found.index)


def _best_of_each_size(units: Iterable[Unit]) -> list[Unit]:
    best: dict[int, Unit] = {}
    for unit in units:
        if unit.gpus not in best or unit.rate_s > best[unit.gpus].rate_s:
            best[unit.gpus] = unit
    return list(best.values())


def _proportions(prefill: Unit, decode: Unit, gpus: int, rate_s: float | None) -> Iterator[Pair]:
    """Numbers of groups that fill the GPUs, that keep pace with each other, or that a rate needs and one to spare."""
    most = (gpus - decode.gpus) // prefill.gpus
    if max(most, (gpus - prefill.gpus) // decode.gpus) > MOST_COUNTS:
        yield from _small_ratios(prefill, decode, gpus, rate_s)
        return
    needed = None if rate_s is None else max(1, math.ceil(rate_s / (BUSY * decode.rate_s)))
    for p in range(1, most + 1):
        room = (gpus - p * prefill.gpus) // decode.gpus
        pace = math.ceil(p * prefill.rate_s / decode.rate_s)
        wanted = {room, pace} if needed is None else {room, needed, needed + 1}
        for d in sorted(w for w in wanted if 0 < w <= room):
            yield Pair(prefill, decode, p, d)


def _small_ratios(prefill: Unit, decode: Unit, gpus: int, rate_s: float | None) -> Iterator[Pair]:
    """Many small groups: proportions of small numbers, of which one slice is quickly simulated."""
    for p in range(1, _LARGEST_PART + 1):
        for d in range(1, _LARGEST_PART + 1):
            slice_ = Pair(prefill, decode, p, d)
            most = gpus // slice_.gpus
            if math.gcd(p, d) > 1 or not most:
                continue
            needed = most if rate_s is None else math.ceil(rate_s / (BUSY * slice_.rate_s))
            copies = max(1, min(most, needed))
            yield Pair(prefill, decode, copies * p, copies * d)


@dataclass(frozen=True)
class Scheme:
    """An engine, `copies` times, or a pair of groups, which says itself how many of each there are."""

    question: PlanQuestion
    shape: Unit | Pair
    copies: int = 1

    @property
    def groups(self) -> tuple[tuple[Unit, int], ...]:
        """Each unit, and how many of it there are."""
        return self.shape.sides if isinstance(self.shape, Pair) else ((self.shape, self.copies),)

    @property
    def units(self) -> tuple[Unit, ...]:
        return tuple(unit for unit, _ in self.groups)

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
        return self.groups[0][1] // self.parts[0]

    @property
    def bound_s(self) -> float:
        """Requests per second that it could do at most, from step times alone."""
        return self.copies * self.shape.rate_s

    def loss(self, *, node: bool = False) -> float:
        """Share of the capacity that is gone until repair when one GPU, or one node, fails."""
        if isinstance(self.shape, Pair):
            return self.shape.loss(node=node)
        return node_share(self.shape, self.copies) if node else 1 / self.copies

    @property
    def gpus(self) -> int:
        return self.copies * self.shape.gpus

    @property
    def layout(self) -> Layout:
        return self.shape.layout() if isinstance(self.shape, Pair) else copied(self.shape, self.copies)

    def deployment(self) -> Deployment:
        """One slice, each role with the settings of its unit, from which its command is printed too."""
        q, shape = self.question, self.shape
        if not isinstance(shape, Pair):
            return Deployment(q.model, q.cluster, shape.layout, shape.settings)
        return Deployment(
            q.model,
            q.cluster,
            self.with_slices(1).layout,
            shape.decode.settings,
            prefill_settings=shape.prefill.settings,
            decode_settings=shape.decode.settings,
        )

    def users_each(self, users: int) -> int:
        """Of a closed loop, those of the slice that has most."""
        return -(-users // self.slices)

    def run(self, traffic: Traffic) -> SimulationResult:
        """One slice under its own traffic."""
        return simulate(self.deployment(), traffic, self.question.calibration, self.question.slos)

    def summary(self, traffic: Traffic, most_late: float = math.inf) -> Summary:
        """That of `run`, or TooLate as soon as TTFT limits are lost."""
        q = self.question
        return run_to_end(self.deployment(), traffic, q.calibration, q.slos, most_late=most_late).summary

    def with_slices(self, slices: int) -> Scheme:
        if not isinstance(self.shape, Pair):
            return replace(self, copies=slices)
        prefill, decode = self.parts
        shape = replace(self.shape, prefill_groups=prefill * slices, decode_groups=decode * slices)
        return replace(self, shape=shape)
