"""All runs of a study as rows: for the report's table, CSV and JSON."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from ridgeline.records.answer import Answer
from ridgeline.records.run import Run
from ridgeline.records.study import Study
from ridgeline.records.trial import Stage, Trial
from ridgeline.study.history import History

Row = dict[str, Any]
_NOT_SHOWN = ("attempt", "started_s", "node_hours", "origin", "evidence", "run", "proposer")  # on the page


def _part_in(answer: Answer, history: History, row: Row) -> Row:
    """What the answer says of the setting of this row."""
    point, candidate = history.trials[row["trial"]].point, answer.candidate
    if candidate is not None and point == candidate.point:
        gain = candidate.gain
        interval = {} if gain is None else {"ratio": gain.ratio, "low": gain.low, "high": gain.high}
        said = {"is": "candidate", "verdict": answer.conclusion or "", **interval}
    else:
        said = {"is": "reference" if point == answer.reference.point else ""}
    return {f"answer.{name}": value for name, value in said.items()}


def rows(history: History, answer: Answer | None = None) -> list[Row]:
    """One row a run, oldest first. Settings are prefixed `set.`, measurements `got.`.

    With the answer, its candidate's runs carry verdict and interval, and the reference's are named (`answer.`).
    """
    found = [row(history.trials[run.trial], run, history.root) for run in history.runs.values()]
    return found if answer is None else [each | _part_in(answer, history, each) for each in found]


def row(trial: Trial, run: Run, root: Path) -> Row:
    assert run.outcome is not None
    return {
        "run": run.number,
        "trial": trial.number,
        "stage": trial.stage.value,
        "block": trial.block,
        "proposer": trial.proposer,
        "why": trial.why,
        "attempt": run.attempt,
        "outcome": run.outcome.kind.value,
        "reason": run.outcome.reason,
        "evidence": str(run.outcome.evidence) if run.outcome.evidence else "",
        "nodes": " ".join(run.ending.nodes),
        "started_s": run.ending.started_s,
        "duration_s": round(run.ending.duration_s, 3),
        "node_hours": run.node_hours,
        "folder": run.folder.relative_to(root).as_posix(),
        "origin": origins([run]),
        "leftovers": "; ".join(run.ending.leftovers),
        **{f"set.{name}": value for name, value in trial.settings.items()},
        **{f"got.{m.metric}": m.value for m in run.measurements},
        **{f"got.{name}": text for name, text in run.texts.items()},
    }


def origins(runs: Iterable[Run]) -> str:
    """How the numbers of these runs came about: measured, modelled, or both; empty where there are none."""
    return " and ".join(sorted({m.origin for run in runs for m in run.measurements}))


def columns(table: Sequence[Row]) -> list[str]:
    """Every column of any row, each where it first stands."""
    return list(dict.fromkeys(name for row in table for name in row))


def write_csv(table: Sequence[Row], stream: TextIO) -> None:
    writer = csv.DictWriter(stream, fieldnames=columns(table), restval="")
    writer.writeheader()
    writer.writerows(table)


def write_json(table: Sequence[Row], answer: Answer, stream: TextIO) -> None:
    """One document: the answer, worded as everywhere else, and the runs."""
    json.dump({"answer": answer.as_json(), "runs": list(table)}, stream, indent=1)
    stream.write("\n")


@dataclass(frozen=True, slots=True)
class RunRows:
    """All runs, with the order of columns; `folded` are those of the confirmation, shown on demand."""

    columns: tuple[str, ...]
    headings: tuple[str, ...]
    rows: tuple[Row, ...]
    folded: tuple[Row, ...] = ()
    winner: str = ""  # how rows of the setting are marked in their column `is`
    on_paper: int | None = None  # how many of the columns are printed: a sheet is not as wide as a scrolled table


def runs_part(study: Study, history: History, answer: Answer) -> RunRows:
    """As the page shows them: the goal first, then what was set, then what else was measured."""
    table = [{"is": _mark(study, history, answer, row), **row} for row in rows(history)]
    goal = f"got.{study.goal.metric}"
    names = [n for n in columns(table) if n not in _NOT_SHOWN and any(row.get(n) not in (None, "") for row in table)]
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
    return "baseline" if point == study.baseline else ""


def _place(name: str, order: list[str]) -> tuple[int, int]:
    if name in order:
        return 0, order.index(name)
    kinds = ("set.", "nodes", "duration_s", "stage", "block", "got.", "folder")
    return next((at for at, kind in enumerate(kinds, 1) if name.startswith(kind)), 9), 0


def _heading(name: str) -> str:
    # a knob may well be called block, and a workload may measure a duration_s of its own
    own = {"block": "of block", "duration_s": "run_s"}
    return own.get(name, name.removeprefix("set.").removeprefix("got."))
