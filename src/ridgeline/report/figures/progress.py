"""How the campaign went: every run over runs, time and node-hours, and what baseline and machine did meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ridgeline.records.answer import Answer
from ridgeline.records.exhibit import changes
from ridgeline.records.run import Run
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
    Axis,
    FigureGroup,
    PlotBand,
    PlotFigure,
    PlotLimit,
    PlotPoint,
    PlotSeries,
    PlotSpan,
    StripMark,
)  # fmt: skip
from ridgeline.report.figures.values import counted_axis, goal_axis, is_ok, kind_shown, seconds_axis
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
    hours: float  # since the first run started
    node_hours: float  # spent up to the end of this run
    lane: str  # how it ended, in a word or two


def progress_points(
    study: Study, history: History, answer: Answer | None = None, groups: Mapping[int, str] | None = None
) -> list[ProgressPoint]:
    """Every run that ended. Without `groups` stages distinguish them, and the best of the search is followed."""
    chosen = None if answer is None or answer.candidate is None else point_key(answer.candidate.point)
    began = min((r.ending.started_s for r in history.runs.values() if r.ending.started_s > 0), default=0.0)
    points: list[ProgressPoint] = []
    best: float | None = None
    spent = 0.0
    for run in history.runs.values():
        trial = history.trials[run.trial]
        value = run.metrics.get(study.goal.metric) if is_ok(run) else None
        spent += run.node_hours
        if trial.stage in (Stage.SHORT, Stage.WARM_UP):
            continue  # nothing that a whole run can be compared with
        if value is not None and not groups and trial.stage is Stage.SEARCH:
            better = best is None or study.goal.score(value) > study.goal.score(best)
            best = value if better else best
        group = groups.get(trial.number, trial.stage.value) if groups else _look(study, trial, chosen)
        label = f"#{trial.number} {changes(study.baseline, trial.point) or 'the baseline'}"
        hours = max(0.0, run.ending.ended_s - began) / 3600.0
        points.append(
            ProgressPoint(run.number, trial.number, group, value, _outcome(run), best, label, hours, spent, _lane(run))
        )  # fmt: skip
    return points


def _look(study: Study, trial: Trial, chosen: str | None) -> str:
    if trial.stage is Stage.SENTINEL:
        return SENTINEL
    if trial.key == point_key(study.baseline):
        return BASELINE
    if trial.stage is Stage.CONFIRM:
        return WINNER if trial.key == chosen else CONFIRM
    return SEARCH


def _lane(run: Run) -> str:
    return "" if run.outcome is None else run.outcome.kind.short


def _outcome(run: Run) -> str:
    return "" if run.outcome is None else str(run.outcome)


def progress(
    study: Study, history: History, answer: Answer | None = None, groups: Mapping[int, str] | None = None
) -> FigureGroup:
    points = progress_points(study, history, answer, groups)
    by_time = seconds_axis("time since the first run", [p.hours * 3600 for p in points])
    order = {p.run: float(at) for at, p in enumerate(points, 1)}
    views: list[tuple[str, Axis, Callable[[ProgressPoint], float]]] = [
        ("by run", _run_axis(len(points)), lambda p: order[p.run]),
        ("by time", by_time.axis, lambda p: p.hours * 3600 / by_time.unit_s),
        ("by node-hours", Axis("node-hours spent", from_zero=True), lambda p: p.node_hours),
    ]
    drifted = _drift(study, history)
    figures = tuple(
        _figure(f"progress-{at}", study, history, answer, points, axis, place, drifted)
        for at, (_, axis, place) in enumerate(views)
    )
    best = "" if groups else " and the best of the search so far"
    says = f"Every run that counts{best}; failed and early-stopped runs are in the strip below."
    notes = (drifted[1],) if drifted else ()
    return FigureGroup("progress", "Progress", says, figures, tuple(name for name, _, _ in views), notes)


def _run_axis(runs: int) -> Axis:
    return counted_axis("run, in the order they ended", runs, low=0.0)


def progress_now(
    study: Study, history: History, answer: Answer | None = None, groups: Mapping[int, str] | None = None
) -> PlotFigure | None:
    """The first view of `progress` alone, for a page that is drawn again after every run; None before one passed."""
    points = progress_points(study, history, answer, groups)
    if not any(p.value is not None for p in points):
        return None
    order = {p.run: float(at) for at, p in enumerate(points, 1)}
    x = _run_axis(len(points))
    return _figure("progress-now", study, history, answer, points, x, lambda p: order[p.run], None)


def _figure(
    key: str,
    study: Study,
    history: History,
    answer: Answer | None,
    points: Sequence[ProgressPoint],
    x: Axis,
    place: Callable[[ProgressPoint], float],
    drifted: tuple[int, str] | None,
) -> PlotFigure:
    values = [p.value for p in points if p.value is not None]
    y = goal_axis(study, values, "" if answer is None else answer.unit)
    spans: tuple[PlotSpan, ...] = ()
    if drifted and points:
        after = [p for p in points if p.run >= drifted[0]]
        spans = (PlotSpan("the machine changed", place(after[0] if after else points[-1]), place(points[-1]), "drift"),)
    strip = tuple(StripMark(place(p), p.lane, f"{p.label}: {p.outcome}", p.trial) for p in points if p.value is None)
    series = _series(points, place, _looks(study, history, answer, points), key in ("progress-0", "progress-now"))
    bands = _band(study, history)
    limits: tuple[PlotLimit, ...] = ()
    if answer is not None and kind_shown(answer).stored:  # all of its runs are of one setting
        reference, bands = answer.reference, ()
        if reference.value is not None:
            limits = (PlotLimit(f"{reference.label}: {metric_text(reference.value)}", reference.value),)
    return PlotFigure(key, "Progress", "", x, y, series, bands, spans, limits, strip=strip)


def _looks(
    study: Study, history: History, answer: Answer | None, points: Sequence[ProgressPoint]
) -> dict[str, tuple[str, str]]:
    """Of each group its name and its look; a setting looks the same here as in every other figure."""
    candidate = None if answer is None else answer.candidate
    names = {**NAMES, **({} if candidate is None else {WINNER: candidate.label})}
    groups = dict.fromkeys(p.group for p in points if p.value is not None)
    if groups.keys() <= names.keys():
        return {group: (names[group], group) for group in sorted(groups, key=[*names].index)}
    of = {p.group: history.trials[p.trial].key for p in points}
    known = {} if candidate is None else {point_key(candidate.point): WINNER}
    known[point_key(study.baseline)] = BASELINE
    return {group: (group, known.get(of[group], str(at))) for at, group in enumerate(groups)}


def _series(
    points: Sequence[ProgressPoint],
    place: Callable[[ProgressPoint], float],
    looks: Mapping[str, tuple[str, str]],
    whole: bool,
) -> tuple[PlotSeries, ...]:
    """With the `whole` setting in a mark's label, or its number: other views of the same runs need not repeat it."""
    found = []
    best = [p for p in points if p.best is not None]
    if best:
        course = tuple(
            PlotPoint(place(p), p.best or 0.0, label=f"best so far {metric_text(p.best or 0.0)}") for p in best
        )
        found.append(PlotSeries("best of the search so far", course, BEST, "steps"))
    for group, (name, look) in looks.items():
        marks = tuple(
            PlotPoint(
                place(p), p.value, label=f"{p.label if whole else f'#{p.trial}'}: {metric_text(p.value)}", trial=p.trial
            )
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


def _drift(study: Study, history: History) -> tuple[int, str] | None:
    """The run from which on the machine was another, and what that means; None where it was steady."""
    goal = study.goal
    runs = history.ok_runs(Stage.BASELINE, Stage.SENTINEL)
    effects = node_effects(node_runs(history.ok_runs(*Stage), goal.metric), goal.direction, study.confirm.level)
    course = baseline_course(runs, goal.metric, effects, goal.direction, study.confirm.level)
    if not course.changed:
        return None
    at = course.drift.at if course.drift.kind == "step" else None
    note = f"Shaded: the baseline itself was {course.drift}; values of the search were compared through it."
    return course.places[at] if at is not None else course.places[0], note
