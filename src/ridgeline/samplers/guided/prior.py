"""What is expected of every candidate, from asking at a few: a twin takes a tenth of a second a point.

A survey that depends on the seed alone asks at points spread over the space and then where the answers are best. A
Gaussian process carries the answers to all other points; observed points, and the few that are about to be chosen, are
asked themselves. What was asked is kept, so that later trials ask for little that is new.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import Enum

import numpy as np

from ridgeline.records.observation import Expectation, Prospect
from ridgeline.records.space import Point, Space, point_key
from ridgeline.samplers.base import Prior
from ridgeline.samplers.guided.candidates import Pool, around
from ridgeline.samplers.guided.features import Features
from ridgeline.samplers.guided.gaussian import (
    Array,
    Columns,
    Fit,
    GaussianProcess,
    covariance_of_runs,
    fitted,
    log_expected_improvement,
)
from ridgeline.samplers.guided.model import EITHER_WAY, FITTED, STRAIGHT, ObservedData, PriorValues, Scale, evenly
from ridgeline.stats.stated_range import NORMAL_90

_SPREAD_OUT = 20  # points of the survey that fill the space
ROUNDS, EACH = 6, 4  # then so many rounds of points where the answers promise most
_CHECKED = 40  # points asked for legality, for each that is to be found
_SAME_FAMILY = 0.8  # correlation of two settings' answers, by the prior's own length scales
_LOOKED_AT = 2_000  # points of the pool looked at for legal ones
FARTHEST_ODDS = 4.0
_SENSITIVITY_POINTS = 10  # points of the survey that are asked what their answers rest on
LAST, OTHERS = 30, 20  # points asked beside the survey whose answers are carried to others
_BESIDES = 0.07  # how far off, as a share, an expectation may be for reasons that it does not name
_UNSTATED = 0.15  # how far off, as a share, an expectation without an interval may be


class Expected:
    """`scale` is that of the study's scores; what a prior says beyond it is not used."""

    def __init__(
        self,
        prior: Prior,
        scale: Scale,
        space: Space,
        features: Features,
        pool: Pool,
        legal: Callable[[Point], bool],
    ) -> None:
        self._prior, self._scale, self._space, self._features, self._legal = prior, scale, space, features, legal
        self._asked: dict[str, tuple[float, float]] = {}  # value (NaN: unknown) and odds
        self._survey: dict[str, Point] = {}
        self._rows: dict[str, Array] = {}  # features of points that answers were carried from
        self._spreads: list[float] = []  # as the prior states them
        self._fit: Fit | None = None
        self._fitted_at, self._unit = 0, 1.0
        self._spread_out(pool)
        for turn in range(ROUNDS):
            self._seek(pool, random.Random(f"survey {turn}"))
        stated = statistics.median(self._spreads) if self._spreads else None
        self.spread = stated if stated is not None else _UNSTATED * (1.0 if scale.sign else self._unit)
        known = [value for value, _ in self._asked.values() if not math.isnan(value)]
        self.reach = max(statistics.pstdev(known), 1e-9) if known else 1.0
        self._sensitivity_at = self._ask_sensitivities()
        if self._sensitivity_at:
            named = statistics.median(math.hypot(*each) for each in self._sensitivity_at.values())
            self.spread = math.sqrt(max(self.spread**2 - named**2, _BESIDES**2))

    @property
    def says_something(self) -> bool:
        return sum(not math.isnan(self._asked[key][0]) for key in self._survey) >= 3

    def ask(self, key: str, point: Point) -> tuple[float, float]:
        if key not in self._asked:
            self._asked[key] = self._answer(self._prior(point))
        return self._asked[key]

    def _answer(self, said: Expectation | None) -> tuple[float, float]:
        if said is None:
            return math.nan, 0.0
        value = None if said.mean is None else self._scale.seen(said.mean)
        ends = [None if end is None else self._scale.seen(end) for end in (said.low, said.high)]
        if ends[0] is not None and ends[1] is not None:
            self._spreads.append(abs(ends[1] - ends[0]) / (2 * NORMAL_90))
        chance = min(max(said.chance, 1e-3), 1.0 - 1e-3)
        odds = min(max(math.log(chance / (1.0 - chance)), -FARTHEST_ODDS), FARTHEST_ODDS)
        return math.nan if value is None else value, odds

    def at(self, keys: Sequence[str], rows: Array, asked: Mapping[str, Point]) -> PriorValues:
        """`asked` are points that are asked themselves: only these and the survey count, whatever else was asked."""
        answers = {key: self._asked[key] for key in self._survey}
        answers |= {key: self.ask(key, point) for key, point in asked.items()}
        values, odds = self._carried(self._survey | _some(asked), rows)
        for row in [row for row, key in enumerate(keys) if key in answers]:
            value, odds[row] = answers[keys[row]]
            values[row] = values[row] if math.isnan(value) else value
        odds = np.clip(odds, -FARTHEST_ODDS, FARTHEST_ODDS)
        return PriorValues(np.concatenate([values[:, None], self._sensitivities(rows)], axis=1), odds)

    def same_family(self, rows: Array, others: Array, fit: Fit | None = None) -> Array:
        """Which rows the prior takes for much the same as one of the others, by the length scales of its answers."""
        fit = fit or self._scales()
        likeness = GaussianProcess(others, self._features.columns, fit).across(rows).max(axis=1)
        found: Array = likeness > _SAME_FAMILY * fit.signal
        return found

    def _ask_sensitivities(self) -> dict[str, tuple[float, ...]]:
        """By key of points of the survey: the moves of the score. None on a scale without logs."""
        if not self._scale.sign:
            return {}
        found: dict[str, tuple[float, ...]] = {}
        for key in [key for key in self._survey if not math.isnan(self._asked[key][0])][:_SENSITIVITY_POINTS]:
            said = self._prior.sensitivities(self._survey[key])
            if said and all(map(math.isfinite, said)) and len(said) == len(next(iter(found.values()), said)):
                found[key] = tuple(self._scale.sign * move for move in said)
        return found

    def _sensitivities(self, rows: Array) -> Array:
        if not self._sensitivity_at:
            return np.zeros((len(rows), 0))
        places = self._rows_of({key: self._survey[key] for key in self._sensitivity_at})
        moves = np.array(list(self._sensitivity_at.values()))
        level = moves.mean(axis=0)
        found: Array = level + self._process(places).carried(rows, moves - level)
        return found

    def _carried(self, anchors: Mapping[str, Point], rows: Array) -> tuple[Array, Array]:
        """Values and odds at these rows, from the answers at the anchors; length scales are those of the survey."""
        answers = np.array([self._asked[key] for key in anchors])
        places = self._rows_of(anchors)
        known = ~np.isnan(answers[:, 0])
        level = float(answers[known, 0].mean())
        known_values, middle = answers[known, 0] - level, float(answers[:, 1].mean())
        every = self._process(places)
        if known.all():
            both = every.carried(rows, np.stack([known_values, answers[:, 1] - middle], axis=1))
            return level + both[:, 0], middle + both[:, 1]
        odds = every.carried(rows, answers[:, 1] - middle)
        return level + self._process(places[known]).carried(rows, known_values), middle + odds

    def _process(self, places: Array) -> GaussianProcess:
        return GaussianProcess(places, self._features.columns, self._scales())

    def _rows_of(self, points: Mapping[str, Point]) -> Array:
        fresh = {key: point for key, point in points.items() if key not in self._rows}
        self._rows |= dict(zip(fresh, self._features.of(list(fresh.values())), strict=True))
        return np.stack([self._rows[key] for key in points])

    def _scales(self) -> Fit:
        if self._fit is None or self._fitted_at != len(self._survey):
            answers = np.array([self._asked[key][0] for key in self._survey])
            known = np.flatnonzero(~np.isnan(answers))[:FITTED]
            places = self._features.of(list(self._survey.values()))[known].astype(float)
            unit = max(float(answers[known].std()), 1e-9)
            self._fit = fitted(places, (answers[known] - answers[known].mean()) / unit, self._features.columns)
            self._unit, self._fitted_at = unit, len(self._survey)
        return self._fit

    def _spread_out(self, pool: Pool) -> None:
        for point in pool.grown(0)[0][:_LOOKED_AT]:
            if len(self._survey) >= _SPREAD_OUT:
                return
            self._take(point)

    def _take(self, point: Point) -> bool:
        if not self._legal(point):
            return False
        self.ask(key := point_key(point), point)
        self._survey[key] = point
        return True

    def _seek(self, pool: Pool, rng: random.Random) -> None:
        """The points that promise the best answers, among the pool's and around the best so far."""
        if not self.says_something:
            return
        worth = {key: self._asked[key] for key in self._survey}
        ranked = sorted(worth, key=lambda key: math.inf if math.isnan(worth[key][0]) else -worth[key][0])
        ranked = [key for key in ranked if not math.isnan(worth[key][0]) and worth[key][1] >= 0.0] or ranked
        points, keys_, _ = pool.grown(0)
        near = around(self._space, [self._survey[key] for key in ranked[:2]], rng, set(self._survey))
        free = {key: point for key, point in zip(keys_, points, strict=True) if key not in self._survey} | near
        rows = self._features.of(list(free.values()))
        mean, odds = self._carried(self._survey, rows)
        places = self._features.of([self._survey[key] for key in worth if not math.isnan(worth[key][0])])
        process = self._process(places)
        spread = self._unit * process.spread(process.across(rows))
        best = worth[ranked[0]][0]
        acquisition = log_expected_improvement(mean, spread, best) - np.logaddexp(0.0, -odds)
        self._take_best(list(free.values()), rows, acquisition)

    def _take_best(self, points: Sequence[Point], rows: Array, acquisition: Array) -> None:
        """Those that promise most, of different families as long as there are some: one answer tells of its family."""
        fit, taken = self._scales(), 0
        free, other_family = np.ones(len(points), dtype=bool), np.ones(len(points), dtype=bool)
        for _ in range(min(_CHECKED * EACH, len(points))):
            preferred = np.flatnonzero(free & other_family)
            rest = preferred if len(preferred) else np.flatnonzero(free)
            row = int(rest[acquisition[rest].argmax()])
            free[row] = False
            if self._take(points[row]):
                taken += 1
                if taken == EACH:
                    return
                other_family &= ~self.same_family(rows, rows[[row]], fit)


