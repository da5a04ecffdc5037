"""What others do on the machine meanwhile: the run's own work is not theirs, however many cores it uses."""

from __future__ import annotations

from pathlib import Path

import pytest

from ridgeline.executors import machine
from ridgeline.executors.machine import MachineCounters, load_between, machine_counters

BEFORE = MachineCounters(at_s=100.0, cores=4, idle_s=1000.0, stolen_s=5.0, throttled_s=1.0, own_s=2.0)


def after(idle_s: float, **changes: float) -> MachineCounters:
    """Ten seconds later."""
    values = {"at_s": 110.0, "cores": 4, "stolen_s": 5.0, "throttled_s": 1.0, "own_s": 2.0, **changes}
    return MachineCounters(idle_s=idle_s, **values)  # type: ignore[arg-type]


def test_a_program_on_every_core_is_not_the_others() -> None:
    found = load_between(BEFORE, after(1000.5, own_s=2.5), run_cpu_s=39.0)
    assert (found["others_cpu_s"], found["watched_s"]) == (0.0, 10.0)
    assert load_between(BEFORE, after(1000.0), run_cpu_s=20.0)["others_cpu_s"] == 20.0, "the same load, half of it ours"


def test_what_the_host_and_a_quota_took_is_told_apart() -> None:
    found = load_between(BEFORE, after(1030.0, stolen_s=8.0, throttled_s=3.5), run_cpu_s=6.0)
    assert (found["others_cpu_s"], found["stolen_cpu_s"], found["throttled_s"]) == (4.0, 3.0, 2.5)


@pytest.mark.parametrize(
    "later", [after(999.0), after(1000.0, cores=8), after(1000.0, at_s=100.0)], ids=["backwards", "cores", "no time"]
)
def test_counters_that_cannot_be_believed_say_nothing(later: MachineCounters) -> None:
    assert load_between(BEFORE, later, run_cpu_s=1.0) == {}


def test_the_kernels_counters_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stat, groups = tmp_path / "stat", tmp_path / "cgroup"
    monkeypatch.setattr(machine, "_STAT", stat)
    monkeypatch.setattr(machine, "OWN_GROUPS", groups)
    monkeypatch.setattr(machine, "CGROUP", tmp_path / "fs")
    monkeypatch.setattr(machine, "_TICKS_PER_S", 100)
    assert machine_counters() is None, "not there"
    stat.write_text("cpu  1 2 3 400 500 6 7 800 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\ncpu1 1 1 1 1 1 1 1 1 0 0\nintr 5\n")
    groups.write_text("0::/user/mine\n")
    (tmp_path / "fs/user/mine").mkdir(parents=True)
    (tmp_path / "fs/user/mine/cpu.stat").write_text("usage_usec 9\nnr_throttled 4\nthrottled_usec 2500000\n")
    found = machine_counters()
    assert found is not None
    assert (found.cores, found.idle_s, found.stolen_s, found.throttled_s) == (2, 9.0, 8.0, 2.5)
    groups.write_text("3:cpu,cpuacct:/old\n")
    (tmp_path / "fs/cpu/old").mkdir(parents=True)
    (tmp_path / "fs/cpu/old/cpu.stat").write_text("nr_throttled 4\nthrottled_time 1500000000\n")
    again = machine_counters()
    assert again is not None and again.throttled_s == 1.5
