"""The verdict: what it says, that it keeps its level, and what it refuses to say."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from statistics import fmean, stdev

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.stats.compare import Block, Verdict, both_sides, confirm, holm, smallest_effect, together, unpaired
from ridgeline.stats.student import t_quantile


def simulated(
    seed: int, blocks: int, gains: Mapping[str, float], noise: float = 0.02, scale: float = 100.0
) -> list[Block]:
    """Palindromic blocks with a node effect and linear drift each; gains are in logs."""
    rng = random.Random(seed)
    names = ["baseline", *gains]
    made = []
    for number in range(blocks):
        node, slope = rng.gauss(0, 0.1), rng.gauss(0, 0.02)
        runs: dict[str, list[float]] = {name: [] for name in names}
        for place, name in enumerate([*names, *reversed(names)]):
            log = gains.get(name, 0.0) + node + slope * place + rng.gauss(0, noise)
            runs[name].append(scale * math.exp(log))
        made.append(Block(number, (f"n{number % 2}",), runs.pop("baseline"), runs))
    return made


@pytest.mark.parametrize(("top", "blocks"), [(1, 3), (3, 5), (5, 4)])
def test_identical_settings_are_rarely_called_different(top: int, blocks: int) -> None:
    alarms = 0
    for seed in range(600):
        result = confirm(simulated(seed, blocks, {f"c{i}": 0.0 for i in range(top)}))
        alarms += any(c.verdict in (Verdict.BETTER, Verdict.WORSE) for c in result.comparisons.values())
    # 5% nominal; 600 campaigns know it to +-0.9% (one standard error)
    assert alarms / 600 < 0.05 + 3 * 0.009


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
    assert headline.startswith("1.61x baseline (95%: 1.48 to 1.75"), "what differs from pair to pair counts as that"
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


def alarms(campaigns: int, blocks: int, nodes: int, own: float, *, by_node: bool) -> float:
    found = (confirm(on_nodes(s, blocks, nodes, own), by_node=by_node).comparisons["c"] for s in range(campaigns))
    return sum(c.verdict in (Verdict.BETTER, Verdict.WORSE) for c in found) / campaigns


def test_blocks_that_share_a_node_are_not_independent() -> None:
    """1% that a setting has on a node of its own: the nodes are two, however many blocks there are."""
    assert alarms(400, 8, 2, 0.01, protocol=1) > 0.12
    assert alarms(400, 8, 2, 0.01, by_node=True) < 0.1
    assert alarms(400, 5, 3, 0.01, by_node=True) < 0.08


@pytest.mark.parametrize("nodes", [1, 5])
def test_one_node_or_another_for_each_block_needs_no_allowance(nodes: int) -> None:
    blocks = on_nodes(7, 5, nodes, 0.01)
    plain, allowing = (confirm(blocks, by_node=by_node).comparisons["c"] for by_node in (False, True))
    assert (plain.low, plain.high) == (allowing.low, allowing.high)
    assert allowing.nodes == nodes


def test_gains_that_differ_from_node_to_node_alone_leave_the_interval_open() -> None:
    """Blocks of a node agree to the last digit: what is left are two numbers."""
    blocks = [Block(i, (f"n{i % 2}",), [100.0] * 2, {"c": [(110.0, 112.0)[i % 2]] * 2}) for i in range(6)]
    found = confirm(blocks).comparisons["c"]
    assert found.low is not None and found.high is not None
    assert found.low < 1.10 and found.high > 1.12


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
