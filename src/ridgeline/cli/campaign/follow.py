"""`status --follow`: a screen that is redrawn as the campaign goes on; a line for each run where there is no screen."""

from __future__ import annotations

import os
import shutil
import sys
import time
from itertools import islice
from pathlib import Path

from ridgeline.campaign.status import CampaignStatus
from ridgeline.cli.campaign.watched import WatchedStudy
from ridgeline.cli.terminal import clean_line, uncleaned
from ridgeline.cli.text.follow import follow_lines
from ridgeline.cli.text.picture import cut
from ridgeline.cli.text.snapshot import run_rows
from ridgeline.cli.text.wording import status_lines

LOOK_S = 0.5
CLOCK_S = 1.0
HOME, REST = "\x1b[H", "\x1b[K\n"  # to the first cell; the rest of a line away
BELOW = "\x1b[J"


def follow(path: Path) -> None:
    """Until the campaign is over, or Ctrl-C."""
    watched = WatchedStudy(path)
    screen = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    shown_runs, last, drawn_s = 0, object(), 0.0
    while True:
        now = watched.status()
        pulse, now_s = watched.pulse(), time.monotonic()
        if screen and (pulse != last or now_s - drawn_s >= CLOCK_S):
            _draw(now)
            last, drawn_s = pulse, now_s
        elif not screen:
            shown_runs = _tell(now, shown_runs)
        if now.is_over or _is_gone(now):
            break
        time.sleep(LOOK_S)
    if not screen:
        print(*status_lines(now, time.time()), sep="\n", flush=True)


def _is_gone(now: CampaignStatus) -> bool:
    """Its controller is gone: following would wait forever."""
    return now.controller is not None and now.controller.presence == "gone"


def _draw(now: CampaignStatus) -> None:
    size = shutil.get_terminal_size()
    # one column less: a terminal that is full to its last column begins another line
    lines = follow_lines(now, size.columns - 1, size.lines - 1, time.time(), plain=not _speaks_unicode())
    screen = uncleaned(sys.stdout)
    screen.write(HOME + REST.join(map(clean_line, lines)) + REST + BELOW)
    screen.flush()


def _speaks_unicode() -> bool:
    return (sys.stdout.encoding or "").lower().replace("-", "") in ("utf8", "utf16")


def _tell(now: CampaignStatus, shown: int) -> int:
    """A line for each run that ended since, oldest first; how many were shown."""
    new = len(now.history.runs) - shown
    rows = [*islice(run_rows(now, new), 1, None)]
    for row in reversed(rows):
        print(cut("  ".join(("", *row)), 400), flush=True)
    return len(now.history.runs)
