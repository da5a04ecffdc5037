"""The verdict: what it says, that it keeps its level, and what it refuses to say."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import replace
from itertools import permutations
from statistics import fmean, stdev

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.stats.compare import (
    Block,
    Verdict,
    both_sides,
    confirm,
    holm,
    levelled,
    order_of_block,
    paired_effect,
    smallest_effect,
    together,
    unpaired,
)
from ridgeline.stats.student import t_quantile
from ridgeline.stats.verdict import Comparison


def simulated(
    seed: int, blocks: int, gains: Mapping[str, float], noise: float = 0.02, scale: float = 100.0
) -> list[Block]:
    """Palindromic blocks, each on a node of its own, with its effect and linear drift; gains are in logs."""
    rng = random.Random(seed)
    names = ["baseline", *gains]
    made = []
    for number in range(blocks):
        node, slope = rng.gauss(0, 0.1), rng.gauss(0, 0.02)
        runs: dict[str, list[float]] = {name: [] for name in names}
        for place, name in enumerate([*names, *reversed(names)]):
            log = gains.get(name, 0.0) + node + slope * place + rng.gauss(0, noise)
            runs[name].append(scale * math.exp(log))
        made.append(Block(number, (f"n{number}",), runs.pop("baseline"), runs))
    return made


@pytest.mark.parametrize(("top", "blocks"), [(1, 3), (3, 5), (5, 4)])
def test_identical_settings_are_rarely_called_different(top: int, blocks: int) -> None:
    alarms = 0
    for seed in range(300):
        result = confirm(simulated(seed, blocks, {f"c{i}": 0.0 for i in range(top)}))
        alarms += any(c.verdict in (Verdict.BETTER, Verdict.WORSE) for c in result.comparisons.values())
    # 5% nominal; 300 campaigns know it to +-1.3% (one standard error)
    assert alarms / 300 < 0.05 + 3 * 0.013


def test_a_clear_gain_is_confirmed_with_an_interval_that_holds_it() -> None:
    held = 0
    for seed in range(200):
        result = confirm(simulated(seed, 5, {"good": math.log(1.2), "same": 0.0}))
        assert result.winner == "good"
        winner = result.comparisons["good"]
        assert winner.low is not None and winner.high is not None
        held += winner.low <= 1.2 <= winner.high
    assert held >= 188


def test_the_interval_of_a_chosen_winner_holds_although_it_was_chosen() -> None:
    """Five equal settings, 30% better: the luckiest is named, and its interval must still hold the truth."""
    missed = 0
    for seed in range(300):
        result = confirm(simulated(seed, 4, {f"c{i}": math.log(1.3) for i in range(5)}, noise=0.03))
        if result.winner is not None:
            chosen = result.comparisons[result.winner]
            assert chosen.low is not None and chosen.high is not None
            missed += not chosen.low <= 1.3 <= chosen.high
    assert missed / 300 < 0.05 + 0.03


@given(seed=st.integers(0, 1000), blocks=st.integers(3, 8))
def test_node_effects_and_linear_drift_cancel(seed: int, blocks: int) -> None:
    result = confirm(simulated(seed, blocks, {"c": 0.1}, noise=0.0))
    assert result.comparisons["c"].ratio == pytest.approx(math.exp(0.1), rel=1e-9)
    assert result.winner == "c"


@given(seed=st.integers(0, 1000), gain=st.floats(-0.3, 0.3), factor=st.floats(1e-6, 1e6))
@settings(max_examples=50)
def test_the_unit_does_not_matter(seed: int, gain: float, factor: float) -> None:
    one = confirm(simulated(seed, 5, {"c": gain})).comparisons["c"]
    other = confirm(simulated(seed, 5, {"c": gain}, scale=100 * factor)).comparisons["c"]
    assert other.verdict == one.verdict
    assert other.ratio == pytest.approx(one.ratio, rel=1e-9)


@given(seed=st.integers(0, 1000), gain=st.floats(-0.3, 0.3))
@settings(max_examples=50)
def test_times_and_rates_give_the_same_verdict(seed: int, gain: float) -> None:
    """A rate to maximise and the time to minimise that belongs to it are the same question."""
    rates = simulated(seed, 5, {"c": gain, "d": 0.0})
    times = [
        Block(
            b.number, b.nodes, [1 / v for v in b.baseline], {k: [1 / v for v in vs] for k, vs in b.candidates.items()}
        )
        for b in rates
    ]
    by_rate, by_time = confirm(rates), confirm(times, direction="minimize")
    assert by_time.winner == by_rate.winner
    for name, comparison in by_rate.comparisons.items():
        assert by_time.comparisons[name].ratio == pytest.approx(comparison.ratio, rel=1e-9)
        assert by_time.comparisons[name].low == pytest.approx(comparison.low, rel=1e-9)


@given(seed=st.integers(0, 500), level=st.floats(0.6, 0.99))
@settings(max_examples=50)
def test_interval_and_verdict_agree(seed: int, level: float) -> None:
    result = confirm(simulated(seed, 4, {"a": 0.03, "b": 0.0, "c": -0.05}), level)
    for c in result.comparisons.values():
        assert c.low is not None and c.high is not None and c.estimate is not None
        assert c.low <= c.estimate <= c.high
        if c.verdict is Verdict.BETTER:
            assert c.low >= 1
        elif c.verdict is Verdict.WORSE:
            assert c.high <= 1
        else:
            assert c.low <= 1 <= c.high


def test_two_blocks_are_refused_and_three_are_asked_for() -> None:
    result = confirm(simulated(1, 2, {"c": 0.5}))
    comparison = result.comparisons["c"]
    assert result.winner is None
    assert comparison.verdict is Verdict.TOO_FEW_BLOCKS
    assert comparison.low is None
    assert comparison.smallest_effect is not None
    assert "3 are needed" in result.headline
    assert "could show" in result.headline


def test_what_one_block_could_show_does_not_depend_on_the_unit() -> None:
    """Of a single block only the spread of its own runs is known; it counts as a share, like every ratio."""
    seen = [
        confirm([Block(1, (), [unit * 100, unit * 104], {"c": [unit * 110, unit * 115]})]).comparisons["c"]
        for unit in (1.0, 1000.0)
    ]
    effects = [c.smallest_effect for c in seen]
    assert effects[0] == pytest.approx(effects[1])
    assert effects[0] is not None and 0.05 < effects[0] < 0.5


def test_the_smallest_effect_named_is_seen_in_four_of_five_campaigns() -> None:
    noise, blocks = 0.02, 5
    spread = noise  # two runs a side: sqrt(noise^2/2 + noise^2/2)
    effect = smallest_effect(spread, blocks)
    seen = sum(confirm(simulated(seed, blocks, {"c": effect}, noise), protocol=1).winner == "c" for seed in range(400))
    assert 0.72 < seen / 400 < 0.9


def test_more_blocks_show_less() -> None:
    effects = [smallest_effect(0.02, blocks) for blocks in range(3, 9)]
    assert effects == sorted(effects, reverse=True)
    assert smallest_effect(0.02, 5, among=5) > smallest_effect(0.02, 5)


def test_a_deterministic_program_has_no_interval_to_show() -> None:
    same = [Block(i, (), [2.0, 2.0], {"c": [3.0, 3.0]}) for i in range(3)]
    assert str(confirm(same)) == "1.50x baseline (the same in 3 blocks)"
    equal = [Block(i, (), [2.0, 2.0], {"c": [2.0, 2.0]}) for i in range(3)]
    assert confirm(equal).winner is None
    assert str(confirm(equal)) == "no detectable difference (the same in 3 blocks)"


def test_values_that_are_not_positive_are_compared_by_difference_and_it_is_said() -> None:
    blocks = [Block(i, (), [-1.0 + 0.1 * i, -1.1], {"c": [4.0, 4.2 - 0.1 * i]}) for i in range(4)]
    comparison = confirm(blocks).comparisons["c"]
    assert comparison.scale == "difference"
    assert comparison.ratio is None
    assert comparison.verdict is Verdict.BETTER
    assert "differences" in comparison.notes[0]
    assert confirm(blocks, direction="minimize").comparisons["c"].verdict is Verdict.WORSE


def test_a_block_without_a_good_run_is_left_out_and_named() -> None:
    blocks = simulated(3, 5, {"c": 0.2})
    blocks[2] = Block(2, ("n0",), blocks[2].baseline, {"c": []})
    comparison = confirm(blocks).comparisons["c"]
    assert comparison.blocks == 4
    assert any("block 2" in note for note in comparison.notes)


def test_both_sides_are_the_means_whose_ratio_is_the_estimate() -> None:
    """Geometric means, over the blocks that have both."""
    blocks = [
        Block(0, (), [100.0, 400.0], {"c": [300.0]}),
        Block(1, (), [50.0], {"c": [100.0, 400.0]}),
        Block(2, (), [7.0], {"c": []}),
        Block(3, (), [], {"c": [9.0]}),
    ]
    sides = both_sides(blocks, "c", "ratio")
    assert sides == pytest.approx((math.sqrt(200 * 50), math.sqrt(300 * 200)))
    assert both_sides(blocks, "c", "difference") == pytest.approx(((250 + 50) / 2, (300 + 250) / 2))
    assert both_sides(blocks, "d", "ratio") is None
    whole = [Block(n, (), [100.0 + n], {"c": [120.0 + 2 * n]}) for n in range(4)]
    before, after = both_sides(whole, "c", "ratio") or (0.0, 0.0)
    assert after / before == pytest.approx(confirm(whole).comparisons["c"].estimate)


def test_whole_blocks_have_nothing_to_be_noted() -> None:
    assert confirm(simulated(1, 4, {"c": 0.1})).comparisons["c"].notes == ()


def test_the_headline_reads_as_promised() -> None:
    blocks = [
        Block(i, ("n0", "n1") if i % 2 else ("n2", "n3"), [100.0, 100.0], {"c": [162.0 + d, 162.0 - d / 2]})
        for i, d in enumerate((0, 16, -16, 32, -30))
    ]
    assert confirm(blocks, protocol=1).headline.startswith("1.61x baseline (95%: 1.54 to 1.69")
    headline = confirm(blocks).headline
    assert headline.startswith("1.62x baseline (95%: 1.12 to 2.35"), "two node pairs are two numbers"
    assert headline.endswith("; 5 blocks on 2 node pairs)")
    near = [Block(i, (), [100.0], {"c": [100.0 + d]}) for i, d in enumerate((5, -4, 6, -3))]
    assert confirm(near).headline.startswith("no detectable difference (-")


def test_a_slower_setting_is_not_called_no_difference() -> None:
    result = confirm(simulated(1, 5, {"c": -0.5}))
    assert result.winner is None
    assert result.comparisons["c"].verdict is Verdict.WORSE
    assert "no setting is better" in result.headline


def test_nothing_to_compare() -> None:
    assert confirm([]).winner is None
    with pytest.raises(ValueError, match="level"):
        confirm([], level=95)


def test_holm_by_hand() -> None:
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03}) == pytest.approx({"a": 0.03, "b": 0.06, "c": 0.06})


@given(st.dictionaries(st.text(max_size=3), st.floats(0, 1), max_size=6))
def test_holm_never_makes_a_p_value_smaller_and_keeps_the_order(p_values: dict[str, float]) -> None:
    adjusted = holm(p_values)
    for name, p in p_values.items():
        assert p <= adjusted[name] <= 1
        assert all(adjusted[name] <= adjusted[other] for other, q in p_values.items() if p < q)


def test_a_block_without_a_run_of_the_baseline_is_left_out_too() -> None:
    blocks = simulated(3, 5, {"c": 0.2})
    blocks[2] = Block(2, ("n0",), [], blocks[2].candidates)
    comparison = confirm(blocks).comparisons["c"]
    assert comparison.blocks == 4
    assert any("block 2" in note for note in comparison.notes)


def test_a_block_with_fewer_runs_than_planned_counts_and_is_named() -> None:
    blocks = simulated(3, 5, {"c": 0.2})
    blocks[3] = Block(3, ("n1",), blocks[3].baseline, {"c": blocks[3].candidates["c"][:1]})
    comparison = confirm(blocks).comparisons["c"]
    assert comparison.blocks == 5
    assert comparison.notes == ("fewer runs than planned, so drift does not cancel there: block 3",)


@pytest.mark.parametrize(
    "blocks",
    [
        [Block(n, (), [100.0, 120.0], {"c": [110.0, 132.0]}) for n in range(2)],  # blocks agree by chance
        [Block(0, (), [100.0, 100.0], {"c": [110.0, 110.0]}), Block(1, (), [100.0, 100.0], {"c": [140.0, 140.0]})],
    ],
    ids=["noisy runs", "blocks that differ"],
)
def test_what_three_blocks_could_show_knows_the_noise_of_runs_and_of_blocks(blocks: list[Block]) -> None:
    effect = confirm(blocks).comparisons["c"].smallest_effect
    assert effect is not None and effect > 0.3


def on_nodes(seed: int, blocks: int, nodes: int, own: float) -> list[Block]:
    """Equal settings of which each is a little faster or slower on each node, 2% of noise."""
    rng = random.Random(seed)
    gains = [rng.gauss(0, own) - rng.gauss(0, own) for _ in range(nodes)]
    made = []
    for number in range(blocks):
        base = [100 * math.exp(rng.gauss(0, 0.02)) for _ in range(2)]
        runs = [100 * math.exp(gains[number % nodes] + rng.gauss(0, 0.02)) for _ in range(2)]
        made.append(Block(number, (f"n{number % nodes}",), base, {"c": runs}))
    return made


def alarms(campaigns: int, blocks: int, nodes: int, own: float, protocol: int = 3) -> float:
    found = (confirm(on_nodes(s, blocks, nodes, own), protocol=protocol).comparisons["c"] for s in range(campaigns))
    return sum(c.verdict in (Verdict.BETTER, Verdict.WORSE) and not c.only_here for c in found) / campaigns


@pytest.mark.parametrize("own", [0.02, 0.05])
@pytest.mark.parametrize(("blocks", "nodes"), [(3, 2), (8, 2), (5, 3), (8, 3), (8, 4)])
def test_gains_that_differ_from_node_to_node_make_no_win(blocks: int, nodes: int, own: float) -> None:
    """However much they differ, and however many blocks a node has: the nodes are what counts."""
    assert alarms(150, blocks, nodes, own) <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 150)


def test_what_is_said_of_two_nodes_alone_is_true_of_them() -> None:
    """However much settings gain from node to node: what each gains there has the sign that was claimed."""
    claims = wrong = 0
    for seed in range(300):
        rng = random.Random(seed)
        gains = [rng.gauss(0, 0.05) - rng.gauss(0, 0.05) for _ in range(2)]
        found = confirm(on_nodes(seed, 8, 2, 0.05)).comparisons["c"]
        if found.only_here:
            claims += 1
            wrong += any(gain * (1 if found.verdict is Verdict.BETTER else -1) <= 0 for gain in gains)
    assert 20 < claims < 60 and wrong == 0


def test_a_gain_that_two_nodes_share_is_seen() -> None:
    """A node is one number, and of two numbers nothing follows; for these two it does."""
    seen = []
    for seed in range(100):
        blocks = on_nodes(seed, 8, 2, 0.0)
        gained = [replace(b, candidates={"c": [1.05 * v for v in b.candidates["c"]]}) for b in blocks]
        seen.append(confirm(gained))
    assert sum(found.winner == "c" for found in seen) >= 80
    one = next(found for found in seen if found.comparisons["c"].only_here)
    assert one.headline.endswith("; 8 blocks on 2 nodes, shown for these alone)")


def two_nodes(first: float, second: float, noise: float = 0.001) -> Comparison:
    """Eight blocks, four on each node, that gain so much there in logs."""
    gains = [(first, second)[n % 2] + noise * (-1, 1)[n // 2 % 2] for n in range(8)]
    blocks = [Block(n, (f"n{n % 2}",), [1.0, 1.0], {"c": [math.exp(g)] * 2}) for n, g in enumerate(gains)]
    return confirm(blocks).comparisons["c"]


def test_nodes_that_gain_within_a_quarter_of_their_mean_are_alike() -> None:
    within = two_nodes(0.0301, 0.0499)
    assert (within.verdict, within.only_here, within.here) == (Verdict.BETTER, True, None)
    # the interval of the two nodes: 0.04 plus or minus t(6) of 0.001 * sqrt(8 / 6) / sqrt(8), or as the rounds go
    low, high = within.low or 0.0, within.high or 0.0
    assert 1.03 < low < math.exp(0.04) < high < 1.051
    assert within.p_value <= 0.05 and within.nodes_needed == 4
    beyond = two_nodes(0.0299, 0.0501)
    assert (beyond.verdict, beyond.only_here) == (Verdict.NO_DIFFERENCE, False)
    assert beyond.here is not None and beyond.here[0] > 1.03
    worse = two_nodes(-0.0301, -0.0499)
    assert (worse.verdict, worse.only_here) == (Verdict.WORSE, True)
    opposed = two_nodes(-0.03, 0.05)
    assert (opposed.verdict, opposed.only_here) == (Verdict.NO_DIFFERENCE, False)


def test_what_two_nodes_show_of_all_is_not_said_of_them_alone() -> None:
    found = two_nodes(0.04, 0.0401)
    assert (found.verdict, found.only_here, found.nodes_needed) == (Verdict.BETTER, False, None)
    assert two_nodes(0.04, 0.041, noise=0.2).verdict is Verdict.NO_DIFFERENCE, "alike, but too noisy"


def test_claims_of_these_nodes_alone_are_todays() -> None:
    gains = [0.03, 0.05] * 4
    blocks = [
        Block(n, (f"n{n % 2}",), [1.0, 1.0], {"c": [math.exp(g + 1e-4 * (n // 2 % 2))] * 2})
        for n, g in enumerate(gains)
    ]
    assert confirm(blocks).comparisons["c"].only_here
    for protocol in (1, 2):
        assert not confirm(blocks, protocol=protocol).comparisons["c"].only_here


def test_an_order_that_nobody_drew_shows_nothing_and_hides_nothing() -> None:
    """Five blocks of one round, all in favour: coins can't show it at 95%, the interval over blocks can."""
    gains = [0.05, 0.052, 0.048, 0.051, 0.049]
    blocks = [Block(n, ("n1",), [1.0], {"c": [math.exp(g)]}) for n, g in enumerate(gains)]
    drawn, not_drawn = (confirm(blocks, drawn=drawn).comparisons["c"] for drawn in (True, False))
    assert len(drawn.notes) == 1 and not not_drawn.notes, "what coins can't rule out is said where there are coins"
    low, high = (0.05 + side * 2.776445 * 0.00158114 / math.sqrt(5) for side in (-1, 1))
    assert (not_drawn.low, not_drawn.high) == (pytest.approx(math.exp(low)), pytest.approx(math.exp(high)))
    assert drawn.low is not None and drawn.low < math.exp(low)
    shared = [replace(block, nodes=(f"n{block.number % 2}",)) for block in blocks]
    assert paired_effect(shared, "c", "ratio", "maximize", drawn=False).rounds == ()
    assert len(paired_effect(shared, "c", "ratio", "maximize").rounds) == 5


