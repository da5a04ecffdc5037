"""All runs of a study as rows: for the report's table, CSV and JSON."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TextIO

from ridgeline.records.answer import Answer
from ridgeline.records.run import Run
from ridgeline.records.trial import Trial
from ridgeline.study.folder import StudyFolder
from ridgeline.study.history import History, read_history

Row = dict[str, Any]


def read_rows(path: Path, answer: Answer | None = None) -> list[Row]:
    """One row a run, oldest first. Settings are prefixed `set.`, measurements `got.`.

    With the answer, its candidate's runs carry verdict and interval, and the reference's are named (`answer.`).
    """
    return rows(read_history(StudyFolder.open(path).path), answer)


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
