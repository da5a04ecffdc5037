"""How the campaign went: every run in order, and what baseline and machine did meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ridgeline.records.answer import Answer
from ridgeline.records.exhibit import changes
from ridgeline.records.space import point_key
from ridgeline.records.study import Study
from ridgeline.records.trial import Stage, Trial
from ridgeline.report.figures.shapes import (
    BASELINE,
    BEST,
    CONFIRM,
    SEARCH,
    SENTINEL,
    WINNER,
    PlotBand,
    PlotFigure,
    PlotLimit,
    PlotPoint,
    PlotSeries,
    PlotSpan,
    StripMark,
)
from ridgeline.report.figures.values import counted_axis, goal_axis, is_ok, kind_shown
from ridgeline.stats.drift import baseline_course
from ridgeline.stats.nodes import node_effects, node_runs
from ridgeline.stats.wording import count, metric_text
from ridgeline.study.history import History

NAMES = {
    BASELINE: "baseline",
    SENTINEL: "baseline again, during the search",
    SEARCH: "search",
    CONFIRM: "confirmation, other settings",
    WINNER: "the setting",
}


@dataclass(frozen=True, slots=True)
class ProgressPoint:
    """One run in the order they ended: `value` is None where it does not count; `best` is the search's so far."""

    run: int
    trial: int
    group: str
    value: float | None
    outcome: str
    best: float | None
    label: str
    lane: str  # how it ended, in a word or two
    place: float  # among those shown, from 1


def progress_points(
    study: Study, history: History, answer: Answer | None = None, groups: Mapping[int, str] | None = None
) -> list[ProgressPoint]:
    """Every run that ended. Without `groups` stages distinguish them, and the best of a search is followed."""
    followed = _is_search(answer) and not groups
    chosen = None if answer is None or answer.candidate is None else point_key(answer.candidate.point)
    points: list[ProgressPoint] = []
    best: float | None = None
    for run in history.runs.values():
        trial = history.trials[run.trial]
        value = run.metrics.get(study.goal.metric) if is_ok(run) else None
        if trial.stage in (Stage.SHORT, Stage.WARM_UP):
            continue  # nothing that a whole run can be compared with
        if value is not None and followed and trial.stage is Stage.SEARCH:
            better = best is None or study.goal.score(value) > study.goal.score(best)
            best = value if better else best
        group = groups.get(trial.number, trial.stage.value) if groups else _look(study, trial, chosen)
        label = f"#{trial.number} {changes(study.baseline, trial.point) or 'the baseline'}"
        lane, place = "" if run.outcome is None else run.outcome.kind.short, len(points) + 1.0
        told = "" if run.outcome is None else str(run.outcome)
        points.append(ProgressPoint(run.number, trial.number, group, value, told, best, label, lane, place))
    return points


def _is_search(answer: Answer | None) -> bool:
    return answer is None or kind_shown(answer).searches


def _look(study: Study, trial: Trial, chosen: str | None) -> str:
    if trial.stage is Stage.SENTINEL:
        return SENTINEL
    if trial.key == point_key(study.baseline):
        return BASELINE
    if trial.stage is Stage.CONFIRM:
        return WINNER if trial.key == chosen else CONFIRM
    return SEARCH


def progress(
    study: Study, history: History, answer: Answer | None = None, groups: Mapping[int, str] | None = None
) -> PlotFigure | None:
    """Every run in the order they ended; None before one passed."""
    points = progress_points(study, history, answer, groups)
    values = [p.value for p in points if p.value is not None]
    if not values:
        return None
    spans, notes = _drift(study, history, points)
    bands, limits = _band(study, history), list[PlotLimit]()
    if answer is not None and kind_shown(answer).stored:  # all of its runs are of one setting
        reference, bands = answer.reference, ()
        if reference.value is not None:
            limits = [PlotLimit(f"{reference.label}: {metric_text(reference.value)}", reference.value)]
    best = " and the best of the search so far" if any(p.best is not None for p in points) else ""
    return PlotFigure(
        "progress-figure",
        "Progress",
        f"Every run that counts{best}; failed and early-stopped runs are in the strip below.",
        counted_axis("run, in the order they ended", len(points), low=0.0),
        goal_axis(study, values, "" if answer is None else answer.unit),
        _series(points, _looks(study, history, answer, points)),
        bands,
        spans,
        tuple(limits),
        tuple(StripMark(p.place, p.lane, f"{p.label}: {p.outcome}", p.trial) for p in points if p.value is None),
        notes,
    )


def _looks(
    study: Study, history: History, answer: Answer | None, points: Sequence[ProgressPoint]
) -> dict[str, tuple[str, str]]:
    """Of each group its name and its look; a setting looks the same here as in every other figure."""
    candidate = None if answer is None else answer.candidate
    names = {**NAMES, **({} if candidate is None else {WINNER: candidate.label})}
    names[SEARCH] = NAMES[SEARCH] if _is_search(answer) else "runs"
    groups = dict.fromkeys(p.group for p in points if p.value is not None)
    if groups.keys() <= names.keys():
        return {group: (names[group], group) for group in sorted(groups, key=[*names].index)}
    of = {p.group: history.trials[p.trial].key for p in points}
    known = {} if candidate is None else {point_key(candidate.point): WINNER}
    known[point_key(study.baseline)] = BASELINE
    return {group: (group, known.get(of[group], str(at))) for at, group in enumerate(groups)}


def _series(points: Sequence[ProgressPoint], looks: Mapping[str, tuple[str, str]]) -> tuple[PlotSeries, ...]:
    found = []
    course = tuple(
        PlotPoint(p.place, p.best, label=f"best so far {metric_text(p.best)}") for p in points if p.best is not None
    )
    if course:
        found.append(PlotSeries("best of the search so far", course, BEST, "steps"))
    for group, (name, look) in looks.items():
        marks = tuple(
            PlotPoint(p.place, p.value, label=f"{p.label}: {metric_text(p.value)}", trial=p.trial)
            for p in points
            if p.group == group and p.value is not None
        )
        found.append(PlotSeries(name, marks, look))
    return tuple(found)


def _band(study: Study, history: History) -> tuple[PlotBand, ...]:
    base = point_key(study.baseline)
    values = [r.metrics[study.goal.metric] for t, r in history.ok_runs(*Stage) if t.key == base]
    if len(values) < 2:
        return ()
    return (PlotBand(f"range of {count(len(values), 'baseline run')}", min(values), max(values)),)


def _drift(
    study: Study, history: History, points: Sequence[ProgressPoint]
) -> tuple[tuple[PlotSpan, ...], tuple[str, ...]]:
    """From where on the machine was another, and what that means; empty where it was steady."""
    goal = study.goal
    runs = history.ok_runs(Stage.BASELINE, Stage.SENTINEL)
    effects = node_effects(node_runs(history.ok_runs(*Stage), goal.metric), goal.direction, study.confirm.level)
    course = baseline_course(runs, goal.metric, effects, goal.direction, study.confirm.level)
    if not course.changed:
        return (), ()
    at = course.drift.at if course.drift.kind == "step" else None
    first = course.places[0 if at is None else at]
    start = next((p.place for p in points if p.run >= first), points[-1].place)
    note = f"Shaded: the baseline itself was {course.drift}; values of the search were compared through it."
    return (PlotSpan("the machine changed", start, points[-1].place, "drift"),), (note,)