def test_journals_of_earlier_protocols_are_judged_as_they_were() -> None:
    assert alarms(100, 8, 2, 0.02, protocol=1) > 0.3
    assert 0.08 < alarms(100, 8, 2, 0.02, protocol=2) < alarms(100, 8, 2, 0.02, protocol=1)


@pytest.mark.parametrize("nodes", [1, 5])
def test_one_node_or_another_for_each_block_needs_no_allowance(nodes: int) -> None:
    blocks = on_nodes(7, 5, nodes, 0.01)
    plain, allowing = (paired_effect(blocks, "c", "ratio", "maximize", protocol) for protocol in (1, 3))
    assert (plain.mean, plain.error, plain.freedom) == (allowing.mean, allowing.error, allowing.freedom)
    assert confirm(blocks).comparisons["c"].nodes == nodes


def test_where_blocks_share_nodes_each_node_is_one_number() -> None:
    """Three blocks on one node and one on each of two others, by hand."""
    logs = [0.02, 0.04, 0.06, 0.10, 0.01]
    places = ["a", "a", "a", "b", "c"]
    blocks = [Block(n, (p,), [1.0], {"c": [math.exp(g)]}) for n, (g, p) in enumerate(zip(logs, places, strict=True))]
    found = paired_effect(blocks, "c", "ratio", "maximize")
    mean = (0.04 + 0.10 + 0.01) / 3
    spread = math.sqrt(((0.04 - mean) ** 2 + (0.10 - mean) ** 2 + (0.01 - mean) ** 2) / 2)
    assert found.mean == pytest.approx(mean) and found.error == pytest.approx(spread / math.sqrt(3))
    assert (found.freedom, found.places, found.own_freedom) == (2, 3, 2)
    assert found.own == pytest.approx(0.02 * math.sqrt(1 / 3 + 1 + 1) / 3)
    sides = both_sides(blocks, "c", "ratio")
    assert sides is not None and sides[1] / sides[0] == pytest.approx(math.exp(mean)), "the same estimate everywhere"


