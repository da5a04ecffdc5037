"""The report's figures as plain numbers, before anything is drawn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from ridgeline.records.study import Study
from ridgeline.records.trial import Stage
from ridgeline.store.history import History


@dataclass(frozen=True, slots=True)
class ProgressPoint:
    run: int
    group: str
    value: float | None  # None: the run may not be ranked
    outcome: str
    best: float | None  # best of the search up to here
    label: str


def progress(study: Study, history: History, groups: Mapping[int, str]) -> list[ProgressPoint]:
    """Runs in the order they ended. Without `groups` they are told apart by stage, with the best value found so far."""
    points: list[ProgressPoint] = []
    best: float | None = None
    for run in history.runs.values():
        trial = history.trials[run.trial]
        assert run.outcome is not None
        value = run.metrics.get(study.goal.metric) if run.outcome.kind == "ok" else None
        if value is not None and not groups and trial.stage is Stage.SEARCH:
            better = best is None or study.goal.score(value) > study.goal.score(best)
            best = value if better else best
        label = ", ".join(f"{k}={v}" for k, v in trial.point.items())
        group = groups.get(trial.number, trial.stage.value)
        points.append(ProgressPoint(run.number, group, value, run.outcome.kind.value, best, label))
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
