"""The live picture under a campaign's lines, fitted to a terminal: nothing in it is wider, and it never shrinks."""

from __future__ import annotations

import re
from collections.abc import Iterable
from textwrap import wrap
from typing import TYPE_CHECKING

from ridgeline.cli.text.table import cut
from ridgeline.cli.text.wording import (
    budget_text,
    candidate_lines,
    clock_text,
    outcome_text,
    progress_text,
    setting_text,
)

if TYPE_CHECKING:
    from ridgeline.campaign.status import CampaignStatus
    from ridgeline.campaign.under_way import RunUnderWay

_RUNS_SHOWN = 4
_FAILURES_SHOWN = 2
FULL, EMPTY = "\N{FULL BLOCK}", "\N{LIGHT SHADE}"
_LEVELS = "▁▂▃▄▅▆▇█"
# what a drawing is made of, for terminals that have nothing but ASCII
_IN_ASCII = str.maketrans(f"{FULL}{EMPTY}…→▁▂▃▄▅▆▇", "#-~>_.-:=+*")
_HANGING = 8  # columns by which a line goes on below its beginning
_NARROWEST = 20
_GLUE = "\N{NO-BREAK SPACE}"


def picture_lines(now: CampaignStatus, width: int, now_s: float) -> list[str]:
    """What runs, with a clock and the last line of its log; then the best so far, how far it is, what it cost."""
    runs = now.under_way(now_s)
    lines = [line for run in runs[:_RUNS_SHOWN] for line in _run_lines(run, width, now_s)]
    if len(runs) > _RUNS_SHOWN:
        lines.append(f"  and {len(runs) - _RUNS_SHOWN} more under way")
    simulated = "simulated: " if now.answer.simulated else ""
    outcomes = outcome_text({kind.value: n for kind, n in now.history.outcomes.items()})
    below = [
        *candidate_lines(now),
        f"{_bar(now, width)}{simulated}{progress_text(now)}",
        f"spent {budget_text(now, now_s)}",
        outcomes,
        _sparkline(now, width),
    ]
    lines += [cut(f"  failed  {text}", width) for text in _last_failures(now)]
    return [*lines, *(line for text in below if text for line in fitted(f"  {text}", width))]


def _sparkline(now: CampaignStatus, width: int) -> str:
    """The latest runs, one character each, lowest to highest; x for one that does not count."""
    metric = now.study.goal.metric
    runs = [*now.history.runs.values()][-max(1, width - len(metric) - 4) :]
    values = [
        run.metrics.get(metric) if run.outcome is not None and run.outcome.kind.value == "ok" else None for run in runs
    ]
    known = [value for value in values if value is not None]
    low, high = (min(known), max(known)) if known else (0.0, 0.0)
    step = (high - low) / (len(_LEVELS) - 1) or 1.0
    drawn = "".join("x" if value is None else _LEVELS[round((value - low) / step)] for value in values)
    return f"{metric}  {drawn}" if runs else ""


def _bar(now: CampaignStatus, width: int) -> str:
    """How much of the stage is done; empty where that is not known or there is no room."""
    of, cells = now.progress.of, min(30, width // 3)
    if not of or cells < 8:
        return ""
    full = min(cells, cells * now.progress.done // of)
    return f"{FULL * full}{EMPTY * (cells - full)}  "


def _last_failures(now: CampaignStatus) -> list[str]:
    found = [run for run in now.history.runs.values() if run.outcome is not None and run.outcome.kind.value != "ok"]
    shown = [(run.trial, run.outcome.kind.text, run.outcome.reason)
             for run in found[-_FAILURES_SHOWN:] if run.outcome is not None]  # fmt: skip
    return [f"#{trial} {kind}{f': {reason}' if reason else ''}" for trial, kind, reason in shown]


def _run_lines(run: RunUnderWay, width: int, now_s: float) -> Iterable[str]:
    """Two lines, cut: a setting is shown in full once its run has ended, and another log line follows this one."""
    clock, _, why = (
        clock_text(run, now_s).partition(": ") if run.waits is not None else (clock_text(run, now_s), "", "")
    )
    yield cut(f"  #{run.trial.number:<4} {clock}   {setting_text(run.trial.point)}", width)
    yield cut(f"{'':{_HANGING}}{why or run.last_line}", width)


def in_ascii(text: str) -> str:
    return text.translate(_IN_ASCII).encode("ascii", "replace").decode()


def fitted(line: str, width: int) -> list[str]:
    """The line in pieces that fit, broken between what belongs together: two spaces part, one space joins.

    Words are never broken, so that whatever is copied from a piece is whole.
    """
    if len(line) <= width:
        return [line]
    margin = len(line) - len(line.lstrip())
    parts = re.split(r"(\s{2,})", line.strip())
    pieces = wrap(
        "".join(part.replace(" ", _GLUE) if part.strip() and len(part) < width - _HANGING else part for part in parts),
        max(width, _NARROWEST),
        initial_indent=" " * margin,
        subsequent_indent=" " * _HANGING,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [piece.replace(_GLUE, " ") for piece in pieces]
