"""What brought it: the part of each knob in the way from baseline to winner, estimated from the search's trials.

The model is additive in logs: every knob contributes by itself. That is often wrong in detail (a large batch pays only
with enough memory), so these are hints for the reader, never verdicts; the sum need not be the confirmed ratio.
Knobs that only ever moved together (16 GPUs: tp up, pp down) cannot be separated by any model, and share one part.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ridgeline.records.expression import Value
from ridgeline.records.space import Point
from ridgeline.stats.compare import Direction, mean_and_spread, oriented_logs
from ridgeline.stats.student import interval
from ridgeline.stats.wording import MetricText, percent, ratio_text

_MANY_VALUES = 6  # a numeric knob with more different values than this enters as a curve, not value by value


@dataclass(frozen=True, slots=True)
class KnobCoding:
    """How a knob enters the model: one indicator per value, or a line and a bow for a numeric knob of many values."""

    values: tuple[Value, ...]
    numeric: bool
    centre: float = 0.0
    width: float = 1.0
    log: bool = False

    @classmethod
    def of(cls, seen: Sequence[Value]) -> KnobCoding:
        different = tuple(dict.fromkeys(seen))
        numbers = [float(v) for v in different if isinstance(v, int | float) and not isinstance(v, bool)]
        if len(numbers) < len(different) or len(different) <= _MANY_VALUES:
            return cls(different, False)
        log = min(numbers) > 0 and max(numbers) / min(numbers) > 8
        scaled = [math.log(v) for v in numbers] if log else numbers
        low, high = min(scaled), max(scaled)
        return cls(different, True, (low + high) / 2, (high - low) / 2, log)

    def code(self, value: Value) -> Sequence[float]:
        if not self.numeric:
            return [float(value == v and type(value) is type(v)) for v in self.values]
        number = float(value)  # type: ignore[arg-type]  # `of` saw only numbers
        place = ((math.log(number) if self.log else number) - self.centre) / self.width
        return [place, place * place]

    def pattern(self, values: Sequence[Value]) -> tuple[float, ...]:
        """The same for two knobs exactly where they enter the model alike."""
        if not self.numeric:
            return tuple(float(self.values.index(value)) for value in values)
        places = [round(self.code(value)[0], 9) for value in values]
        turned = math.copysign(1.0, next((place for place in places if place), 1.0))
        return tuple(place * turned for place in places)


# A value that alone decides a coefficient leaves no residual to learn from; its error is taken as so many times larger.
_ALONE = 1e-3


@dataclass(frozen=True)
class _LeastSquares:
    """`freedom` is the number of residual degrees of freedom; `sigma` the residual standard deviation."""

    coefficients: Any
    inverse: Any  # (X'X + ridge)^-1
    sigma: float
    freedom: float
    jackknife: Any  # covariance of the coefficients as each value in turn is left out

    def interval(self, contrast: Sequence[float], level: float) -> tuple[float, float, float]:
        """Estimate, low, high. The wider of two errors counts: that of even noise, and that of leaving values out."""
        from ridgeline.stats.arrays import numpy

        c = numpy.asarray(contrast, dtype=float)
        estimate = float(c @ self.coefficients)
        variance = max(self.sigma**2 * float(c @ self.inverse @ c), float(c @ self.jackknife @ c))
        error = math.sqrt(max(0.0, variance))
        return estimate, *interval(estimate, error, max(1.0, self.freedom), level)


def _ridge(rows: Sequence[Sequence[float]], values: Sequence[float], penalised: Sequence[bool]) -> _LeastSquares:
    """The ridge is chosen by generalised cross-validation; columns not `penalised` (the mean) stay free.

    Its intervals hold where noise is uneven: a coefficient that hangs on one value is as unsure as that value.
    """
    from ridgeline.stats.arrays import numpy

    x, y = numpy.asarray(rows, dtype=float), numpy.asarray(values, dtype=float)
    penalties = numpy.diag(numpy.asarray(penalised, dtype=float))
    best: _LeastSquares | None = None
    least = math.inf
    for strength in (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0):
        # a ridge is least squares with a row more for each penalised column
        solver = numpy.linalg.pinv(numpy.vstack([x, math.sqrt(strength) * penalties]))
        of_values = solver[:, : len(y)]
        coefficients = of_values @ y
        residual = y - x @ coefficients
        leverage = (x * of_values.T).sum(axis=1)
        freedom = len(y) - float(leverage.sum())
        squares = float(residual @ residual)
        score = squares / freedom**2 if freedom > 0.5 else math.inf
        if score < least or best is None:
            least = score
            left_out = residual / numpy.maximum(1.0 - leverage, _ALONE)
            jackknife = (of_values * left_out**2) @ of_values.T
            sigma = math.sqrt(squares / max(freedom, 1.0))
            best = _LeastSquares(coefficients, solver @ solver.T, sigma, freedom, jackknife)
    assert best is not None
    return best


_FEWEST_TRIALS = 8
_SMALL = 0.1  # an interval inside this on both sides says that the knob hardly matters; a wider one says nothing


@dataclass(frozen=True, slots=True)
class Contribution:
    """The change of speed, as a fraction, by moving these knobs alone from the baseline's values to the winner's."""

    knobs: tuple[str, ...]  # several where the trials never moved one without the others
    change: float
    low: float
    high: float

    @property
    def name(self) -> str:
        *most, last = self.knobs[1:] or ("",)
        with_them = f"{', '.join(most)} and {last}" if most else last
        return f"{self.knobs[0]} with {with_them}" if with_them else self.knobs[0]

    @property
    def detectable(self) -> bool:
        return self.low > 0 or self.high < 0

    @property
    def small(self) -> bool:
        """Whatever the change is, it is not large; without this, an undetectable one may still be."""
        return self.low > -_SMALL and self.high < _SMALL


def contributions(
    baseline: Point,
    winner: Point,
    trials: Sequence[tuple[Point, float]],
    direction: Direction,
    level: float = 0.95,
) -> list[Contribution]:
    """For all knobs in which winner and baseline differ, largest first; empty with too few usable trials.

    `trials` are good runs with positive values, those of the baseline and of the winner included. A knob that does
    not exist at a point has the value None there.
    """
    usable = [(point, value) for point, value in trials if value > 0]
    points = [baseline, winner, *(point for point, _ in usable)]
    columns = {
        name: KnobCoding.of([p.get(name) for p in points]) for name in dict.fromkeys(n for p in points for n in p)
    }
    groups = _inseparable(columns, points)
    moved = [group for group in groups if baseline.get(group[0]) != winner.get(group[0])]
    if len(usable) < _FEWEST_TRIALS or not moved:
        return []
    rows = [[1.0, *(c for first, *_ in groups for c in columns[first].code(point.get(first)))] for point, _ in usable]
    fit = _ridge(rows, oriented_logs([value for _, value in usable], direction), [False, *[True] * (len(rows[0]) - 1)])
    share = 1 - (1 - level) / len(moved)
    found = []
    for group in moved:
        contrast = [0.0]
        for first, *_ in groups:
            after = columns[first].code((winner if first == group[0] else baseline).get(first))
            before = columns[first].code(baseline.get(first))
            contrast += [a - b for a, b in zip(after, before, strict=True)]
        change, low, high = (math.expm1(min(v, 50.0)) for v in fit.interval(contrast, share))
        found.append(Contribution(group, change, low, high))
    return sorted(found, key=lambda c: (not c.detectable, -abs(c.change)))


def _inseparable(columns: Mapping[str, KnobCoding], points: Sequence[Point]) -> list[tuple[str, ...]]:
    """All knobs, those together that each of these points moves in the same way."""
    groups: dict[tuple[float, ...], list[str]] = {}
    for name, column in columns.items():
        groups.setdefault(column.pattern([point.get(name) for point in points]), []).append(name)
    return [tuple(names) for names in groups.values()]


def text(found: Sequence[Contribution]) -> str:
    """One line: 'tp with pp +41% (+30% to +53%), batch +12% (+8% to +16%); no detectable difference: nccl; open: …'."""
    ends = {c: f"({percent(c.low, 0)} to {percent(c.high, 0)})" for c in found}
    shown = ", ".join(f"{c.name} {percent(c.change, 0)} {ends[c]}" for c in found if c.detectable)
    small = ", ".join(c.name for c in found if not c.detectable and c.small)
    unknown = ", ".join(f"{c.name} {ends[c]}" for c in found if not (c.detectable or c.small))
    parts = [
        shown,
        f"no detectable difference: {small}" if small else "",
        f"open, too few trials to tell: {unknown}" if unknown else "",
    ]
    return "; ".join(part for part in parts if part)


# How much the best of a search gains, before it is confirmed.

_FEWEST_FOR_SHRINKING = 6  # settings below which the spread between settings is not known well enough to shrink by


@dataclass(frozen=True, slots=True)
class SearchGain:
    """How far the best of a search lies over the baseline, as a fraction: an estimate to search by, not a verdict.

    The largest of many noisy values is too large. `change` is therefore pulled toward the mean of the tried settings
    by the share of their spread that is noise; `seen` is the change as measured.
    """

    seen: float
    change: float
    low: float | None
    high: float | None
    level: float
    tried: int

    def text(self, goal: MetricText) -> str:
        """What was seen, and what is left of it: 'looks 1.03x baseline in the search; with one run a setting, chance
        alone could explain it'."""
        seen = f"looks {goal.ratio_to(ratio_text(1 + self.seen), 'baseline')} in the search"
        if self.seen <= 0:
            return f"{seen}, no better than the baseline"
        if self.low is None or self.high is None:
            return f"{seen}; how far runs scatter is not known yet"
        if self.low == self.high:
            return seen
        if self.low <= 0:
            return f"{seen}; with one run a setting, chance alone could explain it"
        picked = f"allowing for having picked the best of {self.tried}, " if self.tried > 1 else ""
        return f"{seen}; {picked}{self.level * 100:g}%: {ratio_text(1 + self.low)} to {ratio_text(1 + self.high)}"