def _some(asked: Mapping[str, Point]) -> dict[str, Point]:
    """The last of them, and of very many others an even share: more carry hardly better, and take long."""
    keys = list(asked)
    before, last = keys[:-LAST], keys[-LAST:]
    return {key: asked[key] for key in [*(before[i] for i in evenly(0, len(before), OTHERS)), *last]}


# How an expectation is to be read: as it stands, with its direction unknown, or not at all.
#
# An expectation may mislead: a twin of another machine, an earlier study of another regime, a formula with a wrong
# sign. Whether it does, the observations say: each mode predicts how the observed settings compare, and the one that
# predicted it best is trusted most and chooses the next trial.

_WEIGHED = 50  # observations that are weighed: of more, an even share
NEGLIGIBLE = 0.03  # a mode with less weight does not count
_WIDTHS = (1.0, 2.0)  # what the modes leave open may be so many times as wide as stated
_REACHES = (0.5, 1.0, 2.0)  # and the whole surface as the expectation says it is
_STRETCHES = (0.5, 2.0)  # of the usual weight of a knob
NOISE_OF_REACH, NOISE_OF_SPREAD = 0.1, 0.5  # a run's own noise, as a share of what an expectation says


class PriorMode(Enum):
    AS_IT_STANDS = "as it stands"
    EITHER_WAY = "either way"
    NOT_AT_ALL = "not at all"


