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
from pathlib import Path

import pytest

from ridgeline.campaign.status import CampaignStatus
from ridgeline.cli.campaign.status import _follow_lines, sparkline
from ridgeline.records.study import Budget
from tests.campaign.harness import campaign
from tests.cli.test_faces import message
from tests.cli.test_terminal import PLANNED_S, rate, start_run, wide_study
from tests.command_line import ridgeline
from tests.report.live.test_access import quick


@pytest.fixture(scope="module")
def now(tmp_path_factory: pytest.TempPathFactory) -> CampaignStatus:
    """Some trials behind it and one under way, with a setting and a log wider than any terminal."""
    root = tmp_path_factory.mktemp("wide")
    now = campaign(root, wide_study(root, budget=Budget(trials=3)), rate)
    now.run()
    now.history.verdict = now.history.stopped = None
    folder = start_run(now, len(now.history.trials) + 1)
    (folder / "stdout").write_text("".join(f"step {n} " + "long " * 60 + "\x1b[31m\n" for n in range(30)))
    return CampaignStatus(now.question, now.study, now.history, now.ledger)


@pytest.mark.parametrize(("width", "height"), [(79, 23), (39, 23), (24, 12), (200, 60)])
def test_the_screen_fits(now: CampaignStatus, width: int, height: int) -> None:
    lines = _follow_lines(now, width, height, PLANNED_S + 60)
    assert len(lines) <= height
    # what `picture_lines` says of the setting is never cut in the middle of a word
    assert [line for line in lines if len(line) > width and " " in line.strip()] == []
    assert not any("\x1b" in line for line in lines)
    if width >= 39 and height >= 23:
        text = "\n".join(lines)
        assert "trial" in text and "step 29" in text, "a table and the end of the log"
        assert re.search(r"rate  [▁-█]{4}", text), "a sparkline"


def test_a_sparkline_goes_from_low_to_high_and_marks_what_failed() -> None:
    assert sparkline([1.0, 4.5, 8.0, None]) == "▁▅█x"
    assert sparkline([1.0, 4.5, 8.0, None], plain=True) == "_=#x"
    assert sparkline([3.0, 3.0]) == "▁▁"
    assert sparkline([None]) == "x"


def test_without_a_screen_each_run_is_a_line_and_the_end_is_the_status(tmp_path: Path) -> None:
    quick(tmp_path)
    done = ridgeline("status", "quick", "--follow", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("  #1  baseline  rate 0.1235")
    assert "\x1b" not in done.stdout
    plain = ridgeline("status", "quick", cwd=tmp_path).stdout.splitlines()
    assert lines[-len(plain) :] == plain


def test_follow_ends_where_nobody_is_at_work_and_json_is_refused(tmp_path: Path) -> None:
    quick(tmp_path, finish=False)
    assert "ridgeline resume" in ridgeline("status", "quick", "--follow", cwd=tmp_path).stdout
    assert "do not go together" in message(ridgeline("status", "quick", "--follow", "--json", cwd=tmp_path), 2)


def test_on_a_terminal_the_screen_is_drawn_over_without_colour(tmp_path: Path) -> None:
    quick(tmp_path)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 20, 60, 0, 0))
    command = [sys.executable, "-m", "ridgeline", "status", "quick", "--follow"]
    env = {**os.environ, "TERM": "xterm", "PYTHONIOENCODING": "ascii"}
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
    text = seen.decode("ascii")
    assert text.startswith("\x1b[Hquick")
    assert not re.search(r"\x1b\[[0-9;]*m", text)
    rows = re.sub(r"\x1b\[[A-Z]", "", text).replace("\r", "").splitlines()
    assert len(rows) <= 20 and max(map(len, rows)) <= 59
