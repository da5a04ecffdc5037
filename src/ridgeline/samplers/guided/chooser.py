"""Chooses the next trial: which candidate promises most for its cost, and what is left to be found."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ridgeline.records.lesson import Lesson, Proposal, Prospect
from ridgeline.records.space import Point, Space, point_key
from ridgeline.samplers.base import Outlook
from ridgeline.samplers.encoding import encode
from ridgeline.samplers.guided.blend import Blend, score_model
from ridgeline.samplers.guided.candidates import Pool, around
from ridgeline.samplers.guided.cost import relative_cost
from ridgeline.samplers.guided.earlier import Earlier
from ridgeline.samplers.guided.expected import Expected
from ridgeline.samplers.guided.features import Features
from ridgeline.samplers.guided.gaussian import Array
from ridgeline.samplers.guided.improvement import log_expected_improvement
from ridgeline.samplers.guided.model import ChanceModel, Forecast, Foreseen, Scale, ScoreModel, Taught
from ridgeline.samplers.guided.products import Products

SMALLEST_GAIN = 0.01  # a trial that can only win less is not worth more than one that explores
HOPELESS = 0.2  # a chance to pass below this, or below half the best one
FORETOLD_HOPELESS = 0.4  # the same where the chance was foretold: an edge of memory that is known is not tried out
SCREENED = 1_500  # candidates that get a closer look
CAUTION = 3.0  # a crash teaches less than a result: the chance to pass counts so many times over
CENTRES = 4  # the best settings so far, around which all neighbours are candidates
CHECKS = 400  # candidates asked for legality before the space-filling sequence takes over
ASKED_EXACTLY, TURNS = 4, 6  # of the best candidates, those of which the outlook itself is asked in a turn
BELIEVED = 64  # pending trials that the model takes as if they had come out as expected
DRAWS, DRAWN_AT = 400, 120  # possible truths drawn for the prospect, at the most hopeful candidates


@dataclass(frozen=True)
class _Field:
    """The candidates: points with their keys, features and what is expected of them."""

    points: Sequence[Point]
    keys: Sequence[str]
    rows: Array
    foreseen: Foreseen | None

    def only(self, rows: Sequence[int]) -> _Field:
        foreseen = None if self.foreseen is None else self.foreseen.only(rows)
        return _Field([self.points[i] for i in rows], [self.keys[i] for i in rows], self.rows[rows], foreseen)

    @property
    def expected(self) -> Array | None:
        return None if self.foreseen is None else self.foreseen.columns

    @property
    def odds(self) -> Array | None:
        return None if self.foreseen is None else self.foreseen.odds


@dataclass(frozen=True)
class _View:
    """What the lessons say about the candidates; `best` is the best mean among what passed."""

    scale: Scale
    seen: Taught
    scores: ScoreModel | Blend
    chances: ChanceModel
    best: float
    field: _Field

    def better_by(self, share: float) -> float:
        """The score, on the scale, that is better than the best by this share."""
        return self.best + (math.log1p(share) if self.scale.sign else share * max(abs(self.best), 1e-12))

    @property
    def to_beat(self) -> float:
        return self.better_by(SMALLEST_GAIN)


class Chooser:
    """Nothing but what it is called with decides the answer; what it keeps only saves time."""

    def __init__(
        self,
        space: Space,
        seed: int,
        legal: Callable[[Point], bool],
        outlook: Outlook | None,
        earlier: Sequence[Lesson],
    ) -> None:
        self._space, self._seed, self._outlook = space, seed, outlook
        self._earlier = [lesson for lesson in earlier if encode(space, lesson.point) is not None]
        self._features = Features(space)
        self._products = Products(space, self._features)
        self._pool = Pool(space, self._features, seed)
        self._legal_before: dict[str, bool] = {}
        self._is_legal = legal
        self._expected: dict[Scale, Expected | Earlier | None] = {}
        self._current: Expected | Earlier | None = None
        self._kept: tuple[tuple[int, int], _View] | None = None

    def forget(self) -> None:
        """Other lessons follow: what was made of these is of no more use."""
        self._kept = None

    def choice(self, lessons: Sequence[Lesson], pending: Sequence[Point], taken: Collection[str]) -> Proposal | None:
        view = self._view(lessons, taken)
        scores = self._believing(view, pending[-BELIEVED:]) if pending else view.scores
        field = _screened(view, scores)
        costs = relative_cost(lessons, view.seen.rows, field.rows)
        told, asked = [lesson.point for lesson in lessons], dict[str, Point]()
        for turn in range(TURNS + 1):
            forecast = _forecast(scores, view.chances, field)
            hopeless = HOPELESS if self._current is None else FORETOLD_HOPELESS
            hopes = _hopes(forecast, view.to_beat, costs, hopeless)
            chosen = self._most_hopeful(hopes, field, taken)
            if not chosen:
                return None
            if self._current is None or field.keys[chosen[0]] in asked or turn == TURNS:
                break
            # of the most hopeful the outlook itself is asked, until one that it was asked of leads
            asked |= {field.keys[i]: field.points[i] for i in chosen}
            field = replace(field, foreseen=self._current.at(field.keys, field.rows, [*told, *asked.values()]))
        row = max((i for i, key in enumerate(field.keys) if key in asked), key=lambda i: hopes[i], default=chosen[0])
        return Proposal(field.points[row], _why(forecast, row, view, scores, len(lessons)))

    def prospect(self, lessons: Sequence[Lesson], taken: Collection[str], worth: float) -> Prospect:
        """How likely an untried point beats the best by more than `worth`, and what the best of them may bring."""
        view = self._view(lessons, taken)
        best, sign = view.best, view.scale.sign
        goal = view.better_by(worth)
        field = _screened(view, view.scores)
        forecast = _forecast(view.scores, view.chances, field)
        hopes = log_expected_improvement(forecast.mean, forecast.spread, goal) + np.log(forecast.chance)
        hopeful = self._most_hopeful(hopes, field, taken, DRAWN_AT)
        whole = self._pool.exhausted
        if not hopeful:
            return Prospect(0.0, worth, 0.0, whole=whole)
        rng = np.random.default_rng(self._seed)
        field = field.only(hopeful)
        truths = view.scores.draws(field.rows, field.expected, DRAWS, rng)
        runs = rng.random(truths.shape) < forecast.chance[hopeful]
        top = np.where(runs, truths, -np.inf).max(axis=1) - best
        gain = max(0.0, float(np.quantile(top, 0.95, method="higher")))
        return Prospect(float((top > goal - best).mean()), worth, math.expm1(gain) if sign else gain, whole=whole)

    def _view(self, lessons: Sequence[Lesson], taken: Collection[str]) -> _View:
        """What the lessons say. Kept for the next question, which is often about the same lessons."""
        asked = (len(lessons), len(taken))
        if self._kept is None or self._kept[0] != asked:
            scale = Scale.of([lesson.score for lesson in lessons if lesson.score is not None])
            seen = self._seen(lessons, scale)
            scores, chances = score_model(seen, self._features.columns), ChanceModel(seen, self._features.columns)
            best, centres = _standing(scores, seen, lessons)
            rng = random.Random(f"guided {self._seed} {asked}")
            field = self._candidates(lessons, centres, taken, rng)
            self._kept = asked, _View(scale, seen, scores, chances, best, field)
        return self._kept[1]

    def _seen(self, lessons: Sequence[Lesson], scale: Scale) -> Taught:
        points = [lesson.point for lesson in lessons]
        rows = self._features.of_told(points)
        values = scale.values([lesson.score for lesson in lessons])
        expected = self._expectations(scale)
        foreseen = None if expected is None else expected.at([point_key(point) for point in points], rows, points)
        return replace(Taught.of(rows, values, foreseen), products=self._products)

    def _expectations(self, scale: Scale) -> Expected | Earlier | None:
        if scale not in self._expected:
            asked = None
            if self._outlook is not None:
                asked = Expected(self._outlook, scale, self._space, self._features, self._pool, self._is_legal)
                asked = asked if asked.says_something else None
            before = Earlier(self._earlier, scale, self._features, asked) if self._earlier else None
            self._expected[scale] = before if before is not None and before.says_something else asked
        self._current = self._expected[scale]
        return self._current

    def _believing(self, view: _View, pending: Sequence[Point]) -> ScoreModel | Blend:
        """The model as if pending trials had come out as it expects: what they will teach needs no second trial."""
        own = [point for point in pending if encode(self._space, point) is not None]
        if not own:
            return view.scores
        rows, seen = self._features.of(own), view.seen
        values = None
        if self._current is not None:
            values = self._current.at([point_key(point) for point in own], rows, own).columns
        mean, _ = view.scores.at(rows, values)
        expected = None if values is None or seen.expected is None else np.concatenate([seen.expected, values])
        believed = Taught(np.concatenate([seen.rows, rows]), np.concatenate([seen.values, mean]), expected, None)
        return score_model(believed, self._features.columns, view.scores.fit)

    def _candidates(
        self, lessons: Sequence[Lesson], centres: Sequence[Point], taken: Collection[str], rng: random.Random
    ) -> _Field:
        points, keys, rows = self._pool.grown(len(lessons))
        near = {} if self._pool.exhausted else around(self._space, centres, rng, {*keys, *taken})
        every = [*points, *near.values()]
        rows = np.concatenate([rows, self._features.of(list(near.values()))])
        foreseen = None
        if self._current is not None:
            foreseen = self._current.at([*keys, *near], rows, [lesson.point for lesson in lessons])
        return _Field(every, [*keys, *near], rows, foreseen)

    def _legal(self, field: _Field, row: int) -> bool:
        key = field.keys[row]
        if key not in self._legal_before:
            self._legal_before[key] = self._is_legal(field.points[row])
        return self._legal_before[key]

    def _most_hopeful(
        self, hopes: Array, field: _Field, taken: Collection[str], count: int = ASKED_EXACTLY
    ) -> list[int]:
        """The legal, untried candidates that promise most; fewer where most of those looked at may not run."""
        found: list[int] = []
        checks = 0
        for row in map(int, np.argsort(-hopes, kind="stable")):
            if field.keys[row] in taken:
                continue
            if self._legal(field, row):
                found.append(row)
            else:
                checks += 1
            if len(found) == count or checks == CHECKS:
                break
        return found


def _standing(scores: ScoreModel | Blend, seen: Taught, lessons: Sequence[Lesson]) -> tuple[float, list[Point]]:
    """The best mean among what passed, and the settings that have the best."""
    passed = np.flatnonzero(~np.isnan(seen.values))
    mean, _ = scores.at(seen.rows[passed], None if seen.expected is None else seen.expected[passed])
    order = passed[np.argsort(-mean, kind="stable")]
    return float(mean.max()), [lessons[i].point for i in order[:CENTRES]]


def _screened(view: _View, scores: ScoreModel | Blend) -> _Field:
    """The candidates worth a closer look, in the order in which they stand."""
    field = view.field
    if len(field.keys) <= SCREENED:
        return field
    mean, spread = scores.roughly(field.rows, field.expected)
    rough = log_expected_improvement(mean, spread, view.to_beat)
    chance = view.chances.roughly(field.rows, field.odds)
    rough = np.where(chance < HOPELESS * float(chance.max()), rough - 1e12, rough + CAUTION * np.log(chance))
    return field.only(np.sort(np.argsort(-rough, kind="stable")[:SCREENED]).tolist())


def _forecast(scores: ScoreModel | Blend, chances: ChanceModel, field: _Field) -> Forecast:
    mean, spread = scores.at(field.rows, field.expected)
    return Forecast(mean, spread, chances.at(field.rows, field.odds))


def _hopes(forecast: Forecast, best: float, costs: Array, hopeless: float) -> Array:
    """`best` is what a trial has to beat to be worth anything. What almost surely fails comes last, whatever it
    promises: beyond an edge of memory a model sees speed that nobody will ever have."""
    gains = log_expected_improvement(forecast.mean, forecast.spread, best)
    hopes = gains + CAUTION * np.log(forecast.chance) - np.log(costs)
    last = forecast.chance < min(hopeless, 0.5 * float(forecast.chance.max()))
    found: Array = np.where(last, hopes - 1e12, hopes)
    return found


def _why(forecast: Forecast, row: int, view: _View, scores: ScoreModel | Blend, lessons: int) -> str:
    """'expected 0.97 to 1.06 x the best so far, 96% likely to pass; model of 23 lessons'"""
    low, high = (float(forecast.mean[row] + sign * forecast.spread[row] - view.best) for sign in (-1.645, 1.645))
    told = f"{math.exp(low):.2f} to {math.exp(high):.2f} x" if view.scale.sign else f"{low:+.3g} to {high:+.3g} from"
    trust = f", trusting the outlook by {max(0.0, scores.trust):.0%}" if scores.trust else ""
    return f"expected {told} the best so far, {forecast.chance[row]:.0%} likely to pass; {lessons} lessons{trust}"
