"""How the campaign went: every run in order, and what baseline and machine did meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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

_NAMES = {
    BASELINE: "baseline",
    SENTINEL: "baseline again, during the search",
    SEARCH: "search",
    CONFIRM: "confirmation, other settings",
}


def progress(study: Study, history: History, answer: Answer, groups: Mapping[int, str]) -> PlotFigure | None:
    """Every run in the order they ended; None before one passed.

    `groups` are names of trials; without them stages distinguish the runs, and the best of a search is followed.
    """
    every = [(history.trials[run.trial], run) for run in history.runs.values()]
    # short runs and warm-ups are nothing that a whole run can be compared with
    shown = [(trial, run) for trial, run in every if trial.stage not in (Stage.SHORT, Stage.WARM_UP)]
    followed = kind_shown(answer).searches and not groups
    marks: dict[str, list[PlotPoint]] = {}
    course, strip, values = list[PlotPoint](), list[StripMark](), list[float]()
    for place, (trial, run) in enumerate(shown, 1):
        label = f"#{trial.number} {changes(study.baseline, trial.point) or 'the baseline'}"
        value = run.metrics.get(study.goal.metric) if is_ok(run) else None
        if value is not None:
            group = groups.get(trial.number, trial.stage.value) if groups else _look(study, answer, trial)
            told = f"{label}: {metric_text(value)}"
            marks.setdefault(group, []).append(PlotPoint(place, value, label=told, trial=trial.number))
            values.append(value)
        elif run.outcome is not None:
            strip.append(StripMark(place, run.outcome.kind.short, f"{label}: {run.outcome}", trial.number))
        best = course[-1].y if course else None
        if followed and trial.stage is Stage.SEARCH and value is not None:
            best = value if best is None else max(best, value, key=study.goal.score)
        if best is not None:
            course.append(PlotPoint(place, best, label=f"best so far {metric_text(best)}"))
    if not values:
        return None
    spans, notes = _drift(study, history, shown)
    bands, limits = _band(study, history), list[PlotLimit]()
    if kind_shown(answer).stored:  # all of its runs are of one setting
        reference, bands = answer.reference, ()
        if reference.value is not None:
            limits = [PlotLimit(f"{reference.label}: {metric_text(reference.value)}", reference.value)]
    looks = _looks(study, history, answer, marks)
    best_of_search = (PlotSeries("best of the search so far", tuple(course), BEST, "steps"),) if course else ()
    also = " and the best of the search so far" if course else ""
    return PlotFigure(
        "progress-figure",
        "Progress",
        f"Every run that counts{also}; failed and early-stopped runs are in the strip below.",
        counted_axis("run, in the order they ended", len(shown), low=0.0),
        goal_axis(study, values, answer.unit),
        (*best_of_search, *(PlotSeries(name, tuple(marks[group]), look) for group, (name, look) in looks.items())),
        bands,
        spans,
        tuple(limits),
        tuple(strip),
        notes,
    )


def _look(study: Study, answer: Answer, trial: Trial) -> str:
    if trial.stage is Stage.SENTINEL:
        return SENTINEL
    if trial.key == point_key(study.baseline):
        return BASELINE
    if trial.stage is Stage.CONFIRM:
        return WINNER if answer.candidate is not None and trial.key == point_key(answer.candidate.point) else CONFIRM
    return SEARCH


def _looks(
    study: Study, history: History, answer: Answer, marks: Mapping[str, Sequence[PlotPoint]]
) -> dict[str, tuple[str, str]]:
    """Of each group its name and its look; a setting looks the same here as in every other figure."""
    candidate = answer.candidate
    names = {**_NAMES, WINNER: "" if candidate is None else candidate.label}
    if not kind_shown(answer).searches:
        names[SEARCH] = "runs"
    if marks.keys() <= names.keys():
        return {group: (names[group], group) for group in sorted(marks, key=[*names].index)}
    known = {} if candidate is None else {point_key(candidate.point): WINNER}
    known[point_key(study.baseline)] = BASELINE
    trials = {mark.trial: group for group, row in marks.items() for mark in row}
    of = {group: history.trials[number].key for number, group in trials.items() if number is not None}
    return {group: (group, known.get(of[group], str(at))) for at, group in enumerate(marks)}


def _band(study: Study, history: History) -> tuple[PlotBand, ...]:
    base = point_key(study.baseline)
    values = [r.metrics[study.goal.metric] for t, r in history.ok_runs(*Stage) if t.key == base]
    if len(values) < 2:
        return ()
    return (PlotBand(f"range of {count(len(values), 'baseline run')}", min(values), max(values)),)


def _drift(
    study: Study, history: History, shown: Sequence[tuple[Trial, Run]]
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
    start = next((place for place, (_, run) in enumerate(shown, 1) if run.number >= first), len(shown))
    note = f"Shaded: the baseline itself was {course.drift}; values of the search were compared through it."
    return (PlotSpan("the machine changed", start, len(shown), "drift"),), (note,)
