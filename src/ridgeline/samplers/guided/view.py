"""What the observations say about the candidates, seen at once: scores, chances to pass, and what a trial promises."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ridgeline.records.observation import Observation, Prediction
from ridgeline.records.space import Point
from ridgeline.samplers.guided.blend import Blend
from ridgeline.samplers.guided.feasibility import HOPELESS, Feasibility
from ridgeline.samplers.guided.gaussian import Array
from ridgeline.samplers.guided.improvement import log_expected_improvement
from ridgeline.samplers.guided.model import Forecast, Foreseen, Scale, ScoreModel, Taught
from ridgeline.stats.wording import count

SMALLEST_GAIN = 0.01  # a trial that can only win less is not worth more than one that explores
FAR_BELOW = 0.75  # of the best chance: where nothing is likely to pass, the likeliest are tried
SCREENED = 1_500  # candidates that get a closer look
CAUTION = 3.0  # a crash teaches less than a result: the chance to pass counts so many times over
CENTRES = 4  # the best settings so far, around which all neighbours are candidates


@dataclass(frozen=True)
class Field:
    """The candidates: points with their keys, features and what is expected of them."""

    points: Sequence[Point]
    keys: Sequence[str]
    rows: Array
    foreseen: Foreseen | None

    def only(self, rows: Sequence[int]) -> Field:
        foreseen = None if self.foreseen is None else self.foreseen.only(rows)
        return Field([self.points[i] for i in rows], [self.keys[i] for i in rows], self.rows[rows], foreseen)

    @property
    def expected(self) -> Array | None:
        return None if self.foreseen is None or self.foreseen.unread else self.foreseen.columns

    @property
    def odds(self) -> Array | None:
        return None if self.foreseen is None else self.foreseen.odds


@dataclass(frozen=True)
class View:
    """What the observations say about the candidates; `best` is the best mean among what passed."""

    scale: Scale
    seen: Taught
    scores: ScoreModel | Blend
    chances: Feasibility
    best: float
    field: Field

    def better_by(self, share: float) -> float:
        """The score, on the scale, that is better than the best by this share."""
        return self.best + (math.log1p(share) if self.scale.sign else share * max(abs(self.best), 1e-12))

    @property
    def to_beat(self) -> float:
        return self.better_by(SMALLEST_GAIN)


@dataclass(frozen=True)
class Settled:
    """The point that is proposed, as the only one of its field, and its chance to pass."""

    field: Field
    chance: float

    @property
    def point(self) -> Point:
        return self.field.points[0]


def standing(
    scores: ScoreModel | Blend, seen: Taught, observations: Sequence[Observation]
) -> tuple[float, list[Point]]:
    """The best mean among what passed, and the settings that have the best."""
    passed = np.flatnonzero(~np.isnan(seen.values))
    mean, _ = scores.at(seen.rows[passed], None if seen.expected is None else seen.expected[passed])
    order = passed[np.argsort(-mean, kind="stable")]
    return float(mean.max()), [observations[i].point for i in order[:CENTRES]]


def screened(view: View, scores: ScoreModel | Blend) -> Field:
    """The candidates worth a closer look, in the order in which they stand."""
    field = view.field
    if len(field.keys) <= SCREENED:
        return field
    mean, spread = scores.roughly(field.rows, field.expected)
    rough = log_expected_improvement(mean, spread, view.to_beat)
    chance = view.chances.roughly(field.rows, field.odds)
    rough = np.where(chance < HOPELESS * float(chance.max()), rough - 1e12, rough + CAUTION * np.log(chance))
    return field.only(np.sort(np.argsort(-rough, kind="stable")[:SCREENED]).tolist())


def forecast(scores: ScoreModel | Blend, chances: Feasibility, field: Field) -> Forecast:
    mean, spread = scores.at(field.rows, field.expected)
    return Forecast(mean, spread, chances.at(field.rows, field.odds))


def hopes(forecast: Forecast, best: float, costs: Array, hopeless: float) -> Array:
    """`best` is what a trial has to beat to be worth anything. What almost surely fails comes last, whatever it
    promises: beyond an edge of memory a model sees speed that nobody will ever have."""
    gains = log_expected_improvement(forecast.mean, forecast.spread, best)
    hopes = gains + CAUTION * np.log(forecast.chance) - np.log(costs)
    last = forecast.chance < min(hopeless, FAR_BELOW * float(forecast.chance.max()))
    found: Array = np.where(last, hopes - 1e12, hopes)
    return found


def predicted(settled: Settled, view: View) -> Prediction:
    """What one run of the proposed point will measure: trials in flight have measured nothing yet, so they do not make
    it surer, and beside what is not known of the truth a run has noise of its own."""
    mean, spread = view.scores.at(settled.field.rows, settled.field.expected)
    of_a_run = math.hypot(float(spread[0]), view.scores.noise)
    return Prediction(view.scale.score(float(mean[0])), of_a_run, in_logs=view.scale.sign != 0)


def why(settled: Settled, view: View, observed: int, prior: str) -> str:
    """'96% likely to pass; 23 trials observed, twin weighted 97%'; `prior` is what the expectation is called."""
    weight = view.scores.trust
    reversed_ = "reversed and " if weight < 0 else ""
    weighted = f", {prior} {reversed_}weighted {abs(weight):.0%}" if weight else ""
    return f"{settled.chance:.0%} likely to pass; {count(observed, 'trial')} observed{weighted}"
