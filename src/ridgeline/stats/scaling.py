"""Speed-up and parallel efficiency over 1..n ranks or nodes, and where more of them stop paying."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ridgeline.records.json_form import also_in_json
from ridgeline.stats.compare import Direction, mean_and_spread, oriented_logs, pooled_spread
from ridgeline.stats.student import interval
from ridgeline.stats.wording import count

_RESAMPLES = 400
WORTH = 0.5  # of a step: doubling that gives less than half of what it costs does not pay


@dataclass(frozen=True, slots=True)
class ScalingStep:
    """`size` ranks or nodes. `speedup` is against the smallest size; `efficiency` is speed-up over the growth in size.

    `marginal` is the efficiency of the step from the size before: 1 for a doubling that doubles, 0 for one that gives
    nothing, negative for one that costs. Intervals are None without repeats; the first step has no marginal.
    """

    size: int
    runs: int
    speedup: float
    speedup_low: float | None
    speedup_high: float | None
    efficiency: float
    efficiency_low: float | None
    efficiency_high: float | None
    marginal: float | None = None
    marginal_low: float | None = None
    marginal_high: float | None = None


@dataclass(frozen=True, slots=True)
class ScalingLaw:
    """Gunther's law: speed = size / (1 + serial (size - 1) + crosstalk size (size - 1)); Amdahl's with no crosstalk.

    `peak` is the size of largest speed, None without crosstalk. Intervals by fitting again with the noise seen added
    again; None without repeats.
    """

    serial: float
    serial_low: float | None
    serial_high: float | None
    crosstalk: float
    crosstalk_low: float | None
    crosstalk_high: float | None
    peak: float | None

    @property
    @also_in_json()
    def name(self) -> str:
        """Amdahl's unless crosstalk is shown."""
        shown = self.crosstalk > 0 if self.crosstalk_low is None else self.crosstalk_low > 0
        return "Gunther (USL)" if shown else "Amdahl"

    def speedup(self, size: float) -> float:
        """Against one rank or node."""
        return size / (1 + self.serial * (size - 1) + self.crosstalk * size * (size - 1))


@dataclass(frozen=True, slots=True)
class Scaling:
    """`pays_to` is the last size before a step whose marginal efficiency is surely below `worth`; None: none is."""

    steps: tuple[ScalingStep, ...]
    law: ScalingLaw | None
    pays_to: int | None
    sure: bool
    worth: float
    level: float
    headline: str

    def __str__(self) -> str:
        return self.headline


def scaling(
    runs: Mapping[int, Sequence[float]],
    direction: Direction,
    rng: random.Random,
    worth: float = WORTH,
    level: float = 0.95,
    unit: str = "rank",
) -> Scaling:
    """Judge runs of one setting by size. Values are positive times (minimize) or rates (maximize).

    The noise of a run, relative to its value, is taken to be the same at every size, so that two or three repeats a
    size suffice together. A step stops paying when its marginal efficiency is below `worth`: 0.5 means that doubling
    gives less than half of what it costs.
    """
    for size, values in runs.items():
        if size < 1 or any(v <= 0 for v in values):
            raise ValueError(f"at size {size}: sizes start at 1 and values are above 0, not {min(values)}")
    logs = {size: oriented_logs(values, direction) for size, values in sorted(runs.items()) if values}
    if len(logs) < 2:
        raise ValueError(f"scaling needs runs at two sizes or more, not {len(logs)}")
    noise, freedom = pooled_spread(logs.values())
    sizes = sorted(logs)
    steps = tuple(_step(sizes, i, logs, noise, freedom, level) for i in range(len(sizes)))
    law = _law(logs, noise, freedom, rng, level) if len(sizes) >= 3 else None
    pays_to, sure = _stops(steps, worth)
    headline = _headline(steps, pays_to, sure, level, unit, worth)
    return Scaling(steps, law, pays_to, sure, worth, level, headline)


def _step(
    sizes: Sequence[int], i: int, logs: Mapping[int, Sequence[float]], noise: float, freedom: int, level: float
) -> ScalingStep:
    size, first = sizes[i], sizes[0]
    growth = size / first
    log, low, high = _difference(logs[first], logs[size], noise, freedom, level)
    if i == 0:
        return ScalingStep(size, len(logs[size]), 1.0, 1.0, 1.0, 1.0, 1.0, 1.0)
    ends = [None if e is None else math.exp(e) for e in (low, high)]
    shares = [None if e is None else e / growth for e in ends]
    before = sizes[i - 1]
    gain = _difference(logs[before], logs[size], noise, freedom, level)
    marginal = [None if e is None else math.expm1(e) / (size / before - 1) for e in gain]
    speedup = math.exp(log)
    return ScalingStep(
        size, len(logs[size]), speedup, ends[0], ends[1], speedup / growth, shares[0], shares[1], *marginal
    )


