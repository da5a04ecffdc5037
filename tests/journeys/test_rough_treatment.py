"""What people do to a campaign that runs: close its output, move or delete its folder, run what never stops writing."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

RIDGELINE = [sys.executable, "-m", "ridgeline"]
STUDY = """version: 1
name: rough
workload: {{kind: command, run: '{run}', metrics: {{rate: {{regex: 'rate (\\d+)'}}}}}}
space: {{x: [1, 2, 3]}}
goal: {{maximize: rate}}
baseline: {{x: 1}}
budget: {{trials: 2}}
confirm: {{top: 0}}
{more}
"""
PATIENCE_S = 120


def study(folder: Path, run: str, more: str = "") -> Path:
    path = folder / "study.yaml"
    path.write_text(STUDY.format(run=run, more=more))
    return path


def events(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    running: list[subprocess.Popen[str]] = []

    def start(path: Path) -> subprocess.Popen[str]:
        command = [*RIDGELINE, "tune", str(path), "--out", str(tmp_path / "out")]
        running.append(
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
        )
        return running[-1]

    yield start
    for process in running:
        process.kill()
        process.communicate()


def test_who_stops_reading_ends_the_output_not_the_campaign(
    tmp_path: Path, started: Callable[..., subprocess.Popen[str]]
) -> None:
    process = started(study(tmp_path, "echo rate {x}"))
    assert process.stdout is not None and process.stderr is not None
    process.stdout.readline()
    process.stdout.close()  # as `head -1` does
    code, said = process.wait(PATIENCE_S), process.stderr.read()
    assert code == 1 and "the study asks for no confirmation" in said, said
    assert events(tmp_path / "out")[-2]["event"] == "verdict"
    assert (tmp_path / "out" / "report.html").is_file()


@pytest.mark.parametrize("what", ["moved", "deleted"])
def test_a_folder_that_is_gone_ends_the_campaign_at_once(
    tmp_path: Path, started: Callable[..., subprocess.Popen[str]], what: str
) -> None:
    process = started(study(tmp_path, "sleep 300; echo rate {x}"))
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    until = time.monotonic() + PATIENCE_S
    while not any(out.glob("runs/*/process")) and time.monotonic() < until:
        time.sleep(0.05)
    out.rename(elsewhere)
    if what == "deleted":
        shutil.rmtree(elsewhere)
    _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 5
    assert "moved or deleted" in said and "Traceback" not in said
    assert not out.exists(), "nothing is written to where it was"
    if what == "moved":
        told = [event["event"] for event in events(elsewhere)]
        assert told == ["opened", "trial", "run", "submitted"], "and no result that nobody measured"


def test_a_run_folder_that_is_gone_is_nobodys_result(
    tmp_path: Path, started: Callable[..., subprocess.Popen[str]]
) -> None:
    """The first run waits until its folder is deleted; it is run again, and counts then."""
    marker = tmp_path / "second"
    run = f"if [ ! -e {marker} ]; then touch {marker}; sleep 2; fi; echo rate {{x}}"
    process = started(study(tmp_path, run))
    until = time.monotonic() + PATIENCE_S
    while not marker.exists() and time.monotonic() < until:
        time.sleep(0.02)
    shutil.rmtree(next((tmp_path / "out" / "runs").iterdir()))
    _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1 and "the study asks for no confirmation" in said, said
    ended = [event["outcome"] for event in events(tmp_path / "out") if event["event"] == "ended"]
    kinds = [outcome["kind"] for outcome in ended]  # type: ignore[index]
    assert kinds[0] == "site-fault" and set(kinds[1:]) == {"ok"}


def test_what_never_stops_writing_is_ended(tmp_path: Path, started: Callable[..., subprocess.Popen[str]]) -> None:
    run = "if [ {x} = 1 ]; then echo rate 1; else yes; fi"
    process = started(study(tmp_path, run, "job: {output: 2 MB}"))
    _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1, said
    ended = [event for event in events(tmp_path / "out") if event["event"] == "ended"]
    *_, crash, again = (event["outcome"] for event in ended)
    assert crash["kind"] == "crash" and "raise job.output" in crash["reason"]  # type: ignore[index]
    assert again["kind"] == "ok", "the baseline still works: it is the setting"  # type: ignore[index]
    assert max(file.stat().st_size for file in (tmp_path / "out").glob("runs/*/stdout")) == 2_000_000


def test_what_fills_the_disk_with_another_file_is_ended(
    tmp_path: Path, started: Callable[..., subprocess.Popen[str]]
) -> None:
    dump = "mkdir -p deep; dd if=/dev/urandom of=deep/dump bs=1M count=12; touch small; sleep 300"
    process = started(study(tmp_path, f"if [ {{x}} = 1 ]; then echo rate 1; else {dump}; fi", LIMITS))
    _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1, said
    ended = [event for event in events(tmp_path / "out") if event["event"] == "ended"]
    *_, crash, again = (event["outcome"] for event in ended)
    assert crash["kind"] == "crash" and "raise job.disk" in crash["reason"]  # type: ignore[index]
    assert "more than 8 MB of disk" in crash["reason"] and "of it 'dump'" in crash["reason"]  # type: ignore[index]
    assert again["kind"] == "ok", "the baseline still works: it is the setting"  # type: ignore[index]
    assert {file.stat().st_size for file in (tmp_path / "out").glob("runs/*/deep/dump")} == {2_000_000}


LIMITS = "job: {output: 2 MB, disk: 8 MB}"


HASTY = "import ridgeline.matching as m; m.BASE_S = 1.0; from ridgeline.cli.main import main; main()"


@pytest.mark.parametrize("stop", [False, True])
def test_a_pattern_without_end_is_named_and_a_stop_is_obeyed(tmp_path: Path, stop: bool) -> None:
    path = study(tmp_path, f"echo {'a' * 60}!; echo rate {{x}}")
    path.write_text(path.read_text().replace(r"rate (\d+)", "(a+)+$"))
    command = [sys.executable, "-c", HASTY, "tune", str(path), "--out", str(tmp_path / "out")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        until = time.monotonic() + PATIENCE_S
        while not any((tmp_path / "out").glob("runs/*/exit")) and time.monotonic() < until:
            time.sleep(0.02)
        if stop:
            process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
        process.communicate()
    if stop:
        assert process.returncode in (1, 130)
    else:
        assert process.returncode == 1
        assert "rate: in stdout, the pattern '(a+)+$' was given up" in said
