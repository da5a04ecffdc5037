"""Chooses the next trial: which candidate promises most for its cost, and what is left to be found."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from ridgeline.records.observation import Observation, Proposal, Prospect
from ridgeline.records.space import Point, Space, point_key
from ridgeline.samplers.base import Prior
from ridgeline.samplers.guided.candidates import Pool, around
from ridgeline.samplers.guided.feasibility import Feasibility
from ridgeline.samplers.guided.features import Features, Products
from ridgeline.samplers.guided.gaussian import Array, Fit, log_expected_improvement, on_one_thread
from ridgeline.samplers.guided.model import (
    Blend,
    Fits,
    Forecast,
    ObservedData,
    PriorValues,
    Scale,
    ScoreModel,
    score_model,
)
from ridgeline.samplers.guided.prior import Expected, ModeWeights, PriorMode, mode_weights, seen_with
from ridgeline.samplers.guided.view import (
    ChosenCandidate,
    Field,
    Ranking,
    View,
    acquisition,
    forecast,
    incumbents,
    predicted,
    prior_lead,
    screened,
    why,
)
from ridgeline.samplers.sequence import is_of_space

FEWEST = 5  # observations with a cost, before which all cost the same
TEMPERATURE = 3.0  # features count as if so many more observations had shown no effect
WIDEST = 3.0  # times the usual cost, or a part of it: beyond, a straight line says little


def relative_cost(observations: Sequence[Observation], observed: Array, rows: Array) -> Array:
    """Expected node-seconds of each row against the usual ones; a straight line through the logs, shrunk."""
    known = [
        i
        for i, observation in enumerate(observations)
        if observation.node_s and observation.node_s > 0 and observation.score is not None
    ]
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
NOTHING: Mapping[str, Point] = MappingProxyType({})
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
        self._earlier = [each for each in earlier if is_of_space(space, each.point)]
        self._features = Features(space, after_others=bool(self._earlier))
        self._products = Products(space, self._features)
        self._pool = Pool(space, self._features, seed)
        self._legal_before: dict[str, bool] = {}
        self._is_legal = legal
        self._expected: dict[Scale, Expected | None] = {}
        self._current: Expected | None = None
        self._earlier_by_scale: dict[Scale, tuple[ObservedData, ScoreModel | Blend] | None] = {}
        self._kept: dict[PriorMode, tuple[tuple[int, int], View]] = {}
        self._fits: dict[tuple[PriorMode, Scale, int], Fit | Fits] = {}  # by number of observations
        self._observed_points: Mapping[str, Point] = NOTHING  # the points of the observations last seen
        self._last_seen: tuple[int, Scale, ObservedData] | None = None
        self._weighed: tuple[ObservedData, ModeWeights] | None = None  # what the modes weigh after these observations

    @property
    def _called(self) -> str:
        return "prior" if self._prior is None else self._prior.called

    def _highest(self, scale: Scale) -> float | None:
        highest = None if self._prior is None else self._prior.highest
        return None if highest is None else scale.seen(highest)

    def forget(self) -> None:
        """Other observations follow: what was made of these is of no more use."""
        self._kept, self._last_seen, self._fits = {}, None, {}

    def mode_weights(self, observations: Sequence[Observation]) -> ModeWeights:
        """How what was predicted is to be read, as far as the observations tell."""
        with on_one_thread():
            _, seen = self._seen(observations)
            if self._weighed is None or self._weighed[0] is not seen:
                alone = {PriorMode.NOT_AT_ALL: 1.0}
                found = alone if seen.expected is None else mode_weights(seen.present, self._features.columns)
                self._weighed = seen, found
            return self._weighed[1]

    def trusts_earlier(self, observations: Sequence[Observation]) -> bool:
        """Whether earlier studies measured enough, and tell of these observations what they do not tell themselves."""
        with on_one_thread():
            return self._seen(observations)[1].earlier > 0

    def says_nothing(self, observations: Sequence[Observation], taken: Collection[str]) -> bool:
        """Whether no knob has shown an effect, so that the model's choice is no better than any other."""
        with on_one_thread():
            scores = self._view(observations, taken).scores
        return isinstance(scores, Blend) and scores.says_nothing

    def choice(
        self,
        observations: Sequence[Observation],
        pending: Sequence[Point],
        taken: Collection[str],
        mode: PriorMode = PriorMode.NOT_AT_ALL,
        prior_leads: bool = False,
    ) -> Proposal | None:
        """`prior_leads`: the best mean is chosen, of another family than what was tried, whatever its interval."""
        with on_one_thread():
            return self._choice(observations, pending, taken, mode, prior_leads)

    def _choice(
        self,
        observations: Sequence[Observation],
        pending: Sequence[Point],
        taken: Collection[str],
        mode: PriorMode,
        prior_leads: bool,
    ) -> Proposal | None:
        view = self._view(observations, taken, mode)
        scores = self._with_pending(view, pending[-BELIEVED:]) if pending else view.scores
        field = screened(view, scores, by_mean=prior_leads)
        costs = relative_cost(observations, view.seen.present.rows, field.rows)
        tried = [*(observation.point for observation in observations), *pending]
        family = self._same_family(tried, field.rows) if prior_leads else None

        def judge(field: Field) -> tuple[Forecast, Ranking]:
            found = forecast(scores, view.chances, field)
            if family is not None:
                return found, prior_lead(
                    found, family, view.better_by(_FAMILY_GAIN) - view.best, view.chances.too_risky
                )
            return found, acquisition(found, view.to_beat, costs, view.chances.too_risky)

        chosen = self._chosen(field, observations, taken, mode, judge)
        if chosen is None:
            return None
        return Proposal(chosen.point, why(chosen, view, self._called, prior_leads), predicted(chosen, view))

    def _same_family(self, tried: Sequence[Point], rows: Array) -> Array:
        """Which rows are of the family of a tried setting."""
        own = [point for point in tried if is_of_space(self._space, point)]
        if not own or self._current is None:
            return np.zeros(len(rows), dtype=bool)
        return self._current.same_family(rows, self._features.of(own))

    def _chosen(
        self,
        field: Field,
        observations: Sequence[Observation],
        taken: Collection[str],
        mode: PriorMode,
        judge: Callable[[Field], tuple[Forecast, Ranking]],
    ) -> ChosenCandidate | None:
        """The candidate that leads; of the leading ones the prior itself is asked, until one that was asked leads."""
        asked: dict[str, Point] = {}
        for turn in range(TURNS + 1):
            found, ranking = judge(field)
            chosen = self._leading(ranking, field, taken)
            if not chosen:
                return None
            if self._current is None or field.keys[chosen[0]] in asked or turn == TURNS:
                break
            asked |= {field.keys[i]: field.points[i] for i in chosen}
            field = replace(field, prior_values=self._prior_values(mode, field.keys, field.rows, asked))
        row = max((i for i, key in enumerate(field.keys) if key in asked), key=ranking.place, default=chosen[0])
        return ChosenCandidate(field.only([row]), float(found.chance[row]))

    def _prior_values(
        self, mode: PriorMode, keys: Sequence[str], rows: Array, asked: Mapping[str, Point] = NOTHING
    ) -> PriorValues | None:
        """What is expected at these rows, where the points observed and these are asked themselves."""
        if self._current is None:
            return None
        return replace(
            self._current.at(keys, rows, {**self._observed_points, **asked}), odds_only=mode is PriorMode.NOT_AT_ALL
        )

    def prospect(
        self,
        observations: Sequence[Observation],
        taken: Collection[str],
        worth: float,
        mode: PriorMode = PriorMode.NOT_AT_ALL,
    ) -> Prospect:
        """How likely an untried point beats the best by more than `worth`, and what the best of them may bring."""
        with on_one_thread():
            return self._prospect(observations, taken, worth, mode)

    def _prospect(
        self, observations: Sequence[Observation], taken: Collection[str], worth: float, mode: PriorMode
    ) -> Prospect:
        view = self._view(observations, taken, mode)
        best, sign = view.best, view.scale.sign
        goal = view.better_by(worth)
        field = screened(view, view.scores)
        found = forecast(view.scores, view.chances, field)
        promise = log_expected_improvement(found.mean, found.spread, goal) + np.log(found.chance)
        leading = self._leading(Ranking(promise, np.zeros(len(promise), dtype=bool)), field, taken, DRAWN_AT)
        whole = self._pool.exhausted
        if not leading:
            return Prospect(0.0, worth, 0.0, whole=whole)
        rng = np.random.default_rng(self._seed)
        field = field.only(leading)
        truths = view.scores.draws(field.rows, field.expected, DRAWS, rng)
        middle = found.mean[leading]
        truths = middle + (truths - middle) * view.scores.overconfidence
        if (highest := self._highest(view.scale)) is not None:
            truths = np.minimum(truths, max(highest, best))
        runs = rng.random(truths.shape) < found.chance[leading]
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
            field = self._candidates(observations, centres, taken, rng, mode)
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
            self._last_seen = len(observations), scale, self._observed_data(observations, scale)
        return self._last_seen[1:]

    def _observed_data(self, observations: Sequence[Observation], scale: Scale) -> ObservedData:
        points = [observation.point for observation in observations]
        rows = self._features.of(points)
        values = scale.values([observation.score for observation in observations])
        expected = self._expectations(scale)
        keys = [point_key(point) for point in points]
        self._observed_points = dict(zip(keys, points, strict=True))
        prior_values = None if expected is None else expected.at(keys, rows, self._observed_points)
        censored = np.array([observation.censored for observation in observations], dtype=bool)
        present = replace(ObservedData.of(rows, values, prior_values), products=self._products, censored=censored)
        return self._after_earlier(present, scale, expected)

    def _expectations(self, scale: Scale) -> Expected | None:
        if scale not in self._expected:
            asked = None
            if self._prior is not None:
                asked = Expected(self._prior, scale, self._space, self._features, self._pool, self._is_legal)
                asked = asked if asked.says_something else None
            self._expected[scale] = asked
        self._current = self._expected[scale]
        return self._current

    def _after_earlier(self, present: ObservedData, scale: Scale, expected: Expected | None) -> ObservedData:
        """This study's observations after those of earlier studies, which are moved to this study's level: a larger
        problem takes longer whatever the setting. What is observed in both is compared by the earlier ones' model."""
        if scale not in self._earlier_by_scale:
            self._earlier_by_scale[scale] = self._earlier_data(scale, expected)
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

    def _earlier_data(self, scale: Scale, expected: Expected | None) -> tuple[ObservedData, ScoreModel | Blend] | None:
        """What earlier studies observed, and its model; None where too little of it is on this scale."""
        values = scale.values([observation.score for observation in self._earlier])
        placed = [i for i, each in enumerate(self._earlier) if each.score is None or not math.isnan(values[i])]
        if np.isfinite(values).sum() < FEWEST_EARLIER:
            return None
        points = [self._earlier[i].point for i in placed]
        rows, keys = self._features.of(points, earlier=True), [point_key(point) for point in points]
        prior_values = None if expected is None else expected.at(keys, rows, dict(zip(keys, points, strict=True)))
        censored = np.array([self._earlier[i].censored for i in placed], dtype=bool)
        data = replace(
            ObservedData.of(rows, values[placed], prior_values),
            products=self._products,
            censored=censored,
            earlier=len(placed),
        )
        return data, score_model(data, self._features.columns)

    def _with_pending(self, view: View, pending: Sequence[Point]) -> ScoreModel | Blend:
        """The model as if pending trials had come out as it expects: what they will teach needs no second trial."""
        own = [point for point in pending if is_of_space(self._space, point)]
        if not own:
            return view.scores
        rows, seen = self._features.of(own), view.seen
        values = None
        if self._current is not None and seen.expected is not None:
            named = {point_key(point): point for point in own}
            values = self._current.at([point_key(point) for point in own], rows, named).columns
        mean, _ = view.scores.at(rows, values)
        expected = None if values is None or seen.expected is None else np.concatenate([seen.expected, values])
        rows, values = np.concatenate([seen.rows, rows]), np.concatenate([seen.values, mean])
        censored = None if seen.censored is None else np.append(seen.censored, np.zeros(len(mean), dtype=bool))
        as_expected = replace(seen, rows=rows, values=values, expected=expected, odds=None, censored=censored)
        return score_model(as_expected, self._features.columns, view.scores.fit)

    def _candidates(
        self,
        observations: Sequence[Observation],
        centres: Sequence[Point],
        taken: Collection[str],
        rng: random.Random,
        mode: PriorMode,
    ) -> Field:
        points, keys, rows = self._pool.grown(len(observations))
        near = {} if self._pool.exhausted else around(self._space, centres, rng, {*keys, *taken})
        every = [*points, *near.values()]
        rows = np.concatenate([rows, self._features.of(list(near.values()))])
        prior_values = self._prior_values(mode, [*keys, *near], rows)
        return Field(every, [*keys, *near], rows, prior_values)

    def _legal(self, field: Field, row: int) -> bool:
        key = field.keys[row]
        if key not in self._legal_before:
            self._legal_before[key] = self._is_legal(field.points[row])
        return self._legal_before[key]

    def _leading(self, ranking: Ranking, field: Field, taken: Collection[str], count: int = ASKED_EXACTLY) -> list[int]:
        """The legal, untried candidates that promise most; fewer where most of those looked at may not run."""
        found: list[int] = []
        checks = 0
        for row in map(int, ranking.order()):
            if field.keys[row] in taken:
                continue
            if self._legal(field, row):
                found.append(row)
            else:
                checks += 1
            if len(found) == count or checks == _CHECKS:
                break
        return found
