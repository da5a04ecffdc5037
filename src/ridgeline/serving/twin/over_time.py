"""Measured beside predicted, before and after a calibration, and whether the server became slower meanwhile."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import median

from ridgeline.records.expression import show_duration
from ridgeline.records.json_form import JsonForm
from ridgeline.serving.twin.calibration import Calibration, Factors
from ridgeline.serving.twin.fit import RUN_NOISE, FitObservation
from ridgeline.stats.student import interval
from ridgeline.stats.wording import percent, percent_range

_LEVEL = 0.90
# Runs that the belief in a run's noise counts as, beside those seen: two runs alone would show no noise at all.
_BELIEVED = 4.0
# Loads that differ by less than this are one load; below one request under way all are light.
_OTHER_LOAD, _LIGHT = 1.5, 1.0


@dataclass(frozen=True, slots=True)
class Sitting:
    """What one file, or one run of a file that says when, measured."""

    name: str
    at_s: float | None
    points: tuple[FitObservation, ...]


@dataclass(frozen=True, slots=True)
class Ratios(JsonForm):
    """Predicted over measured times of one sitting, by the old calibration and by the new; None: not measured."""

    name: str
    at: str
    old: float | None
    new: float | None
    old_first_token: float | None
    new_first_token: float | None


@dataclass(frozen=True, slots=True)
class Trend(JsonForm):
    """How much slower sittings of one load became from the first to the last, on a straight line, as a fraction."""

    of: str
    sittings: int
    lasts_s: float
    slower: float
    low: float
    high: float

    @property
    def beyond_noise(self) -> bool:
        return self.low > 0 or self.high < 0

    def __str__(self) -> str:
        found = f"{percent(self.slower)} in {show_duration(self.lasts_s)} ({percent_range(self.low, self.high)}, 90%)"
        if not self.beyond_noise:
            return f"{self.of}: no change beyond noise, {found}"
        return f"{self.of}: {'slower' if self.slower > 0 else 'faster'} beyond noise, {found}"


@dataclass(frozen=True, slots=True)
class OverTime(JsonForm):
    """Sittings in their order, the calibration before, and trends where a load was met more than once."""

    before: Calibration | None
    ratios: tuple[Ratios, ...]
    trends: tuple[Trend, ...]

    @property
    def drifted(self) -> bool:
        return any(trend.beyond_noise for trend in self.trends)


def over_time(
    sittings: Sequence[Sitting], loads: Mapping[str, float], before: Calibration | None, new: Factors
) -> OverTime:
    """`before` None: the priors stand in its place. `loads`: requests under way in a sitting, by its name."""
    old = Factors() if before is None else before.factors
    in_order = sorted(sittings, key=lambda s: (s.at_s is None, s.at_s or 0.0))
    alike, ratios = _alike(loads), []
    seen: dict[str, list[tuple[int, float, float]]] = {"time per token": [], "first token": []}
    for sitting in in_order:
        parts = [[p for p in sitting.points if _of_first(p) == wanted] for wanted in (False, True)]
        four = [_slower(points, factors) for points in parts for factors in (old, new)]
        at = "" if sitting.at_s is None else f"{datetime.fromtimestamp(sitting.at_s, UTC):%Y-%m-%dT%H:%M:%SZ}"
        shown = (None if log is None else math.exp(-log) for log in four)
        ratios.append(Ratios(sitting.name.rpartition("/")[2], at, *shown))
        for found, log in zip(seen.values(), four[1::2], strict=True):
            if sitting.at_s is not None and log is not None and sitting.name in alike:
                found.append((alike[sitting.name], sitting.at_s, log))
    noises = (RUN_NOISE, median([p.noise for s in sittings for p in s.points if _of_first(p)] or [RUN_NOISE]))
    trends = (_trend(of, found, noise) for (of, found), noise in zip(seen.items(), noises, strict=True))
    return OverTime(before, tuple(ratios), tuple(trend for trend in trends if trend is not None))


def _alike(loads: Mapping[str, float]) -> dict[str, int]:
    """Sittings by load: what the twin misses at one load and not at another is no change of the server."""
    found: dict[str, int] = {}
    least = kind = 0.0
    for name, load in sorted(loads.items(), key=lambda item: item[1]):
        if load > _OTHER_LOAD * least:
            least, kind = max(load, _LIGHT), kind + 1
        found[name] = int(kind)
    return found


def _of_first(point: FitObservation) -> bool:
    return " ttft" in point.name


def _slower(points: Sequence[FitObservation], factors: Factors) -> float | None:
    """log of measured over predicted times, weighed as the fit weighs; of rates the other way round."""
    worth = [p.weight / p.noise**2 for p in points]
    if not worth:
        return None
    logs = [math.log(p.measured / p.predict(factors)) * (-1 if p.name.endswith("tok_s") else 1) for p in points]
    return math.fsum(log * w for log, w in zip(logs, worth, strict=True)) / math.fsum(worth)


def _trend(of: str, seen: Sequence[tuple[int, float, float]], noise: float) -> Trend | None:
    """One slope for all loads, by least squares; how runs scatter around it is pooled with the noise they usually have.

    `seen`: load, time, and the logarithm of how much slower than predicted.
    """
    apart: list[tuple[float, float]] = []
    times: list[float] = []
    kinds = 0
    for kind in {kind for kind, *_ in seen}:
        here = [(at_s, log) for each, at_s, log in seen if each == kind]
        middle, mean = (math.fsum(column) / len(here) for column in zip(*here, strict=True))
        if len({at_s for at_s, _ in here}) > 1:
            kinds += 1
            apart += [(at_s - middle, log - mean) for at_s, log in here]
            times += [at_s for at_s, _ in here]
    if not apart:
        return None
    across = math.fsum(x * x for x, _ in apart)
    slope = math.fsum(x * y for x, y in apart) / across
    left = math.fsum((y - slope * x) ** 2 for x, y in apart)
    freedom = _BELIEVED + len(apart) - kinds - 1
    error = math.sqrt((_BELIEVED * noise**2 + left) / freedom / across)
    lasts_s = max(times) - min(times)
    low, high = interval(slope, error, freedom, _LEVEL, lambda a_second: math.expm1(lasts_s * a_second))
    return Trend(of, len(apart), lasts_s, math.expm1(lasts_s * slope), low, high)
