"""In which order blocks run their settings: palindromes that each setting begins in turn, the same for a seed."""

from __future__ import annotations

import math
import random
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.stats.compare import Block, Verdict, confirm, first_run_effect, order_of_block

seeds = st.integers(0, 1000)


@given(settings=st.integers(2, 6), block=st.integers(0, 20), seed=seeds)
def test_a_block_is_a_palindrome_with_every_setting_twice(settings: int, block: int, seed: int) -> None:
    order = order_of_block(settings, block, 2, seed)
    assert order == order[::-1] == order_of_block(settings, block, 2, seed)
    assert sorted(order) == sorted([*range(settings)] * 2)


@given(settings=st.integers(2, 6), blocks=st.integers(1, 20), repeats=st.sampled_from([1, 2]), seed=seeds)
def test_every_setting_begins_as_often_as_the_others(settings: int, blocks: int, repeats: int, seed: int) -> None:
    starts = [order_of_block(settings, block, repeats, seed)[0] for block in range(blocks)]
    often = Counter(starts)
    assert max(often.values()) - min(often[s] for s in range(settings)) <= 1
    assert all(one != other for one, other in pairwise(starts))


@given(settings=st.integers(2, 6), pair=st.integers(0, 10), seed=seeds)
def test_with_one_run_of_each_two_blocks_are_each_others_reverse(settings: int, pair: int, seed: int) -> None:
    one, other = (order_of_block(settings, 2 * pair + at, 1, seed) for at in (0, 1))
    assert one == other[::-1] and sorted(one) == list(range(settings))


def test_journals_without_a_seed_keep_their_order() -> None:
    assert [order_of_block(3, block, 2, None) for block in (0, 1)] == [[0, 1, 2, 2, 1, 0]] * 2
    assert [order_of_block(2, block, 1, None) for block in (0, 1, 2)] == [[0, 1], [1, 0], [0, 1]]


def test_seeds_differ() -> None:
    assert len({tuple(order_of_block(4, 0, 2, seed)) for seed in range(50)}) > 10


def simulated(rng: random.Random, top: int, blocks: int, seed: int | None, first: float) -> list[Block]:
    """Equal settings with 2% of noise, on one node, of which the first run of a block is slower."""
    made = []
    for number in range(blocks):
        runs: dict[int, list[float]] = {setting: [] for setting in range(top + 1)}
        order = order_of_block(top + 1, number, 2, seed)
        for place, setting in enumerate(order):
            log = rng.gauss(0, 0.02) + (math.log1p(-first) if place == 0 else 0.0)
            runs[setting].append(100 * math.exp(log))
        opening = (runs[order[0]][0], runs[order[0]][1])
        others = {str(setting): runs[setting] for setting in range(1, top + 1)}
        made.append(Block(number, ("n0",), runs[0], others, opening))
    return made


@pytest.mark.parametrize(("top", "blocks"), [(1, 3), (1, 5), (3, 5), (3, 8)])
def test_a_cold_first_run_makes_no_win(top: int, blocks: int) -> None:
    """Where the baseline began every block, more than half of such campaigns called equal settings different."""
    alarms = {True: 0, False: 0}
    for campaign in range(200):
        for balanced in alarms:
            made = simulated(random.Random(campaign), top, blocks, campaign if balanced else None, 0.1)
            found = confirm(made).comparisons.values()
            alarms[balanced] += any(c.verdict in (Verdict.BETTER, Verdict.WORSE) for c in found)
    assert alarms[False] > 100 and alarms[True] < 20


def test_a_first_run_effect_is_reported_with_its_interval() -> None:
    found = first_run_effect(simulated(random.Random(1), 1, 5, 1, 0.1))
    assert found is not None and found.low < -0.1 < found.high < 0
    assert "the first run of a block was" in str(found) and "slower than the last of the same setting" in str(found)
    quicker = first_run_effect(simulated(random.Random(1), 1, 5, 1, 0.1), direction="minimize")
    assert quicker is not None and quicker.change > 0, "of times less is faster"
    assert first_run_effect(simulated(random.Random(1), 1, 2, 1, 0.1)) is None, "too few blocks to tell"
    quiet = sum(first_run_effect(simulated(random.Random(n), 1, 5, n, 0.0)) is None for n in range(200))
    assert quiet > 180
