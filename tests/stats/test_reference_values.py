"""Statistics by other people's code, or by hand: the formulas as textbooks state them, on a few numbers."""

from __future__ import annotations

import math
import random
from itertools import product
from math import fsum
from statistics import fmean, stdev
from typing import Any

import pytest

from ridgeline.stats.arrays import numpy
from ridgeline.stats.change_points import Observed, change_posterior, jumps
from ridgeline.stats.compare import Block, confirm, mean_and_spread
from ridgeline.stats.contribution import search_gain
from ridgeline.stats.drift import Regimes, Repeat, drift
from ridgeline.stats.equivalence import equivalence, looks, share_left
from ridgeline.stats.gate import _change, _ranks, _wilcoxon
from ridgeline.stats.node_effect import NodeEffect
from ridgeline.stats.nodes import BaselinePlacement, NodeRun, NodeRuns, corrected, most_baseline_runs, next_baseline_run
from ridgeline.stats.stated_range import ELSEWHERE, widening


def scipy() -> Any:
    """Imported when a test runs: it takes a second, and every worker collects every file."""
    import scipy.stats

    return scipy.stats


EFFECTS = {"b": [0.02, 0.05, 0.03, 0.06], "c": [-0.01, 0.02, 0.0, 0.01]}


def blocks_of(effects: dict[str, list[float]]) -> list[Block]:
    """Each on another node; runs of a setting scatter by 1% around what gives this effect in logs."""
    spread = (math.exp(-0.01), math.exp(0.01))
    return [
        Block(
            n,
            (f"n{n}",),
            [100 * e for e in spread],
            {name: [100 * math.exp(values[n]) * e for e in spread] for name, values in effects.items()},
        )
        for n in range(len(next(iter(effects.values()))))
    ]


def share_of_coins(values: list[float]) -> float:
    """Of all ways to draw which setting came first in each of two rounds a block, those that show as much."""
    rounds = [value for value in values for _ in range(2)]
    sums = [abs(fsum(s * r for s, r in zip(signs, rounds, strict=True))) for signs in product((1, -1), repeat=8)]
    return fmean(one >= abs(fsum(rounds)) - 1e-12 for one in sums)


def test_a_comparison_is_students_t_over_block_effects_with_bonferroni_and_holm() -> None:
    found = confirm(blocks_of(EFFECTS), 0.95).comparisons
    p = {name: scipy().ttest_1samp(values, 0.0).pvalue for name, values in EFFECTS.items()}
    assert p["b"] < p["c"]
    coins = {name: 2 * share_of_coins(values) for name, values in EFFECTS.items()}  # each may spend half of the error
    assert found["b"].p_value == pytest.approx(max(2 * p["b"], coins["b"]))
    assert found["c"].p_value == pytest.approx(max(p["c"], 2 * p["b"], coins["c"]))
    for name, values in EFFECTS.items():
        error = stdev(values) / 2
        ends = scipy().t.interval(1 - 0.05 / 2, 3, fmean(values), error)
        assert [found[name].low, found[name].high] == pytest.approx([math.exp(end) for end in ends])
        assert found[name].estimate == pytest.approx(math.exp(fmean(values)))
        assert found[name].spread == pytest.approx(stdev(values)) and found[name].blocks == 4
        needed = (scipy().t.ppf(1 - 0.05 / 4, 3) + scipy().t.ppf(0.8, 3)) * error
        assert found[name].smallest_effect == pytest.approx(math.expm1(needed))


def test_of_two_settings_that_are_better_the_larger_estimate_wins_and_of_equals_the_first() -> None:
    steady = [0.1, 0.101, 0.099, 0.1]
    larger = {"a": steady, "b": [2 * e for e in steady], "c": [1.5 * e for e in steady]}
    assert confirm(blocks_of(larger)).winner == "b"
    assert confirm(blocks_of({"a": steady, "b": steady})).winner == "a"
    assert confirm(blocks_of(larger), direction="minimize").winner is None


