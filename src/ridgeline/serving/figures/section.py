"""What a report shows of serving: latency against load, the engine's log, energy and cost of tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ridgeline.records.answer import Answer
from ridgeline.records.study import Study
from ridgeline.report.figures.shapes import Figure, FigureGroup
from ridgeline.serving.figures.engine_log import (
    batch_by_length,
    logged_runs,
    over_time,
    power,
    step_times,
    time_split,
)
from ridgeline.serving.figures.limits import against_load, energy_and_cost, within_limits
from ridgeline.study.history import History


def section(study: Study, history: History, answer: Answer) -> Iterator[Figure | FigureGroup]:
    logged = logged_runs(study, history, answer)
    group = over_time(logged)
    drawn = power(logged)
    if group is not None and drawn is not None:
        group = replace(group, figures=(*group.figures, drawn))
    for part in (
        against_load(study, history, answer),
        group,
        step_times(logged),
        batch_by_length(logged),
        time_split(study, history, answer),
        *energy_and_cost(study, history, answer),
    ):
        if part is not None:
            yield part


def notes(study: Study, history: History, answer: Answer) -> Iterator[str]:
    """What stands with the answer itself: what share of the requests goodput counts."""
    if study.goal.metric == "goodput":
        yield from within_limits(study, history, answer)
