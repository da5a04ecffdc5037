"""Two models of the scores: the observations say which of them to believe."""

from __future__ import annotations

import numpy as np
import pytest

from ridgeline.samplers.guided.gaussian import Fit, GaussianProcess
from ridgeline.samplers.guided.model import Blend, ObservedData, ScoreModel, score_model

KNOBS = 5
COLUMNS = np.arange(KNOBS)
DOES = np.array([0.0, 0.6, 0.9, 0.5, 0.0, -0.6])  # at each of six values of a knob


def places(count: int, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).integers(0, 6, (count, KNOBS)) / 5).astype(np.float32)


def by_itself(rows: np.ndarray) -> np.ndarray:
    """Each knob does what it does, whatever the others are."""
    return np.asarray(DOES[np.rint(5 * rows).astype(int)].sum(axis=1))


def together(rows: np.ndarray) -> np.ndarray:
    """A ridge along the sum of all knobs: what one does depends on all others."""
    return np.asarray(3 * np.exp(-((rows.sum(axis=1) - 2.5) ** 2)))


def blend_of(speed: object, count: int = 40) -> Blend:
    rows = places(count)
    found = score_model(ObservedData(rows, speed(rows), None, None), COLUMNS)  # type: ignore[operator]
    assert isinstance(found, Blend)
    return found


def test_the_model_that_predicts_the_observations_is_believed() -> None:
    assert blend_of(by_itself).weights[1] > 0.9
    assert blend_of(together).weights[0] > 0.9


def test_values_that_no_knob_explains_are_seen_to_be_so_once_there_are_enough() -> None:
    rng = np.random.default_rng(5)
    assert blend_of(lambda rows: rng.normal(size=len(rows))).says_nothing
    assert not blend_of(by_itself).says_nothing
    assert not blend_of(lambda rows: rng.normal(size=len(rows)), count=8).says_nothing, "too early to say"


def test_the_mean_of_the_others_predicts_as_a_normal_distribution_would() -> None:
    values = np.array([0.3, -1.2, 0.8, 2.0, -0.4])
    model = ScoreModel(ObservedData(places(5), values, None, None), COLUMNS)
    standard, long_way = (values - values.mean()) / values.std(), 0.0
    for one in range(5):
        others = np.delete(standard, one)
        variance = others.var(ddof=1) * 5 / 4  # of a new value around the mean of four
        long_way += -0.5 * np.log(variance) - 0.5 * (standard[one] - others.mean()) ** 2 / variance
    assert model.predicted_by_mean() == pytest.approx(long_way)


def test_an_observation_left_out_is_predicted_from_all_others() -> None:
    """The short way to the leave-one-out score is the long one's."""
    rows, values = places(12), np.random.default_rng(3).normal(size=12)
    fit = Fit(np.full(KNOBS, 0.7), 1.2, 0.1)
    process, long_way = GaussianProcess(rows, COLUMNS, fit), 0.0
    for one in range(12):
        others = np.arange(12) != one
        without = GaussianProcess(rows[others], COLUMNS, fit)
        across = without.across(rows[[one]].astype(float))
        mean, variance = (
            (across @ without.solved(values[others])).item(),
            without.spread(across).item() ** 2 + fit.noise,
        )
        long_way += -0.5 * np.log(variance) - 0.5 * (values[one] - mean) ** 2 / variance
    assert process.left_out(process.solved(values)).sum() == pytest.approx(long_way, abs=1e-3)


def test_where_the_models_disagree_the_spread_says_so() -> None:
    blend, asked = blend_of(by_itself, 12), places(100, seed=1)
    blend.weights = np.array([0.5, 0.5])
    (one, first), (other, second) = (model.at(asked, None) for model in blend._models)
    mean, spread = blend.at(asked, None)
    assert np.allclose(mean, (one + other) / 2)
    assert np.allclose(spread**2, (first**2 + second**2) / 2 + (one - other) ** 2 / 4, rtol=1e-4)


def test_possible_truths_are_drawn_of_both() -> None:
    blend, asked = blend_of(by_itself, 12), places(20, seed=1)
    blend.weights = np.array([0.25, 0.75])
    drawn = blend.draws(asked, None, 400, np.random.default_rng(0))
    mean, spread = blend.at(asked, None)
    assert drawn.shape == (400, 20)
    assert np.all(np.abs(drawn.mean(axis=0) - mean) < 0.5 * spread)


def test_what_is_expected_beforehand_leaves_one_model() -> None:
    rows = places(12)
    seen = ObservedData(rows, by_itself(rows), by_itself(rows)[:, None], np.zeros(12), 0.1)
    assert isinstance(score_model(seen, COLUMNS), ScoreModel)


def test_a_fit_is_used_again_for_what_is_pending() -> None:
    blend, rows = blend_of(by_itself, 20), places(21)
    again = score_model(ObservedData(rows, by_itself(rows), None, None), COLUMNS, blend.fit)
    assert isinstance(again, Blend)
    for fit, before in zip(again.fit, blend.fit, strict=True):
        assert np.array_equal(fit.weights, before.weights)
