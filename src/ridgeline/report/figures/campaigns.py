"""Figures of the kinds of campaign other than a search: how far a knob goes, how a setting scales, what a gate saw."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from ridgeline.records.answer import Answer
from ridgeline.records.exhibit import Curve, CurveFigure, CurvePoint
from ridgeline.records.study import Study
from ridgeline.records.trial import Stage
from ridgeline.report.figures.shapes import (
    BASELINE,
    OTHER,
    SEARCH,
    WINNER,
    Axis,
    PlotFigure,
    PlotLimit,
    PlotPoint,
    PlotSeries,
    StripMark,
)
from ridgeline.report.figures.values import goal_axis, is_ok, knob_scale, needs_log
from ridgeline.stats.wording import metric_text
from ridgeline.study.history import History


def edge_climb(study: Study, history: History, answer: Answer) -> PlotFigure | None:
    """Every value of the knob that ran: what it measured, or how it failed, with the edge and the value to use."""
    knob = str(history.question.details.get("knob", ""))
    runs = [(history.trials[r.trial], r) for r in history.runs.values()]
    scale = knob_scale(knob, [t.point.get(knob) for t, _ in runs if t.point.get(knob) is not None])
    points, strip = [], []
    for trial, run in runs:
        place = scale.place(trial.point.get(knob))
        if place is None:
            continue
        if is_ok(run) and study.goal.metric in run.metrics:
            value = run.metrics[study.goal.metric]
            text = f"#{trial.number} {knob} {place:g}: {metric_text(value)}"
            points.append(PlotPoint(place, value, label=text, trial=trial.number))
        elif run.outcome is not None:
            text = f"#{trial.number} {knob} {place:g}: {run.outcome}"
            strip.append(StripMark(place, run.outcome.kind.short, text, trial.number))
    if not points and not strip:
        return None
    details = {} if history.verdict is None else history.verdict.details
    limits = tuple(_limits(details))
    says = f"Every run by its {knob}; those that failed are below the axis. Left of the edge all of these runs passed."
    values = [p.y for p in points]
    y = goal_axis(study, values, answer.unit)
    if limits and values and max(values) > min(values):
        y = replace(y, high=max(values) + 0.3 * (max(values) - min(values)))  # their texts are on top
    series = (PlotSeries("passed", tuple(points), SEARCH),) if points else ()
    return PlotFigure(
        "climb", f"How far {knob} can be raised", says, scale.axis, y, series, limits=limits, strip=tuple(strip)
    )


def _limits(details: Mapping[str, Any]) -> list[PlotLimit]:
    edge, production = details.get("edge"), details.get("production")
    found = []
    if isinstance(production, int | float) and production != edge:
        found.append(PlotLimit(f"for production: {production:g}", float(production), "x"))
    if isinstance(edge, int | float):
        found.append(PlotLimit(f"largest that passed: {edge:g}", float(edge), "x"))
    return found


def gate_runs(study: Study, history: History, answer: Answer) -> PlotFigure | None:
    """Every run of the reference, then those of this gate, and the slowdown it looks for."""
    asked = history.question.details
    stored = [float(value) for value in asked.get("stored", ())]
    runs = [(trial, run.metrics[study.goal.metric]) for trial, run in history.ok_runs(Stage.BASELINE, Stage.SEARCH)]
    if not stored or not runs:
        return None
    before = tuple(PlotPoint(at, value, label=f"reference: {metric_text(value)}") for at, value in enumerate(stored, 1))
    now = tuple(
        PlotPoint(at, value, label=f"#{trial.number}: {metric_text(value)}", trial=trial.number)
        for at, (trial, value) in enumerate(runs, len(stored) + 1)
    )
    lowest = study.goal.direction == "minimize"
    slower = float(asked.get("slower", 0.0))
    level = median(stored) * (1 + slower if lowest else 1 / (1 + slower))
    series = (PlotSeries("the reference", before, BASELINE), PlotSeries("now", now, WINNER))
    says = "The stored runs of the reference, then the new ones, each in the order they ran."
    y = goal_axis(study, [*stored, *(value for _, value in runs)], answer.unit)
    limit = PlotLimit(f"{slower * 100:.2g}% slower than the reference", level, "y")
    return PlotFigure("gate-runs", "Against the reference", says, Axis("run"), y, series, limits=(limit,))


def curves(figure: CurveFigure, key: str, study: Study, history: History, unit: str) -> PlotFigure:
    """A figure of the campaign's own exhibits; of a scaling, with the fitted law and where more stops paying."""
    if figure.names:
        return _by_name(figure, key, goal_axis(study, [p.y for c in figure.curves for p in c.points], unit))
    if figure.says:
        return _front(figure, key)
    details = {} if history.verdict is None else history.verdict.details
    law, pays_to = details.get("law"), details.get("pays_to")
    sizes = sorted({p.x for curve in figure.curves for p in curve.points})
    series = [_series(c, WINNER, "both", lambda p: f"{p.x:g}: {figure.y_label} {p.y:.3g}") for c in figure.curves]
    if law and sizes:
        fitted = _fitted(law, sizes, efficiency=figure.y_label == "efficiency")
        series.append(PlotSeries(f"{law.get('name', 'fitted law')}, {law['serial']:.0%} serial", fitted, OTHER, "line"))
    limits = (PlotLimit(f"pays to {pays_to:g}", float(pays_to), "x"),) if isinstance(pays_to, int | float) else ()
    x = Axis(figure.x_label, log=len(sizes) > 2, ticks=tuple((s, f"{s:g}") for s in sizes))
    fit = " and the law that fits best" if law else "; sizes are too few, or too odd, for a law"
    says = f"Measured, with its interval, beside what perfect scaling would give{fit}."
    return PlotFigure(key, figure.title, says, x, Axis(figure.y_label, from_zero=True), tuple(series), limits=limits)


