"""The stand-ins keep the contracts they stand in for."""

from __future__ import annotations

from pathlib import Path

import pytest

from ridgeline.records.run import Cause, Job
from ridgeline.records.site import Site
from ridgeline.testing import MemoryExecutor, MemorySite, ScriptedAnswer


def job(folder: Path, name: str, limit_s: float = 60.0) -> Job:
    home = folder / name
    home.mkdir()
    return Job(name, home, "true", limit_s=limit_s)


def test_jobs_end_in_the_order_of_their_dates_and_the_clock_moves_no_further(tmp_path: Path) -> None:
    lengths = {"long": 5.0, "short": 2.0}
    executor = MemoryExecutor(
        Site(jobs_at_once=2), act=lambda job: ScriptedAnswer({"x": 1.0}, seconds=lengths[job.name])
    )
    tickets = {name: executor.submit(job(tmp_path, name)) for name in lengths}
    assert executor.poll(tickets.values()) == {}
    executor.wait(100)
    assert set(executor.poll(tickets.values())) == {tickets["short"]}
    executor.wait(1)
    assert tickets["long"] not in executor.poll(tickets.values())
    executor.wait(100)
    end = executor.poll(tickets.values())[tickets["long"]]
    assert (end.cause, end.exit_code, end.duration_s) == (Cause.EXITED, 0, 5.0)


def test_a_world_outlives_a_controller(tmp_path: Path) -> None:
    world, one = MemorySite(), job(tmp_path, "a")
    ticket = MemoryExecutor(world=world).submit(one)
    second = MemoryExecutor(world=world)
    assert second.find(one) == ticket
    assert second.find(job(tmp_path, "b")) is None
    with pytest.raises(AssertionError, match="twice"):
        second.submit(one)


def test_limits_and_cancelling(tmp_path: Path) -> None:
    executor = MemoryExecutor(act=lambda job: ScriptedAnswer(seconds=50.0))
    late, gone = executor.submit(job(tmp_path, "late", limit_s=3.0)), executor.submit(job(tmp_path, "gone"))
    executor.cancel(gone)
    assert executor.poll([late, gone])[gone].cause is Cause.CANCELLED
    executor.wait(100)
    end = executor.poll([late])[late]
    assert (end.cause, end.duration_s) == (Cause.TIME_LIMIT, 3.0)
