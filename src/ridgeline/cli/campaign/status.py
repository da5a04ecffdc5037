from __future__ import annotations

import gc
import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ridgeline.cli.terminal import clean_line, uncleaned
from ridgeline.cli.text.table import aligned
from ridgeline.errors import InputError

if TYPE_CHECKING:
    from ridgeline.campaign.status import CampaignStatus


def status(
    folder: Annotated[Path, typer.Argument(help="The study folder.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
    following: Annotated[
        bool, typer.Option("--follow", help="Keep the screen up to date until the campaign ends or Ctrl-C.")
    ] = False,
    why: Annotated[int | None, typer.Option("--why", metavar="N", help="Say why trial N was chosen.")] = None,
) -> None:
    """Show how far a campaign has got, while it runs or afterwards.

    Example: ridgeline status studies/first --follow
    """
    if why is not None:
        if following or as_json:
            raise InputError("--why goes with neither --follow nor --json; the journal holds the reason of every trial")
        print(_reason(folder, why))
        return
    if following:
        if as_json:
            raise InputError("--follow and --json do not go together; watch the journal itself with `tail -f`")

        follow(folder)
        return
    from ridgeline.campaign.status import read_status
    from ridgeline.cli.text.wording import status_lines

    now = read_status(folder)
    gc.freeze()  # a long history is no garbage: looking through it again and again takes longer than the answer
    print(json.dumps(now.as_json(), indent=1) if as_json else "\n".join(status_lines(now, time.time())))


def _reason(folder: Path, number: int) -> str:
    """What trial `number` was, who chose it and why, and what came of it."""
    from ridgeline.campaign.verdict import goal_text
    from ridgeline.study.folder import StudyFolder
    from ridgeline.study.history import read_history

    opened = StudyFolder.open(folder)
    history = read_history(opened.path)
    trial = history.trials.get(number)
    if trial is None:
        known = f"trials 1 to {max(history.trials)}" if history.trials else "no trial yet"
        raise InputError(f"{folder}: has no trial {number}; it has {known}")
    setting = "  ".join(f"{name} {value}" for name, value in trial.point.items())
    lines = [
        f"#{number} {trial.stage.text}, chosen by {trial.proposer}: {setting}",
        f"  {trial.why or 'no reason kept'}",
    ]
    study, run = opened.load(history).study, history.final_run(trial)
    if run is not None and study.goal.metric in run.metrics:
        lines.append(f"  measured {goal_text(study, history).value(run.metrics[study.goal.metric])}")
    elif run is not None and run.outcome is not None:
        lines.append(f"  {run.outcome}")
    return "\n".join(lines)


POLL_S = 0.5
_CLOCK_S = 1.0
HOME, REST = "\x1b[H", "\x1b[K\n"  # to the first cell; the rest of a line away
_BELOW = "\x1b[J"
_BARS, _PLAIN_BARS = "▁▂▃▄▅▆▇█", "_.-:=+*#"
_LEAST_HEIGHT = 12
_LOG_LINES = 6


def follow(path: Path) -> None:
    """Until the campaign is over, or Ctrl-C."""
    from ridgeline.cli.campaign.watched import WatchedStudy
    from ridgeline.cli.text.wording import status_lines

    watched = WatchedStudy(path)
    screen = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    shown_runs, last, drawn_s = 0, object(), 0.0
    while True:
        now = watched.status()
        pulse, now_s = watched.pulse(), time.monotonic()
        if screen and (pulse != last or now_s - drawn_s >= _CLOCK_S):
            _draw(now)
            last, drawn_s = pulse, now_s
        elif not screen:
            shown_runs = _show_new(now, shown_runs)
        if now.is_over or _is_gone(now):
            break
        time.sleep(POLL_S)
    if not screen:
        print(*status_lines(now, time.time()), sep="\n", flush=True)


def _is_gone(now: CampaignStatus) -> bool:
    """Its controller is gone: following would wait forever."""
    return now.controller is not None and now.controller.presence == "gone"


def _draw(now: CampaignStatus) -> None:
    from ridgeline.cli.text.picture import in_ascii

    size = shutil.get_terminal_size()
    # one column less: a terminal that is full to its last column begins another line
    lines = _follow_lines(now, size.columns - 1, size.lines - 1, time.time(), plain=not _speaks_unicode())
    screen, text = uncleaned(sys.stdout), REST.join(map(clean_line, lines))
    screen.write(HOME + (text if _speaks_unicode() else in_ascii(text)) + REST + _BELOW)
    screen.flush()


def _speaks_unicode() -> bool:
    return (sys.stdout.encoding or "").lower().replace("-", "") in ("utf8", "utf16")


def _show_new(now: CampaignStatus, shown: int) -> int:
    """A line for each run that ended since, oldest first; how many were shown."""
    from ridgeline.cli.text.picture import cut
    from ridgeline.cli.text.snapshot import run_rows

    new = len(now.history.runs) - shown
    rows = [*islice(run_rows(now, new), 1, None)]
    for row in reversed(rows):
        print(cut("  ".join(("", *row)), 400), flush=True)
    return len(now.history.runs)


def _follow_lines(now: CampaignStatus, width: int, height: int, now_s: float, plain: bool = False) -> list[str]:
    """At most `height` lines, none wider than `width`. Where it is too low for all, older runs and log lines go first.

    `plain`: nothing but ASCII in the sparkline.
    """
    from ridgeline.cli.text.picture import cut, picture_lines

    head = [cut(line, width) for line in _head(now, now_s)]
    picture = picture_lines(now, width, now_s)
    spark = _spark(now, width, plain)
    left = max(_LEAST_HEIGHT, height) - len(head) - len(picture) - len(spark) - 1
    log = _log(now, width, min(_LOG_LINES, max(0, left // 3)))
    runs = _runs(now, width, left - len(log))
    return [*head, *picture, *spark, *runs, *log][: max(1, height)]


def _head(now: CampaignStatus, now_s: float) -> list[str]:
    from ridgeline.cli.text.snapshot import expected_end
    from ridgeline.cli.text.wording import controller_text
    from ridgeline.stats.wording import count

    if now.is_over:
        state = "finished" if now.history.verdict is not None else "stopped"
    else:
        state = "paused" if now.history.instructions.paused else now.progress.stage
    lines = [f"{now.study.name}   {state}   {count(len(now.history.runs), 'run')}"]
    if now.controller is not None and not now.is_over:
        lines.append(f"  {controller_text(now.controller, str(now.history.root), now_s)}")
        if end := expected_end(now, now_s):
            lines.append(f"  expected end {end}")
    return lines


def _spark(now: CampaignStatus, width: int, plain: bool) -> list[str]:
    metric = now.study.goal.metric
    label = f"  {metric}  "
    room = width - len(label)
    if not now.history.runs or room < 4:
        return []
    runs = [*now.history.runs.values()][-room:]
    passed = [run.outcome is not None and run.outcome.kind == "ok" for run in runs]
    values = [run.metrics.get(metric) if ok else None for run, ok in zip(runs, passed, strict=True)]
    return [f"{label}{sparkline(values, plain)}"]


def sparkline(values: Sequence[float | None], plain: bool = False) -> str:
    """One character a value, lowest to highest; x for a run that does not count."""
    bars = _PLAIN_BARS if plain else _BARS
    known = [value for value in values if value is not None]
    low, high = (min(known), max(known)) if known else (0.0, 0.0)
    size = (high - low) or 1.0
    return "".join("x" if v is None else bars[min(len(bars) - 1, int((v - low) / size * len(bars)))] for v in values)


def _runs(now: CampaignStatus, width: int, room: int) -> list[str]:
    """A table of the latest runs with a line before it; nothing where there is no room for a head and a run."""
    from ridgeline.cli.text.picture import cut
    from ridgeline.cli.text.snapshot import run_rows

    rows = run_rows(now, max(0, room - 2))
    if room < 3 or len(rows) < 2:
        return []
    return ["", *(cut(line, width) for line in aligned(rows, left=(0, 1, 4)))]


def _log(now: CampaignStatus, width: int, room: int) -> list[str]:
    """The end of the log of the first run under way: of several the oldest."""
    from ridgeline.cli.text.picture import cut
    from ridgeline.study.state_files import last_lines, newest_log

    running = next(iter(now.history.open_runs.values()), None)
    if running is None or room < 2 or now.is_over:
        return []
    log = newest_log(running.folder)
    lines = last_lines(log, room - 1)
    if log is None or not lines:
        return []
    return [cut(f"  {log.parent.name}/{log.name}:", width), *(cut(f"  | {line}", width) for line in lines)]
