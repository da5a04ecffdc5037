"""The report's figures as plain numbers, before anything is drawn."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ridgeline.records.space import Point
from ridgeline.records.study import Study
from ridgeline.records.trial import Stage
from ridgeline.store.history import History


@dataclass(frozen=True, slots=True)
class ProgressPoint:
    run: int
    stage: str
    value: float | None  # None: the run may not be ranked
    outcome: str
    best: float | None  # best of the search up to here
    label: str


@dataclass(frozen=True, slots=True)
class ConfirmRow:
    """One candidate's ratio to the baseline with its interval; above 1 is better."""

    label: str
    estimate: float
    low: float
    high: float
    verdict: str


def progress(study: Study, history: History) -> list[ProgressPoint]:
    """Runs in the order they ended, with the best value found so far."""
    points: list[ProgressPoint] = []
    best: float | None = None
    for run in history.runs.values():
        trial = history.trials[run.trial]
        assert run.outcome is not None
        value = run.metrics.get(study.goal.metric) if run.outcome.kind == "ok" else None
        if value is not None and trial.stage is Stage.SEARCH:
            better = best is None or study.goal.score(value) > study.goal.score(best)
            best = value if better else best
        label = ", ".join(f"{k}={v}" for k, v in trial.point.items())
        points.append(ProgressPoint(run.number, trial.stage.value, value, run.outcome.kind.value, best, label))
    return points


def failures(history: History) -> list[tuple[str, int, str]]:
    """Kind, how many, and the story of the first of them; most frequent first."""
    counts: Counter[str] = Counter()
    stories: dict[str, str] = {}
    for run in history.runs.values():
        if run.outcome is not None and run.outcome.kind != "ok":
            counts[run.outcome.kind.value] += 1
            stories.setdefault(run.outcome.kind.value, f"#{run.trial}: {run.outcome}")
    return [(kind, n, stories[kind]) for kind, n in counts.most_common()]


def confirmation(study: Study, verdict: Mapping[str, Any] | None) -> list[ConfirmRow]:
    rows = (verdict or {}).get("comparisons", [])
    return [
        ConfirmRow(
            _changes(study.baseline, json.loads(r["candidate"])), r["estimate"], r["low"], r["high"], r["verdict"]
        )
        for r in rows
        if r["scale"] == "ratio" and r["low"] is not None
    ]


def _changes(baseline: Point, candidate: Point) -> str:
    """What a candidate changes, in the order of the study's knobs."""
    names = [name for name in dict.fromkeys((*baseline, *candidate)) if baseline.get(name) != candidate.get(name)]
    words = [f"{name} {_shown(candidate.get(name))}" for name in names]
    return ", ".join(words)


def _shown(value: object) -> str:
    return "absent" if value is None else "''" if value == "" else str(value)
