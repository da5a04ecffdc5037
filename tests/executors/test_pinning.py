"""Cores that are free: disjoint sets, never more than there are, and limits set from outside."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.executors import machine
from ridgeline.executors.machine import FreeCores, allowed_cores


@given(st.integers(1, 16), st.lists(st.one_of(st.integers(1, 20), st.none()), max_size=30))
def test_cores_are_never_shared_and_come_back(total: int, acts: list[int | None]) -> None:
    """A number asks for so many cores; None gives the oldest set back."""
    cores, held = FreeCores(range(total)), []
    for count in acts:
        if count is None:
            if held:
                cores.give_back(held.pop(0))
            continue
        taken = cores.take(count)
        free = total - sum(map(len, held))
        assert (taken is not None) == (min(count, total) <= free)
        if taken is not None:
            assert len(taken) == min(count, total)
            assert not any(taken & other for other in held)
            held.append(taken)
    for taken in held:
        cores.give_back(taken)
    assert cores.take(total) == frozenset(range(total))


def test_cores_of_a_job_that_already_runs_are_not_given_out() -> None:
    cores = FreeCores([0, 1, 2, 3])
    assert cores.note({2, 3, 17}) == {2, 3}
    assert cores.take(2) == {0, 1}
    assert cores.take(1) is None


def test_the_controllers_own_affinity_is_respected() -> None:
    before = os.sched_getaffinity(0)
    one = min(before)
    os.sched_setaffinity(0, {one})
    try:
        assert allowed_cores() == [one]
    finally:
        os.sched_setaffinity(0, before)
    assert len(allowed_cores(1)) == 1
    assert set(allowed_cores()) <= before


@pytest.mark.parametrize(("quota", "expected"), [("150000 100000", 1), ("400000 100000", 4), ("max 100000", None)])
def test_a_quota_of_the_control_group_counts_in_whole_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str, expected: int | None
) -> None:
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    monkeypatch.setattr(machine, "OWN_GROUPS", tmp_path / "own")
    (tmp_path / "own").write_text("0::/slice/job\n")
    (tmp_path / "slice/job").mkdir(parents=True)
    (tmp_path / "slice/job/cpu.max").write_text(f"{quota}\n")
    assert machine.quota_cores() == expected


def test_whole_cores_come_before_hardware_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for core, siblings in {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"}.items():
        topology = tmp_path / f"cpu{core}/topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(f"{siblings}\n")
        (topology / "physical_package_id").write_text("0\n")
    monkeypatch.setattr(machine, "CPU", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    assert allowed_cores(4)[:2] == [0, 1]
