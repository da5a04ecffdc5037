"""What a run's own small files say, by hand: its exit, its machine, and what it had written when it fell silent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ridgeline.executors import local
from ridgeline.executors.batch import Folder, conclude
from ridgeline.executors.dialect import JobStatus, Phase
from ridgeline.executors.script import exit_record, machines
from ridgeline.executors.slurm import Slurm
from ridgeline.records.run import QUIET_FILE, Cause, Ending, Machine

TIMES = "0m0.01s 0m0.02s\n1m30.5s 0m2.25s\n"
WHOLE = "exit_code=0\nstarted_s=100.5\nended_s=160.5\nhost=n1\nup_began_s=1000.00\nup_ended_s=1060.01\ntold=\n"


def wrote(folder: Path, text: str) -> Path:
    (folder / "exit").write_text(text)
    os.utime(folder / "exit", (5000, 5000))
    return folder


def test_the_exit_file_says_when_where_and_how_long(tmp_path: Path) -> None:
    found = exit_record(wrote(tmp_path, WHOLE + TIMES))
    assert found is not None
    assert (found.exit_code, found.signal, found.host, found.terminated) == (0, None, "n1", False)
    assert (found.started_s, found.ended_s) == (100.5, 160.5)
    assert found.elapsed_s == 60.0, "both clocks agree, so the finer one counts"
    assert found.cpu_s == 92.75, "of the command, not of the shell"


@pytest.mark.parametrize(
    ("text", "elapsed_s"),
    [
        (WHOLE.replace("ended_s=160.5", "ended_s=3760.5", 1), 60.01),  # somebody set the date meanwhile
        (WHOLE.replace("up_ended_s=1060.01", "up_ended_s=1060.60"), 60.6),
        (WHOLE.replace("up_began_s=1000.00", "up_began_s="), None),
    ],
)
def test_where_the_clocks_disagree_the_one_that_nobody_can_set_counts(
    tmp_path: Path, text: str, elapsed_s: float | None
) -> None:
    found = exit_record(wrote(tmp_path, text))
    assert found is not None
    assert found.elapsed_s == elapsed_s


def test_what_is_missing_in_it_is_left_open(tmp_path: Path) -> None:
    assert exit_record(tmp_path) is None
    assert exit_record(wrote(tmp_path, "exit_code=\n")) is None
    killed = exit_record(wrote(tmp_path, "exit_code=137\nstarted_s=100.N\nended_s=\ntold=TERM\n"))
    assert killed is not None
    assert (killed.signal, killed.terminated, killed.cpu_s, killed.elapsed_s) == (9, True, None, None)
    assert (killed.started_s, killed.ended_s) == (100.0, 5000.0), "the file's own date where `date` said nothing"


def test_the_jobs_own_account_of_time_comes_before_the_batch_systems(tmp_path: Path) -> None:
    times = {"started_s": 90.0, "ended_s": 170.0, "elapsed_s": 80.0}
    told = Ending(Cause.EXITED, 0, nodes=("n1", "n2"), usage={"cpu_s": 180.0}, **times)
    ending = conclude(Folder(wrote(tmp_path, WHOLE + TIMES)), Slurm(), JobStatus("7", Phase.ENDED, ending=told))
    assert (ending.started_s, ending.ended_s, ending.elapsed_s) == (100.5, 160.5, 60.0)
    assert ending.usage["cpu_s"] == 180.0, "the shell's account knows one node only"
    assert ending.nodes == ("n1", "n2")
    without = WHOLE.replace("up_began_s=1000.00", "up_began_s=")
    ending = conclude(Folder(wrote(tmp_path, without)), Slurm(), JobStatus("7", Phase.ENDED, ending=told))
    assert ending.elapsed_s == 80.0


def test_the_machine_is_known_by_name_boot_and_gpus(tmp_path: Path) -> None:
    assert machines(tmp_path) == ()
    (tmp_path / "machine").write_text("host=n1\nboot=b\ngpus= GPU-2 GPU-1 GPU-????\n")
    assert machines(tmp_path) == (Machine("n1", "b", ("GPU-1", "GPU-2")),), "a card that sleeps may not say its id"


def test_what_was_written_before_the_silence_is_noted(tmp_path: Path) -> None:
    (tmp_path / "stdout").write_text("12345")
    (tmp_path / "link").symlink_to(tmp_path / "stdout")
    os.utime(tmp_path / "stdout", (1000.5, 1000.5))
    local.note_quiet(tmp_path)
    assert (tmp_path / QUIET_FILE).read_text() == "1000.500000000 5 stdout\n"


def test_any_file_that_grows_or_changes_is_a_sign_of_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = {"s": 100.0}
    monkeypatch.setattr(local, "now_s", lambda: now["s"])
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a").write_text("x")
    watch = local.SilenceWatch(tmp_path, 8.0, began_before_us=False)
    now["s"] = 104.0
    assert not watch.reached()
    (tmp_path / "deep" / "a").write_text("xy")
    os.utime(tmp_path / "deep" / "a", (1, 1))  # a clock that is behind: the size tells
    now["s"] = 109.0
    assert not watch.reached()
    now["s"] = 117.5
    assert watch.reached()


def test_the_silence_before_a_controller_came_back_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "now_s", lambda: 100.0)
    monkeypatch.setattr(local.time, "time", lambda: 5000.0)
    (tmp_path / "a").write_text("x")
    for written_s, since_s in ((4990.0, 90.0), (6000.0, 100.0)):
        os.utime(tmp_path / "a", (written_s, written_s))
        assert local.SilenceWatch(tmp_path, 8.0, began_before_us=True)._changed_at_s == since_s
