"""The sequential test of a gate: its rates hold whatever the noise, it stops early, and it says what it can find."""

from __future__ import annotations

import math
import random

import pytest

from ridgeline.stats.gate import (
    FEWEST_NEW,
    FEWEST_PAIRS,
    GatePlan,
    gate_plan,
    judge_gate,
    judge_pairs,
    pairs_plan,
    reference_wanted,
)

SHAPES = {
    "normal": lambda rng: rng.lognormvariate(0.0, 0.02),
    "two modes": lambda rng: rng.choice((0.97, 1.03)) * rng.lognormvariate(0.0, 0.005),
    "long tail": lambda rng: 1.0 + 0.02 * rng.expovariate(1.0) ** 2,
}


def drawn(shape: str, seed: int, runs: int) -> list[float]:
    rng = random.Random(seed)
    return [SHAPES[shape](rng) for _ in range(runs)]


@pytest.mark.parametrize("shape", SHAPES)
def test_the_stated_rates_hold_whatever_the_noise(shape: str) -> None:
    alarms = missed = 0
    for seed in range(200):
        stored = drawn(shape, seed, 60)
        plan = gate_plan(stored, "minimize", most_runs=400)
        new = drawn(shape, 10_000 + seed, plan.most_runs)
        alarms += judge_gate(plan, stored, new, "minimize").slower is True
        slower = [value * (1 + plan.slower) for value in drawn(shape, 20_000 + seed, plan.most_runs)]
        missed += judge_gate(plan, stored, slower, "minimize").slower is False
    assert alarms <= 6, "2 are expected of 200 at one in 100; the seeds are fixed"
    assert missed <= 30, "at most 20 are expected of 200 at a power of 90%"


@pytest.mark.parametrize("direction", ["minimize", "maximize"])
def test_a_clear_change_and_none_are_both_decided_at_the_first_look(direction: str) -> None:
    stored = drawn("normal", 1, 60)
    plan = gate_plan(stored, direction)  # type: ignore[arg-type]
    worse = 1.3 if direction == "minimize" else 1 / 1.3
    slow = judge_gate(plan, stored, [v * worse for v in drawn("normal", 2, plan.most_runs)], direction)  # type: ignore[arg-type]
    fast = judge_gate(plan, stored, [v / worse for v in drawn("normal", 3, plan.most_runs)], direction)  # type: ignore[arg-type]
    assert (slow.slower, fast.slower) == (True, False)
    assert slow.runs == fast.runs == plan.looks[0] < plan.most_runs
    assert slow.low <= slow.change <= slow.high and slow.change == pytest.approx(0.3, abs=0.05)


def test_before_the_first_look_nothing_is_decided() -> None:
    stored = drawn("normal", 1, 60)
    assert judge_gate(gate_plan(stored, "minimize"), stored, [9.0] * (FEWEST_NEW - 1), "minimize").slower is None


def test_a_program_without_noise_is_no_alarm_for_a_change_that_nobody_looks_for() -> None:
    stored = [100.0] * 12
    plan = gate_plan(stored, "minimize", slower=0.03)
    assert plan.slower == 0.03 and plan.looks[0] == FEWEST_NEW
    assert [judge_gate(plan, stored, [v] * plan.most_runs, "minimize").slower for v in (100.0, 100.5, 103.0)] == [
        False,
        False,
        True,
    ]


def test_what_few_runs_cannot_show_is_not_promised() -> None:
    stored = drawn("normal", 1, 14)
    plan = gate_plan(stored, "minimize", slower=0.001, most_runs=12)
    assert plan.slower > 0.01 and plan.most_runs <= 12
    assert isinstance(plan, GatePlan) and "slowdown 90% of the time, with 1 false alarm in 100" in str(plan)


