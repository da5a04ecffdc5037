"""What the observations say about the candidates, seen at once: scores, chances to pass, and what a trial promises."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ridgeline.records.observation import BEST_SO_FAR, Observation, Prediction
from ridgeline.records.space import Point
from ridgeline.samplers.guided.feasibility import TOO_RISKY, Feasibility
from ridgeline.samplers.guided.gaussian import Array, log_expected_improvement
from ridgeline.samplers.guided.model import Blend, Forecast, ObservedData, PriorValues, Scale, ScoreModel

_SMALLEST_GAIN = 0.01  # a trial that can only win less is not worth more than one that explores
_FAR_BELOW = 0.75  # of the best chance: where nothing is likely to pass, the likeliest are tried
_SCREENED = 1_500  # candidates that get a closer look
CAUTION = 3.0  # a crash teaches less than a result: the chance to pass counts so many times over
_CENTRES = 4  # the best settings so far, around which all neighbours are candidates


@dataclass(frozen=True)
class Field:
    """The candidates: points with their keys, features and what is expected of them."""

    points: Sequence[Point]
    keys: Sequence[str]
    rows: Array
    prior_values: PriorValues | None

    def only(self, rows: Sequence[int]) -> Field:
        prior_values = None if self.prior_values is None else self.prior_values.only(rows)
        return Field([self.points[i] for i in rows], [self.keys[i] for i in rows], self.rows[rows], prior_values)

    @property
    def expected(self) -> Array | None:
        return None if self.prior_values is None or self.prior_values.odds_only else self.prior_values.columns

    @property
    def odds(self) -> Array | None:
        return None if self.prior_values is None else self.prior_values.odds


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


@dataclass(frozen=True)
class ChosenCandidate:
    """The point that is proposed, as the only one of its field, and its chance to pass."""

    field: Field
    chance: float

    @property
    def point(self) -> Point:
        return self.field.points[0]


@dataclass(frozen=True)
class Ranking:
    """What each candidate promises, and which come last whatever they promise: those that almost surely fail."""

    promise: Array
    last: Array

    def order(self) -> Array:
        """Rows, the most promising first; of equal ones the first in the field."""
        found: Array = np.lexsort((-self.promise, self.last))
        return found

    def place(self, row: int) -> tuple[bool, float]:
        """Larger is better."""
        return not self.last[row], float(self.promise[row])


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
    ranking = Ranking(np.where(last, rough, rough + CAUTION * np.log(chance)), last)
    return field.only(np.sort(ranking.order()[:_SCREENED]).tolist())


def forecast(scores: ScoreModel | Blend, chances: Feasibility, field: Field) -> Forecast:
    mean, spread = scores.at(field.rows, field.expected)
    return Forecast(mean, spread, chances.at(field.rows, field.odds))


def prior_lead(forecast: Forecast, same_family: Array, worth: float, too_risky: float) -> Ranking:
    """The best mean leads, not the widest interval: an engineer tries what the twin puts first. A setting that the
    prior takes for much the same as one already tried has to be better by `worth`."""
    return Ranking(forecast.mean - worth * same_family, _hopeless(forecast, too_risky))


def acquisition(forecast: Forecast, best: float, costs: Array, too_risky: float) -> Ranking:
    """`best` is what a trial has to beat to be worth anything. What almost surely fails comes last, whatever it
    promises: beyond an edge of memory a model sees speed that nobody will ever have."""
    gains = log_expected_improvement(forecast.mean, forecast.spread, best)
    return Ranking(gains + CAUTION * np.log(forecast.chance) - np.log(costs), _hopeless(forecast, too_risky))


def _hopeless(forecast: Forecast, too_risky: float) -> Array:
    found: Array = forecast.chance < min(too_risky, _FAR_BELOW * float(forecast.chance.max()))
    return found


def predicted(chosen: ChosenCandidate, view: View) -> Prediction:
    """What one run of the proposed point will measure: trials in flight have measured nothing yet, so they do not make
    it surer, and beside what is not known of the truth a run has noise of its own."""
    mean, spread = view.scores.at(chosen.field.rows, chosen.field.expected)
    of_a_run = math.hypot(float(spread[0]), view.scores.noise)
    to_beat = view.scale.score(view.best)
    return Prediction(view.scale.score(float(mean[0])), of_a_run, in_logs=view.scale.sign != 0, to_beat=to_beat)


def why(chosen: ChosenCandidate, view: View, prior: str, leads: bool) -> str:
    """'best chance to beat the best so far per node-hour; 96% likely to pass'; `prior` is what the expectation is
    called, `leads`: the point is the prior's own choice."""
    aim = (
        f"the {prior} ranks it first of the untried settings"
        if leads
        else f"best chance to beat {BEST_SO_FAR} per node-hour"
    )
    reversed_ = f"; the {prior}'s order is taken in reverse" if view.scores.trust < 0 else ""
    return f"{aim}; {chosen.chance:.0%} likely to pass{reversed_}"
