"""The machine and the model of it: effects of nodes, and what a twin predicted against what was measured."""

from __future__ import annotations

from collections import Counter
from statistics import median

from ridgeline.records.answer import Answer
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
)  # fmt: skip
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


def predicted(study: Study, history: History, answer: Answer) -> list[PlotFigure]:
    """What the twin said before each run against what was measured; then the ranges of the sampler."""
    return [*_predictions(study, history), *_expectations(study, history)]


def _predictions(study: Study, history: History) -> list[PlotFigure]:
    pairs: dict[str, list[PlotPoint]] = {}
    for trial, run in history.ok_runs(*Stage):
        metrics = run.metrics
        for name, value in metrics.items():
            plain = name.removeprefix(_PREDICTED)
            of = _MEASURED_AS.get(plain, plain)
            if name.startswith(_PREDICTED) and of in metrics:
                text = f"#{trial.number}: predicted {metric_text(value)}, measured {metric_text(metrics[of])}"
                pairs.setdefault(of, []).append(PlotPoint(value, metrics[of], label=text, trial=trial.number))
    return [_agreement(metric, points) for metric, points in pairs.items() if points]


def _agreement(metric: str, points: list[PlotPoint]) -> PlotFigure:
    ends = [v for p in points for v in (p.x, p.y)]
    low, high = min(ends) * 0.95, max(ends) * 1.05
    line = PlotSeries("predicted = measured", (PlotPoint(low, low), PlotPoint(high, high)), "ideal", "line")
    errors = [p.x / p.y - 1 for p in points if p.y]
    says_more = percent(sum(errors) / len(errors), 0) if errors else ""
    few = f"The twin predicted {metric} of {count(len(errors), 'run')}, and was off by {says_more}."
    many = (
        f"Half of the {count(len(errors), 'run')} are within {median(map(abs, errors)):.0%} of it; "
        f"on average the prediction is off by {says_more}."
        if errors
        else ""
    )
    note = "" if not errors else few if len(errors) < 3 else many
    says = (
        f"{metric} as the twin, which simulates the engine, predicted it before the run, against what was measured; "
        "on the line they agree."
    )
    return PlotFigure(
        f"twin-{metric}", "The twin against measurement", says,
        Axis(f"{metric}, predicted"), Axis(f"{metric}, measured"),
        (line, PlotSeries("runs", tuple(points), SEARCH)), notes=(note,) if note else (),
    )  # fmt: skip


def _expectations(study: Study, history: History) -> list[PlotFigure]:
    """What was predicted of each trial before it ran, beside what it measured."""
    predicted, measured, inside = [], [], 0
    for trial, run in ((history.trials[r.trial], r) for r in history.runs.values()):
        if trial.stage not in (Stage.BASELINE, Stage.SEARCH) or not is_ok(run) or study.goal.metric not in run.metrics:
            continue
        value, number = run.metrics[study.goal.metric], trial.number
        if (stated := trial.predicted) is not None:
            inside += stated.holds(value)
            low, high = metric_text(stated.low), metric_text(stated.high)
            label = f"#{number}: predicted {low} to {high}, measured {metric_text(value)}"
            predicted.append(PlotPoint(number, stated.value, stated.low, stated.high, label, number))
            measured.append(PlotPoint(number, value, label=label, trial=number))
    if len(measured) < 3:
        return []
    says = "What was predicted of each trial before it ran, and what it measured."
    note = f"{inside} of {count(len(measured), 'trial')} inside their stated {LEVEL:.0%} range."
    log = min(p.low if p.low is not None else p.y for p in predicted) > 0
    return [
        PlotFigure(
            "predicted", "Predicted and measured", says, Axis("trial"), Axis(study.goal.metric, log=log),
            (
                PlotSeries(f"predicted, {LEVEL:.0%} range", tuple(predicted), OTHER, "ranges"),
                PlotSeries("measured", tuple(measured), SEARCH),
            ),
            notes=(note,),
        )
    ]  # fmt: skip
