"""The history of a project, a folder of studies: what each found and cost, and what was learnt of each knob."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ridgeline.records.answer import OVER_LIMIT
from ridgeline.records.exhibit import TextTable, value_text
from ridgeline.records.trial import Stage
from ridgeline.report.figures.failures import what_failed
from ridgeline.report.figures.shapes import (
    OTHER,
    WINNER,
    Axis,
    IntervalFigure,
    IntervalRow,
    PlotFigure,
    PlotPoint,
    PlotSeries,
)  # fmt: skip
from ridgeline.report.figures.values import counted_axis, goal_axis
from ridgeline.report.parts import AnswerCard, FactTiles, Paragraph, Part, Section
from ridgeline.report.studies import StudySeen
from ridgeline.stats.wording import count, metric_text, node_time_text, ratio_range, ratio_text


def project_sections(studies: Sequence[StudySeen]) -> list[Section]:
    """`studies` in any order; they are shown by when they began."""
    ordered = sorted(studies, key=_began_s)
    shown = [
        Section("verdict", "", (Paragraph(_headline(ordered), "headline"), FactTiles(tuple(_tiles(ordered))))),
        Section("studies", "Studies", (_table(ordered),)),
    ]
    if gains := tuple(_compared(ordered)):
        shown.append(Section("gains", "Against each one's baseline", gains))
    if figures := tuple(_over_time(ordered)):
        shown.append(Section("best", "Best over time", figures))
    if knobs := _knob_rows(ordered):
        head = ("knob", "study", "how", "baseline", "setting to use", "confirmed gain of the whole setting")
        text = (
            "What each study changed. Its gain is that of all changes together; `ridgeline study steps --each` "
            "measures each."
        )
        shown.append(Section("knobs", "Every knob", (Paragraph(text, "sub"), TextTable("", head, tuple(knobs)))))
    return shown


def _began_s(one: StudySeen) -> float:
    return min((run.ending.started_s for run in one.history.runs.values() if run.ending.started_s > 0), default=0.0)


def _day(one: StudySeen) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(began)) if (began := _began_s(one)) else "–"


def _headline(studies: Sequence[StudySeen]) -> str:
    """How many found something, and how much; of several the range. What was simulated is counted by itself."""
    measured = [one for one in studies if how_known(one) == "measured"]
    simulated = [one for one in studies if how_known(one) == "simulated"]
    said = [text for text in (_found(measured, "measured"), _found(simulated, "simulated")) if text]
    return "; ".join(said) or "No study here"


def _found(studies: Sequence[StudySeen], how: str) -> str:
    """'2 of 3 measured studies confirmed a better setting: 1.13x to 1.22x the baseline'."""
    if not studies:
        return ""
    of = f"{len(studies)} {how} {'study' if len(studies) == 1 else 'studies'}"
    better = [one for one in studies if one.answer.confirmed and one.answer.candidate is not None]
    gains = [one.answer.candidate.gain for one in better if one.answer.candidate is not None]
    ratios = sorted(gain.ratio for gain in gains if gain is not None and gain.ratio > 1)
    if not ratios:
        return f"No better setting confirmed in {of}"
    size = ratio_text(ratios[0]) if len(ratios) == 1 else f"{ratio_text(ratios[0])} to {ratio_text(ratios[-1])}"
    over = sum(bool(one.answer.broken) for one in better)
    broken = f", {over} of them over a limit of its question" if over else ""
    return f"{len(ratios)} of {of} confirmed a better setting: {size} the baseline{broken}"


def how_known(one: StudySeen) -> str:
    """Beside every number of a study, so that nobody takes a prediction for a measurement."""
    return "simulated" if one.answer.simulated or one.study.site.batch == "simulated" else "measured"


def _tiles(studies: Sequence[StudySeen]) -> Iterator[tuple[str, str, str]]:
    yield "studies", str(len(studies)), f"since {_day(studies[0])}"
    for how, label in (("measured", "cost"), ("simulated", "simulated, never spent")):
        of = [one for one in studies if how_known(one) == how]
        if of:
            hours = sum(one.history.node_hours for one in of)
            runs = count(sum(len(one.history.runs) for one in of), "run")
            yield label, node_time_text(hours), f"{runs}, {how}"
    real = [one for one in studies if how_known(one) == "measured"]
    machines = {node for one in real for run in one.history.runs.values() for node in run.ending.nodes}
    sites = sorted({one.study.site.name for one in real}) or ["all is simulated"]
    yield "machines", count(len(machines), "node"), ", ".join(sites)


def _table(studies: Sequence[StudySeen]) -> TextTable:
    rows = tuple(
        (
            one.name,
            how_known(one),
            _gain(one) or what_failed(one.history, one.answer) or AnswerCard(one.answer.statement).lead,
            "–" if one.answer.candidate is None else f"{metric_text(one.answer.candidate.value)} {one.answer.unit}",
            one.study.goal.metric,
            _day(one),
            node_time_text(one.history.node_hours),
            one.study.site.name,
        )
        for one in studies
    )
    changed = frozenset(at for at, one in enumerate(studies) if one.answer.confirmed)
    return TextTable("", ("study", "how", "answer", "value", "goal", "began", "cost", "site"), rows, changed=changed)


def _gain(one: StudySeen) -> str:
    gain = None if one.answer.candidate is None else one.answer.candidate.gain
    if gain is None or gain.low is None or gain.high is None or not one.answer.confirmed:
        return ""
    ratio, interval = ratio_range(gain.ratio, gain.low, gain.high)
    over = f", {OVER_LIMIT}{' and '.join(map(str, one.answer.broken))}" if one.answer.broken else ""
    return f"{ratio} ({interval}){over}"


_MOST_COURSES = 8  # lines that can be told apart


def _compared(studies: Sequence[StudySeen]) -> Iterator[Part]:
    """Ratios to each study's own baseline: what it found, and how soon."""
    rows = []
    for one in studies:
        gain = None if one.answer.candidate is None else one.answer.candidate.gain
        if gain is not None and gain.low is not None and gain.high is not None:
            ratio, interval = ratio_range(gain.ratio, gain.low, gain.high)
            text = f"{ratio} ({interval}), {how_known(one)}" + ("" if one.answer.confirmed else ", not confirmed")
            text += ", over a limit" if one.answer.broken else ""
            look = WINNER if one.answer.confirmed else OTHER
            rows.append(
                IntervalRow(f"{one.name} ({how_known(one)})", gain.ratio, gain.low, gain.high, text=text, look=look)
            )
    if rows:
        says = "The best setting of each study as a ratio to its own baseline, with its interval."
        axis = Axis("ratio to the baseline (above 1 is better)")
        yield IntervalFigure("gains-figure", "How much better", says, axis, tuple(rows))
    courses = [course for one in studies if (course := _course(one)) is not None]
    courses = [replace(course, look=str(at)) for at, course in enumerate(courses)]
    if 1 < len(courses) <= _MOST_COURSES:
        says = "The best of the search after each run, as a ratio to the study's own baseline, which is run 0."
        axis = Axis("ratio to the baseline (above 1 is better)")
        longest = int(max(course.points[-1].x for course in courses))
        x = counted_axis("run of the search", longest, low=0.0)
        yield PlotFigure("courses", "How soon", says, x, axis, tuple(courses))


