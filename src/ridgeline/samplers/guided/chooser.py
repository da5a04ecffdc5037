"""Chooses the next trial: which candidate promises most for its cost, and what is left to be found."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np

from ridgeline.records.lesson import Lesson, Proposal, Prospect
from ridgeline.records.space import Point, Space, point_key
from ridgeline.samplers.base import Outlook
from ridgeline.samplers.guided.candidates import Pool, around
from ridgeline.samplers.guided.cost import relative_cost
from ridgeline.samplers.guided.expected import Expected, Foreseen
from ridgeline.samplers.guided.features import Features
from ridgeline.samplers.guided.gaussian import Array
from ridgeline.samplers.guided.improvement import log_expected_improvement
from ridgeline.samplers.guided.model import ChanceModel, Forecast, Scale, ScoreModel, Seen

CENTRES = 4  # the best settings so far, around which all neighbours are candidates
CHECKS = 400  # candidates asked for legality before the space-filling sequence takes over
ASKED_EXACTLY = 4  # of the best candidates, those of which the outlook itself is asked
BELIEVED = 64  # pending trials that the model takes as if they had come out as expected
DRAWS, DRAWN_AT = 400, 300  # possible truths drawn for the prospect, at the most hopeful candidates


@dataclass(frozen=True)
class _Field:
    """The candidates: points with their keys, features and what is expected of them."""

    points: Sequence[Point]
    keys: Sequence[str]
    rows: Array
    foreseen: Foreseen | None

    @property
    def expected(self) -> Array | None:
        return None if self.foreseen is None else self.foreseen.values

    @property
    def odds(self) -> Array | None:
        return None if self.foreseen is None else self.foreseen.odds


class Chooser:
    """Nothing but what it is called with decides the answer; what it keeps only saves time."""

    def __init__(
        self, space: Space, seed: int, legal: Callable[[Point], bool], outlook: Outlook | None
    ) -> None:
        self._space, self._seed, self._outlook = space, seed, outlook
        self._features = Features(space)
        self._pool = Pool(space, self._features, seed)
        self._legal_before: dict[str, bool] = {}
        self._is_legal = legal
        self._expected: dict[Scale, Expected] = {}

    def choice(
        self, lessons: Sequence[Lesson], pending: Sequence[Point], taken: Collection[str], rng: random.Random
    ) -> Proposal | None:
        scale = Scale.of([lesson.score for lesson in lessons if lesson.score is not None])
        seen = self._seen(lessons, scale)
        scores, chances = ScoreModel(seen, self._features.columns), ChanceModel(seen, self._features.columns)
        if pending:
            scores = self._believing(scores, seen, lessons, pending[-BELIEVED:])
        best, centres = self._standing(scores, seen, lessons)
        field = self._candidates(lessons, centres, taken, rng)
        costs = relative_cost(lessons, seen.rows, field.rows)
        forecast = self._forecast(scores, chances, field)
        hopes = _hopes(forecast, best, costs)
        row = self._first_legal(hopes, field, taken)
        if row is not None and self._outlook is not None and seen.expected is not None:
            field, row = self._asked_exactly(field, hopes, lessons, taken)
            forecast = self._forecast(scores, chances, field)
            exact = np.full(len(hopes), -np.inf)
            exact[row] = _hopes(forecast, best, costs)[row]
            row = self._first_legal(exact, field, taken)
        if row is None:
            return None
        return Proposal(field.points[row], _why(forecast, int(row), best, scale, scores, len(lessons)))

    def prospect(self, lessons: Sequence[Lesson], taken: Collection[str], worth: float) -> Prospect:
        """How likely an untried point beats the best by more than `worth`, and what the best of them may bring."""
        scale = Scale.of([lesson.score for lesson in lessons if lesson.score is not None])
        seen = self._seen(lessons, scale)
        scores, chances = ScoreModel(seen, self._features.columns), ChanceModel(seen, self._features.columns)
        best, centres = self._standing(scores, seen, lessons)
        field = self._candidates(lessons, centres, taken, random.Random(0))
        forecast = self._forecast(scores, chances, field)
        step = math.log1p(worth) if scale.sign else worth * max(abs(best), 1e-12)
        free = np.array([key not in taken for key in field.keys])
        if not free.any():
            return Prospect(0.0, worth, 0.0)
        hopes = np.where(free, log_expected_improvement(forecast.mean, forecast.spread, best + step), -np.inf)
        hopeful = [i for i in np.argsort(-hopes, kind="stable")[:DRAWN_AT] if free[i] and self._legal(field, int(i))]
        if not hopeful:
            return Prospect(0.0, worth, 0.0)
        rng = np.random.default_rng(self._seed)
        expected = None if field.expected is None else field.expected[hopeful]
        truths = scores.draws(field.rows[hopeful], expected, DRAWS, rng)
        runs = rng.random(truths.shape) < forecast.chance[hopeful]
        top = np.where(runs, truths, -np.inf).max(axis=1) - best
        gain = max(0.0, float(np.quantile(top, 0.95, method="higher")))
        whole = len(self._pool.points) >= self._space.raw_size() or self._pool.exhausted
        return Prospect(float((top > step).mean()), worth, math.expm1(gain) if scale.sign else gain, whole=whole)

    def _seen(self, lessons: Sequence[Lesson], scale: Scale) -> Seen:
        points = [lesson.point for lesson in lessons]
        rows = self._features.of(points)
        values = np.array([_value(scale, lesson.score) for lesson in lessons], dtype=float)
        expected = self._expectations(scale)
        if expected is None:
            return Seen(rows, values, None, None)
        foreseen = expected.at(points, rows, points)
        return Seen(rows, values, foreseen.values, foreseen.odds)

    def _expectations(self, scale: Scale) -> Expected | None:
        if self._outlook is None:
            return None
        if scale not in self._expected:
            self._expected[scale] = Expected(
                self._outlook, scale, self._space, self._features, self._pool, self._is_legal
            )
        found = self._expected[scale]
        self._current = found if found.says_something else None
        return self._current

    def _believing(
        self, scores: ScoreModel, seen: Seen, lessons: Sequence[Lesson], pending: Sequence[Point]
    ) -> ScoreModel:
        """The model as if pending trials had come out as it expects: what they will teach needs no second trial."""
        own = [point for point in pending if self._space.restrict(point) == point and not self._space.missing(point)]
        if not own:
            return scores
        rows = self._features.of(own)
        foreseen = None
        if seen.expected is not None and self._current is not None:
            foreseen = self._current.at(own, rows, own)
        mean, _ = scores.at(rows, None if foreseen is None else foreseen.values)
        believed = Seen(
            np.concatenate([seen.rows, rows]),
            np.concatenate([seen.values, mean]),
            None if foreseen is None or seen.expected is None else np.concatenate([seen.expected, foreseen.values]),
            None,
        )
        return ScoreModel(believed, self._features.columns, scores.fit)

    def _standing(self, scores: ScoreModel, seen: Seen, lessons: Sequence[Lesson]) -> tuple[float, list[Point]]:
        """The best mean among what passed, and the settings that have the best."""
        passed = np.flatnonzero(~np.isnan(seen.values))
        mean, _ = scores.at(seen.rows[passed], None if seen.expected is None else seen.expected[passed])
        order = passed[np.argsort(-mean, kind="stable")]
        return float(mean.max()), [lessons[i].point for i in order[:CENTRES]]

    def _candidates(
        self, lessons: Sequence[Lesson], centres: Sequence[Point], taken: Collection[str], rng: random.Random
    ) -> _Field:
        points, keys, rows = self._pool.grown(len(lessons))
        near = around(self._space, centres, rng, {*keys, *taken})
        every = [*points, *near.values()]
        rows = np.concatenate([rows, self._features.of(list(near.values()))])
        foreseen = None
        if self._outlook is not None and self._current is not None:
            foreseen = self._current.at(every, rows, [lesson.point for lesson in lessons])
        return _Field(every, [*keys, *near], rows, foreseen)

    def _forecast(self, scores: ScoreModel, chances: ChanceModel, field: _Field) -> Forecast:
        mean, spread = scores.at(field.rows, field.expected)
        return Forecast(mean, spread, chances.at(field.rows, field.odds))

    def _legal(self, field: _Field, row: int) -> bool:
        key = field.keys[row]
        if key not in self._legal_before:
            self._legal_before[key] = self._is_legal(field.points[row])
        return self._legal_before[key]

    def _first_legal(self, hopes: Array, field: _Field, taken: Collection[str]) -> int | None:
        checks = 0
        for row in map(int, np.argsort(-hopes, kind="stable")):
            if field.keys[row] in taken or hopes[row] == -np.inf:
                continue
            if self._legal(field, row):
                return row
            checks += 1
            if checks == CHECKS:
                return None
        return None

    def _asked_exactly(
        self, field: _Field, hopes: Array, lessons: Sequence[Lesson], taken: Collection[str]
    ) -> tuple[_Field, list[int]]:
        """The field again, after asking the outlook itself about the legal candidates that promise most."""
        rows: list[int] = []
        for row in map(int, np.argsort(-hopes, kind="stable")):
            if field.keys[row] not in taken and self._legal(field, row):
                rows.append(row)
            if len(rows) == ASKED_EXACTLY:
                break
        asked = [*(lesson.point for lesson in lessons), *(field.points[row] for row in rows)]
        assert self._current is not None
        foreseen = self._current.at(field.points, field.rows, asked)
        return _Field(field.points, field.keys, field.rows, foreseen), rows


def _value(scale: Scale, score: float | None) -> float:
    seen = None if score is None else scale.seen(score)
    return math.nan if seen is None else seen


def _hopes(forecast: Forecast, best: float, costs: Array) -> Array:
    return log_expected_improvement(forecast.mean, forecast.spread, best) + np.log(forecast.chance) - np.log(costs)


def _why(forecast: Forecast, row: int, best: float, scale: Scale, scores: ScoreModel, lessons: int) -> str:
    """'expected 0.97 to 1.06 x the best so far, 96% likely to pass; model of 23 lessons'"""
    low, high = (float(forecast.mean[row] + sign * forecast.spread[row] - best) for sign in (-1.645, 1.645))
    told = f"{math.exp(low):.2f} to {math.exp(high):.2f} x" if scale.sign else f"{low:+.3g} to {high:+.3g} from"
    trust = f", trusting the outlook by {max(0.0, scores.trust):.0%}" if scores.trust else ""
    return f"expected {told} the best so far, {forecast.chance[row]:.0%} likely to pass; {lessons} lessons{trust}"
