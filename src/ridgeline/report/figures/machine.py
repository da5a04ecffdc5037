"""The machine and the model of it: effects of nodes, and what a twin predicted against what was measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from statistics import median

from ridgeline.records.exhibit import TextTable
from ridgeline.records.study import Study
from ridgeline.records.trial import Stage
from ridgeline.report.figures.shapes import (
    BASELINE,
    OTHER,
    SEARCH,
    Axis,
    IntervalFigure,
    IntervalRow,
    PlotFigure,
    PlotPoint,
    PlotSeries,
)
from ridgeline.report.figures.values import is_ok
from ridgeline.stats.nodes import NodeEffect, node_effects, node_runs
from ridgeline.stats.stated_range import LEVEL
from ridgeline.stats.wording import count, metric_text, percent
from ridgeline.study.history import History

_PREDICTED = "predicted_"
_MEASURED_AS = {"tok_s": "total_tok_s"}  # engines' sessions predict the rate of all tokens


def nodes(study: Study, history: History) -> IntervalFigure | None:
    """None where all ran in one place."""
    runs = node_runs(history.ok_runs(*Stage), study.goal.metric)
    found = node_effects(runs, study.goal.direction, study.confirm.level)
    if len(found) < 2:
        return None
    rows = tuple(
        IntervalRow(
            e.node, e.speed, e.low, e.high, text=_told_of(e), look=BASELINE if e.verdict in ("slow", "fast") else OTHER
        )
        for e in found
    )
    says = (
        "The speed of each node over that of its peers, with settings allowed for. An interval that crosses 1 is usual."
    )
    return IntervalFigure("nodes", "Nodes", says, Axis("times the speed of its peers"), rows)


def _told_of(effect: NodeEffect) -> str:
    return str(effect).removeprefix(f"node {effect.node}").lstrip(": ")


def node_table(history: History) -> TextTable | None:
    """Which node had how many runs, and which of them failed how."""
    runs: Counter[str] = Counter()
    failed: dict[str, Counter[str]] = {}
    for run in history.runs.values():
        for node in run.ending.nodes:
            runs[node] += 1
            if run.outcome is not None and not is_ok(run):
                failed.setdefault(node, Counter())[run.outcome.kind.text] += 1
    if len(runs) < 2:
        return None
    rows = tuple(
        (node, str(n), ", ".join(f"{c} {k}" for k, c in failed.get(node, Counter()).items()) or "–")
        for node, n in sorted(runs.items())
    )
    return TextTable("Runs by node", ("node", "runs", "failed there"), rows)


def twin_says(history: History) -> Iterator[str]:
    """How well the twin, which simulates the engine, predicted each run before it ran."""
    errors: dict[str, list[float]] = {}
    for _, run in history.ok_runs(*Stage):
        for name, value in run.metrics.items():
            plain = name.removeprefix(_PREDICTED)
            of = _MEASURED_AS.get(plain, plain)
            if name.startswith(_PREDICTED) and run.metrics.get(of):
                errors.setdefault(of, []).append(value / run.metrics[of] - 1)
    for metric, found in errors.items():
        off = percent(sum(found) / len(found), 0)
        half = f": half of them within {median(map(abs, found)):.0%}" if len(found) > 2 else ""
        runs = count(len(found), "run")
        yield f"The twin predicted {metric} of {runs} before they ran{half}, off by {off} on average."


def predicted(study: Study, history: History) -> PlotFigure | None:
    """What was predicted of each trial before it ran, beside what it measured; None for fewer than three."""
    stated, measured, inside = [], [], 0
    for trial, run in ((history.trials[r.trial], r) for r in history.runs.values()):
        if trial.stage not in (Stage.BASELINE, Stage.SEARCH) or not is_ok(run) or study.goal.metric not in run.metrics:
            continue
        value, number, told = run.metrics[study.goal.metric], trial.number, trial.predicted
        if told is not None:
            inside += told.holds(value)
            low, high = metric_text(told.low), metric_text(told.high)
            label = f"#{number}: predicted {low} to {high}, measured {metric_text(value)}"
            stated.append(PlotPoint(number, told.value, told.low, told.high, label, number))
            measured.append(PlotPoint(number, value, label=label, trial=number))
    if len(measured) < 3:
        return None
    says = "What was predicted of each trial before it ran, and what it measured."
    note = f"{inside} of {count(len(measured), 'trial')} inside their stated {LEVEL:.0%} range."
    log = min(p.low if p.low is not None else p.y for p in stated) > 0
    return PlotFigure(
        "predicted", "Predicted and measured", says, Axis("trial"), Axis(study.goal.metric, log=log),
        (
            PlotSeries(f"predicted, {LEVEL:.0%} range", tuple(stated), OTHER, "ranges"),
            PlotSeries("measured", tuple(measured), SEARCH),
        ),
        notes=(note,),
    )  # fmt: skip
