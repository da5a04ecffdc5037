from __future__ import annotations

import pytest

from ridgeline.errors import InputError
from ridgeline.records.lesson import Lesson
from ridgeline.records.space import Discrete, Space
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
            sampler.tell(Lesson(proposal.point, 1.0))
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
            sampler.tell(Lesson(proposal.point, None if failed else float(int(proposal.point["b"] or 0))))
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
            sampler.tell(Lesson(proposal.point, scores[-1]))
        best.append(sum(sorted(scores[20:])[-10:]) / 10)
    # ten random points' mean distance would be about -90
    assert sum(best) / len(best) > -15


def test_before_anything_passed_it_only_fills_the_space() -> None:
    sampler = TpeSampler(SPACE, 0, {"startup": 2}, lambda p: None)
    for _ in range(5):
        proposal = sampler.ask()
        assert proposal is not None
        assert "space-filling" in proposal.why
        sampler.tell(Lesson(proposal.point, None))


def test_very_many_lessons_are_answered_from_the_best_and_the_latest() -> None:
    space = Space((Discrete("a", tuple(range(100)), True), Discrete("b", tuple(range(100)), True)), {})
    sampler = TpeSampler(space, 0, {}, lambda p: None)
    for number in range(3 * REMEMBERED):
        sampler.tell(Lesson({"a": number % 100, "b": number // 100}, float(number % 7)))
    proposal = sampler.ask()
    assert proposal is not None
    assert proposal.point["b"] >= 30  # type: ignore[operator]  # all below was told


@pytest.mark.parametrize("startup", [0, -1, True, "many", 2.5])
def test_a_wrong_startup_is_refused(startup: object) -> None:
    with pytest.raises(InputError, match=r"^startup: "):
        TpeSampler(SPACE, 0, {"startup": startup}, lambda p: None)
    assert TpeSampler(SPACE, 0, {"startup": 1}, lambda p: None).ask() is not None
