"""What each knob did: its effect on the way to the setting, slices, all at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from ridgeline.records.answer import Answer
from ridgeline.records.exhibit import changes, value_text
from ridgeline.records.run import Run
from ridgeline.records.space import Discrete, Point
from ridgeline.records.study import Study
from ridgeline.records.trial import Stage, Trial
from ridgeline.report.figures.shapes import (
    BASELINE,
    OTHER,
    SEARCH,
    WINNER,
    Axis,
    FigureGroup,
    IntervalFigure,
    IntervalRow,
    ParallelAxis,
    ParallelFigure,
    ParallelLine,
    PlotFigure,
    PlotPoint,
    PlotSeries,
    StripMark,
)
from ridgeline.report.figures.values import KnobScale, goal_axis, is_ok, judged_runs, knob_scale, varied_knobs
from ridgeline.stats.contribution import contributions
from ridgeline.stats.wording import metric_text, percent
from ridgeline.study.history import History

_MOST_LINES = 300  # of the parallel coordinates: the best ones and the latest; more cannot be told apart
_SEARCHED = (Stage.BASELINE, Stage.SENTINEL, Stage.SEARCH)


def effects(study: Study, history: History, answer: Answer) -> IntervalFigure | None:
    """Of each knob that the setting changes: the gain of moving it alone, estimated from the search.

    None where no effect can be detected: a figure in which every interval crosses 1 shows nothing.
    """
    if answer.candidate is None:
        return None
    trials = [(t.point, r.metrics[study.goal.metric]) for t, r in history.ok_runs(*_SEARCHED)]
    found = contributions(study.baseline, answer.candidate.point, trials, study.goal.direction, study.confirm.level)
    rows = tuple(
        IntervalRow(
            _moved(study, answer.candidate.point, part.knobs),
            1 + part.change,
            1 + part.low,
            1 + part.high,
            text=f"{percent(part.change, 0)} ({percent(part.low, 0)} to {percent(part.high, 0)})"
            + ("" if part.detectable else ", no detectable effect"),
            look=WINNER if part.detectable else OTHER,
        )
        for part in found
    )
    if not any(part.detectable for part in found):
        return None
    says = (
        "The gain of moving one knob alone from the baseline's value to the setting's, estimated from the search "
        "as if knobs acted independently: a hint at where the gain comes from, not part of the proof."
    )
    low, high = min(1 + part.low for part in found), max(1 + part.high for part in found)
    axis = Axis("ratio to the baseline (above 1 is better)", log=low > 0 and high / low > 8)
    return IntervalFigure("effects", "Effect of each knob", says, axis, rows)


def _moved(study: Study, point: Point, knobs: Sequence[str]) -> str:
    return ", ".join(f"{k} {value_text(study.baseline.get(k))} → {value_text(point.get(k))}" for k in knobs)


def slices(study: Study, history: History, answer: Answer) -> FigureGroup | None:
    """One small figure for each knob: its values against the goal, with the failures below."""
    runs = [(t, r) for t, r in judged_runs(history) if t.stage in (*_SEARCHED, Stage.CONFIRM)]
    figures = tuple(_slice(study, answer, name, runs) for name in varied_knobs(study, history))
    if not figures:
        return None
    says = "One mark per run, by the value of one knob. Other knobs varied too, so a column mixes good and bad ones."
    return FigureGroup("slices", "Slices: the goal against each knob", says, figures)


def _slice(study: Study, answer: Answer, name: str, runs: Sequence[tuple[Trial, Run]]) -> PlotFigure:
    scale = _scale(study, name, runs)
    good = [(t, r.metrics[study.goal.metric]) for t, r in runs if is_ok(r) and study.goal.metric in r.metrics]
    looks: dict[str, list[PlotPoint]] = {SEARCH: [], BASELINE: [], WINNER: []}
    for trial, value in good:
        text = f"#{trial.number} {name} {value_text(trial.point.get(name))}: {metric_text(value)}"
        place = scale.place(trial.point.get(name))
        looks[look_of(study, answer, trial)].append(PlotPoint(place or 0.0, value, label=text, trial=trial.number))
    chosen = "" if answer.candidate is None else answer.candidate.label
    names = {SEARCH: "other settings", BASELINE: "baseline", WINNER: chosen}
    series = tuple(PlotSeries(names[look], tuple(points), look) for look, points in looks.items() if points)
    strip = tuple(
        StripMark(scale.place(t.point.get(name)) or 0.0, "failed", f"#{t.number} {r.outcome}", t.number)
        for t, r in runs
        if not is_ok(r)
    )
    y = goal_axis(study, [v for _, v in good], answer.unit)
    short = replace(y, label=f"{study.goal.metric}{f' ({answer.unit})' if answer.unit else ''}")
    return PlotFigure(f"slice-{name}", name, "", scale.axis, short, series, strip=strip, small=True)


def _scale(study: Study, name: str, runs: Sequence[tuple[Trial, Run]]) -> KnobScale:
    knob = study.space.by_name[name]
    listed = knob.values if isinstance(knob, Discrete) else ()
    return knob_scale(name, [t.point.get(name) for t, _ in runs], listed)


def look_of(study: Study, answer: Answer, trial: Trial) -> str:
    if trial.point == study.baseline:
        return BASELINE
    return WINNER if answer.candidate is not None and trial.point == answer.candidate.point else SEARCH


def parallel(study: Study, history: History, answer: Answer) -> ParallelFigure | None:
    """All knobs and the goal beside each other, one line a setting that ran."""
    names = varied_knobs(study, history)
    every = [(t, r) for t, r in judged_runs(history) if t.stage in (*_SEARCHED, Stage.CONFIRM)]
    latest = {t.key: (t, r) for t, r in every}
    runs = [*latest.values()]
    if len(names) < 2 or len(runs) < 3:
        return None
    scales = [_scale(study, name, runs) for name in names]
    measured: dict[str, list[float]] = {}
    for t, r in every:
        if is_ok(r) and study.goal.metric in r.metrics:
            measured.setdefault(t.key, []).append(r.metrics[study.goal.metric])
    values = {t.number: fmean(measured[t.key]) for t, _ in runs if t.key in measured}
    ranked = sorted(values, key=lambda number: study.goal.score(values[number]))
    shares = {number: at / max(1, len(ranked) - 1) for at, number in enumerate(ranked)}
    # the last is drawn on top: the setting, whatever share it has
    on_top = {WINNER: 2, BASELINE: 1}
    runs.sort(key=lambda pair: (on_top.get(look_of(study, answer, pair[0]), 0), shares.get(pair[0].number, -1.0)))
    runs = runs[-_MOST_LINES:]
    low, high = (min(values.values()), max(values.values())) if values else (0.0, 1.0)
    lines = tuple(
        ParallelLine(
            (
                *(
                    None if (place := scale.place(t.point.get(n))) is None else scale.share(place)
                    for scale, n in zip(scales, names, strict=True)
                ),
                _goal_place(values.get(t.number), low, high),
            ),
            t.number,
            _line_label(study, t, r, values),
            shares.get(t.number),
            "failed" if t.number not in values else look_of(study, answer, t),
        )
        for t, r in runs
    )
    axes = tuple(_axis(scale) for scale in scales)
    goal = ParallelAxis(study.goal.metric, tuple((at, metric_text(low + at * (high - low))) for at in (0.0, 0.5, 1.0)))
    failed = "; failed ones are red" if len(values) < len(runs) else ""
    says = f"One line per setting, from the values of its knobs to the mean of its runs{failed}."
    chosen = "" if answer.candidate is None else answer.candidate.label
    return ParallelFigure("parallel", "All knobs together", says, (*axes, goal), lines, chosen)


def _line_label(study: Study, trial: Trial, run: Run, values: dict[int, float]) -> str:
    measured = metric_text(values[trial.number]) if trial.number in values else str(run.outcome)
    return f"#{trial.number} {changes(study.baseline, trial.point) or 'the baseline'}: {measured}"


def _goal_place(value: float | None, low: float, high: float) -> float | None:
    return None if value is None else 0.5 if high == low else (value - low) / (high - low)


def _axis(scale: KnobScale) -> ParallelAxis:
    ticks = scale.axis.ticks
    if not ticks:
        ends = sorted(scale.places.values())
        ticks = tuple((v, f"{v:g}") for v in (ends[0], ends[len(ends) // 2], ends[-1]))
    return ParallelAxis(scale.axis.label, tuple((scale.share(place), text) for place, text in ticks))