def test_a_noisier_program_needs_a_larger_reference() -> None:
    quiet, noisy = [1.0, 1.001] * 10, [1.0, 1.2, 0.9, 1.1] * 5
    wanted = [reference_wanted(values, "minimize", 0.03, 0.01, 0.9, 500) for values in (quiet, noisy)]
    assert wanted[0] < 20 < wanted[1]


def following(share: float, seed: int, runs: int) -> list[float]:
    """Each run keeps this share of the last one's deviation."""
    rng, at, found = random.Random(seed), 0.0, []
    for _ in range(runs):
        at = share * at + rng.gauss(0.0, 0.02 * math.sqrt(1 - share**2))
        found.append(math.exp(at))
    return found


def test_runs_that_follow_the_one_before_count_for_less() -> None:
    stored = following(0.6, 1, 400)
    shuffled = random.Random(2).sample(stored, len(stored))
    plans = [gate_plan(values, "minimize", most_runs=400) for values in (stored, shuffled)]
    assert 2.5 < plans[0].stretch < 6.0 and plans[1].stretch < 1.4, "4 in a row tell as much as one alone"
    assert plans[0].most_runs > 2 * plans[1].most_runs
    wanted = [reference_wanted(values, "minimize", 0.03, 0.01, 0.9, 500) for values in (stored, shuffled)]
    assert wanted[0] >= 2 * wanted[1]
    new = [value * 1.02 for value in following(0.6, 3, plans[0].most_runs)]
    ranges = [judge_gate(plan, values, new, "minimize") for plan, values in zip(plans, (stored, shuffled), strict=True)]
    assert ranges[0].high - ranges[0].low > ranges[1].high - ranges[1].low


def test_few_runs_in_a_row_of_their_size_still_have_a_plan() -> None:
    """Twelve runs that grow look as if each followed the one before; nobody knows, and something can be found."""
    for count, most_runs in ((12, 12), (12, 100), (40, 20), (100, 100)):
        plan = gate_plan([1 + 0.01 * n for n in range(count)], "minimize", most_runs=most_runs)
        assert plan.most_runs <= most_runs and plan.stretch <= count / 12
    with pytest.raises(ValueError, match="12 stored runs and 12 new ones show no slowdown with 99%"):
        gate_plan([1 + 0.01 * n for n in range(12)], "minimize", 0.03, 0.001, 0.99, 12)


def test_a_reference_is_not_looked_at_after_every_run() -> None:
    noisy = drawn("normal", 5, 12)
    first = reference_wanted(noisy, "minimize", 0.01, 0.01, 0.9, 500)
    assert first == 24, "twice as many at most"
    assert reference_wanted(noisy + [1.0] * 11, "minimize", 0.01, 0.01, 0.9, 500) == first


def test_a_machine_that_stays_in_a_mode_has_no_more_false_alarms_than_stated() -> None:
    """References that stopped where the runs looked as if each stood alone had most of them: 3 in 100."""
    alarms = 0
    for seed in range(150):
        rng = random.Random(seed)
        stored = staying(rng, 12)
        while (wanted := reference_wanted(stored, "minimize", 0.03, 0.01, 0.9, 1000)) > len(stored):
            stored = staying(random.Random(seed), wanted)
        plan = gate_plan(stored, "minimize", most_runs=600)
        alarms += (
            judge_gate(plan, stored, staying(random.Random(10_000 + seed), plan.most_runs), "minimize").slower is True
        )
    assert alarms <= 3, "1 or 2 are expected of 150; the seeds are fixed"


def staying(rng: random.Random, runs: int) -> list[float]:
    """Two modes, 4% apart; the next run is in the same one with 80%."""
    found, slow = [], rng.random() < 0.5
    for _ in range(runs):
        found.append((1.04 if slow else 1.0) * rng.lognormvariate(0.0, 0.01))
        slow = slow == (rng.random() < 0.8)
    return found