@pytest.mark.parametrize("share", [1.0, 0.25])
def test_equivalence_is_two_one_sided_tests(share: float) -> None:
    values, margin = [0.004, -0.002, 0.003, 0.001, 0.0], 0.01
    (test,) = equivalence(blocks_of({"b": values}), margin, share=share).tests
    limit, error = math.log1p(margin), stdev(values) / math.sqrt(5)
    upper = scipy().t.sf((limit - fmean(values)) / error, 4)
    lower = scipy().t.sf((limit + fmean(values)) / error, 4)
    assert test.p_value == pytest.approx(max(upper, lower) / share)
    assert test.decision == ("equivalent" if max(upper, lower) / share <= 0.05 else "undecided")
    assert equivalence(blocks_of({"b": values}), margin) == equivalence(blocks_of({"b": values}), margin, share=1.0)


def test_equivalence_looks_at_a_half_and_three_quarters_and_the_last_look_has_the_rest() -> None:
    assert looks(12) == {6: 0.25, 9: 0.25} and looks(5) == {3: 0.25, 4: 0.25}
    assert looks(4) == {3: 0.25}, "two blocks are too few, and the last look is not among them"
    assert looks(3) == {}
    assert [share_left(12, blocks) for blocks in (5, 6, 8, 9, 12)] == [1.0, 0.75, 0.75, 0.5, 0.5]


