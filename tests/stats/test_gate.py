"""The sequential test of a gate: its rates hold whatever the noise, it stops early, and it says what it can find."""

from __future__ import annotations

import random

import pytest

from ridgeline.stats.gate import FEWEST_NEW, GatePlan, gate_plan, judge_gate, reference_wanted

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
    assert isinstance(plan, GatePlan) and "is found with 90%; 1 false alarm in 100" in str(plan)


def test_a_noisier_program_needs_a_larger_reference() -> None:
    quiet, noisy = [1.0, 1.001] * 10, [1.0, 1.2, 0.9, 1.1] * 5
    wanted = [reference_wanted(values, "minimize", 0.03, 0.01, 0.9, 500) for values in (quiet, noisy)]
    assert wanted[0] < 20 < wanted[1]