def _course(one: StudySeen) -> PlotSeries | None:
    base, metric = one.answer.reference.value, one.study.goal.metric
    if not base or base < 0 or one.answer.kind != "search":
        return None
    points = [PlotPoint(0, 1.0, label=f"{one.name}, the baseline")]
    for at, (_, run) in enumerate(one.history.ok_runs(Stage.SEARCH), 1):
        value = run.metrics[metric]
        if value <= 0:
            return None
        ratio = value / base if one.study.goal.direction == "maximize" else base / value
        best = max(ratio, points[-1].y)
        points.append(PlotPoint(at, best, label=f"{one.name}, run {at}: {ratio_text(best)}"))
    name = f"{one.name} ({how_known(one)})"
    return PlotSeries(name, tuple(points), form="steps") if len(points) > 1 else None


def _over_time(studies: Sequence[StudySeen]) -> Iterator[Part]:
    """For each goal that several studies share: the value of the setting that each of them would use."""
    goals = dict.fromkeys((one.study.goal.metric, one.answer.unit, how_known(one)) for one in studies)
    for at, (metric, unit, how) in enumerate(goals):
        of = [
            one
            for one in studies
            if (one.study.goal.metric, one.answer.unit, how_known(one)) == (metric, unit, how)
            and one.answer.candidate is not None
        ]
        points = tuple(
            PlotPoint(place, one.answer.candidate.value, label=f"{one.name}: {metric_text(one.answer.candidate.value)}")
            for place, one in enumerate(of, 1)
            if one.answer.candidate is not None
        )
        if len(points) < 2:
            continue
        ticks = tuple((float(place), one.name) for place, one in enumerate(of, 1))
        says = "The setting that each study would use, oldest study first; questions and machines may differ."
        yield PlotFigure(
            f"best-{at}", f"{metric}, {how}", says, Axis("study", ticks=ticks),
            goal_axis(of[0].study, [p.y for p in points], unit),
            (PlotSeries("the setting to use", points, WINNER),),
        )  # fmt: skip


def _knob_rows(studies: Sequence[StudySeen]) -> list[tuple[str, ...]]:
    found = [
        (name, one.name, how_known(one), value_text(one.study.baseline.get(name)), value_text(value), _gain(one))
        for one in studies
        if one.answer.confirmed and one.answer.candidate is not None
        for name, value in one.answer.candidate.point.items()
        if one.study.baseline.get(name) != value
    ]
    return sorted(found)
