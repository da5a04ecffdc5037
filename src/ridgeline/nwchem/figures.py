"""Programs of science: where the time of a run goes, and how near each result is to the reference."""

from __future__ import annotations

from ridgeline.records.answer import Answer
from ridgeline.records.guard import Closeness
from ridgeline.records.study import Study
from ridgeline.records.trial import Stage
from ridgeline.report.figures.knobs import look_of
from ridgeline.report.figures.progress import NAMES
from ridgeline.report.figures.shapes import (
    Axis,
    BarFigure,
    BarPart,
    BarRow,
    PlotBand,
    PlotFigure,
    PlotPoint,
    PlotSeries,
)  # fmt: skip
from ridgeline.serving.figures.limits import settings_shown
from ridgeline.study.history import History


def time_split(study: Study, history: History, answer: Answer) -> BarFigure | None:
    """NWChem's own account: iterations, the rest of the program, and what starting and ending it took."""
    rows = []
    for label, runs in settings_shown(study, history, answer):
        metrics = runs[-1].metrics
        wall, inside, iterative = (metrics.get(n) for n in ("wall_s", "nwchem_wall_s", "iterative_s"))
        if wall is None or inside is None or wall < inside:
            continue
        parts = [("iterations", iterative or 0.0), ("rest of the program", max(0.0, inside - (iterative or 0.0)))]
        parts.append(("starting and ending", wall - inside))
        rows.append(BarRow(label, tuple(BarPart(n, v) for n, v in parts if v > 0), f"{wall:.1f} s"))
    if not rows:
        return None
    says = "The wall time of one run of each setting, as the program accounts for it."
    return BarFigure("science-time", "Where a run's time goes", says, Axis("seconds", from_zero=True), tuple(rows))


def closeness(study: Study, history: History, answer: Answer) -> list[PlotFigure]:
    """For each guard on closeness: how far each run that counts is from the reference, within what is allowed."""
    return [
        figure
        for guard in study.guards
        if isinstance(guard, Closeness) and (figure := _distances(study, history, answer, guard)) is not None
    ]


def _distances(study: Study, history: History, answer: Answer, guard: Closeness) -> PlotFigure | None:
    target = guard.reference if guard.reference is not None else history.reference.get(guard.metric)
    if not isinstance(target, int | float):
        return None
    looks: dict[str, list[PlotPoint]] = {}
    for trial, run in history.ok_runs(*Stage):
        if guard.metric in run.metrics:
            off = run.metrics[guard.metric] - target
            text = f"#{trial.number}: {run.metrics[guard.metric]:.10g}, off by {off:.3g}"
            looks.setdefault(look_of(study, answer, trial), []).append(
                PlotPoint(run.number, off, label=text, trial=trial.number)
            )
    if not any(point.y for points in looks.values() for point in points):
        return None  # every run has the reference's value to the digit: the table of guards says so
    limit = guard.abs_tol + guard.rel_tol * abs(target)
    band = (PlotBand(f"allowed: within {limit:.3g}", -limit, limit),)
    series = tuple(PlotSeries(NAMES.get(look, look), tuple(points), look) for look, points in looks.items())
    says = (
        f"{guard.metric} of each run that counts, less the reference {target:.10g}; the guard allows the shaded range."
    )
    return PlotFigure(
        f"close-{guard.metric}", f"{guard.metric}: distance from the reference", says, Axis("run"),
        Axis("distance from the reference"), series, band,
    )  # fmt: skip
