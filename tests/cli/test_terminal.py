"""What a terminal of 80 columns shows: a clock that moves, lines that fit, settings in full, help that can be read."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import re
import socket
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ridgeline.campaign.controller import Campaign
from ridgeline.campaign.status import CampaignStatus, read_status
from ridgeline.cli.campaign import live
from ridgeline.cli.campaign.live import TerminalView
from ridgeline.cli.main import overview
from ridgeline.cli.text.picture import fitted, picture_lines
from ridgeline.cli.text.snapshot import snapshot_of
from ridgeline.cli.text.wording import clock_text, status_lines
from ridgeline.executors.slurm import Slurm
from ridgeline.records.outcome import Kind, Outcome
from ridgeline.records.site import Site
from ridgeline.records.space import Discrete, Space
from ridgeline.records.trial import Stage, Trial
from ridgeline.study.codec import RunBegun, event_of
from ridgeline.study.state_files import latest_line
from ridgeline.testing import ScriptedAnswer
from tests.campaign.harness import campaign, slots, study
from tests.cli.test_faces import QUICK
from tests.command_line import ridgeline

WIDTH = 80
LONG = {f"a_rather_long_knob_{letter}": (0, 1048576) for letter in "abcdef"}
PLANNED_S = 1_800_000_000.0


def wide_study(root: Path, **changes: Any) -> Any:
    space = Space(tuple(Discrete(name, values, ordered=True) for name, values in LONG.items()), {})
    return replace(study(root), space=space, baseline=dict.fromkeys(LONG, 0), **changes)


def rate(settings: Any) -> ScriptedAnswer:
    # short: the campaign looks at a run that is under way twice a second of its own clock
    return ScriptedAnswer({"rate": 100.0 + sum(settings.values()) / 1e6}, seconds=20.0)


def start_run(running: Campaign, number: int, planned_s: float = PLANNED_S) -> Path:
    """A run that was handed over and goes on."""
    point = running.study.baseline
    trial = Trial(number, point, point, Stage.SEARCH, "test")
    folder = Path("runs") / f"{number:04d}"
    (running.history.root / folder).mkdir(parents=True)
    resources = running.study.job.resources(point)
    for event in (
        event_of(trial),
        event_of(RunBegun(running.history.last_run_number + 1, number, 1, folder.as_posix(), resources)),
    ):
        running.history.apply({"at": planned_s, **event})
    return running.history.root / folder


def seen_by(console: Console) -> str:
    stream = console.file
    assert isinstance(stream, io.StringIO)
    return stream.getvalue()


def without_codes(text: str) -> list[str]:
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text).replace("\r", "\n").split("\n")


@pytest.fixture
def console() -> Console:
    return Console(width=WIDTH, height=40, file=io.StringIO(), force_terminal=True, color_system=None)


def test_an_hour_long_run_shows_a_clock_its_log_and_its_end(
    tmp_path: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = campaign(tmp_path, wide_study(tmp_path), rate)
    folder = start_run(running, 1)
    running.ledger._typical_s = 3600.0
    (folder / "stdout").write_text("step 1\nstep 2 \x1b[31mof\x1b[0m 9\r\x07step 3 of 9\n\n")
    clock = {"s": 0.0}
    monkeypatch.setattr(live.time, "monotonic", lambda: 1000.0 + clock["s"])
    monkeypatch.setattr(live.time, "time", lambda: PLANNED_S + clock["s"])
    face = TerminalView(quiet=False, console=console)
    face.title(running)
    with face:
        for clock["s"] in (5.0, 65.0, 3000.0):
            face.tick()
    shown = seen_by(console)
    for time in ("running 0:05 of about 1:00:00, ends about ", "running 1:05 of", "running 50:00 of"):
        assert time in shown
    assert "step 3 of 9" in shown and "\x07" not in shown


def test_a_run_past_its_time_is_said_to_be(tmp_path: Path) -> None:
    running = campaign(tmp_path, wide_study(tmp_path), rate)
    start_run(running, 1)
    now = CampaignStatus(running.question, running.study, running.history, running.ledger)
    (run,) = now.under_way(PLANNED_S + 70)
    assert clock_text(run, PLANNED_S + 70) == "running 1:10"
    running.ledger._typical_s = 60.0
    (run,) = now.under_way(PLANNED_S + 70)
    assert clock_text(run, PLANNED_S + 70) == "running 1:10 of about 1:00, longer than usual"
    assert now.as_json()["running"][0]["expected_s"] == 60.0


def test_a_job_that_waits_is_not_said_to_run_and_its_reason_is_shown(
    tmp_path: Path, console: Console, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    running = campaign(tmp_path, wide_study(tmp_path), rate)
    folder = start_run(running, 1)
    running.ledger._typical_s = 1.4
    now = CampaignStatus(running.question, running.study, running.history, running.ledger)

    def shown(after_s: float) -> tuple[str, str, dict[str, Any]]:
        (run,) = now.under_way(PLANNED_S + after_s)
        picture = "\n".join(picture_lines(now, WIDTH - 1, PLANNED_S + after_s)[:2])
        return "\n".join(status_lines(now, PLANNED_S + after_s)), picture, run.as_json()

    (folder / "ticket").write_text("4711\n")
    status, picture, told = shown(7)
    assert "waiting 0:07: the batch system has not started it yet" in status
    assert (told["state"], told["waits_for"]) == ("waiting", "")
    why = Slurm().in_words("AssocMaxJobsLimit")
    (folder / "waiting").write_text(f"{why}\n")
    status, picture, told = shown(7)
    for text in (status, picture):
        assert "you run as many jobs as your account may at once (AssocMaxJobsLimit)" in text
        assert "waiting 0:07" in text and "running" not in text and "longer than usual" not in text
    assert (told["state"], told["waits_for"]) == ("waiting", why)
    assert "AssocMaxJobsLimit" in snapshot_of(now, PLANNED_S + 7, {}).running[0].title

    # without a picture, each reason is a line of its own, once
    monkeypatch.setattr(live.time, "time", lambda: PLANNED_S + 7)
    ticks = iter(range(1000, 2000, 10))
    monkeypatch.setattr(live.time, "monotonic", lambda: float(next(ticks)))
    face = TerminalView(quiet=False)
    face._seen = running
    for _ in range(3):
        face.tick()
    assert capsys.readouterr().out == f"  #1    waiting 0:07: {why}\n"

    # its clock begins with the job, not with the queue
    (folder / "started").write_text("4711\nn1\n")
    os.utime(folder / "started", (PLANNED_S + 60, PLANNED_S + 60))
    status, picture, told = shown(61)
    assert "running 0:01 of about 1.4s, ends about" in status and "AssocMaxJobsLimit" not in status + picture
    assert (told["state"], told["waits_for"], told["elapsed_s"]) == ("running", None, 1.0)
    assert "longer than usual" in shown(70)[0]


def test_the_last_line_is_that_of_the_log_written_last(tmp_path: Path) -> None:
    assert latest_line(tmp_path) == "" == latest_line(tmp_path / "none")
    for at, (name, text) in enumerate({"stdout": "old", "engine.log": "a\nnew\n", "input.nw": "no log"}.items()):
        (tmp_path / name).write_text(text)
        os.utime(tmp_path / name, (at, at))
    assert latest_line(tmp_path) == "new"
    (tmp_path / "engine.log").write_bytes(b"x" * 100_000 + b"\nend \xff\x1b[2J\x07of it")
    assert latest_line(tmp_path) == "end \N{REPLACEMENT CHARACTER} of it"


@pytest.mark.parametrize("width", [79, 40])
@pytest.mark.parametrize("at_once", [1, 9])
def test_nothing_in_the_picture_is_wider_than_the_terminal(tmp_path: Path, width: int, at_once: int) -> None:
    running = campaign(tmp_path, wide_study(tmp_path, site=slots(at_once)), rate)
    running.run()
    running.history.verdict = None
    for number in range(at_once):
        folder = start_run(running, len(running.history.trials) + 1)
        (folder / "stdout").write_text(f"{number} " * 200)
    now = CampaignStatus(running.question, running.study, running.history, running.ledger)
    lines = picture_lines(now, width, PLANNED_S + 10)
    assert max(map(len, lines)) <= width
    text = " ".join(line.strip() for line in lines)
    assert "rate 100 -> 106.3, looks 1.06x baseline in the search" in text, "what matters is wrapped, not cut"
    assert "node-hours" in text and " ok" in text
    assert ("and 5 more under way" in text) == (at_once == 9)


def test_the_footer_stays_in_its_place(tmp_path: Path, console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    """The picture never gets lower, and what stands at its end goes on standing there."""
    monkeypatch.setattr(live, "REDRAW_S", -1.0)
    running = campaign(tmp_path, wide_study(tmp_path), rate)
    face = TerminalView(quiet=False, console=console)
    pictures: list[list[str]] = []
    running.on_change = face.update
    with face:
        assert face._live is not None
        real = face._live.update
        monkeypatch.setattr(
            face._live, "update", lambda text, refresh: (pictures.append(text.plain.split("\n")), real(text))
        )
        running.run()
    heights = [len(picture) for picture in pictures]
    assert len(heights) > 50
    assert heights == sorted(heights), "it jumped"
    full = [picture for picture in pictures if len(picture) == heights[-1]]
    assert len({next(at for at, line in enumerate(reversed(p)) if "spent" in line) for p in full}) == 1


def test_settings_of_finished_runs_are_shown_in_full(tmp_path: Path, console: Console) -> None:
    running = campaign(tmp_path, wide_study(tmp_path), rate)
    face = TerminalView(quiet=False, console=console)
    running.on_change = face.update
    with face:
        running.run()
    lines = without_codes(seen_by(console))
    first = next(at for at, line in enumerate(lines) if line.startswith("  #1    baseline") and "running" not in line)
    told = " ".join(line for line in lines[first : first + 60] if "running" not in line)
    assert all(f"{name} 0" in told for name in LONG), "each knob with its value on one line"
    assert max(map(len, lines)) <= WIDTH


def test_runs_of_the_confirmation_are_said_on_a_terminal_by_the_number_of_their_setting(
    tmp_path: Path, console: Console
) -> None:
    running = campaign(tmp_path, wide_study(tmp_path), rate)
    face = TerminalView(quiet=False, console=console)
    running.on_change = face.update
    with face:
        running.run()
    confirmed = [line for line in without_codes(seen_by(console)) if re.match(r"  #\d+ +confirm ", line)]
    assert any(re.search(r"the setting of #\d+$", line.rstrip()) for line in confirmed)
    assert any("the baseline again" in line for line in confirmed)


def test_why_a_trial_was_chosen_is_printed_on_demand_only(tmp_path: Path) -> None:
    running = campaign(tmp_path, wide_study(tmp_path), rate)
    running.run()
    number, trial = next((n, t) for n, t in running.history.trials.items() if t.stage is Stage.SEARCH)
    running.history.trials[number] = replace(trial, why="it looked promising")
    run = next(run for run in running.history.runs.values() if run.trial == number)
    assert live.run_text(running, run)[1] == ""
    assert live.run_text(running, run, why=True)[1] == "it looked promising"


@pytest.mark.parametrize("width", [60, 200])
def test_the_answer_comes_last_in_a_box_below_what_to_paste(tmp_path: Path, width: int) -> None:
    console = Console(width=width, height=40, file=io.StringIO(), force_terminal=True, color_system=None)
    running = campaign(tmp_path, wide_study(tmp_path), rate)
    running.run()
    now = CampaignStatus(running.question, running.study, running.history, running.ledger)
    answer = replace(now.answer, paste="program --with-a-flag " + "--and-more " * 20)
    TerminalView(quiet=False, console=console).close(answer, now, ["report  report.html"])
    lines = seen_by(console).rstrip().split("\n")
    box = next(at for at, line in enumerate(lines) if line.startswith("\N{BOX DRAWINGS LIGHT ARC DOWN AND RIGHT}"))
    inside = " ".join(line.strip(" \N{BOX DRAWINGS LIGHT VERTICAL}") for line in lines[box + 1 : -1])
    assert inside.startswith(answer.statement) and "node-hour" in inside
    assert lines[-1].startswith("\N{BOX DRAWINGS LIGHT ARC UP AND RIGHT}")
    assert all(len(line) < width for line in lines[box:])
    assert any(answer.paste in line for line in lines[:box]), "one line, to paste"


def test_the_picture_has_a_bar_and_the_last_failures(tmp_path: Path) -> None:
    running = campaign(tmp_path, wide_study(tmp_path), rate)
    running.run()
    number, run = list(running.history.runs.items())[4]
    running.history.runs[number] = replace(run, outcome=Outcome(Kind.OOM_RUN, "7.8 GiB too much"))
    now = CampaignStatus(running.question, running.study, running.history, running.ledger)
    text = "\n".join(picture_lines(now, 100, PLANNED_S))
    assert re.search(r"^  \N{FULL BLOCK}+", text, re.MULTILINE)
    assert f"  failed  #{run.trial} out of memory while running: 7.8 GiB too much" in text


def test_long_lines_go_on_below_and_words_stay_whole() -> None:
    line = "  #12   search    5:00   317 steps/s   " + "  ".join(f"{name} value-of-it" for name in LONG)
    pieces = fitted(line, 60)
    assert max(map(len, pieces)) <= 60 and pieces[0].startswith("  #12   search    5:00   317 steps/s")
    assert all(sum(f"{name} value-of-it" in piece for piece in pieces) == 1 for name in LONG)
    path = "/a/very/long/path" * 8
    assert any(path in piece for piece in fitted(f"  {path}  x 1", 60)), "what is copied must be whole"


@contextmanager
def in_a_terminal(command: list[str], cwd: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, WIDTH, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    with subprocess.Popen(command, cwd=cwd, stdout=theirs, stderr=theirs, env={**environment, "TERM": "xterm"}) as run:
        os.close(theirs)
        try:
            yield run, ours
        finally:
            run.kill()
            os.close(ours)


def test_the_clock_moves_while_nothing_happens_and_what_is_pasted_is_whole(tmp_path: Path) -> None:
    """The one run goes on until two different times were seen."""
    flag = "--flag-that-is-long " * 8
    wait = "while [ ! -e ../../go ]; do sleep 0.05; done; true "
    (tmp_path / "study.yaml").write_text(QUICK.format(what=f"{wait}{flag}").replace("top: 1", "top: 0"))
    text = b""
    command = [sys.executable, "-m", "ridgeline", "tune", "study.yaml", "--out", "out"]
    with in_a_terminal(command, tmp_path) as (run, terminal):
        while True:
            try:
                piece = os.read(terminal, 65536)
            except OSError:  # Linux says so when the other side is closed
                break
            if not piece:
                break
            text += piece
            if len(set(re.findall(rb"running (\d+:\d\d)", text))) >= 2:
                (tmp_path / "out" / "go").touch()
        assert run.wait(60) == 1, "nothing was confirmed"
    lines = without_codes(text.decode())
    (pasted,) = (line for line in lines if flag in line)
    assert "; echo rate 0." in pasted, "one line, to paste"


# who is at work


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """A folder as kill -9 leaves it: a run under way, a lock that names a process which is gone."""
    (tmp_path / "study.yaml").write_text(QUICK.format(what="true"))
    assert ridgeline("tune", "study.yaml", "--out", "out", cwd=tmp_path).returncode == 0
    folder = tmp_path / "out"
    lines = (folder / "journal.jsonl").read_text().splitlines()
    cut = next(at for at, line in enumerate(lines) if json.loads(line)["event"] == "ended")
    (folder / "journal.jsonl").write_text("\n".join(lines[:cut]) + "\n")
    dead = subprocess.Popen(["true"])
    dead.wait()
    holder = {"pid": dead.pid, "host": socket.gethostname(), "since": "2026-01-02 03:04:05", "born": "1"}
    (folder / "lock").write_text(json.dumps(holder))
    return folder


def told_by(folder: Path, **holder: object) -> str:
    if holder:
        (folder / "lock").write_text(json.dumps({**json.loads((folder / "lock").read_text()), **holder}))
    now = read_status(folder)
    wrote = (folder / "journal.jsonl").stat().st_mtime
    return "\n".join(status_lines(now, wrote + 3700))


def test_status_after_a_kill_says_that_nobody_is_at_work_and_how_to_go_on(killed: Path) -> None:
    told = told_by(killed)
    assert (
        "not running: its controller (process " in told and "is gone, last wrote 20" in told and "1:01:40 ago" in told
    )
    assert f"continue with: ridgeline resume {killed.resolve()}" in told
    assert "was under way" in told and not re.search(r"^  #\d+ +running", told, re.MULTILINE)
    assert json.loads(ridgeline("status", killed, "--json", cwd=killed).stdout)["controller"]["presence"] == "gone"


def test_status_of_a_living_controller_says_running(killed: Path) -> None:
    told = told_by(killed, pid=os.getpid(), born="")
    assert f"running on this machine (process {os.getpid()}) since 2026-01-02 03:04:05" in told
    assert "not running" not in told and re.search(r"^  #1 +running 1:0", told, re.MULTILINE)


def test_status_names_the_other_host_and_when_it_last_wrote(killed: Path) -> None:
    told = told_by(killed, host="login7")
    assert "run from login7 (process " in told and "last wrote 20" in told and "1:01:40 ago" in told


def test_a_lock_that_nobody_wrote_means_nobody_is_at_work(killed: Path) -> None:
    (killed / "lock").write_text("")
    assert "not running: its controller is gone" in told_by(killed)


def test_a_finished_campaign_has_no_controller_to_speak_of(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(QUICK.format(what="true"))
    ridgeline("tune", "study.yaml", "--out", "out", cwd=tmp_path)
    assert "running" not in ridgeline("status", "out", cwd=tmp_path).stdout


# help and simulated figures


def test_the_overview_fits() -> None:
    assert not [line for line in overview().splitlines() if len(line) > WIDTH]
    assert "1 no better setting (keep the baseline)" in " ".join(overview().split())


def test_a_simulated_campaign_says_so_in_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    running = campaign(tmp_path, study(tmp_path, site=Site(name="memory")))
    read = running.workload.read
    running.workload.read = lambda run: replace(  # type: ignore[method-assign]
        found := read(run), measurements=tuple(replace(m, origin="modelled", unit="tok/s") for m in found.measurements)
    )
    running.on_change = TerminalView(quiet=False).update
    running.run()
    told = capsys.readouterr().out
    assert told.count("simulated: these figures come from a model, nothing is measured") == 1
    assert told.index("simulated") < told.index("#1 ")
    assert "100 tok/s" in told
