from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest

from ridgeline.errors import InputError
from ridgeline.records.observation import Observation
from ridgeline.records.space import Continuous, Discrete, Space
from ridgeline.samplers.random import RandomSampler
from ridgeline.samplers.tpe import REMEMBERED, TpeSampler

SPACE = Space((Discrete("a", tuple(range(20)), True), Discrete("b", tuple(range(20)), True)), {})


def test_the_start_fills_the_space_as_random_does() -> None:
    tpe, plain = TpeSampler(SPACE, 4, {}, lambda p: None), RandomSampler(SPACE, 4, {}, lambda p: None)
    for _ in range(10):
        proposal, other = tpe.ask(), plain.ask()
        assert proposal is not None and other is not None
        assert proposal.point == other.point
        assert "space-filling start" in proposal.why
        for sampler in (tpe, plain):
            sampler.tell(Observation(proposal.point, 1.0))
    later = tpe.ask()
    assert later is not None and "TPE" in later.why


def test_it_keeps_away_from_what_failed() -> None:
    """Everything with a >= 8 fails and would be fast: crashes must become rare, not be paid for again and again."""
    crashes = 0
    for seed in range(3):
        sampler = TpeSampler(SPACE, seed, {}, lambda p: None)
        for turn in range(50):
            proposal = sampler.ask()
            assert proposal is not None
            failed = int(proposal.point["a"] or 0) >= 8
            crashes += failed and turn >= 10
            sampler.tell(Observation(proposal.point, None if failed else float(int(proposal.point["b"] or 0))))
    # 60% of the space fails
    assert crashes / 120 < 0.35


def test_it_finds_better_points_than_chance() -> None:
    best = []
    for seed in range(4):
        sampler = TpeSampler(SPACE, seed, {}, lambda p: None)
        scores = []
        for _ in range(40):
            proposal = sampler.ask()
            assert proposal is not None
            a, b = int(proposal.point["a"] or 0), int(proposal.point["b"] or 0)
            scores.append(-float((a - 13) ** 2 + (b - 5) ** 2))
            sampler.tell(Observation(proposal.point, scores[-1]))
        best.append(sum(sorted(scores[20:])[-10:]) / 10)
    # ten random points' mean distance would be about -90
    assert sum(best) / len(best) > -15


def test_before_anything_passed_it_only_fills_the_space() -> None:
    sampler = TpeSampler(SPACE, 0, {"startup": 2}, lambda p: None)
    for _ in range(5):
        proposal = sampler.ask()
        assert proposal is not None
        assert "space-filling" in proposal.why
        sampler.tell(Observation(proposal.point, None))


