"""The date of a node may be set while a job runs: how long it took is not counted by the date."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from ridgeline.executors import script
from ridgeline.executors.local import LocalExecutor
from ridgeline.executors.pbs import pbs
from ridgeline.records.run import Cause, Ending, Job
from ridgeline.records.site import Site


def set_date(folder: Path, monkeypatch: pytest.MonkeyPatch, by_s: int) -> None:
    """A `date` that is set by `by_s` between the first time it is asked and the second."""
    program = folder / "bin" / "date"
    program.parent.mkdir()
    asked = folder / "asked"
    text = f"if [ -e {asked} ]; then echo $((1700000000 + {by_s})).5; else touch {asked}; echo 1700000000.0; fi"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")


def ended(executor: Any, folder: Path, command: str, **more: Any) -> Ending:
    home = folder / "0001"
    home.mkdir()
    ticket = executor.submit(Job("0001", home, command, **more))
    give_up = time.monotonic() + 60
    while not (found := executor.poll([ticket])):
        assert time.monotonic() < give_up
        executor.wait(0.5)
    return found[ticket]


@pytest.mark.parametrize("by_s", [-3600, 3600])
def test_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_s: int) -> None:
    set_date(tmp_path, monkeypatch, by_s)
    began = time.monotonic()
    ending = ended(LocalExecutor(Site()), tmp_path, "sleep 0.3")
    assert 0.28 <= ending.duration_s <= time.monotonic() - began + 0.05
    began_s = 1700000000.0
    assert ending.started_s == began_s
    assert ending.ended_s == max(began_s, 1700000000.5 + by_s), "the date stays as people read it, but never goes back"


@pytest.mark.parametrize("by_s", [-3600, 3600])
def test_in_a_batch_job(pbs_standin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_s: int) -> None:
    set_date(tmp_path, monkeypatch, by_s)
    began = time.monotonic()
    ending = ended(pbs(Site(batch="pbs", queue="workq", poll_s=0.2)), tmp_path, "sleep 0.3")
    assert 0.28 <= ending.duration_s <= time.monotonic() - began + 0.05


def test_a_limit_of_a_batch_job_is_seen_whatever_the_date(
    pbs_standin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_date(tmp_path, monkeypatch, -3600)
    site = Site(batch="pbs", queue="workq", poll_s=0.2)
    assert ended(pbs(site), tmp_path, "sleep 30", limit_s=1.0).cause is Cause.TIME_LIMIT


def exit_file(folder: Path, up: str, date_s: float) -> script.ExitRecord:
    text = f"exit_code=0\nstarted_s=1700000000.0\nended_s={1700000000.0 + date_s:.6f}\nhost=vm\n{up}"
    (folder / "exit").write_text(text)
    record = script.exit_record(folder)
    assert record is not None
    return record


def test_the_finer_clock_counts_where_both_agree(tmp_path: Path) -> None:
    up = "up_began_s=100.00\nup_ended_s=101.23\n"
    assert exit_file(tmp_path, up, 1.234567).elapsed_s == pytest.approx(1.234567, abs=1e-6)
    assert exit_file(tmp_path, up, 1.4).elapsed_s == 1.23
    assert exit_file(tmp_path, up, -5.0).elapsed_s == 1.23


def test_a_node_without_such_a_clock_leaves_the_date(tmp_path: Path) -> None:
    assert exit_file(tmp_path, "up_began_s=\nup_ended_s=\n", 2.0).elapsed_s is None
    assert exit_file(tmp_path, "", 2.0).elapsed_s is None, "as jobs wrote it before"


def test_a_job_that_was_killed_is_counted_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ridgeline.executors.local.time.time", lambda: 4e9)  # the date was set meanwhile
    began = time.monotonic()
    ending = ended(LocalExecutor(Site()), tmp_path, "sleep 0.3; kill -9 $$")
    assert 0.28 <= ending.duration_s <= time.monotonic() - began + 0.05


def test_the_machine_is_in_the_state_files(pbs_standin: Path, tmp_path: Path) -> None:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    for name, executor in (
        ("here", LocalExecutor(Site())),
        ("batch", pbs(Site(batch="pbs", queue="workq", poll_s=0.2))),
    ):
        (tmp_path / name).mkdir()
        ending = ended(executor, tmp_path / name, "true")
        (machine,) = ending.machines
        assert (machine.host, machine.boot) == (os.uname().nodename, boot)


def test_what_the_program_finds_in_its_environment_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("gpus", "first", "value", "file"):
        monkeypatch.setenv(name, "mine")
    ended(LocalExecutor(Site()), tmp_path, 'echo "$gpus $first $value $file"')
    assert (tmp_path / "0001" / "stdout").read_text() == "mine mine mine mine\n"


def test_cards_without_an_id_are_not_named(tmp_path: Path) -> None:
    (tmp_path / "machine").write_text("host=vm\nboot=b\ngpus= GPU-2 GPU-????????-???? GPU-1\n")
    assert script.machines(tmp_path)[0].gpus == ("GPU-1", "GPU-2")
    (tmp_path / "machine").write_text("hos")
    assert script.machines(tmp_path) == ()
    assert script.machines(tmp_path / "none") == ()
