"""A gate does not blame a program for its machine: load of others, quotas, clocks, and a change while it ran."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ridgeline.campaign import machine as states
from ridgeline.campaign.kinds.gate import GateAgenda, GateQuestion
from ridgeline.campaign.machine import MachineState, clock_settings, clocks_changed, machine_state

STORED = [10.0 + 0.01 * n for n in range(20)]


def state(others: float = 0.0, stolen: float = 0.0, throttled: float = 0.0, watched_s: float = 60.0) -> MachineState:
    return MachineState(others, stolen, throttled, watched_s, 20, 4)


def why(values: list[float], slower: bool, now: MachineState | None, before: MachineState | None) -> str:
    usage = (
        {}
        if now is None
        else {
            "watched_s": now.watched_s / 20,
            "others_cpu_s": now.others * now.watched_s / 20,
            "stolen_cpu_s": now.stolen * now.watched_s / 20,
            "throttled_s": now.throttled * now.watched_s / 20,
            "cores": 4.0,
        }
    )
    runs = [(None, SimpleNamespace(ending=SimpleNamespace(usage=usage)))] * 20
    asked = GateQuestion({}, stored=STORED, state=None if before is None else before.as_json())
    goal = SimpleNamespace(direction="minimize")
    agenda: Any = SimpleNamespace(
        question=asked, study=SimpleNamespace(goal=goal), history=SimpleNamespace(ok_runs=lambda *_: runs)
    )
    return GateAgenda._another_machine(agenda, values, slower)


SLOW = [11.0 + 0.01 * (n * 7 % 20) for n in range(20)]


def test_a_slowdown_on_a_busier_machine_is_not_the_programs() -> None:
    found = why(SLOW, True, state(1.5), state(0.1))
    assert found.startswith(
        "the machine is busier: others kept 1.5 of 4 cores busy, 0.1 when the reference was measured"
    )
    assert "--against-command" in found
    assert "which does not say" in why(SLOW, True, state(1.5), None), "a reference of an earlier release"
    guests = why(SLOW, True, state(1.5, stolen=1.2), state())
    assert "1.2 of it by other guests of the host" in guests
    assert "a CPU quota held everything up for 12% of the time" in why(SLOW, True, state(0, 0, 0.12), state())


@pytest.mark.parametrize(
    ("now", "before"),
    [(state(0.1), state(0.0)), (state(1.5), state(1.4)), (state(0.0), state(1.5)), (None, None), (None, state(1.5))],
    ids=["both quiet", "as busy as before", "quieter now", "not known", "not watched"],
)
def test_a_slowdown_on_a_comparable_machine_stays_one(now: MachineState | None, before: MachineState | None) -> None:
    assert why(SLOW, True, now, before) == ""


def test_a_program_may_not_hide_behind_a_busy_reference() -> None:
    same = [value + 0.001 for value in STORED[::2] + STORED[1::2]]
    random.Random(1).shuffle(same)
    assert why(same, False, state(0.0), state(1.5)).startswith("the reference was measured on a busier machine")
    assert why(same, False, state(1.5), state(0.0)) == "", "not slower although others slow it down"


def test_a_change_in_the_middle_of_the_runs_is_not_the_programs() -> None:
    noise = [0.01 * (n * 7 % 10) for n in range(20)]
    changed = [10.0 + x for x in noise[:10]] + [10.8 + x for x in noise[10:]]
    for slower in (True, False):
        found = why(changed, slower, state(), state())
        assert found.startswith("the machine changed while it ran: 7") and "from repeat 11 of 20 on" in found
    small = [10.0 + 0.1 * x for x in noise[:10]] + [10.08 + 0.1 * x for x in noise[10:]]
    assert why(small, True, state(), state()) == "", "0.8% is less than decides anything"


def test_what_is_the_same_in_every_run_does_not_depend_on_the_machine() -> None:
    runs = [
        (None, SimpleNamespace(ending=SimpleNamespace(usage={"watched_s": 9.0, "others_cpu_s": 9.0, "cores": 2.0})))
    ]
    agenda: Any = SimpleNamespace(
        question=GateQuestion({}, stored=[100.0] * 12),
        study=SimpleNamespace(goal=SimpleNamespace(direction="minimize")),
        history=SimpleNamespace(ok_runs=lambda *_: runs),
    )
    assert GateAgenda._another_machine(agenda, [104.0] * 8, True) == ""
    assert GateAgenda._another_machine(agenda, [104.0, 104.1] * 4, True) != ""


def test_few_short_runs_need_a_larger_difference() -> None:
    brief = MachineState(0.5, 0.0, 0.0, 0.12, 6, 4)
    assert brief.busier_than(state()) == "", "six ticks of a clock that counts in tens of milliseconds"
    assert state(0.5).busier_than(state()) != ""
    assert machine_state([]) is None


def test_clocks_that_are_set_otherwise_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "_CPU", tmp_path)
    assert clock_settings() == {}
    for core in ("cpu0", "cpu1"):
        (tmp_path / core / "cpufreq").mkdir(parents=True)
        (tmp_path / core / "cpufreq/scaling_governor").write_text("performance\n")
        (tmp_path / core / "cpufreq/scaling_max_freq").write_text("3500000\n")
    before = clock_settings()
    assert before == {"governor": "performance", "highest kHz": "3500000"}
    (tmp_path / "cpu1/cpufreq/scaling_governor").write_text("powersave\n")
    assert clocks_changed(before, clock_settings()) == "governor performance, now performance powersave"
    assert clocks_changed(before, {}) == clocks_changed({}, before) == "", "what is not said is not held against it"