def test_too_few_runs_to_know_their_order_are_said_to_be_taken_as_they_come() -> None:
    noisy = drawn("normal", 3, 14)
    assert "if no run depends on the one before, which so few do not show" in str(gate_plan(noisy, "minimize"))
    assert "depends" not in str(gate_plan(drawn("normal", 3, 200), "minimize"))
    assert "depends" not in str(gate_plan([100.0, 100.1] * 7, "minimize")), "it could make no difference"


def in_turn(course: str, seed: int, pairs: int) -> list[tuple[float, float]]:
    """Two programs that are the same, in an order that is drawn, on a machine that takes its course."""
    rng, at, found = random.Random(f"{course} {seed}"), 0.0, []
    for n in range(pairs):
        logs = []
        for run in (2 * n, 2 * n + 1):
            at = 0.8 * at + rng.gauss(0.0, 0.02)
            level = {"steady": 0.0, "loaded": 0.3 * (run // 7 % 2), "follows": at, "alternates": 0.05 * (run % 2)}[
                course
            ]
            logs.append(level + rng.gauss(0.0, 0.02))
        first, second = map(math.exp, logs)
        found.append((first, second) if rng.random() < 0.5 else (second, first))
    return found


@pytest.mark.parametrize("course", ["steady", "loaded", "follows", "alternates"])
def test_in_turn_the_stated_rates_hold_whatever_the_machine_does(course: str) -> None:
    alarms = missed = 0
    for seed in range(150):
        pairs = in_turn(course, seed, 300)
        plan = pairs_plan(pairs, "minimize", most_pairs=300)
        alarms += judge_pairs(plan, pairs, "minimize").slower is True
        slower = [(old, new * (1 + plan.slower)) for old, new in pairs]
        missed += judge_pairs(plan, slower, "minimize").slower is False
    assert alarms <= 4, "1 or 2 are expected of 150 at one in 100; the seeds are fixed"
    assert missed <= 22, "at most 15 are expected of 150 at a power of 90%"


@pytest.mark.parametrize("direction", ["minimize", "maximize"])
def test_in_turn_a_clear_change_is_found_and_its_direction_counts(direction: str) -> None:
    pairs = in_turn("steady", 1, 100)
    worse = 1.2 if direction == "minimize" else 1 / 1.2
    plan = pairs_plan(pairs, direction)  # type: ignore[arg-type]
    slow = judge_pairs(plan, [(old, new * worse) for old, new in pairs], direction)  # type: ignore[arg-type]
    fast = judge_pairs(plan, [(old, new / worse) for old, new in pairs], direction)  # type: ignore[arg-type]
    assert (slow.slower, fast.slower) == (True, False)
    assert slow.low <= slow.change <= slow.high and slow.change == pytest.approx(0.2, abs=0.03)
    assert fast.runs == FEWEST_PAIRS <= slow.runs < plan.most_runs


def test_in_turn_without_noise_only_what_is_looked_for_is_an_alarm() -> None:
    for new, alarm in ((100.0, False), (101.0, False), (103.0, True), (97.0, False)):
        pairs = [(100.0, new)] * 100
        assert judge_pairs(pairs_plan(pairs, "minimize"), pairs, "minimize").slower is alarm


def test_in_turn_the_plan_rests_on_the_first_pairs_alone_and_says_what_it_finds() -> None:
    pairs = in_turn("steady", 3, 40)
    plan = pairs_plan(pairs, "minimize")
    assert plan == pairs_plan(pairs[:FEWEST_PAIRS], "minimize")
    assert judge_pairs(plan, pairs[: FEWEST_PAIRS - 1], "minimize").slower is None
    assert pairs_plan(pairs, "minimize", slower=0.001, most_pairs=30).slower > 0.01
    with pytest.raises(ValueError, match="8 are needed"):
        pairs_plan(pairs[:7], "minimize")
    with pytest.raises(ValueError, match="10 runs of each show no slowdown"):
        pairs_plan(pairs, "minimize", most_pairs=10)
