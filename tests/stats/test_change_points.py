"""Change points under noise: where, how sure, and which pair to run next."""

from __future__ import annotations

import math
import random

import pytest

from ridgeline.stats.change_points import (
    ENDS,
    FOUND,
    NOT_REPRODUCED,
    SEARCH,
    Observed,
    change_posterior,
    jumps,
    next_step,
)


def bisected(
    levels: list[float], noise: float, seed: int, slower: float = 0.03, drift: float = 0.0, most: int = 400
) -> tuple[str, list[Observed]]:
    """A whole bisection of versions with these logs, in blocks A B B A."""
    rng, runs, block = random.Random(seed), [], 0
    while True:
        step, pair = next_step(runs, len(levels), slower, [1.0] * len(levels))
        if pair is None or len(runs) >= most:
            return step, runs
        a, b = pair
        for place in (a, b, b, a) if block % 2 else (b, a, a, b):
            runs.append(Observed(place, levels[place] + rng.gauss(0, noise) + drift * len(runs), block))
        block += 1


def stepped(versions: int, *changes: tuple[int, float]) -> list[float]:
    return [sum(math.log1p(size) for at, size in changes if place > at) for place in range(versions)]


@pytest.mark.parametrize("at", [0, 7, 14])
def test_a_change_without_noise_is_found_in_few_runs(at: int) -> None:
    step, runs = bisected(stepped(16, (at, 0.03)), 0.0, 1)
    assert step == FOUND and change_posterior(runs, 16).found == (at,)
    assert len(runs) <= 24
    (jump,) = jumps(runs, (at,))
    assert jump.low < 0.03 < jump.high and jump.change == pytest.approx(0.03)


def test_noisy_histories_end_with_the_right_pair() -> None:
    """99 of these 100: with fewer seeds nobody would notice that it has become 90%."""
    right = 0
    for seed in range(100):
        at = random.Random(seed).randrange(15)
        step, runs = bisected(stepped(16, (at, 0.05)), 0.03, seed)
        right += step == FOUND and change_posterior(runs, 16).found == (at,)
    assert right >= 98


def test_a_history_without_a_change_ends_without_one() -> None:
    ended = [bisected([0.0] * 16, 0.03, seed)[0] for seed in range(60)]
    assert ended.count(NOT_REPRODUCED) >= 59 and FOUND not in ended


def test_a_bad_end_that_is_faster_is_not_reproduced() -> None:
    assert bisected(stepped(8, (3, -0.1)), 0.01, 1)[0] == NOT_REPRODUCED


def test_two_changes_are_both_found() -> None:
    step, runs = bisected(stepped(12, (2, 0.2), (8, 0.1)), 0.005, 3)
    assert step == FOUND and change_posterior(runs, 12).found == (2, 8)
    assert [jump.change for jump in jumps(runs, (2, 8))] == pytest.approx([0.2, 0.1], abs=0.03)


def test_a_machine_that_becomes_slower_meanwhile_does_not_move_the_change() -> None:
    step, runs = bisected(stepped(16, (5, 0.05)), 0.005, 2, drift=0.001)
    assert step == FOUND and 5 in change_posterior(runs, 16).found


def test_the_ends_come_first_and_then_the_pair_that_tells_most() -> None:
    assert next_step([], 9, 0.03, [1.0] * 9) == (ENDS, (0, 8))
    runs = [Observed(place, 0.1 if place else 0.0, 0) for place in (0, 8, 8, 0)]
    step, pair = next_step(runs, 9, 0.03, [1.0] * 9)
    assert step == SEARCH and pair is not None and 0 < pair[0] < pair[1] < 8
    costly = [1.0] * 9
    costly[pair[0]] = 1000.0
    assert pair[0] not in (next_step(runs, 9, 0.03, costly)[1] or ()), "information for the node time it takes"


def test_two_versions_are_a_history_too() -> None:
    step, runs = bisected(stepped(2, (0, 0.05)), 0.005, 1)
    assert step == FOUND and change_posterior(runs, 2).found == (0,)


def test_a_large_jump_over_untested_versions_is_one_change() -> None:
    """Of a program without noise: two halves of a jump must not look better than the whole of it."""
    runs = [Observed(place, math.log(1.5) if place > 4 else 0.0, block) for block in range(3) for place in (0, 1, 6, 7)]
    posterior = change_posterior(runs, 8)
    assert posterior.two < 0.2 and not posterior.found
    assert sum(posterior.at[1:6]) == pytest.approx(1.0, abs=0.25)


def test_a_few_runs_of_one_mode_each_decide_nothing() -> None:
    """Noise of two modes: four runs that happen to be two and two look like versions without noise."""
    apart = [(0, 0.10), (9, 0.002), (9, 0.0), (0, 0.105)]
    runs = [Observed(place, value, 0) for place, value in apart]
    assert next_step(runs, 10, 0.03, [1.0] * 10) == (ENDS, (0, 9)), "not yet: not reproduced"
    still = [Observed(place, 0.0 if place else 0.1, 0) for place, _ in apart]
    assert next_step(still, 10, 0.03, [1.0] * 10)[0] == NOT_REPRODUCED, "a program without noise needs no more"
    pair = [
        Observed(place, value + 0.1 * (place == 1), 0) for place, value in [(0, 0.0), (1, 0.004), (1, 0.0), (0, 0.005)]
    ]
    more = [Observed(run.place, run.worse, 1) for run in pair]
    assert change_posterior([*pair, *more], 2).settled
    assert next_step([*pair, *more], 2, 0.03, [1.0] * 2) == (SEARCH, (0, 1)), "six runs of each before it is named"
    most = [Observed(run.place, run.worse, 2) for run in pair]
    assert next_step([*pair, *more, *most], 2, 0.03, [1.0] * 2)[0] == FOUND
