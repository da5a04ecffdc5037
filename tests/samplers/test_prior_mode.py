"""An expectation leads while the observations bear it out, and costs little where they do not."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import numpy as np
import pytest

from ridgeline.records.observation import Expectation, Observation, Prospect
from ridgeline.records.space import Discrete, Point, Space, point_key
from ridgeline.samplers.guided.model import ObservedData
from ridgeline.samplers.guided.prior import ModeWeights, PriorMode, mixed, mode_weights
from ridgeline.samplers.guided.sampler import GuidedSampler
from tests.foretold import Foretold

GRID = Space((Discrete("a", tuple(range(20)), True), Discrete("b", tuple(range(20)), True)), {})
EVERY: list[Point] = [{"a": a, "b": b} for a in range(20) for b in range(20)]
OTHERS = dict(zip(map(point_key, EVERY), random.Random(3).sample(EVERY, len(EVERY)), strict=True))
START: Point = {"a": 0, "b": 19}
Speed = Callable[[Point], float]


def hill(point: Point) -> float:
    """Best at a 13, b 5, where it is 100."""
    a, b = (float(point[name]) for name in "ab")  # type: ignore[arg-type]
    return 100.0 * math.exp(-((a - 13) ** 2 + (b - 5) ** 2) / 80)


def upside_down(point: Point) -> float:
    return 1.0 / hill(point)


def muddled(point: Point) -> float:
    """Says of every setting what is true of another."""
    return hill(OTHERS[point_key(point)])


def make(seed: int = 0) -> GuidedSampler:
    return GuidedSampler(GRID, seed, {}, lambda point: None)


def guided_by(speed: Speed, seed: int = 0) -> GuidedSampler:
    sampler = make(seed)
    sampler.expect(Foretold(lambda point: Expectation(speed(point))))
    sampler.tell(Observation(START, hill(START)))
    return sampler


def after_a_study_of(speed: Speed, seed: int = 0) -> GuidedSampler:
    sampler = make(seed)
    sampler.recall([Observation(point, speed(point)) for point in random.Random(seed).sample(EVERY, 30)])
    sampler.tell(Observation(START, hill(START)))
    return sampler


def trials_to_the_top(sampler: GuidedSampler, limit: int = 60) -> int:
    for trial in range(1, limit + 1):
        proposal = sampler.ask()
        assert proposal is not None
        if hill(proposal.point) > 95:
            return trial
        sampler.tell(Observation(proposal.point, hill(proposal.point)))
    return limit + 1


def weights(sampler: GuidedSampler, observations: int) -> ModeWeights:
    """After the search itself has chosen so many settings."""
    for _ in range(observations):
        proposal = sampler.ask()
        assert proposal is not None
        sampler.tell(Observation(proposal.point, hill(proposal.point)))
    return sampler._choosing().mode_weights(sampler._observations)


def test_an_honest_expectation_is_read_as_it_stands() -> None:
    assert weights(guided_by(hill), 4)[PriorMode.AS_IT_STANDS] > 0.9


def test_a_reversed_one_is_not_after_two_observations() -> None:
    assert weights(guided_by(upside_down), 2)[PriorMode.AS_IT_STANDS] < 0.03


def test_one_that_says_nothing_of_these_settings_is_left_after_six() -> None:
    assert weights(guided_by(muddled), 6)[PriorMode.NOT_AT_ALL] > 0.9


@pytest.mark.parametrize("speed", [upside_down, muddled])
@pytest.mark.parametrize("begun", [guided_by, after_a_study_of])
def test_misled_searches_reach_the_top_about_as_soon_as_blind_ones(
    begun: Callable[[Speed, int], GuidedSampler], speed: Speed
) -> None:
    blind = sum(trials_to_the_top(make(seed)) for seed in range(4))
    assert sum(trials_to_the_top(begun(speed, seed)) for seed in range(4)) <= 1.3 * blind


def test_what_is_not_read_at_all_leaves_the_search_as_if_nothing_were_predicted() -> None:
    misled, blind = guided_by(muddled), make()
    weights(misled, 8)
    for observation in misled._observations:
        blind.tell(observation)
    for _ in range(4):
        proposal, other = misled.ask(), blind.ask()
        assert proposal is not None and other is not None and proposal.point == other.point
        misled.tell(Observation(proposal.point, hill(proposal.point)))
        blind.tell(Observation(proposal.point, hill(proposal.point)))


@pytest.mark.parametrize("speed", [hill, upside_down, muddled])
def test_a_killed_campaign_goes_on_alike(speed: Speed) -> None:
    going = guided_by(speed)
    for told in (0, 3, 3):
        weights(going, told)
        resumed = make()
        resumed.expect(Foretold(lambda point: Expectation(speed(point))))
        for observation in going._observations:
            resumed.tell(observation)
        proposal = going.ask()
        assert proposal is not None and resumed.ask() == proposal


def test_the_first_trial_is_what_the_expectation_says() -> None:
    proposal = guided_by(hill).ask()
    assert proposal is not None and hill(proposal.point) > 95


@pytest.mark.parametrize("chance", [0.3, 0.9])
@pytest.mark.parametrize("seed", range(3))
def test_settings_of_which_nothing_is_expected_do_not_keep_it_from_the_best_of_the_others(
    chance: float, seed: int
) -> None:
    """However doubtful the others are, too: where all are, what is known still leads."""
    sampler = make(seed)
    sampler.expect(
        Foretold(
            lambda point: None if (point["a"] + point["b"]) % 3 == 0 else Expectation(hill(point), chance=chance)  # type: ignore[operator]
        )
    )
    sampler.tell(Observation(START, hill(START)))
    proposal = sampler.ask()
    assert proposal is not None and hill(proposal.point) > 95


def test_what_earlier_studies_saw_stands_before_this_one_and_is_taken_off_again() -> None:
    def data(first: int, count: int) -> ObservedData:
        numbers = np.arange(first, first + count, dtype=float)
        return ObservedData(
            numbers[:, None], numbers + 100, numbers[:, None] + 200, numbers + 300, censored=numbers % 2 == 0
        )

    before, now = data(0, 4), data(10, 3)
    both = before.followed_by(now)
    assert both.rows[:, 0].tolist() == [0, 1, 2, 3, 10, 11, 12] and both.earlier == 4
    for whole, columns in ((both, 7), (both.first(1), 5), (both.present, 3)):
        names = whole.rows[:, 0]
        assert len(names) == columns
        assert whole.values.tolist() == (names + 100).tolist()
        assert whole.expected is not None and whole.expected[:, 0].tolist() == (names + 200).tolist()
        assert whole.odds is not None and whole.odds.tolist() == (names + 300).tolist()
        assert whole.censored is not None and whole.censored.tolist() == (names % 2 == 0).tolist()
    assert both.present.earlier == 0 and both.present.rows[:, 0].tolist() == [10, 11, 12]


def test_one_outlier_does_not_undo_an_honest_expectation() -> None:
    rows = np.array([[a / 19, b / 19] for a, b in ((0, 19), (13, 5), (10, 5), (13, 9), (15, 3), (9, 9))])
    told = np.log([hill({"a": round(19 * a), "b": round(19 * b)}) for a, b in rows])
    values = told + np.array([0.0, 0.01, -0.03, 0.02, -0.15, 0.0])
    seen = ObservedData(rows, values, told[:, None], None, 0.15, 1.0)
    assert mode_weights(seen, np.arange(2))[PriorMode.AS_IT_STANDS] > 0.8


def test_a_search_is_over_only_where_all_that_is_believed_says_so() -> None:
    found = {PriorMode.AS_IT_STANDS: Prospect(0.0, 0.02, 0.01), PriorMode.NOT_AT_ALL: Prospect(0.5, 0.02, 0.3)}
    both = mixed(
        {PriorMode.AS_IT_STANDS: 0.8, PriorMode.EITHER_WAY: 0.0, PriorMode.NOT_AT_ALL: 0.2}, lambda r: found[r]
    )
    assert both.chance == pytest.approx(0.1) and both.gain == 0.3 and not both.over
    assert mixed({PriorMode.AS_IT_STANDS: 1.0, PriorMode.NOT_AT_ALL: 0.0}, lambda r: found[r]).over


def test_the_prospect_of_a_misled_search_is_that_of_a_blind_one() -> None:
    misled, blind = guided_by(muddled), make()
    weights(misled, 10)
    for observation in misled._observations:
        blind.tell(observation)
    left, alone = misled.prospect(), blind.prospect()
    assert left is not None and alone is not None
    assert left.chance == pytest.approx(alone.chance, abs=0.02)