def test_few_nodes_say_what_holds_on_them_and_how_many_would_do() -> None:
    gains = [0.04, 0.042, 0.038, 0.04, 0.085, 0.087, 0.083, 0.085]
    blocks = [Block(n, ("ab"[n // 4],), [1.0, 1.0], {"c": [math.exp(g)] * 2}) for n, g in enumerate(gains)]
    found = confirm(blocks)
    (only,) = found.comparisons.values()
    assert only.verdict is Verdict.NO_DIFFERENCE and only.low is not None and only.low < 1
    assert only.here is not None and 1.05 < only.here[0] < math.exp(0.0625) < only.here[1] < 1.08
    assert only.nodes_needed == 5
    assert "on these 2 nodes alone +6." in found.headline
    assert "about 5 nodes, a block on each, would show it for others too" in found.headline
    apart = [Block(b.number, (str(b.number),), b.baseline, b.candidates) for b in blocks]
    assert confirm(apart).winner == "c", "on eight nodes it is shown"


def test_the_one_node_of_all_blocks_is_named() -> None:
    blocks = [Block(n, ("gpu-3",), [1.0, 1.0], {"c": [1.1 + n / 1000] * 2}) for n in range(4)]
    assert confirm(blocks).headline.endswith("; 4 blocks on gpu-3)")


def test_values_in_coarse_steps_that_agree_between_nodes_are_no_proof() -> None:
    """Two nodes with the same mean to the last digit: by luck, since their blocks differ."""
    runs = [(100, 101), (100, 102), (100, 102), (100, 101)]
    blocks = [Block(n, ("ab"[n // 2],), [a, a], {"c": [b, b]}) for n, (a, b) in enumerate(runs)]
    assert confirm(blocks).winner is None


def test_gains_that_differ_from_node_to_node_alone_leave_the_interval_open() -> None:
    """Blocks of a node agree to the last digit: what is left are two numbers."""
    blocks = [Block(n, (f"n{n % 2}",), [100, 100], {"c": [101 + 2 * (n % 2)] * 2}) for n in range(8)]
    found = confirm(blocks).comparisons["c"]
    assert found.verdict is Verdict.NO_DIFFERENCE and found.low is not None and found.low < 1


def drifting(slope: float) -> list[Block]:
    """Five settings, the first candidate 1% better, in drawn rounds on a machine that drifts by so much a run."""
    names, made = [None, "c1", "c2", "c3", "c4"], []
    for number in range(5):
        order = [names[which] for which in order_of_block(5, number, 2, 11)]
        runs: dict[str | None, list[float]] = {name: [] for name in names}
        for place, name in enumerate(order):
            log = slope * place + (math.log(1.01) if name == "c1" else 0.0)
            runs[name].append(100 * math.exp(log))
        base = runs.pop(None)
        others = {str(name): values for name, values in runs.items()}
        made.append(Block(number, ("a",), base, others, order=tuple(order)))
    return made


@pytest.mark.parametrize("slope", [0.02, -0.02])
def test_a_linear_drift_is_taken_off_as_rounds_show_it(slope: float) -> None:
    """Three percent a round in the mean, and a gain of one: with the order known it is seen to the last digit."""
    found = confirm(drifting(slope))
    assert found.winner == "c1"
    assert found.comparisons["c1"].estimate == pytest.approx(1.01) and found.comparisons["c1"].spread < 1e-9
    assert found.comparisons["c2"].estimate == pytest.approx(1.0)
    unknown = [replace(block, order=()) for block in drifting(slope)]
    assert confirm(unknown).winner is None, "what the order is written down for"
    sides = both_sides(drifting(slope), "c1", "ratio")
    assert sides is not None and sides[1] / sides[0] == pytest.approx(1.01)


def test_levelling_knows_nothing_of_who_ran_when() -> None:
    """What is taken off a block is the same for every order of its settings, so no order can gain by it."""
    values, taken = [100.0, 103.0, 99.0, 104.0, 101.0, 108.0], []
    for first in permutations((None, "a", "b")):
        for second in permutations((None, "a", "b")):
            runs: dict[str | None, list[float]] = {None: [], "a": [], "b": []}
            for name, value in zip((*first, *second), values, strict=True):
                runs[name].append(value)
            block = Block(0, (), runs[None], {"a": runs["a"], "b": runs["b"]}, order=(*first, *second))
            level = levelled(block, "difference")
            all_values = {
                None: list(level.baseline),
                "a": list(level.candidates["a"]),
                "b": list(level.candidates["b"]),
            }
            taken.append([all_values[name].pop(0) for name in (*first, *second)])
    assert all(each == pytest.approx(taken[0]) for each in taken)
    assert math.fsum(taken[0]) == pytest.approx(math.fsum(values)), "around its middle"


def test_blocks_of_two_settings_or_with_failed_runs_stay_as_they_are() -> None:
    two = Block(0, (), [100.0, 110.0], {"a": [105.0, 112.0]}, order=(None, "a", "a", None))
    assert levelled(two, "ratio") is two
    lost = Block(0, (), [100.0], {"a": [105.0, 112.0], "b": [104.0, 111.0]}, order=(None, "a", "b", "b", "a"))
    assert levelled(lost, "ratio") is lost, "two settings with both runs are too few"


def test_few_rounds_must_all_agree_and_it_is_said() -> None:
    """Three rounds show 1 in 4 by their order: what they show at most is asked for, and stated."""
    blocks = [Block(n, ("a",), [100.0], {"c": [110.0 + n / 10]}) for n in range(3)]
    found = confirm(blocks).comparisons["c"]
    assert found.verdict is Verdict.BETTER
    assert any("equal settings look like this in 1 in 4 at worst; 6 blocks would rule it out" in n for n in found.notes)
    assert not confirm(blocks * 2).comparisons["c"].notes


def test_a_look_that_may_spend_less_is_stricter() -> None:
    blocks = on_nodes(3, 5, 1, 0.0)
    widths = []
    for share in (1.0, 0.5, 0.1):
        found = confirm(blocks, share=share).comparisons["c"]
        assert found.low is not None and found.high is not None
        widths.append(found.high - found.low)
        assert found.level == 0.95, "of the whole campaign, all looks together"
    assert widths == sorted(widths)


# Runs that were not interleaved: the interval is Welch's, and keeps its level.


def test_the_interval_is_welchs_with_fewer_degrees_of_freedom() -> None:
    a, b = [100.0, 104.0, 98.0, 101.0], [110.0, 118.0, 109.0]
    found = unpaired(a, b, "maximize")
    assert found is not None and found.low is not None and found.high is not None
    from scipy import stats  # here: it takes a second, and every worker collects every file

    peer = stats.ttest_ind([math.log(v) for v in b], [math.log(v) for v in a], equal_var=False)
    welch = peer.confidence_interval(0.95)
    freedom = 2 / (1 / peer.df + 1 / 2)
    wider = stats.t.ppf(0.975, freedom) / stats.t.ppf(0.975, peer.df)
    assert math.log(found.high / found.low) == pytest.approx(wider * (welch.high - welch.low))
    assert math.sqrt(found.high * found.low) == pytest.approx(found.ratio)
    assert found.verdict == "better"


def test_three_runs_against_ten_keep_the_level() -> None:
    """With Welch's own degrees of freedom it was 6 to 7%."""
    rng = random.Random(3)
    called = 0
    for _ in range(2000):
        sides = ([math.exp(rng.gauss(0, 0.02)) for _ in range(number)] for number in (10, 3))
        found = unpaired(*sides, "maximize")
        called += found is not None and found.verdict != "no detectable difference"
    assert called / 2000 < 0.05


def test_a_time_that_fell_is_better() -> None:
    found = unpaired([10.0, 10.1, 9.9], [8.0, 8.1, 7.9], "minimize")
    assert found is not None and found.ratio == pytest.approx(1.25, rel=0.01)
    assert found.verdict == "better"


def test_one_run_has_no_interval_and_no_verdict() -> None:
    found = unpaired([10.0], [20.0, 21.0], "maximize")
    assert found is not None and found.low is None
    assert str(found).endswith("too few runs to tell")
    assert unpaired([1.0, -1.0], [1.0], "maximize") is None
    assert unpaired([], [1.0], "maximize") is None


def test_equal_campaigns_are_called_different_no_more_often_than_the_level_says() -> None:
    rng = random.Random(7)
    alarms = 0
    for _ in range(400):
        a, b = ([math.exp(rng.gauss(0, 0.02)) for _ in range(4)] for _ in range(2))
        found = unpaired(a, b, "maximize")
        alarms += found is not None and found.verdict in ("better", "worse")
    assert alarms <= 400 * 0.09


def test_many_settings_at_once_widen_the_interval() -> None:
    a, b = [100.0, 104.0, 98.0], [110.0, 118.0, 109.0]
    alone, among = unpaired(a, b, "maximize"), unpaired(a, b, "maximize", among=10)
    assert alone is not None and among is not None
    assert among.low is not None and alone.low is not None and among.low < alone.low


def test_settings_together_need_three_for_an_interval() -> None:
    assert together([1.1, 1.2])[1] is None
    ratio, low, high = together([1.1, 1.2, 1.15])
    assert low is not None and high is not None and low < ratio < high
    assert together([0.5, 2.0])[0] == pytest.approx(1.0), "half as fast and twice as fast cancel"
    logs = [math.log(each) for each in (1.1, 1.2, 1.15)]
    half = t_quantile(0.975, 2) * stdev(logs) / math.sqrt(3)
    assert (low, ratio, high) == pytest.approx([math.exp(fmean(logs) + side * half) for side in (-1, 0, 1)])


def test_values_without_a_ratio_and_values_without_scatter() -> None:
    assert unpaired([0.0, 1.0], [1.0, 2.0], "maximize") is None
    assert unpaired([1.0, 2.0], [-1.0, 1.0], "maximize") is None
    same = unpaired([5.0, 5.0], [6.0, 6.0], "maximize")
    assert same is not None
    assert (same.low, same.high) == (pytest.approx(1.2), pytest.approx(1.2))


def test_one_place_is_named_today_and_counted_before() -> None:
    blocks = [Block(n, ("gpu-3",), [1.0, 1.0], {"c": [1.1 + n / 1000] * 2}) for n in range(4)]
    assert confirm(blocks, protocol=3).headline.endswith("; 4 blocks on gpu-3)")
    assert confirm(blocks, protocol=2).headline.endswith("; 4 blocks on 1 node)"), "as that release said it"


def test_blocks_that_have_a_node_each_are_never_said_of_these_alone() -> None:
    gains = [0.04, 0.041, 0.039, 0.04, 0.042]
    blocks = [Block(n, (f"n{n}",), [1.0], {"c": [math.exp(g)]}) for n, g in enumerate(gains)]
    found = paired_effect(blocks, "c", "ratio", "maximize")
    assert not found.alike and not found.few_places
    edge = replace(found, places=2, apart=0.25 * abs(found.mean))
    assert edge.alike and not replace(edge, apart=0.2501 * abs(found.mean)).alike
    assert replace(edge, mean=-edge.mean).alike, "either direction"
