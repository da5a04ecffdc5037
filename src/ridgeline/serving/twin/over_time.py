"""Measured beside predicted, before and after a calibration, and whether the server became slower meanwhile."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from ridgeline.records.json_form import JsonForm
from ridgeline.serving.twin.calibration import Calibration, Factors
from ridgeline.serving.twin.fit import RUN_NOISE, FitObservation
from ridgeline.stats.student import t_quantile
from ridgeline.stats.wording import percent, percent_range

_LEVEL = 0.90
# Runs that the belief in a run's noise counts as, beside those seen: two runs alone would show no noise at all.
_BELIEVED = 4.0
_HOUR_S = 3600.0


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
    """How much slower the last sitting was than the first on a straight line through all, as a fraction."""

    of: str
    sittings: int
    hours: float
    slower: float
    low: float
    high: float

    @property
    def beyond_noise(self) -> bool:
        return self.low > 0 or self.high < 0

    def __str__(self) -> str:
        found = f"({percent_range(self.low, self.high)}, 9 times of 10)"
        if not self.beyond_noise:
            return f"{self.of}: no change beyond noise over {self.hours:.1f} h: {percent(self.slower)} in time {found}"
        word = "slower" if self.slower > 0 else "faster"
        return f"{self.of}: {word} over {self.hours:.1f} h: {percent(self.slower)} in time {found}, beyond noise"


@dataclass(frozen=True, slots=True)
class OverTime(JsonForm):
    """Sittings in their order, the factors of before, and the trends of those that say when they were."""

    before: Calibration | None
    ratios: tuple[Ratios, ...]
    trends: tuple[Trend, ...]
    untimed: tuple[str, ...] = ()

    @property
    def drifted(self) -> bool:
        return any(trend.beyond_noise for trend in self.trends)


def over_time(sittings: Sequence[Sitting], before: Calibration | None, new: Factors) -> OverTime:
    """`before` None: the priors stand in its place."""
    old = Factors() if before is None else before.factors
    in_order = sorted(sittings, key=lambda s: (s.at_s is None, s.at_s or 0.0))
    ratios, logs = [], []
    for sitting in in_order:
        tokens, first = ([p for p in sitting.points if _of_first(p) == wanted] for wanted in (False, True))
        logs.append([_slower(points, new) for points in (tokens, first)])
        four = [_slower(points, factors) for points in (tokens, first) for factors in (old, new)]
        at = "" if sitting.at_s is None else f"{datetime.fromtimestamp(sitting.at_s, UTC):%Y-%m-%dT%H:%M:%SZ}"
        ratios.append(Ratios(sitting.name, at, *(None if log is None else math.exp(-log) for log in four)))
    trends = []
    for k, (of, noise) in enumerate((("time per token", RUN_NOISE), ("first token", _noise_of_first(in_order)))):
        seen = [(s.at_s, log[k]) for s, log in zip(in_order, logs, strict=True)]
        trend = _trend(of, [(at, log) for at, log in seen if at is not None and log is not None], noise)
        trends += [trend] if trend is not None else []
    untimed = tuple(sitting.name for sitting in in_order if sitting.at_s is None)
    return OverTime(before, tuple(ratios), tuple(trends), untimed)


def _of_first(point: FitObservation) -> bool:
    return " ttft" in point.name


def _noise_of_first(sittings: Sequence[Sitting]) -> float:
    noises = [point.noise for sitting in sittings for point in sitting.points if _of_first(point)]
    return sorted(noises)[len(noises) // 2] if noises else RUN_NOISE


def _slower(points: Sequence[FitObservation], factors: Factors) -> float | None:
    """log of measured over predicted times, weighed as the fit weighs; of rates the other way round."""
    worth = [p.weight / p.noise**2 for p in points]
    if not worth:
        return None
    logs = [math.log(p.measured / p.predict(factors)) * (-1 if p.name.endswith("tok_s") else 1) for p in points]
    return math.fsum(log * w for log, w in zip(logs, worth, strict=True)) / math.fsum(worth)


def _trend(of: str, seen: Sequence[tuple[float, float]], noise: float) -> Trend | None:
    """A straight line by least squares; what runs scatter around it is pooled with the noise that runs usually have."""
    if len({at for at, _ in seen}) < 2:
        return None
    n, span = len(seen), max(at for at, _ in seen) - min(at for at, _ in seen)
    middle, mean = (math.fsum(column) / n for column in zip(*seen, strict=True))
    across = math.fsum((at - middle) ** 2 for at, _ in seen)
    slope = math.fsum((at - middle) * (log - mean) for at, log in seen) / across
    left = math.fsum((log - mean - slope * (at - middle)) ** 2 for at, log in seen)
    freedom = _BELIEVED + n - 2
    error = math.sqrt((_BELIEVED * noise**2 + left) / freedom / across)
    reach = t_quantile((1 + _LEVEL) / 2, freedom) * error
    slower, low, high = (math.expm1(span * each) for each in (slope, slope - reach, slope + reach))
    return Trend(of, n, span / _HOUR_S, slower, low, high)