def _difference(
    before: Sequence[float], after: Sequence[float], noise: float, freedom: int, level: float
) -> tuple[float, float | None, float | None]:
    gap = mean_and_spread(after)[0] - mean_and_spread(before)[0]
    if not freedom:
        return gap, None, None
    return gap, *interval(gap, noise * math.sqrt(1 / len(before) + 1 / len(after)), freedom, level)


def _stops(steps: Sequence[ScalingStep], worth: float) -> tuple[int | None, bool]:
    for before, step in pairwise(steps):
        if step.marginal is not None and step.marginal < worth:
            return before.size, step.marginal_high is not None and step.marginal_high < worth
    return None, False


def _headline(
    steps: Sequence[ScalingStep], pays_to: int | None, sure: bool, level: float, unit: str, worth: float
) -> str:
    repeat = " (single runs: repeat to be sure)"
    if pays_to is None:
        last, ends = steps[-1], [step.marginal_low for step in steps[1:]]
        sized = f"at {count(last.size, unit)}: speed-up {last.speedup:.2f}, efficiency {last.efficiency:.0%}"
        if all(low is not None and low >= worth for low in ends):
            return f"still pays {sized}"
        return f"seems to pay still {sized}{repeat if None in ends else '; more repeats would tell'}"
    step = next(s for s in steps if s.size > pays_to)
    assert step.marginal is not None
    grown = step.size / pays_to
    gain = step.marginal * (grown - 1)
    text = f"from {pays_to} to {count(step.size, unit)} the speed changes by {gain:+.0%} for {grown:g}x the cost"
    after = f"{'stops' if sure else 'may stop'} paying after {count(pays_to, unit)}: {text}"
    if step.marginal_low is None or step.marginal_high is None:
        return after + repeat
    low, high = (f"{end * (grown - 1):+.0%}" for end in (step.marginal_low, step.marginal_high))
    return f"{after} ({level * 100:g}%: {low} to {high}){'' if sure else '; more repeats would tell'}"


def _law(
    logs: Mapping[int, Sequence[float]], noise: float, freedom: int, rng: random.Random, level: float
) -> ScalingLaw:
    means = {size: mean_and_spread(values)[0] for size, values in logs.items()}
    weights = {size: float(len(values)) for size, values in logs.items()}
    serial, crosstalk = _fit(means, weights)
    peak = math.sqrt(max(0.0, 1 - serial) / crosstalk) if crosstalk > 0 else None
    if not freedom:
        return ScalingLaw(serial, None, None, crosstalk, None, None, peak)
    drawn = [
        _fit({size: mean + rng.gauss(0, noise / math.sqrt(weights[size])) for size, mean in means.items()}, weights)
        for _ in range(_RESAMPLES)
    ]
    first = int((1 - level) / 2 * _RESAMPLES)
    serials, crosstalks = (sorted(pair[i] for pair in drawn) for i in (0, 1))
    return ScalingLaw(
        serial, serials[first], serials[-1 - first], crosstalk, crosstalks[first], crosstalks[-1 - first], peak
    )


def _fit(means: Mapping[int, float], weights: Mapping[int, float]) -> tuple[float, float]:
    """size / speed = a + b (size - 1) + c size (size - 1) is linear; least relative squares with b, c >= 0."""
    from ridgeline.stats.arrays import numpy

    sizes = numpy.array(list(means), dtype=float)
    values = numpy.sqrt([weights[size] for size in means])
    relative = values / (sizes * numpy.exp([-log for log in means.values()]))
    rows = numpy.column_stack([relative, (sizes - 1) * relative, sizes * (sizes - 1) * relative])
    best, least = numpy.zeros(3), math.inf
    for used in ([0, 1, 2], [0, 1], [0, 2], [0]):
        solved, _, rank, _ = numpy.linalg.lstsq(rows[:, used], values, rcond=None)
        error = float(((rows[:, used] @ solved - values) ** 2).sum())
        if rank == len(used) and solved[0] > 0 and solved.min() >= 0 and error < least:
            best, least = numpy.zeros(3), error
            best[used] = solved
    a, b, c = map(float, best)
    assert a > 0  # a alone always fits
    return b / a, c / a