_PRIOR_WEIGHTS = {PriorMode.AS_IT_STANDS: 0.8, PriorMode.EITHER_WAY: 0.1, PriorMode.NOT_AT_ALL: 0.1}
ModeWeights = dict[PriorMode, float]


def mode_weights(seen: ObservedData, columns: Columns) -> ModeWeights:
    """How far each mode is trusted after these observations; the sum is 1."""
    passed = np.flatnonzero(~np.isnan(seen.values))
    some = passed[evenly(0, len(passed), _WEIGHED)]
    if seen.expected is None or len(some) < 2:
        return dict(_PRIOR_WEIGHTS)
    heights = {mode: math.log(part) + _evidence(mode, seen, some, columns) for mode, part in _PRIOR_WEIGHTS.items()}
    top = max(heights.values())
    parts = {mode: math.exp(height - top) for mode, height in heights.items()}
    return {mode: part / sum(parts.values()) for mode, part in parts.items()}


def seen_with(mode: PriorMode, seen: ObservedData) -> ObservedData:
    """The observations with what was expected of them, as this mode takes it."""
    if mode is PriorMode.NOT_AT_ALL:
        return replace(seen, expected=None, spread=0.0)
    return replace(seen, trust=STRAIGHT if mode is PriorMode.AS_IT_STANDS else EITHER_WAY)


