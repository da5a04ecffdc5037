"""A predicted chance to pass is weights as far as outcomes bear it out."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ridgeline.records.observation import Expectation, Observation
from ridgeline.records.space import Discrete, Point, Space
from ridgeline.samplers.guided import feasibility
from ridgeline.samplers.guided.feasibility import TOO_RISKY, TOO_RISKY_PREDICTED, Feasibility, credit
from ridgeline.samplers.guided.model import ObservedData
from ridgeline.samplers.guided.sampler import GuidedSampler
from tests.foretold import Foretold

SURE, NEVER = 4.0, -4.0  # log odds
LINE = Space((Discrete("a", tuple(range(20)), True),), {})


def odds(*each: float) -> np.ndarray:
    return np.array(each)


def outcomes(text: str) -> np.ndarray:
    return np.array([letter == "p" for letter in text])


def test_what_comes_true_is_believed_more() -> None:
    assert credit(odds(SURE, SURE, NEVER), outcomes("ppf")) > 0.98


def test_three_failures_where_passing_was_sure_undo_it() -> None:
    assert credit(odds(SURE, SURE, SURE, SURE), outcomes("pfff")) < 0.3
    assert credit(odds(SURE, SURE, SURE, SURE, SURE), outcomes("pffff")) < 0.05


def test_one_hang_among_many_passes_does_not() -> None:
    assert credit(np.full(8, SURE), outcomes("pppfpppp")) > 0.8


def taught(odds_: np.ndarray, passed: str) -> ObservedData:
    places = np.linspace(0.0, 1.0, len(passed))[:, None]
    values = np.where(outcomes(passed), 1.0, math.nan)
    return ObservedData(places, values, values[:, None], odds_)


def test_what_is_not_believed_counts_no_more() -> None:
    """Predicted to fail where all pass, and to pass where all fail."""
    turned = np.array([NEVER] * 6 + [SURE] * 6)
    model = Feasibility(taught(turned, "ppppppffffff"), np.zeros(1, int))
    assert model.credit < 0.01 and model.too_risky == pytest.approx(TOO_RISKY, abs=0.01)
    low, high = model.at(np.array([[0.1], [0.9]]), odds(NEVER, SURE))
    assert low > 0.8 and high < 0.3


def test_where_nothing_failed_yet_what_was_predicted_stands() -> None:
    model = Feasibility(taught(np.full(5, SURE), "ppppp"), np.zeros(1, int))
    assert model.too_risky == pytest.approx(TOO_RISKY_PREDICTED, abs=0.02)
    sure, never = model.at(np.array([[0.1], [0.9]]), odds(SURE, NEVER))
    assert sure > 0.9 and never < 0.1


def fast_but_risky(point: Point) -> Expectation:
    """Ten times as fast from 10 on, where it passes three times in ten."""
    a = float(point["a"])  # type: ignore[arg-type]
    return Expectation(100.0 + a, chance=0.3) if a >= 10 else Expectation(10.0 + 0.1 * a, chance=0.98)


def proposed() -> float:
    sampler = GuidedSampler(LINE, 0, {}, lambda point: None)
    sampler.expect(Foretold(fast_but_risky))
    for a in (0, 5):
        sampler.tell(Observation({"a": a}, 10.0 + 0.1 * a))
    proposal = sampler.ask()
    assert proposal is not None
    return float(proposal.point["a"])  # type: ignore[arg-type]


def test_what_was_predicted_to_fail_more_often_than_not_comes_last(monkeypatch: pytest.MonkeyPatch) -> None:
    assert proposed() < 10
    monkeypatch.setattr(feasibility, "TOO_RISKY_PREDICTED", TOO_RISKY)
    assert proposed() >= 10  # for its promise alone it would be tried
