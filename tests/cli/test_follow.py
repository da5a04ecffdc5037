"""`status --follow` in a plain terminal: one screen that fits, without colour; lines where there is no screen."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from dataclasses import replace
from pathlib import Path

import pytest

from ridgeline.campaign.status import CampaignStatus
from ridgeline.cli.text.picture import in_ascii, picture_lines
from ridgeline.records.outcome import Kind, Outcome
from ridgeline.records.study import Budget
from tests.campaign.harness import campaign
from tests.cli.test_faces import message
from tests.cli.test_terminal import PLANNED_S, rate, wide_study
from tests.command_line import ridgeline
from tests.report.live.test_access import quick


@pytest.mark.parametrize("width", [79, 39, 24, 200])
def test_all_runs_are_a_sparkline_from_low_to_high_that_marks_what_failed(tmp_path: Path, width: int) -> None:
    running = campaign(tmp_path, wide_study(tmp_path, budget=Budget(trials=3)), rate)
    running.run()
    for at, value in {0: 1.0, 1: 8.0, 2: None}.items():
        number, run = list(running.history.runs.items())[at]
        measured = [replace(m, value=value) for m in run.measurements if value is not None]
        outcome = run.outcome if value is not None else Outcome(Kind.CRASH, "gone")
        running.history.runs[number] = replace(run, measurements=tuple(measured), outcome=outcome)
    now = CampaignStatus(running.question, running.study, running.history, running.ledger)
    lines = picture_lines(now, width, PLANNED_S + 60)
    spark = next(line for line in lines if line.startswith("  rate  "))
    assert re.fullmatch(r"  rate  [▁-█x]+", spark) and len(spark) <= width
    assert width < 39 or (spark[8] == "▁" and spark[10] == "x")
    assert re.fullmatch(r"  rate  [-_.:=+*#x]+", in_ascii(spark))


def test_without_a_screen_each_run_is_a_line_and_the_end_is_the_status(tmp_path: Path) -> None:
    quick(tmp_path)
    done = ridgeline("status", "quick", "--follow", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert re.match(r"  #1 +baseline .* rate 0.1235", lines[0])
    assert "\x1b" not in done.stdout
    plain = ridgeline("status", "quick", cwd=tmp_path).stdout.splitlines()
    assert lines[-len(plain) :] == plain


def test_follow_ends_where_nobody_is_at_work_and_json_is_refused(tmp_path: Path) -> None:
    quick(tmp_path, finish=False)
    assert "ridgeline resume" in ridgeline("status", "quick", "--follow", cwd=tmp_path).stdout
    assert "do not go together" in message(ridgeline("status", "quick", "--follow", "--json", cwd=tmp_path), 2)


def test_on_a_terminal_each_run_is_a_line_and_the_picture_is_gone_at_the_end(tmp_path: Path) -> None:
    quick(tmp_path)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 20, 60, 0, 0))
    command = [sys.executable, "-m", "ridgeline", "status", "quick", "--follow"]
    env = {**os.environ, "TERM": "xterm", "PYTHONIOENCODING": "ascii", "NO_COLOR": "1"}
    env.pop("COLUMNS", None), env.pop("LINES", None)
    process = subprocess.Popen(command, cwd=tmp_path, stdout=theirs, env=env)
    os.close(theirs)
    seen = b""
    try:
        while chunk := os.read(ours, 65536):
            seen += chunk
    except OSError:
        pass  # the other side was closed
    os.close(ours)
    assert process.wait(60) == 0
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen.decode("ascii")).replace("\r", "\n")
    assert re.search(r"^  #1 +baseline .* rate 0.1235", text, re.MULTILINE) and "spent" in text
    plain = ridgeline("status", "quick", cwd=tmp_path).stdout.splitlines()
    assert [line for line in text.splitlines() if line][-len(plain) :] == plain