def mixed(weights: ModeWeights, prospect: Callable[[PriorMode], Prospect]) -> Prospect:
    """What is left to be found, by all modes with weight: the most that one of them expects."""
    found = {mode: prospect(mode) for mode, part in weights.items() if part >= NEGLIGIBLE}
    chance = sum(weights[mode] * each.chance for mode, each in found.items())
    largest = max(found.values(), key=lambda each: each.gain)
    return replace(largest, chance=chance / sum(weights[mode] for mode in found))


def _evidence(mode: PriorMode, seen: ObservedData, some: Columns, columns: Columns) -> float:
    """Log of how likely the differences between these observations were, over what the mode leaves open."""
    assert seen.expected is not None
    prior, values = seen.expected[some], seen.values[some]
    prior = prior - prior.mean(axis=0)
    noise = max(NOISE_OF_REACH * seen.reach, NOISE_OF_SPREAD * seen.spread) ** 2
    usual = 1.0 / (0.25 * (int(columns.max()) + 1))
    straight = mode is not PriorMode.NOT_AT_ALL
    mean, trust = STRAIGHT if mode is PriorMode.AS_IT_STANDS else EITHER_WAY
    known = (prior * np.append(trust, np.ones(prior.shape[1] - 1))) if straight else prior[:, :0]
    off = values - mean * prior[:, 0] if straight else values
    wide, widths = (seen.spread, _WIDTHS) if straight else (seen.reach, _REACHES)
    heights = []
    for width, stretch in itertools.product(widths, _STRETCHES):
        fit = Fit(np.full(int(columns.max()) + 1, usual * stretch), (wide * width) ** 2, noise)
        heights.append(_height(off, covariance_of_runs(seen.rows[some], columns, fit) + known @ known.T))
    return float(np.logaddexp.reduce(heights)) - math.log(len(heights))


def _height(off: Array, covariance: Array) -> float:
    """Log density of these values around a level of which nothing is known."""
    factor = np.linalg.cholesky(covariance)
    white = np.linalg.solve(factor, np.stack([np.ones(len(off)), off], axis=1))
    ones, rest = white.T
    length = float(ones @ ones)
    left = float(rest @ rest) - float(ones @ rest) ** 2 / length
    return -float(np.log(np.diag(factor)).sum()) - 0.5 * math.log(length) - 0.5 * left
