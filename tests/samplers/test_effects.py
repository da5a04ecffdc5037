"""The process that adds up what single knobs do: it carries a knob's effect to settings of the others it never saw."""

from __future__ import annotations

import numpy as np
import pytest

from ridgeline.samplers.guided.gaussian import (
    EffectsFit,
    EffectsProcess,
    GaussianProcess,
    _effects_height,
    fitted,
    fitted_effects,
)

KNOBS = 4
COLUMNS = np.arange(KNOBS)
FIT = EffectsFit(
    np.array([4.0, 1.0, 9.0, 4.0]), 1.3, 0.02, np.array([0.5, 2.0, 0.1, 1.0]), np.array([0.0, 0.2, 0.6, 0.1])
)


def places(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 6, (count, KNOBS)) / 5


def worked_out(a: np.ndarray, b: np.ndarray, columns: np.ndarray, fit: EffectsFit) -> np.ndarray:
    """The covariance from its definition, pair by pair."""
    found = np.full((len(a), len(b)), fit.signal)
    for knob, (weight, share, own) in enumerate(zip(fit.weights, fit.shares, fit.own, strict=True)):
        here = columns == knob
        squares = ((a[:, None, here] - b[None, :, here]) ** 2).sum(axis=2)
        distance = np.sqrt(5 * weight * squares)
        alike = (1 - own) * (1 + distance + distance**2 / 3) * np.exp(-distance) + own * (squares < 1e-9)
        found *= (1 + share * alike) / (1 + share)
    return found


@pytest.mark.parametrize("count", [7, 3000])
def test_what_is_looked_up_is_what_would_be_worked_out(count: int) -> None:
    known, asked = places(20), places(count, seed=1)
    asked[:, 0] = np.random.default_rng(2).random(count)  # a knob with as many values as points
    found = EffectsProcess(known, COLUMNS, FIT).across(asked)
    assert np.allclose(found, worked_out(asked, known, COLUMNS, FIT))


def test_a_choice_of_several_columns_is_one_knob() -> None:
    columns = np.array([0, 0, 0, 1, 2, 3])
    rng = np.random.default_rng(3)
    choice = np.eye(3)[rng.integers(0, 3, 30)] * 0.5**0.5
    rows = np.concatenate([choice, rng.integers(0, 4, (30, 3)) / 3], axis=1)
    found = EffectsProcess(rows[:10], columns, FIT).across(rows)
    assert np.allclose(found, worked_out(rows, rows[:10], columns, FIT))


def test_the_joint_spread_is_the_single_one_on_its_diagonal() -> None:
    process, asked = EffectsProcess(places(20), COLUMNS, FIT), places(9, seed=1)
    assert np.allclose(np.diag(process.joint(asked)), process.spread(process.across(asked)) ** 2, atol=1e-6)


def test_the_slope_is_that_of_the_likelihood() -> None:
    rows, values = places(25), np.random.default_rng(4).normal(size=25)
    pairs = np.triu_indices(25, 1)
    squares = ((rows[pairs[0]] - rows[pairs[1]]) ** 2).T
    at = np.random.default_rng(5).normal(0, 0.5, 3 * KNOBS + 2)
    _, slope = _effects_height(at, squares, pairs, values)
    for i, step in enumerate(1e-5 * np.eye(at.size)):
        up, down = (_effects_height(at + sign * step, squares, pairs, values)[0] for sign in (1, -1))
        assert slope[i] == pytest.approx((up - down) / 2e-5, abs=1e-4)


def test_what_knobs_do_by_themselves_is_carried_to_settings_never_seen() -> None:
    does = np.array([0.0, 0.6, 0.9, 0.5, 0.0, -0.6])  # at each value of a knob, whatever the others are
    rows, asked = places(50), places(300, seed=1)
    values, truth = (does[np.rint(5 * some).astype(int)].sum(axis=1) for some in (rows, asked))
    level, unit = values.mean(), values.std()
    standard = (values - level) / unit

    def off(process: GaussianProcess) -> float:
        found = level + unit * (process.across(asked) @ process.solved(standard))
        return float(np.sqrt(((found - truth) ** 2).mean()))

    added = off(EffectsProcess(rows, COLUMNS, fitted_effects(rows, standard, COLUMNS)))
    assert added < 0.25 * truth.std()
    assert added < 0.5 * off(GaussianProcess(rows, COLUMNS, fitted(rows, standard, COLUMNS)))
