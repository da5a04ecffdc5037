"""Earlier studies guide as far as they agree with this one: their observations are part of the model, the study a
knob."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import numpy as np
import pytest

from ridgeline.records.observation import Observation
from ridgeline.records.space import Discrete, Point, Space, point_key
from ridgeline.samplers.guided.chooser import Chooser
from ridgeline.samplers.guided.features import Features
from ridgeline.samplers.guided.sampler import GuidedSampler

GRID = Space((Discrete("a", tuple(range(20)), True), Discrete("b", tuple(range(20)), True)), {})
EVERY: list[Point] = [{"a": a, "b": b} for a in range(20) for b in range(20)]
START: Point = {"a": 0, "b": 19}
Speed = Callable[[Point], float]


def top_at(a: int, b: int, level: float = 100.0) -> Speed:
    def speed(point: Point) -> float:
        x, y = (float(point[name]) for name in "ab")  # type: ignore[arg-type]
        return level * math.exp(-((x - a) ** 2 + (y - b) ** 2) / 80)

    return speed


LARGE = top_at(13, 5)


def after(speed: Speed, seed: int = 0, known: int = 30) -> GuidedSampler:
    sampler = GuidedSampler(GRID, seed, {}, lambda point: None)
    sampler.recall([Observation(point, speed(point)) for point in random.Random(seed).sample(EVERY, known)])
    sampler.tell(Observation(START, LARGE(START)))
    return sampler


def trials_to_the_top(sampler: GuidedSampler, limit: int = 40) -> int:
    for trial in range(1, limit + 1):
        proposal = sampler.ask()
        assert proposal is not None
        if LARGE(proposal.point) > 95:
            return trial
        sampler.tell(Observation(proposal.point, LARGE(proposal.point)))
    return limit + 1


@pytest.mark.parametrize("level", [0.1, 1.0, 5_000.0])
def test_a_smaller_problem_leads_to_the_top_however_much_faster_or_slower_it_is(level: float) -> None:
    assert sum(trials_to_the_top(after(top_at(13, 5, level), seed)) for seed in range(3)) <= 6


def test_where_the_best_lies_elsewhere_in_the_smaller_problem_the_search_moves_on() -> None:
    moved = sum(trials_to_the_top(after(top_at(9, 9, 1.0), seed)) for seed in range(3))
    blind = sum(trials_to_the_top(after(LARGE, seed, known=0)) for seed in range(3))
    assert moved <= 1.2 * blind


def test_studies_that_agree_share_what_they_know_and_those_that_do_not_keep_it_apart() -> None:
    here = [Observation(point, LARGE(point)) for point in random.Random(7).sample(EVERY, 12)]
    tried = {point_key(observation.point) for observation in here}

    def spread(speed: Speed) -> float:
        """How unsure the model of this study is, over the space."""
        known = [Observation(point, speed(point)) for point in random.Random(1).sample(EVERY, 40)]
        view = Chooser(GRID, 0, lambda point: True, None, known)._view(here, tried)
        return float(np.mean(view.scores.at(view.field.rows, None)[1]))

    shuffled = dict(zip(map(point_key, EVERY), random.Random(3).sample(EVERY, len(EVERY)), strict=True))
    assert spread(top_at(13, 5, 3.0)) < 0.5 * spread(lambda point: LARGE(shuffled[point_key(point)]))


def test_a_baseline_that_ran_three_times_is_no_reason_to_leave_an_earlier_study() -> None:
    sampler = after(LARGE)
    for _ in range(2):
        sampler.tell(Observation(START, LARGE(START)))
    assert sampler._choosing().trusts_earlier(sampler._observations)
    assert trials_to_the_top(sampler) <= 2


@pytest.mark.parametrize("seed", range(3))
def test_a_study_that_puts_settings_in_reverse_is_left_after_its_favourite(seed: int) -> None:
    def reverse(point: Point) -> float:
        return 1.0 / LARGE(point)

    for speed, trusted in ((LARGE, True), (reverse, False)):
        sampler = after(speed, seed)
        proposal = sampler.ask()
        assert proposal is not None
        sampler.tell(Observation(proposal.point, LARGE(proposal.point)))
        assert sampler._choosing().trusts_earlier(sampler._observations) is trusted


def test_failures_of_an_earlier_study_are_avoided() -> None:
    sampler = GuidedSampler(GRID, 0, {}, lambda point: None)
    points = random.Random(0).sample(EVERY, 40)
    sampler.recall([Observation(p, None if int(str(p["a"])) > 10 else LARGE(p)) for p in points])
    sampler.tell(Observation(START, LARGE(START)))
    proposal = sampler.ask()
    assert proposal is not None and int(str(proposal.point["a"])) <= 11


@pytest.mark.parametrize("score", [-3.0, None])
def test_results_that_cannot_be_compared_are_no_failures_and_no_guide(score: float | None) -> None:
    """Costs where this study has gains, or nothing but failures: the start fills the space as ever."""
    strange, plain = (GuidedSampler(GRID, 0, {}, lambda point: None) for _ in "ab")
    strange.recall([Observation(point, score) for point in EVERY[:20]])
    for sampler in (strange, plain):
        sampler.tell(Observation(START, LARGE(START)))
    first, other = strange.ask(), plain.ask()
    assert first is not None and other is not None and first.point == other.point


def test_a_killed_campaign_goes_on_alike_after_an_earlier_study() -> None:
    going, resumed = after(LARGE), after(LARGE)
    for _ in range(19):
        proposal = going.ask()
        assert proposal is not None
        going.tell(Observation(proposal.point, LARGE(proposal.point)))
        resumed.tell(Observation(proposal.point, LARGE(proposal.point)))
    assert resumed.ask() == going.ask()


def test_the_study_is_one_more_knob_of_the_features() -> None:
    alone, beside = Features(GRID), Features(GRID, after_others=True)
    here, there = beside.of([START]), beside.of([START], earlier=True)
    assert beside.columns.max() == alone.columns.max() + 1
    assert (here[:, :-1] == alone.of([START])).all() and (beside.as_earlier(here) == there).all()
    assert here[0, -1] != there[0, -1]
