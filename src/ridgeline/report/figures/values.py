"""What several figures ask of runs and numbers: whether a run counts, how its goal is labelled, which scale suits."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ridgeline import catalog
from ridgeline.records.answer import Answer
from ridgeline.records.exhibit import KindShown, value_text
from ridgeline.records.expression import Value, is_number
from ridgeline.records.measurement import unit_of
from ridgeline.records.outcome import Kind
from ridgeline.records.run import Run
from ridgeline.records.space import Point
from ridgeline.records.study import Study
from ridgeline.records.trial import Stage, Trial
from ridgeline.report.figures.shapes import Axis
from ridgeline.study.history import History

_LOG_FROM = 20.0  # times between the smallest and the largest value, from which on a log axis shows more


def kind_shown(answer: Answer) -> KindShown:
    """What this kind of campaign shows of itself; a plugin's that says nothing is not taken for a search."""
    known = answer.kind in catalog.names("kinds")
    found: KindShown = getattr(catalog.part("kinds", answer.kind), "shown", KindShown()) if known else KindShown()
    return found


def is_ok(run: Run) -> bool:
    return run.outcome is not None and run.outcome.kind is Kind.OK


def measured_unit(history: History, metric: str) -> str:
    """As the runs carry it: a study's own metric has the study's unit."""
    found = (m.unit for run in history.runs.values() for m in run.measurements if m.metric == metric)
    return next((unit for unit in found if unit), unit_of(metric))


def goal_axis(study: Study, values: Sequence[float], unit: str) -> Axis:
    side = "higher is better" if study.goal.direction == "maximize" else "lower is better"
    unit_text = f" ({unit})" if unit else ""
    # twice as much looks like twice as much; below that, an axis from zero would hide what differs
    doubled = bool(values) and 0 < 2 * min(values) <= max(values)
    return Axis(f"{study.goal.metric}{unit_text}, {side}", log=needs_log(values), from_zero=doubled)


def needs_log(values: Iterable[float]) -> bool:
    known = list(values)
    return bool(known) and min(known) > 0 and max(known) / min(known) >= _LOG_FROM


@dataclass(frozen=True, slots=True)
class KnobScale:
    """Where the values of a knob stand on an axis: numbers as they are, others one after the other."""

    axis: Axis
    places: dict[Value, float]

    def place(self, value: Value) -> float | None:
        return self.places.get(value)

    def share(self, place: float) -> float:
        """From 0 at its lowest value to 1 at its highest."""
        low, high, at = min(self.places.values()), max(self.places.values()), place
        if self.axis.log:
            low, high, at = math.log(low), math.log(high), math.log(at)
        return 0.5 if high == low else (at - low) / (high - low)


_FEW_COUNTED = 20  # of more, round numbers are enough, which are whole then


def counted_axis(label: str, number: int, low: float | None = None) -> Axis:
    """For things that are counted from 1: no tick between two of them."""
    whole = tuple((float(n), str(n)) for n in range(1, number + 1)) if number <= _FEW_COUNTED else ()
    return Axis(label, low=low, ticks=whole)


def knob_scale(name: str, seen: Iterable[Value], listed: Sequence[Value] = ()) -> KnobScale:
    """Numbers keep their distances, on a log axis where they span much; names stand in a row, each with its text, in
    the order in which the study lists them."""
    values = list(dict.fromkeys(seen))
    numbers = sorted(float(v) for v in values if is_number(v))
    if numbers and len(numbers) == len(values):
        log = needs_log(numbers) or (len(numbers) > 2 and numbers[0] > 0 and numbers[-1] / numbers[0] >= 8)
        ticks = tuple((n, f"{n:g}") for n in numbers) if len(numbers) <= 7 else ()
        return KnobScale(Axis(name, log=log, ticks=ticks), {v: float(v) for v in values})  # type: ignore[arg-type]
    places = {repr(v): at for at, v in enumerate(listed)}
    ordered = sorted(
        values,
        key=lambda v: (v is None, places.get(repr(v), len(places)), not is_number(v), v if is_number(v) else 0, str(v)),
    )
    ticks = tuple((float(at), value_text(v)) for at, v in enumerate(ordered))
    return KnobScale(
        Axis(name, ticks=ticks, low=-0.5, high=len(ordered) - 0.5), {v: float(a) for a, v in enumerate(ordered)}
    )


def varied_knobs(study: Study, history: History) -> list[str]:
    """Knobs that the trials moved, in the study's order."""
    trials = [t for t in history.trials.values() if t.stage is not Stage.PROFILE]
    return [n for n in study.space.by_name if len({repr(t.point.get(n)) for t in trials}) > 1]


def judged_runs(history: History) -> list[tuple[Trial, Run]]:
    """Runs that passed, or that failed because of their setting: what a map of failures may rest on."""
    return [
        (history.trials[run.trial], run)
        for run in history.runs.values()
        if run.outcome is not None and (run.outcome.kind is Kind.OK or run.outcome.kind.caused_by_setting)
    ]


def settings_shown(study: Study, history: History, answer: Answer) -> list[tuple[str, list[Run]]]:
    """The baseline and the answer's setting with the runs to look at: of the confirmation where there are any."""
    wanted: list[tuple[str, Point]] = [(answer.reference.label, study.baseline)]
    if answer.candidate is not None and answer.candidate.point != study.baseline:
        wanted.append((answer.candidate.label, answer.candidate.point))
    found = []
    for label, point in wanted:
        runs = [(t, r) for t, r in history.ok_runs(*Stage) if t.point == point]
        confirmed = [r for t, r in runs if t.stage is Stage.CONFIRM]
        if chosen := confirmed or [r for _, r in runs]:
            found.append((label, chosen))
    return found
