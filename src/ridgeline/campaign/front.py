"""The second goal of a search: which settings are better in neither than another, and the best within a limit."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from ridgeline.campaign.scores import normalisation
from ridgeline.errors import InputError, NothingFound
from ridgeline.records.exhibit import Curve, CurveFigure, CurvePoint, TextTable, changes
from ridgeline.records.measurement import COSTS
from ridgeline.records.run import Run
from ridgeline.records.site import costs, unpriced
from ridgeline.records.space import Point, point_key
from ridgeline.records.study import Goal, Study
from ridgeline.records.trial import Stage
from ridgeline.stats.pareto import GoalValue, Tradeoff, tradeoffs
from ridgeline.stats.wording import count, metric_text
from ridgeline.study.history import History

_NOT_MEASURED = "no good run measured it"
_FEWEST_DRAWN = 3  # settings


def front(study: Study, history: History) -> list[Tradeoff]:
    """Every setting that was measured in both goals; empty for a study with one goal."""
    if study.second_goal is None:
        return []
    through = normalisation(study, history)
    runs: dict[str, list[tuple[float, float]]] = {}
    for trial, run in history.ok_runs(*Stage):
        second = _metric_of(study, run, study.second_goal.metric)
        if second is not None:
            runs.setdefault(trial.key, []).append((through.value(run, study.goal.metric), second))
    return tradeoffs(runs, (study.goal.direction, study.second_goal.direction), study.confirm.level)


def _metric_of(study: Study, run: Run, metric: str) -> float | None:
    """What the run measured; of a journal that was written before its study had prices, what follows from them."""
    if metric not in run.metrics and (found := costs(run, study.site).get(metric)) is not None:
        return found.value
    return run.metrics.get(metric)


def front_tables(study: Study, history: History) -> tuple[TextTable, ...]:
    """None for a study with one goal."""
    if study.second_goal is None:
        return ()
    shown = [one for one in front(study, history) if one.place != "behind"]
    goals = (study.goal.metric, study.second_goal.metric)
    title = f"{goals[0]} against {goals[1]}"
    if not shown:
        why = unpriced(goals[1], study.site) if goals[1] in COSTS else ""
        return (TextTable(title, (*goals, "setting"), (), notes=(why or f"{goals[1]}: {_NOT_MEASURED}",)),)
    rows = tuple((*_cells(one), str(one.runs), one.place, _changes(study, one)) for one in shown)
    near = frozenset(at for at, one in enumerate(shown) if one.place == "on")
    note = "on: no other setting is better in both; near: one is, but within the noise. From all runs of a setting"
    head = (goals[0], "interval", goals[1], "interval", "runs", "front", "changes")
    return (TextTable(title, head, rows, changed=near, notes=(note,)),)


def front_figures(study: Study, history: History, chosen: Point | None) -> tuple[CurveFigure, ...]:
    """Every setting by both goals, those on the front joined; empty where fewer than three were measured in both."""
    found = front(study, history)
    if study.second_goal is None or len(found) < _FEWEST_DRAWN:
        return ()
    special = {point_key(study.baseline): "the baseline"}
    if chosen:
        special[point_key(chosen)] = "the recommended setting"
    curves: dict[str, list[CurvePoint]] = {"on the front": [], "behind it, or within the noise": []}
    for one in found:
        point = CurvePoint(one.second.value, one.first.value, one.first.low, one.first.high)
        curves["on the front" if one.place == "on" else "behind it, or within the noise"].append(point)
        if one.setting in special:
            curves[special[one.setting]] = [point]
    first, second = study.goal, study.second_goal
    says = "One mark for each setting that ran. On the front no other setting is better in both."
    x, y = (f"{g.metric}, {'higher' if g.direction == 'maximize' else 'lower'} is better" for g in (second, first))
    shown = tuple(Curve(label, tuple(sorted(points, key=lambda p: p.x))) for label, points in curves.items() if points)
    return (CurveFigure("The front", x, y, shown, says),)


def front_rows(study: Study, history: History) -> list[dict[str, Any]]:
    """The same for programs: one row a setting on or near the front."""
    if study.second_goal is None:
        raise InputError("the study has one goal; name a second_goal in it to see what is traded for what")
    names = (study.goal.metric, study.second_goal.metric)
    return [
        {
            "front": one.place,
            "runs": one.runs,
            **{
                f"{name}{end}": value
                for name, level in zip(names, (one.first, one.second), strict=True)
                for end, value in (("", level.value), (".low", level.low), (".high", level.high))
            },
            **{f"set.{knob}": value for knob, value in json.loads(one.setting).items()},
        }
        for one in front(study, history)
        if one.place != "behind"
    ]


def best_at(study: Study, history: History, limit: str) -> tuple[Tradeoff, str]:
    """The best setting of the first goal that keeps `metric=value` in the second, and how sure that is."""
    metric, _, value = limit.partition("=")
    goal = study.second_goal
    if goal is None:
        missing = f"put second_goal: {{minimize: {metric.strip()}}} beside the goal of the study and tune it"
        raise InputError(f"--at {limit}: the study has no second goal; {missing}")
    if metric.strip() != goal.metric:
        raise InputError(f"--at {limit}: the study's second goal is {goal.metric}; write --at {goal.metric}=VALUE")
    try:
        bound = float(value)
    except ValueError:
        bound = math.nan
    if math.isnan(bound):
        raise InputError(f"--at {limit}: {value!r} is not a number; write --at {goal.metric}=VALUE")
    kept = [one for one in front(study, history) if _keeps(one.second.value, bound, goal)]
    if not kept:
        within = "at or below" if goal.direction == "minimize" else "at or above"
        raise NothingFound(f"no setting that ran keeps {goal.metric} {within} {bound:g}")
    end = kept[0].second.high if goal.direction == "minimize" else kept[0].second.low
    sure = end is not None and _keeps(end, bound, goal)
    text = "its whole interval keeps the limit" if sure else "its interval reaches beyond the limit, or is not known"
    return kept[0], text


def _keeps(value: float, bound: float, goal: Goal) -> bool:
    return value <= bound if goal.direction == "minimize" else value >= bound


def best_at_lines(study: Study, history: History, limit: str, told: str) -> Sequence[str]:
    """`told`: what was shown of this setting against the baseline."""
    one, text = best_at(study, history, limit)
    assert study.second_goal is not None
    first, first_interval, second, second_interval = _cells(one)
    return (
        f"{study.goal.metric} {first} ({first_interval}) at {study.second_goal.metric} {second} ({second_interval})",
        f"  {text}; {count(one.runs, 'run')}; {told}",
        f"  changes from the baseline: {_changes(study, one)}",
    )


def _cells(one: Tradeoff) -> tuple[str, str, str, str]:
    return (metric_text(one.first.value), _interval(one.first), metric_text(one.second.value), _interval(one.second))


def _interval(level: GoalValue) -> str:
    if level.low is None or level.high is None:
        return "noise not known"
    return f"{metric_text(level.low)} to {metric_text(level.high)}"


def _changes(study: Study, one: Tradeoff) -> str:
    return changes(study.baseline, json.loads(one.setting)) or "none: the baseline"