def test_very_many_observations_are_answered_from_the_best_and_the_latest() -> None:
    space = Space((Discrete("a", tuple(range(100)), True), Discrete("b", tuple(range(100)), True)), {})
    sampler = TpeSampler(space, 0, {}, lambda p: None)
    for number in range(3 * REMEMBERED):
        sampler.tell(Observation({"a": number % 100, "b": number // 100}, float(number % 7)))
    proposal = sampler.ask()
    assert proposal is not None
    assert proposal.point["b"] >= 30  # type: ignore[operator]  # all below was told


SQUARE = Space((Continuous("x", 0.0, 1.0, False), Continuous("y", 0.0, 1.0, False)), {})
Span = tuple[float, float]


def spots(count: int, seed: int, x: Span = (0.0, 1.0), y: Span = (0.0, 1.0)) -> list[tuple[float, float]]:
    rng = random.Random(seed)
    return [(rng.uniform(*x), rng.uniform(*y)) for _ in range(count)]


def observation(spot: tuple[float, float], score: float | None) -> Observation:
    return Observation({"x": spot[0], "y": spot[1]}, score)


def proposed(
    observations: Sequence[Observation], pending: Sequence[tuple[float, float]] = (), seeds: int = 20
) -> list[tuple[float, float]]:
    """What samplers with different seeds propose after the same observations."""
    found = []
    for seed in range(seeds):
        sampler = TpeSampler(SQUARE, seed, {}, lambda p: None)
        for told in observations:
            sampler.tell(told)
        proposal = sampler.ask([{"x": x, "y": y} for x, y in pending])
        assert proposal is not None and proposal.why.startswith("TPE")
        x, y = proposal.point["x"], proposal.point["y"]
        assert isinstance(x, float) and isinstance(y, float)
        found.append((x, y))
    return found


def share_near(found: Sequence[tuple[float, float]], spot: tuple[float, float], distance: float) -> float:
    return sum(math.dist(point, spot) < distance for point in found) / len(found)


@pytest.mark.parametrize("offset", [-1000.0, 0.0, 1000.0])
def test_a_crash_never_looks_better_than_a_result_whatever_sign_scores_have(offset: float) -> None:
    """Times to minimise come as negative scores: a crash must not be worth more than all of them."""
    observations = [observation((x, y), None if x > 0.4 else offset - y) for x, y in spots(40, 1)]
    found = proposed(observations)
    assert sum(x > 0.4 for x, _ in found) <= 2
    assert sum(y < 0.5 for _, y in found) >= 15  # and the better of those that passed are sought


@pytest.mark.parametrize("failed", [None, math.nan, -math.inf, math.inf])
def test_a_score_that_is_no_number_is_a_failure(failed: float | None) -> None:
    observations = [observation((x, y), failed if x > 0.4 else -1.0 - y) for x, y in spots(40, 1)]
    assert sum(x > 0.4 for x, _ in proposed(observations)) <= 2


def test_trials_in_flight_do_not_crowd() -> None:
    """Twelve trials already run where the best results are: the next goes elsewhere."""
    best = (0.5, 0.5)
    observations = [observation(spot, -math.dist(spot, best)) for spot in spots(40, 3)]
    pending = spots(12, 4, (0.42, 0.58), (0.42, 0.58))
    assert share_near(proposed(observations), best, 0.25) >= 0.5
    assert share_near(proposed(observations, pending), best, 0.15) <= 0.05


def test_the_best_of_very_many_observations_are_never_forgotten() -> None:
    """Excellent ones long ago, then more poor ones than are remembered."""
    good = [observation(spot, 10 - math.dist(spot, (0.2, 0.2))) for spot in spots(300, 5, (0.1, 0.3), (0.1, 0.3))]
    poor = [observation(spot, -spot[0]) for spot in spots(REMEMBERED + 600, 6, (0.5, 1.0))]
    assert share_near(proposed([*good, *poor], seeds=6), (0.2, 0.2), 0.25) >= 0.8


def test_the_latest_of_very_many_observations_count_at_once() -> None:
    old = [observation(spot, 1 + spot[0] / 10) for spot in spots(REMEMBERED + 500, 8)]
    new = [observation(spot, 50 - math.dist(spot, (0.2, 0.8))) for spot in spots(100, 9, (0.1, 0.3), (0.7, 0.9))]
    assert share_near(proposed([*old, *new], seeds=6), (0.2, 0.8), 0.25) >= 0.8


def test_crashes_do_not_drive_results_out_of_memory() -> None:
    """The best half holds results, however low their scores, before it holds a crash."""
    crashed = [observation(spot, None) for spot in spots(REMEMBERED, 10, (0.4, 1.0))]
    passed = [observation(spot, -100 - spot[1]) for spot in spots(200, 11, (0.0, 0.3))]
    later = [observation(spot, None) for spot in spots(REMEMBERED, 12, (0.4, 1.0))]
    found = proposed([*crashed, *passed, *later], seeds=6)
    assert all(x < 0.35 for x, _ in found)
    assert sum(y < 0.5 for _, y in found) >= 4


@pytest.mark.parametrize("seed", range(5))
def test_what_is_told_or_pending_is_not_proposed_again(seed: int) -> None:
    line = Space((Discrete("a", tuple(range(12)), True),), {})
    sampler = TpeSampler(line, seed, {"startup": 1}, lambda p: None)
    for a in (0, 1, 2, 3):
        sampler.tell(Observation({"a": a}, float(a)))
    proposal = sampler.ask([{"a": a} for a in (4, 5, 6, 8, 9, 10, 11)])
    assert proposal is not None and proposal.point == {"a": 7}


@pytest.mark.parametrize("startup", [0, -1, True, "many", 2.5])
def test_a_wrong_startup_is_refused(startup: object) -> None:
    with pytest.raises(InputError, match=r"^startup: "):
        TpeSampler(SPACE, 0, {"startup": startup}, lambda p: None)
    assert TpeSampler(SPACE, 0, {"startup": 1}, lambda p: None).ask() is not None
