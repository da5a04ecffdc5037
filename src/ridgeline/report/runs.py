"""All runs as the page shows them: the goal first, then what was set, then what else was measured."""

from __future__ import annotations

from ridgeline.records.answer import Answer
from ridgeline.records.study import Study
from ridgeline.records.trial import Stage
from ridgeline.report.parts import RunRows
from ridgeline.report.table import Row, columns, rows
from ridgeline.study.history import History

BASELINE_MARK = "baseline"
HIDDEN = ("attempt", "started_s", "node_hours", "origin", "evidence", "run", "proposer")


def runs_part(study: Study, history: History, answer: Answer) -> RunRows:
    table = [{"is": _mark(study, history, answer, row), **row} for row in rows(history)]
    goal = f"got.{study.goal.metric}"
    names = [n for n in columns(table) if n not in HIDDEN and any(row.get(n) not in (None, "") for row in table)]
    order = ["trial", goal, "outcome", "is"]
    names.sort(key=lambda name: _place(name, order))
    folded = [row for row in table if row["stage"] == Stage.CONFIRM.value]
    shown = [row for row in table if row["stage"] != Stage.CONFIRM.value]
    if not shown:
        shown, folded = folded, []
    winner = "" if answer.candidate is None else answer.candidate.label
    heads = tuple(_heading(name) for name in names)
    on_paper = sum(name in order or name.startswith("set.") for name in names)
    return RunRows(tuple(names), heads, tuple(shown), tuple(folded), winner, on_paper)


def _mark(study: Study, history: History, answer: Answer, row: Row) -> str:
    point = history.trials[row["trial"]].point
    if answer.candidate is not None and point == answer.candidate.point and point != study.baseline:
        return answer.candidate.label
    return BASELINE_MARK if point == study.baseline else ""


def _place(name: str, order: list[str]) -> tuple[int, int]:
    if name in order:
        return 0, order.index(name)
    kinds = ("set.", "nodes", "duration_s", "stage", "block", "got.", "folder")
    return next((at for at, kind in enumerate(kinds, 1) if name.startswith(kind)), 9), 0


def _heading(name: str) -> str:
    # a knob may well be called block, and a workload may measure a duration_s of its own
    own = {"block": "of block", "duration_s": "run_s"}
    return own.get(name, name.removeprefix("set.").removeprefix("got."))
