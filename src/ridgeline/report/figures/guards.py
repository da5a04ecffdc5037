"""What had to hold for a result to count: each guard with the runs it judged, and how near to its limit they came."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ridgeline.records.answer import Answer
from ridgeline.records.exhibit import TextTable
from ridgeline.records.guard import Closeness, Condition, Guard
from ridgeline.records.outcome import Kind
from ridgeline.records.study import Study
from ridgeline.records.trial import Stage
from ridgeline.report.figures.knobs import look_of
from ridgeline.report.figures.progress import NAMES
from ridgeline.report.figures.shapes import Axis, PlotBand, PlotFigure, PlotPoint, PlotSeries
from ridgeline.study.history import History

_SIMPLE = re.compile(r"^\s*(\w+)\s*(<=|>=|==|<|>)\s*([-+0-9.eE]+)\s*$")


def guard_table(study: Study, history: History) -> TextTable | None:
    """None for a study without guards."""
    if not study.guards:
        return None
    passed = [(t.number, {**r.texts, **r.metrics}) for t, r in history.ok_runs(*Stage)]
    broken = [run for run in history.runs.values() if run.outcome is not None and run.outcome.kind is Kind.WRONG]
    rows = []
    for guard in study.guards:
        failing = [f"#{r.trial}" for r in broken if r.outcome is not None and _names(guard, r.outcome.reason)]
        rows.append((str(guard), str(len(passed)), _worst(guard, passed, history.reference), ", ".join(failing) or "–"))
    failed = frozenset(at for at, row in enumerate(rows) if row[3] != "–")
    head = ("guard", "runs that passed", "tightest margin", "runs rejected")
    return TextTable("Guards", head, tuple(rows), failed)


def _names(guard: Guard, reason: str) -> bool:
    if isinstance(guard, Closeness):
        return reason.startswith(f"{guard.metric} ")
    return str(guard) in reason or (not guard.names and str(guard).split(" ")[0] in reason)


def _worst(guard: Guard, runs: list[tuple[int, dict[str, object]]], reference: Mapping[str, object]) -> str:
    """How near the nearest run came, in words; what no number measures simply held."""
    if not runs:
        return "no run counts yet"
    if isinstance(guard, Closeness):
        return _closeness(guard, runs, reference)
    match = _SIMPLE.match(str(guard)) if isinstance(guard, Condition) else None
    if match is None:
        return "held in all of them"
    metric, sign, limit = match[1], match[2], float(match[3])
    values = [(number, float(v)) for number, row in runs if isinstance(v := row.get(metric), int | float)]
    if not values:
        return "not measured"
    if sign == "==":
        return f"all equal {limit:g}" if all(v == limit for _, v in values) else "held in all of them"
    number, value = (max if sign in ("<", "<=") else min)(values, key=lambda pair: pair[1])
    room = (limit - value) if sign in ("<", "<=") else (value - limit)
    share = f", {room / abs(limit):.0%} of the limit to spare" if limit else ""
    return f"{value:.4g} at #{number}{share}"


def _closeness(guard: Closeness, runs: list[tuple[int, dict[str, object]]], reference: Mapping[str, object]) -> str:
    target = guard.reference if guard.reference is not None else reference.get(guard.metric)
    if not isinstance(target, int | float):
        return "held in all of them"
    limit = guard.abs_tol + guard.rel_tol * abs(target)
    gaps = [(abs(v - target), number) for number, row in runs if isinstance(v := row.get(guard.metric), int | float)]
    if not gaps:
        return "not measured"
    gap, number = max(gaps)
    share = f", {gap / limit:.0%} of the tolerance used" if limit else ""
    return f"off by {gap:.3g} at #{number}{share}"


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
