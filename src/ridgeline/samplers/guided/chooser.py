"""Chooses the next trial: which candidate promises most for its cost, and what is left to be found."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ridgeline.records.observation import BEST_SO_FAR, Observation, Prediction, Proposal, Prospect
from ridgeline.records.space import Point, Space, point_key
from ridgeline.samplers.base import Prior
from ridgeline.samplers.guided.candidates import Pool, around
from ridgeline.samplers.guided.feasibility import TOO_RISKY, Feasibility
from ridgeline.samplers.guided.features import Features, Products
from ridgeline.samplers.guided.gaussian import Array, Fit, log_expected_improvement, on_one_thread
from ridgeline.samplers.guided.model import Blend, Fits, ObservedData, PriorValues, Scale, ScoreModel, score_model
from ridgeline.samplers.guided.prior import Expected, ModeWeights, PriorMode, mode_weights, seen_with
from ridgeline.samplers.sequence import is_of_space

_SMALLEST_GAIN = 0.01  # a trial that can only win less is not worth more than one that explores
_FAR_BELOW = 0.75  # of the best chance: where nothing is likely to pass, the likeliest are tried
_SCREENED = 1_500  # candidates that get a closer look
CAUTION = 3.0  # a crash teaches less than a result: the chance to pass counts so many times over
_CENTRES = 4  # the best settings so far, around which all neighbours are candidates


@dataclass(frozen=True)
class Field:
    """The candidates: points with their keys and features, the scores that are expected of them (what these lean on
    beside them) and the log odds of passing; None where nothing is expected, or it does not count."""

    points: Sequence[Point]
    keys: Sequence[str]
    rows: Array
    expected: Array | None = None
    odds: Array | None = None

    def only(self, rows: Sequence[int]) -> Field:
        expected, odds = (None if each is None else each[rows] for each in (self.expected, self.odds))
        return Field([self.points[i] for i in rows], [self.keys[i] for i in rows], self.rows[rows], expected, odds)


@dataclass(frozen=True)
class View:
    """What the observations say about the candidates; `best` is the best mean among what passed."""

    scale: Scale
    seen: ObservedData
    scores: ScoreModel | Blend
    chances: Feasibility
    best: float
    field: Field

    def better_by(self, share: float) -> float:
        """The score, on the scale, that is better than the best by this share."""
        return self.best + (math.log1p(share) if self.scale.sign else share * max(abs(self.best), 1e-12))

    @property
    def to_beat(self) -> float:
        return self.better_by(_SMALLEST_GAIN)


def in_order(promise: Array, last: Array) -> list[int]:
    """Rows, the most promising first, but those that are `last`; of equal ones the first in the field."""
    found: list[int] = np.lexsort((-promise, last)).tolist()
    return found


def incumbents(
    scores: ScoreModel | Blend, seen: ObservedData, observations: Sequence[Observation]
) -> tuple[float, list[Point]]:
    """The best mean among what passed in this study, and the settings that have the best."""
    passed = seen.earlier + np.flatnonzero(~np.isnan(seen.values[seen.earlier :]))
    mean, _ = scores.at(seen.rows[passed], None if seen.expected is None else seen.expected[passed])
    order = passed[np.argsort(-mean, kind="stable")]
    return float(mean.max()), [observations[i - seen.earlier].point for i in order[:_CENTRES]]


def screened(view: View, scores: ScoreModel | Blend, by_mean: bool = False) -> Field:
    """The candidates worth a closer look, in the order in which they stand."""
    field = view.field
    if len(field.keys) <= _SCREENED:
        return field
    mean, spread = scores.roughly(field.rows, field.expected)
    rough = mean if by_mean else log_expected_improvement(mean, spread, view.to_beat)
    chance = view.chances.roughly(field.rows, field.odds)
    last = chance < TOO_RISKY * float(chance.max())
    return field.only(sorted(in_order(np.where(last, rough, rough + CAUTION * np.log(chance)), last)[:_SCREENED]))


def acquisition(mean: Array, spread: Array, chance: Array, best: float, costs: Array) -> Array:
    """`best` is what a trial has to beat to be worth anything."""
    found: Array = log_expected_improvement(mean, spread, best) + CAUTION * np.log(chance) - np.log(costs)
    return found


def hopeless(chance: Array, too_risky: float) -> Array:
    """What almost surely fails comes last, whatever it promises: beyond an edge of memory a model sees speed that
    nobody will ever have."""
    found: Array = chance < min(too_risky, _FAR_BELOW * float(chance.max()))
    return found


def predicted(chosen: Field, view: View) -> Prediction:
    """What one run of the proposed point will measure: trials in flight have measured nothing yet, so they do not make
    it surer, and beside what is not known of the truth a run has noise of its own."""
    mean, spread = view.scores.at(chosen.rows, chosen.expected)
    of_a_run = math.hypot(float(spread[0]), view.scores.noise)
    to_beat = view.scale.score(view.best)
    return Prediction(view.scale.score(float(mean[0])), of_a_run, in_logs=view.scale.sign != 0, to_beat=to_beat)


FEWEST = 5  # observations with a cost, before which all cost the same
TEMPERATURE = 3.0  # features count as if so many more observations had shown no effect
WIDEST = 3.0  # times the usual cost, or a part of it: beyond, a straight line says little


def relative_cost(observations: Sequence[Observation], observed: Array, rows: Array) -> Array:
    """Expected node-seconds of each row against the usual ones; a straight line through the logs, shrunk."""
    known = [i for i, each in enumerate(observations) if (each.node_s or 0.0) > 0 and each.score is not None]
    if len(known) < FEWEST:
        return np.ones(len(rows))
    logs = np.log([float(observations[i].node_s or 1.0) for i in known])
    middle = observed[known].mean(axis=0)
    off = (observed[known] - middle).astype(float)
    slope = np.linalg.solve(off.T @ off + TEMPERATURE * np.eye(off.shape[1]), off.T @ (logs - logs.mean()))
    found: Array = np.clip(np.exp((rows - middle) @ slope), 1.0 / WIDEST, WIDEST)
    return found


def _fitted_count(observations: int) -> int:
    """How many of so many observations length scales are found from: a few more say little new of them. All up to 16,
    then a multiple of 2, from 32 of 4, and so on."""
    step = 1 << max(0, observations.bit_length() - 4)
    return observations - observations % step


_FEWEST_FITTED = 2  # results without which there are no length scales to find
FEWEST_EARLIER = 3  # results, without which earlier studies say nothing
_QUARTILES_APART = 1.35  # of a normal distribution, in its standard deviations
_STUDIES_APART = 0.3  # how far two studies of a program may differ in what they say of a setting, in the same
_FAMILY_GAIN = 0.05  # a setting of a family that was tried leads only when it is better by this share
_CHECKS = 400  # candidates asked for legality before the space-filling sequence takes over
ASKED_EXACTLY, TURNS = 4, 6  # of the best candidates, those of which the prior itself is asked in a turn
BELIEVED = 64  # pending trials that the model takes as if they had come out as expected
DRAWS, DRAWN_AT = 400, 120  # possible truths drawn for the prospect, at the leading candidates


class Chooser:
    """Nothing but what it is called with decides the answer; what it keeps only saves time."""

    def __init__(
        self,
        space: Space,
        seed: int,
        legal: Callable[[Point], bool],
        prior: Prior | None,
        earlier: Sequence[Observation],
    ) -> None:
        self._space, self._seed, self._prior = space, seed, prior
        self._earlier = earlier
        self._features = Features(space, after_others=bool(earlier))
        self._products = Products(space, self._features)
        self._pool = Pool(space, self._features, seed)
        self._legal_before: dict[str, bool] = {}
        self._is_legal = legal
        self._expected: dict[Scale, Expected | None] = {}
        self._current: Expected | None = None
        self._earlier_by_scale: dict[Scale, tuple[ObservedData, ScoreModel | Blend] | None] = {}
        self._kept: dict[PriorMode, tuple[tuple[int, int], View]] = {}
        self._fits: dict[tuple[PriorMode, Scale, int], Fit | Fits] = {}  # by number of observations
        self._observed_points: Mapping[str, Point] = {}  # the points of the observations last seen
        self._last_seen: tuple[int, Scale, ObservedData] | None = None
        self._weighed: tuple[ObservedData, ModeWeights] | None = None  # what the modes weigh after these observations

    def forget(self) -> None:
        """Other observations follow: what was made of these is of no more use."""
        self._kept, self._last_seen, self._fits = {}, None, {}

    @on_one_thread
    def mode_weights(self, observations: Sequence[Observation]) -> ModeWeights:
        """How what was predicted is to be read, as far as the observations tell."""
        _, seen = self._seen(observations)
        if self._weighed is None or self._weighed[0] is not seen:
            alone = {PriorMode.NOT_AT_ALL: 1.0}
            found = alone if seen.expected is None else mode_weights(seen.present, self._features.columns)
            self._weighed = seen, found
        return self._weighed[1]

    @on_one_thread
    def trusts_earlier(self, observations: Sequence[Observation]) -> bool:
        """Whether earlier studies measured enough, and tell of these observations what they do not tell themselves."""
        return self._seen(observations)[1].earlier > 0

    @on_one_thread
    def says_nothing(self, observations: Sequence[Observation], taken: Collection[str]) -> bool:
        """Whether no knob has shown an effect, so that the model's choice is no better than any other."""
        scores = self._view(observations, taken).scores
        return isinstance(scores, Blend) and scores.says_nothing

    @on_one_thread
    def choice(
        self,
        observations: Sequence[Observation],
        pending: Sequence[Point],
        taken: Collection[str],
        mode: PriorMode = PriorMode.NOT_AT_ALL,
        prior_leads: bool = False,
    ) -> Proposal | None:
        """The candidate that leads; of the leading ones the prior itself is asked, until one that was asked leads.

        `prior_leads`: the best mean leads, not the widest interval, since an engineer tries what the twin puts first.
        A setting that the prior takes for much the same as one already tried has to be better by `_FAMILY_GAIN`.
        """
        view = self._view(observations, taken, mode)
        own = [point for point in pending if is_of_space(self._space, point)]
        scores = self._with_pending(view, own[-BELIEVED:]) if own else view.scores
        field = screened(view, scores, by_mean=prior_leads)
        costs = relative_cost(observations, view.seen.present.rows, field.rows)
        again = np.zeros(len(field.rows), dtype=bool)
        if prior_leads and self._current is not None:
            tried = [*(observation.point for observation in observations), *own]
            again = self._current.same_family(field.rows, self._features.of(tried))
        asked: dict[str, Point] = {}
        for turn in range(TURNS + 1):
            mean, spread = scores.at(field.rows, field.expected)
            chance = view.chances.at(field.rows, field.odds)
            if prior_leads:
                promise = mean - (view.better_by(_FAMILY_GAIN) - view.best) * again
            else:
                promise = acquisition(mean, spread, chance, view.to_beat, costs)
            order = in_order(promise, hopeless(chance, view.chances.too_risky))
            leading = self._leading(order, field, taken)
            if not leading:
                return None
            if self._current is None or field.keys[leading[0]] in asked or turn == TURNS:
                break
            asked |= {field.keys[i]: field.points[i] for i in leading}
            field = self._field(mode, field.points, field.keys, field.rows, asked)
        row = next((i for i in order if field.keys[i] in asked), leading[0])
        called = "prior" if self._prior is None else self._prior.called
        why = (
            f"the {called} ranks it first of the untried settings"
            if prior_leads
            else f"best chance to beat {BEST_SO_FAR} per node-hour"
        )
        reversed_ = f"; the {called}'s order is taken in reverse" if view.scores.trust < 0 else ""
        why = f"{why}; {float(chance[row]):.0%} likely to pass{reversed_}"
        return Proposal(field.points[row], why, predicted(field.only([row]), view))

    def _field(
        self, mode: PriorMode, points: Sequence[Point], keys: Sequence[str], rows: Array, asked: Mapping[str, Point]
    ) -> Field:
        """With what is expected of it, where the points observed and these are asked themselves."""
        if self._current is None:
            return Field(points, keys, rows)
        said = self._current.at(keys, rows, {**self._observed_points, **asked})
        return Field(points, keys, rows, None if mode is PriorMode.NOT_AT_ALL else said.columns, said.odds)

    @on_one_thread
    def prospect(
        self,
        observations: Sequence[Observation],
        taken: Collection[str],
        worth: float,
        mode: PriorMode = PriorMode.NOT_AT_ALL,
    ) -> Prospect:
        """How likely an untried point beats the best by more than `worth`, and what the best of them may bring."""
        view = self._view(observations, taken, mode)
        best, sign = view.best, view.scale.sign
        goal = view.better_by(worth)
        field = screened(view, view.scores)
        mean, spread = view.scores.at(field.rows, field.expected)
        chance = view.chances.at(field.rows, field.odds)
        promise = log_expected_improvement(mean, spread, goal) + np.log(chance)
        leading = self._leading(in_order(promise, np.zeros(len(promise))), field, taken, DRAWN_AT)
        whole = self._pool.exhausted
        if not leading:
            return Prospect(0.0, worth, 0.0, whole=whole)
        rng = np.random.default_rng(self._seed)
        field = field.only(leading)
        truths = view.scores.draws(field.rows, field.expected, DRAWS, rng)
        middle = mean[leading]
        truths = middle + (truths - middle) * view.scores.overconfidence
        highest = None if self._prior is None or self._prior.highest is None else view.scale.seen(self._prior.highest)
        if highest is not None:
            truths = np.minimum(truths, max(highest, best))
        runs = rng.random(truths.shape) < chance[leading]
        top = np.where(runs, truths, -np.inf).max(axis=1) - best
        gain = max(0.0, float(np.quantile(top, 0.95, method="higher")))
        return Prospect(float((top > goal - best).mean()), worth, math.expm1(gain) if sign else gain, whole=whole)

    def _view(
        self, observations: Sequence[Observation], taken: Collection[str], mode: PriorMode = PriorMode.NOT_AT_ALL
    ) -> View:
        """What the observations say. Kept for the next question, which is often about the same observations."""
        asked = (len(observations), len(taken))
        if mode not in self._kept or self._kept[mode][0] != asked:
            scale, seen = self._seen(observations)
            seen = seen_with(mode, seen)
            scores = score_model(seen, self._features.columns, self._fit(mode, scale, seen))
            chances = Feasibility(seen, self._features.columns)
            best, centres = incumbents(scores, seen, observations)
            rng = random.Random(f"guided {self._seed} {asked}")
            points, keys, rows = self._pool.grown(len(observations))
            near = {} if self._pool.exhausted else around(self._space, centres, rng, {*keys, *taken})
            rows = np.concatenate([rows, self._features.of(list(near.values()))])
            field = self._field(mode, [*points, *near.values()], [*keys, *near], rows, {})
            self._kept[mode] = asked, View(scale, seen, scores, chances, best, field)
            self._fits[mode, scale, len(observations)] = scores.fit
        return self._kept[mode][1]

    def _fit(self, mode: PriorMode, scale: Scale, seen: ObservedData) -> Fit | Fits | None:
        """The length scales found from the first `_fitted_count` observations; None: from all, to be found now."""
        present = len(seen.values) - seen.earlier
        count = _fitted_count(present)
        first = seen.first(count)
        if count == present or np.isfinite(first.values).sum() < _FEWEST_FITTED:
            return None
        if (mode, scale, count) not in self._fits:
            self._fits[mode, scale, count] = score_model(first, self._features.columns).fit
        return self._fits[mode, scale, count]

    def _seen(self, observations: Sequence[Observation]) -> tuple[Scale, ObservedData]:
        if self._last_seen is None or self._last_seen[0] != len(observations):
            scale = Scale.of([observation.score for observation in observations if observation.score is not None])
            if scale not in self._expected:
                asked = None
                if self._prior is not None:
                    asked = Expected(self._prior, scale, self._space, self._features, self._pool, self._is_legal)
                self._expected[scale] = asked if asked is not None and asked.says_something else None
            self._current = self._expected[scale]
            self._observed_points = {point_key(observation.point): observation.point for observation in observations}
            self._last_seen = len(observations), scale, self._after_earlier(self._data(observations, scale), scale)
        return self._last_seen[1:]

    def _data(self, observations: Sequence[Observation], scale: Scale, earlier: bool = False) -> ObservedData:
        points = [observation.point for observation in observations]
        rows = self._features.of(points, earlier)
        data = ObservedData(
            rows,
            scale.values([observation.score for observation in observations]),
            censored=np.array([observation.censored for observation in observations], dtype=bool),
            products=self._products,
            earlier=len(rows) if earlier else 0,
        )
        if self._current is None:
            return data
        said, expected = self._said(points, rows), self._current
        return replace(data, expected=said.columns, odds=said.odds, spread=expected.spread, reach=expected.reach)

    def _said(self, points: Sequence[Point], rows: Array) -> PriorValues:
        """What is expected of these points, each asked itself."""
        assert self._current is not None
        keys = [point_key(point) for point in points]
        return self._current.at(keys, rows, dict(zip(keys, points, strict=True)))

    def _after_earlier(self, present: ObservedData, scale: Scale) -> ObservedData:
        """This study's observations after those of earlier studies, which are moved to this study's level: a larger
        problem takes longer whatever the setting. What is observed in both is compared by the earlier ones' model."""
        if scale not in self._earlier_by_scale:
            self._earlier_by_scale[scale] = self._earlier_data(scale)
        found = self._earlier_by_scale[scale]
        if found is None:
            return present
        earlier, model = found
        shared = present.first(_fitted_count(len(present.values)))  # as the length scales, so that both stay in step
        passed = np.flatnonzero(~np.isnan(shared.values))
        level = 0.0
        if len(passed):
            rows = self._features.as_earlier(shared.rows[passed])
            mean, _ = model.at(rows, None if shared.expected is None else shared.expected[passed])
            level = float(np.median(shared.values[passed] - mean))
        both = replace(earlier, values=earlier.values + level).followed_by(present)
        return both if self._earlier_predicts(shared, earlier, model) else present

    def _earlier_predicts(self, present: ObservedData, earlier: ObservedData, model: ScoreModel | Blend) -> bool:
        """Whether these observations differ as earlier studies, which `model` is of, put it: weighed like a prior."""
        if not len(present.values):
            return True
        mean, spread = model.at(self._features.as_earlier(present.rows), present.expected)
        low, high = np.nanquantile(earlier.values, (0.25, 0.75))  # a few very bad results would stretch a deviation
        reach = max(float(high - low) / _QUARTILES_APART, 1e-9)
        off = math.hypot(float(np.median(spread)), _STUDIES_APART * reach)
        weights = mode_weights(
            replace(present, expected=mean[:, None], spread=off, reach=reach), self._features.columns
        )
        return weights[PriorMode.AS_IT_STANDS] == max(weights.values())

    def _earlier_data(self, scale: Scale) -> tuple[ObservedData, ScoreModel | Blend] | None:
        """What earlier studies observed, and its model; None where too little of it is on this scale."""
        values = scale.values([each.score for each in self._earlier])
        if np.isfinite(values).sum() < FEWEST_EARLIER:
            return None
        pairs = zip(self._earlier, values, strict=True)
        placed = [each for each, value in pairs if each.score is None or not math.isnan(value)]
        data = self._data(placed, scale, earlier=True)
        return data, score_model(data, self._features.columns)

    def _with_pending(self, view: View, pending: Sequence[Point]) -> ScoreModel | Blend:
        """The model as if pending trials had come out as it expects: what they will teach needs no second trial."""
        rows, seen = self._features.of(pending), view.seen
        expected = None if self._current is None or seen.expected is None else self._said(pending, rows).columns
        mean, _ = view.scores.at(rows, expected)
        none = np.zeros(len(mean), dtype=bool)
        as_expected = seen.followed_by(replace(seen, rows=rows, values=mean, expected=expected, censored=none))
        as_expected = replace(as_expected, odds=None, earlier=seen.earlier)
        return score_model(as_expected, self._features.columns, view.scores.fit)

    def _legal(self, field: Field, row: int) -> bool:
        key = field.keys[row]
        if key not in self._legal_before:
            self._legal_before[key] = self._is_legal(field.points[row])
        return self._legal_before[key]

    def _leading(
        self, order: Sequence[int], field: Field, taken: Collection[str], count: int = ASKED_EXACTLY
    ) -> list[int]:
        """The legal, untried candidates that promise most; fewer where most of those looked at may not run."""
        found: list[int] = []
        checks = 0
        for row in order:
            if field.keys[row] in taken:
                continue
            if self._legal(field, row):
                found.append(row)
            else:
                checks += 1
            if len(found) == count or checks == _CHECKS:
                break
        return found