def search_gain(
    tried: Sequence[float],
    baseline: Sequence[float],
    direction: Direction = "maximize",
    level: float = 0.95,
) -> SearchGain | None:
    """The best of `tried` (one run per setting) against repeats of the baseline, sentinels included.

    None where there is nothing to compare or a value is not positive (no ratio).
    """
    if not tried or not baseline or any(v <= 0 for v in (*tried, *baseline)):
        return None
    logs = oriented_logs(tried, direction)
    base, noise = mean_and_spread(oriented_logs(baseline, direction))
    best = max(logs)
    if len(baseline) < 2:
        return SearchGain(math.expm1(best - base), math.expm1(best - base), None, None, level, len(tried))
    centre, spread = mean_and_spread(logs)
    if len(tried) < _FEWEST_FOR_SHRINKING:
        # unshrunk, the winner of k is one of k chances to be far off
        estimate, error, alpha = best - base, noise * math.sqrt(1 + 1 / len(baseline)), (1 - level) / len(tried)
    else:
        noise_share = min(1.0, noise**2 / spread**2) if spread > 0 else 1.0
        kept = 1 - noise_share
        estimate = centre + kept * (best - centre) - base
        # both variances are estimates; with few repeats of the baseline the share of noise itself is uncertain
        doubt = noise_share * math.sqrt(2 / (len(baseline) - 1) + 2 / (len(tried) - 1)) * (best - centre)
        error = math.sqrt(noise**2 * (kept + 1 / len(baseline) + 1 / len(tried)) + doubt**2)
        alpha = 1 - level
    low, high = interval(estimate, error, len(baseline) - 1, 1 - alpha, math.expm1)
    return SearchGain(math.expm1(best - base), math.expm1(estimate), low, high, level, len(tried))
