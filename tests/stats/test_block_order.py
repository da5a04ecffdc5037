"""In which order blocks run their settings: rounds, each drawn for itself from the seed, in step with no machine."""

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


@given(settings=st.integers(2, 6), block=st.integers(0, 20), repeats=st.integers(1, 3), seed=seeds)
def test_a_block_is_rounds_of_every_setting(settings: int, block: int, repeats: int, seed: int) -> None:
    order = order_of_block(settings, block, repeats, seed)
    rounds = [order[at : at + settings] for at in range(0, len(order), settings)]
    assert [sorted(each) for each in rounds] == [[*range(settings)]] * repeats
    assert order == order_of_block(settings, block, repeats, seed), "a resumed campaign goes on in the same order"


def test_every_round_is_a_coin_of_its_own() -> None:
    """Who is first in a round says nothing of any other round, in the same block or in the next."""
    firsts = [
        [order[0] for order in (block[:2], block[2:])]
        for seed in range(2000)
        for block in (order_of_block(2, number, 2, seed) for number in (0, 1))
    ]
    coins = [(*firsts[at], *firsts[at + 1]) for at in range(0, len(firsts), 2)]
    seen = Counter(coins)
    assert len(seen) == 16 and min(seen.values()) > 80 and max(seen.values()) < 175, "125 each in the mean"


def test_every_order_of_a_round_is_as_likely() -> None:
    seen = Counter(tuple(order_of_block(3, block, 1, seed)) for seed in range(300) for block in range(10))
    assert len(seen) == 6 and min(seen.values()) > 430 and max(seen.values()) < 570, "500 each in the mean"


@given(settings=st.integers(2, 6), blocks=st.integers(1, 20), repeats=st.sampled_from([1, 2]), seed=seeds)
def test_journals_of_protocol_2_keep_their_order(settings: int, blocks: int, repeats: int, seed: int) -> None:
    orders = [order_of_block(settings, block, repeats, seed, protocol=2) for block in range(blocks)]
    starts = [order[0] for order in orders]
    often = Counter(starts)
    assert max(often.values()) - min(often[s] for s in range(settings)) <= 1
    assert all(one != other for one, other in pairwise(starts))
    if repeats == 2:
        assert all(order == order[::-1] for order in orders)
    else:
        assert all(orders[at] == orders[at + 1][::-1] for at in range(0, blocks - 1, 2))


def test_the_order_that_a_journal_of_protocol_2_had() -> None:
    assert [order_of_block(3, block, 2, 7, protocol=2) for block in range(3)] == [
        [2, 0, 1, 1, 0, 2],
        [1, 0, 2, 2, 0, 1],
        [0, 2, 1, 1, 2, 0],
    ]


def test_journals_without_a_seed_keep_their_order() -> None:
    assert [order_of_block(3, block, 2, None) for block in (0, 1)] == [[0, 1, 2, 2, 1, 0]] * 2
    assert [order_of_block(2, block, 1, None) for block in (0, 1, 2)] == [[0, 1], [1, 0], [0, 1]]


def test_seeds_differ() -> None:
    assert len({tuple(order_of_block(4, 0, 2, seed)) for seed in range(50)}) > 10


def simulated(
    rng: random.Random,
    top: int,
    blocks: int,
    seed: int | None,
    first: float,
    *,
    noise: float = 0.02,
    period: float = 0.0,
    protocol: int = 3,
) -> list[Block]:
    """Equal settings on one node, of which the first run of a block is slower, or under a wave of 5% and any phase."""
    made, phase = [], rng.random() * 2 * math.pi
    for number in range(blocks):
        runs: dict[int, list[float]] = {setting: [] for setting in range(top + 1)}
        order = order_of_block(top + 1, number, 2, seed, protocol)
        for place, setting in enumerate(order):
            log = rng.gauss(0, noise) + (math.log1p(-first) if place == 0 else 0.0)
            if period:
                log += 0.05 * math.sin(2 * math.pi * (number + place / len(order)) / period + phase)
            runs[setting].append(100 * math.exp(log))
        opening = (runs[order[0]][0], runs[order[0]][1])
        others = {str(setting): runs[setting] for setting in range(1, top + 1)}
        made.append(Block(number, ("n0",), runs[0], others, opening))
    return made


def false_alarms(campaigns: int, top: int, blocks: int, protocol: int = 3, **world: float) -> float:
    alarms = 0
    for seed in range(campaigns):
        made = simulated(random.Random(seed), top, blocks, seed, 0.0, protocol=protocol, **world)  # type: ignore[arg-type]
        found = confirm(made, protocol=protocol).comparisons.values()
        alarms += any(c.verdict in (Verdict.BETTER, Verdict.WORSE) for c in found)
    return alarms / campaigns


@pytest.mark.parametrize(("top", "blocks", "campaigns"), [(1, 3, 80), (1, 5, 50), (1, 8, 15), (2, 4, 40), (3, 5, 20)])
def test_a_wave_of_any_period_makes_no_win(top: int, blocks: int, campaigns: int) -> None:
    """From well under a block to many: what the order alone can show holds whatever the machine does."""
    periods = (0.17, 0.4, 2 / 3, 1.0, 4 / 3, 2.0, 3.0, 7.0)
    rates = [false_alarms(campaigns, top, blocks, noise=0.005, period=period) for period in periods]
    runs = campaigns * len(periods)
    assert sum(rates) / len(rates) <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / runs), dict(zip(periods, rates, strict=True))
    assert max(rates) <= 0.05 + 4 * math.sqrt(0.05 * 0.95 / campaigns), dict(zip(periods, rates, strict=True))


def test_settings_that_begin_in_turn_are_in_step_with_a_wave() -> None:
    """What the draw is for: by the order of protocol 2 most such campaigns called equal settings different."""
    assert false_alarms(60, 1, 5, protocol=2, noise=0.005, period=2.0) > 0.6
    assert false_alarms(60, 1, 5, noise=0.005, period=2.0) < 0.15


@pytest.mark.parametrize(("top", "blocks"), [(1, 3), (1, 5), (3, 5)])
def test_a_cold_first_run_makes_no_win(top: int, blocks: int) -> None:
    """Where the baseline began every block, more than half of such campaigns called equal settings different."""
    alarms = {1: 0, 3: 0}
    for campaign in range(60):
        for protocol in alarms:
            made = simulated(random.Random(campaign), top, blocks, campaign, 0.1, protocol=protocol)
            found = confirm(made, protocol=protocol).comparisons.values()
            alarms[protocol] += any(c.verdict in (Verdict.BETTER, Verdict.WORSE) for c in found)
    assert alarms[1] > 30 and alarms[3] <= 8


def test_a_first_run_effect_is_reported_with_its_interval() -> None:
    found = first_run_effect(simulated(random.Random(1), 1, 5, 1, 0.1))
    assert found is not None and found.low < -0.1 < found.high < 0
    assert "the first run of a block was" in str(found) and "slower than the last of the same setting" in str(found)
    quicker = first_run_effect(simulated(random.Random(1), 1, 5, 1, 0.1), direction="minimize")
    assert quicker is not None and quicker.change > 0, "of times less is faster"
    assert first_run_effect(simulated(random.Random(1), 1, 2, 1, 0.1)) is None, "too few blocks to tell"
    quiet = sum(first_run_effect(simulated(random.Random(n), 1, 5, n, 0.0)) is None for n in range(200))
    assert quiet > 180