def _front(figure: CurveFigure, key: str) -> PlotFigure:
    """Settings by two goals: those that no other beats in both are joined."""
    looks = {"the baseline": BASELINE, "the recommended setting": WINNER}
    first, *others = figure.curves
    forms = ((first, SEARCH, "both"), *((curve, OTHER, "points") for curve in others))
    series = tuple(
        _series(c, looks.get(c.label, look), form, lambda p: f"{p.y:.4g} at {p.x:.4g}") for c, look, form in forms
    )
    x, y = ([getattr(p, axis) for c in figure.curves for p in c.points] for axis in "xy")
    axes = Axis(figure.x_label, log=needs_log(x)), Axis(figure.y_label, log=needs_log(y))
    return PlotFigure(key, figure.title, figure.says, *axes, series)


def _by_name(figure: CurveFigure, key: str, y: Axis) -> PlotFigure:
    series = tuple(
        _series(c, SEARCH, "points", lambda p: f"{figure.names[int(p.x)]}: {p.y:.4g}") for c in figure.curves
    )
    x = Axis(figure.x_label, ticks=tuple((float(at), name) for at, name in enumerate(figure.names)))
    limits = tuple(PlotLimit(text, place, "x") for place, text in figure.marks)
    values = [p.y for c in figure.curves for p in c.points]
    least, most = (min(values), max(values)) if values else (0.0, 0.0)
    room = 0.2 * (most if y.from_zero else most - least)  # for the texts of the limits, on top
    y = replace(y, high=most + room if limits and room > 0 else None)
    return PlotFigure(key, figure.title, figure.says, x, y, series, limits=limits)


def _series(curve: Curve, look: str, form: str, label: Callable[[CurvePoint], str]) -> PlotSeries:
    points = tuple(PlotPoint(p.x, p.y, p.low, p.high, label(p)) for p in curve.points)
    return PlotSeries(curve.label, points, *(("ideal", "line") if curve.ideal else (look, form)))


def _fitted(law: Mapping[str, Any], sizes: Sequence[float], efficiency: bool) -> tuple[PlotPoint, ...]:
    """Gunther's law with the fitted shares; Amdahl's is the same without crosstalk."""
    serial, crosstalk = float(law["serial"]), float(law.get("crosstalk") or 0.0)
    low, high, found = sizes[0], sizes[-1], []
    for at in range(25):
        size = low * (high / low) ** (at / 24)
        n = size / low
        speed = n / (1 + serial * (n - 1) + crosstalk * n * (n - 1))
        found.append(PlotPoint(size, speed / n if efficiency else speed))
    return tuple(found)