def test_a_jump_between_two_versions_has_students_interval() -> None:
    """All in one block, four runs of each version: the textbook's two samples of equal variance."""
    before, after = [0.0, 0.01, -0.01, 0.02], [0.2, 0.21, 0.19, 0.22]
    runs = [Observed(place, value, 0) for place, side in enumerate((before, after)) for value in side]
    assert change_posterior(runs, 2).found == (0,)
    (jump,) = jumps(runs, (0,))
    assert jump.change == pytest.approx(math.expm1(fmean(after) - fmean(before)), rel=0.01)
    half = scipy().ttest_ind(after, before).confidence_interval(0.95)
    assert math.expm1(half.low) == pytest.approx(jump.low, abs=0.01) and math.expm1(half.high) == pytest.approx(
        jump.high, abs=0.01
    )
    assert jump.low < jump.change < jump.high


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_gate_counts_as_wilcoxon_did_and_estimates_as_hodges_and_lehmann(seed: int) -> None:
    rng = random.Random(seed)
    stored = [round(rng.gauss(0, 1), 1) for _ in range(15)]  # rounded, so that there are ties
    new = [round(rng.gauss(0.5, 1), 1) for _ in range(11)]
    u = scipy().mannwhitneyu(new, stored, use_continuity=False, method="asymptotic", alternative="greater")
    assert _wilcoxon(stored, new) == pytest.approx(scipy().norm.isf(u.pvalue))
    assert list(_ranks(numpy.asarray(stored)) + 1) == pytest.approx(list(scipy().rankdata(stored)))
    pairs = sorted(n - s for n in new for s in stored)
    change = _change(stored, new, 1.0)
    assert change.change == pytest.approx(math.expm1(pairs[len(pairs) // 2]))
    half = scipy().norm.ppf(0.975) * math.sqrt(15 * 11 * 27 / 12)
    first = math.floor(15 * 11 / 2 - half)
    assert [change.low, change.high] == pytest.approx([math.expm1(pairs[first]), math.expm1(pairs[-1 - first])])
    assert change.runs == 11 and change.slower is None
    assert _change(stored, new, 4.0).low < change.low and _wilcoxon([1.0, 1.0], [1.0]) == 0.0


def test_ranges_hold_nine_of_ten_errors_of_this_campaign_those_elsewhere_and_the_next_one() -> None:
    def reference(errors: list[float]) -> float:
        """The smallest value such that the weight at or below it is at least nine tenths of all and one more."""
        weighed = [(abs(e), 1.0) for e in errors] + [(e, 1.0) for e in ELSEWHERE]
        needed = 0.9 * (len(weighed) + 1.0)
        return min(
            (v for v, _ in weighed if sum(w for e, w in weighed if e <= v) >= needed - 1e-9), default=max(weighed)[0]
        )

    for errors in ([], [0.1] * 30, [5.0], [5.0] * 4, [-9.0, 2.0, 0.5], [3.0] * 200):
        assert widening(errors) == pytest.approx(reference(errors)), errors


def test_the_gain_of_few_settings_pays_for_each_and_of_many_is_pulled_to_their_mean() -> None:
    base = [10.0, 10.2, 9.9]
    logs, noise = [math.log(v) for v in base], stdev(math.log(v) for v in base)
    few = search_gain([11.0, 12.0], base)
    assert few is not None and few.low is not None and few.high is not None
    estimate, error = math.log(12.0) - fmean(logs), noise * math.sqrt(1 + 1 / 3)
    ends = scipy().t.interval(1 - 0.05 / 2, 2, estimate, error)
    assert [few.low, few.high] == pytest.approx([math.expm1(end) for end in ends])
    assert few.seen == few.change == pytest.approx(12.0 / math.exp(fmean(logs)) - 1)
    tried = [10.0, 10.5, 11.0, 11.5, 12.0, 13.0]
    many = search_gain(tried, base)
    assert many is not None
    own = [math.log(v) for v in tried]
    kept = 1 - noise**2 / stdev(own) ** 2
    assert many.change == pytest.approx(math.expm1(fmean(own) + kept * (max(own) - fmean(own)) - fmean(logs)))
    assert few.tried == 2 and many.tried == 6 and many.seen > many.change
    one = search_gain([12.0], [10.0])
    assert one is not None and one.low is None and one.seen == pytest.approx(0.2)


def test_a_value_is_seen_through_the_baselines_level_at_its_place() -> None:
    course = Regimes(drift([1.0], "maximize", random.Random(0)), (0, 10, 20), (0.0, 0.2, 0.4))
    assert course.seen_through(1.0, 10) == pytest.approx(1.0), "the mean level"
    assert course.seen_through(1.0, 0) == course.seen_through(1.0, -5) == pytest.approx(math.exp(0.2))
    assert course.seen_through(1.0, 20) == course.seen_through(1.0, 99) == pytest.approx(math.exp(-0.2))
    assert course.seen_through(2.0, 5) == pytest.approx(2 * math.exp(0.1)) and course.seen_through(-1.0, 0) == -1.0
    assert Repeat(2.0).nodes == ()


def test_a_job_over_several_nodes_is_corrected_by_the_one_furthest_off() -> None:
    assert corrected(10.0, ("a", "b"), {"a": 1.1, "b": 0.8}) == pytest.approx(8.0)
    assert corrected(10.0, ("a", "c"), {"a": 1.1, "b": 0.8}) == pytest.approx(11.0)
    assert corrected(10.0, (), {"a": 1.1}) == corrected(10.0, ("c",), {"a": 1.1}) == 10.0
    assert mean_and_spread([2.0]) == (2.0, 0.0) and mean_and_spread([1.0, 3.0]) == (2.0, pytest.approx(math.sqrt(2)))


@pytest.mark.parametrize(
    ("verdict", "speed", "low", "high", "told"),
    [
        ("slow", 0.91, 0.88, 0.94, "node a is 9% slower than its peers (95%: 6 to 12)"),
        ("fast", 1.1, 1.05, 1.15, "node a is 10% faster than its peers (95%: 5 to 15)"),
        ("usual", 1.0, 0.995, 1.012, "node a is like its peers (-0.5% to +1.2%)"),
        ("undecided", None, None, None, "node a: too little to judge (7 runs)"),
    ],
)
def test_a_node_is_spoken_of_with_its_interval(verdict: Any, speed: Any, low: Any, high: Any, told: str) -> None:
    effect = NodeEffect("a", verdict, speed, low, high, 0.95, 7, repeated=3)
    assert str(effect) == told
    assert effect.evidence == "7 runs there, 3 of settings that also ran elsewhere"


# where the baseline runs next


def on(*nodes: str, others: tuple[str, ...] = ()) -> NodeRuns:
    """The baseline on these nodes in turn, then another setting on others."""
    runs = [NodeRun("base", (node,), 1.0, place=n) for n, node in enumerate(nodes)]
    return NodeRuns([*runs, *(NodeRun(f"s{n}", (node,), 1.0, place=50 + n) for n, node in enumerate(others))])


def chances(**of: float) -> list[NodeEffect]:
    return [NodeEffect(node, "usual", 1.0, 1.0, 1.0, 0.95, 3, chance=chance) for node, chance in of.items()]


@pytest.mark.parametrize(
    ("runs", "effects", "there_are", "placed"),
    [
        # one node: nothing to choose between; others may be there that were never seen
        (on("a"), chances(a=0.0), 0, BaselinePlacement()),
        (on("a"), chances(a=0.0), 2, BaselinePlacement((), 1, ("a",))),
        (on("a", "b"), chances(a=0.0, b=0.0), 3, BaselinePlacement((), 1, ("a", "b"))),
        # a node without the baseline comes first, as soon as a trial has been
        (on("a", "a", others=("b",)), chances(a=0.0, b=0.0), 2, BaselinePlacement(("b",), 1)),
        # nobody is suspect and six runs are there: it can wait, and goes where it ran least, by name where that is even
        (on("a", "b", "a", "b", "a", "b", "a"), chances(a=0.0, b=0.0), 2, BaselinePlacement(("b",), 0)),
        (on("a", "b", "a", "b", "a", "b"), chances(a=0.0, b=0.0), 2, BaselinePlacement(("a",), 0)),
        (on("a", "b"), chances(a=0.0, b=0.0), 2, BaselinePlacement(("a",), 1)),
        # a suspect is run again, in turn with its peers, and twice a trial where it is likely slow
        (on("b", "a", "a", "b", "a", "a"), chances(a=0.0, b=0.08), 2, BaselinePlacement(("b",), 1)),
        (on("b", "a", "a", "b", "a", "a"), chances(a=0.0, b=0.079), 2, BaselinePlacement(("b",), 0)),
        (on("b", "a", "a", "b", "a", "a"), chances(a=0.0, b=0.3), 2, BaselinePlacement(("b",), 2)),
        (on("a", "a", "b", "a", "a", "b"), chances(a=0.0, b=0.3), 2, BaselinePlacement(("a",), 2)),
    ],
)
def test_the_baseline_runs_where_it_tells_most(runs: NodeRuns, effects: Any, there_are: int, placed: Any) -> None:
    assert next_baseline_run(runs, "base", effects, 1, there_are) == placed


def test_what_is_not_settled_after_twelve_more_runs_is_left_unless_it_is_likely() -> None:
    def urgent(times: int, chance: float) -> int:
        nodes = ["a", "b"] * (times // 2) + ["a"] * (times % 2)
        return next_baseline_run(on(*nodes), "base", chances(a=0.0, b=chance), 1, 2).urgent

    assert urgent(13, 0.1) == 1 and urgent(14, 0.1) == 0, "twelve beyond one a node"
    assert urgent(27, 0.3) == 2 and urgent(28, 0.3) == 0, "twenty-six where it is likely slow"
    assert most_baseline_runs(5, 2) == 3 + 26 and most_baseline_runs(4, 2) == 2 + 26


def test_jobs_of_two_nodes_pair_the_suspect_with_the_least_suspect() -> None:
    runs = NodeRuns([NodeRun("base", pair, 1.0, place=n) for n, pair in enumerate([("a", "b"), ("c", "d")] * 3)])
    effects = chances(a=0.2, b=0.05, c=0.0, d=0.05)
    assert next_baseline_run(runs, "base", effects, 2, 4).nodes == ("a", "c")
    slow = [NodeEffect("c", "slow", 0.9, 0.8, 0.95, 0.95, 3, chance=1.0), *chances(a=0.2, b=0.05, d=0.04)]
    assert next_baseline_run(runs, "base", slow, 2, 4).nodes == ("a", "d"), "a node that is known to be slow is no peer"
