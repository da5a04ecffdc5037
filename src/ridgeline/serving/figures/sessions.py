"""What is shown of sessions: TTFT by turn, what caches held over time, and TTFT against their number.

What was measured is drawn solid, what the twin says of it dashed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from ridgeline.errors import RidgelineError
from ridgeline.files import write_whole
from ridgeline.records.answer import Answer
from ridgeline.records.exhibit import TextTable
from ridgeline.records.run import PREDICTED
from ridgeline.records.study import Study
from ridgeline.report.figures.shapes import Axis, FigureGroup, PlotFigure, PlotLimit, PlotPoint, PlotSeries
from ridgeline.report.figures.values import needs_log, settings_shown
from ridgeline.report.html import Folders
from ridgeline.report.page import whole_page
from ridgeline.report.parts import Part, Section
from ridgeline.serving.figures.engine_log import LARGEST_BYTES, measured_prefills
from ridgeline.serving.planner.sessions import SessionLoad, SessionsPlan
from ridgeline.serving.traffic.requests import REQUESTS, RequestRecord, read_records
from ridgeline.serving.traffic.session_summary import FINE_CLASSES, ttft_by_turn, turns_text
from ridgeline.stats.wording import count
from ridgeline.study.history import History

_LOOKS = {"p50": "0", "p95": "1"}
_TIER_LOOKS = (("0", "2", "5"), ("1", "3", "6"))  # without a host tier and with one, of up to three quantiles
_STRETCHES = 24  # of a run, over each of which hits are counted
_FOUND, _ON_GPU = "found in a cache", "of it on the GPUs"


@dataclass(frozen=True, slots=True)
class PromptHits:
    """Tokens of prompts that were looked up at a time, and how many of them were found: at all, and in host memory."""

    time_s: float
    prompt: int
    found: int
    host: int = 0


@dataclass(frozen=True, slots=True)
class SessionRun:
    """The requests of one run, as they were measured and as the twin has them. `logged` are hits by the engine's log,
    for where answers do not tell them."""

    label: str
    measured: Sequence[RequestRecord] = ()
    predicted: Sequence[RequestRecord] = ()
    logged: Sequence[PromptHits] = ()

    @property
    def sources(self) -> Iterator[tuple[str, str, Sequence[RequestRecord], Sequence[PromptHits]]]:
        """Name, form of its lines, requests, and hits in their caches."""
        told = _hits(self.measured)  # engines leave a zero out, so that nothing but zeros is not known
        yield "measured", "both", self.measured, told if any(each.found for each in told) else self.logged
        yield "predicted", "dashed", self.predicted, _hits(self.predicted)


def session_runs(study: Study, history: History, answer: Answer) -> list[SessionRun]:
    """The latest run of the baseline and of the setting whose requests are turns of sessions."""
    found = []
    for label, runs in settings_shown(study, history, answer):
        for run in reversed(runs):
            measured = _records(run.folder / REQUESTS)
            if any(record.turn for record in measured):
                told = any(record.cached_tokens for record in measured)
                logged = [] if told else [PromptHits(*each) for each in measured_prefills(run.folder)]
                found.append(SessionRun(f"{label} (#{run.trial})", measured, _records(run.folder / PREDICTED), logged))
                break
    return found


def _records(path: Path) -> list[RequestRecord]:
    try:
        return [*read_records(path)] if path.stat().st_size <= LARGEST_BYTES else []
    except (RidgelineError, OSError, ValueError):
        return []  # removed, or damaged: the page does without it


def _hits(records: Sequence[RequestRecord]) -> list[PromptHits]:
    return [PromptHits(r.sent_s, r.input_tokens, r.cached_tokens, r.host_tokens) for r in records if r.ok]


def figures(runs: Sequence[SessionRun]) -> Iterator[PlotFigure | FigureGroup]:
    turns = "Over all requests of these turns. Later prompts are longer, and fast where the KV cache is still there."
    hits = "Share of the prompt tokens."
    if any(each.host for run in runs for *_, found in run.sources for each in found):
        hits += " What was found and is not on the GPUs came back from the host's memory."
    yield from _side_by_side("turns", "TTFT by turn", turns, [_by_turn(run) for run in runs])
    yield from _side_by_side("hits", "Cache hit rate over time", hits, [_over_time(run) for run in runs])


def _side_by_side(key: str, title: str, says: str, drawn: Sequence[PlotFigure]) -> Iterator[PlotFigure | FigureGroup]:
    """On one scale, with one legend for all of them; nothing where none has anything to show."""
    each = [figure for figure in drawn if figure.series]
    ys = [p.y for figure in each for one in figure.series for p in one.points if p.y]
    names = {one.name: one for figure in each for one in figure.series}
    scaled = []
    for at, figure in enumerate(each):
        own = {one.name: one for one in figure.series}
        series = tuple(own.get(name, replace(one, points=())) for name, one in sorted(names.items()))
        y = figure.y
        if y.high is None and ys:
            y = replace(y, log=needs_log(ys), low=0.8 * min(ys) if needs_log(ys) else 0.0, high=1.1 * max(ys))
        scaled.append(replace(figure, key=f"{key}-{at}", series=series, y=y, small=len(each) > 1))
    if len(scaled) == 1:
        label = f" {scaled[0].title}." if scaled[0].title else ""
        yield replace(scaled[0], key=key, title=title, says=says + label)
    elif scaled:
        yield FigureGroup(key, title, says, tuple(scaled))


def _by_turn(run: SessionRun) -> PlotFigure:
    found = {name: (form, ttft_by_turn(records, FINE_CLASSES)) for name, form, records, _ in run.sources}
    seen = {each.turns for _, rows in found.values() for each in rows}
    turns = [name for name in (turns_text(*each) for each in FINE_CLASSES) if name in seen]
    series = tuple(
        PlotSeries(
            f"{quantile}, {name}",
            tuple(
                PlotPoint(
                    turns.index(each.turns),
                    each.ttft_ms.quantile(quantile),
                    label=f"turn {each.turns}, {quantile} of {count(each.requests, 'request')}",
                )
                for each in rows
            ),
            look,
            form,
        )
        for name, (form, rows) in found.items()
        for quantile, look in _LOOKS.items()
        if rows
    )
    ticks = tuple((float(at), text) for at, text in enumerate(turns))
    x = Axis("turn of the session", ticks=ticks, low=-0.5, high=len(turns) - 0.5)
    return PlotFigure("", run.label, "", x, Axis("TTFT, ms"), series)


def _over_time(run: SessionRun) -> PlotFigure:
    series = []
    for name, form, _, hits in run.sources:
        line = "line" if form == "both" else form
        if hits:
            series.append(PlotSeries(f"{_FOUND}, {name}", tuple(_shares(hits)), "0", line))
        if any(each.host for each in hits):
            on_gpu = [replace(each, found=each.found - each.host) for each in hits]
            series.append(PlotSeries(f"{_ON_GPU}, {name}", tuple(_shares(on_gpu)), "1", line))
    y = Axis("prompt tokens found, %", low=0.0, high=100.0)
    return PlotFigure("", run.label, "", Axis("seconds since the first request", from_zero=True), y, tuple(series))


def _shares(hits: Sequence[PromptHits]) -> Iterator[PlotPoint]:
    """In per cent, of each stretch of time in which prompts came, at its middle."""
    step_s = max(each.time_s for each in hits) / _STRETCHES or 1.0
    ordered = sorted(hits, key=lambda each: each.time_s)
    for at, group in groupby(ordered, key=lambda each: min(int(each.time_s / step_s), _STRETCHES - 1)):
        within = [*group]
        prompt, middle_s = sum(each.prompt for each in within), (at + 0.5) * step_s
        if prompt:
            share = 100.0 * sum(each.found for each in within) / prompt
            yield PlotPoint(middle_s, share, label=f"{share:.0f}% of {prompt:,} tokens around {middle_s:.0f} s")


def against_sessions(plan: SessionsPlan) -> PlotFigure:
    """TTFT against the number of sessions, with the limits on it and the knee, without a host tier and with the largest
    that was tried."""
    limits = [limit for limit in plan.limits if limit.latency == "ttft"]
    quantiles = dict.fromkeys(("p50", *(limit.quantile for limit in limits)))
    series = [
        PlotSeries(
            f"TTFT {quantile}{f', host tier {tier:,.0f}' if tier else ''}",
            tuple(_load_point(load, quantile) for load in plan.loads if load.host_tier == tier and load.ttft_ms),
            look,
            "both",
        )
        for tier, looks in zip(sorted({0.0, max(load.host_tier for load in plan.loads)}), _TIER_LOOKS, strict=False)
        for quantile, look in zip(quantiles, looks, strict=False)
    ]
    shown = tuple(one for one in series if one.points)
    lines = [PlotLimit(f"limit {limit.quantile} {limit.limit_ms:,g} ms", limit.limit_ms) for limit in limits]
    ys, notes = [*(p.y for one in shown for p in one.points), *(line.value for line in lines)], list[str]()
    if plan.sessions and plan.fails is not None:
        lines.append(PlotLimit(f"knee: {count(plan.sessions, 'session')}", plan.sessions, "x"))
        notes.append(f"Knee: {plan.cause}, {plan.why}.")
    if (advice := plan.host_tier) is not None:
        notes.append(f"Host tier: {advice.why}.")
        if advice.sessions:
            lines.append(PlotLimit(f"with host tier: {count(advice.sessions, 'session')}", advice.sessions, "x"))
    says = "Each point is one run of the twin. The knee is the most sessions at which every limit was seen to hold."
    log, x = needs_log(ys), Axis("sessions at once", from_zero=True)
    # above all points the lines across have their texts
    y = Axis("TTFT, ms", log=log, from_zero=True, high=max(ys) * (1.7 if log else 1.2))
    return PlotFigure("ttft", "TTFT by sessions", says, x, y, shown, limits=tuple(lines), notes=tuple(notes))


def _load_point(load: SessionLoad, quantile: str) -> PlotPoint:
    assert load.ttft_ms is not None
    broken = f", breaks {', '.join(load.broken)}" if load.broken else ""
    label = f"{count(load.sessions, 'session')}{broken}"
    return PlotPoint(load.sessions, load.ttft_ms.quantile(quantile), label=label)


def write_figures(path: Path, title: str, table: TextTable, drawn: Sequence[PlotFigure | FigureGroup]) -> None:
    """A page of its own, with the numbers that the verb prints below its figures."""
    parts: tuple[Part, ...] = (*drawn, table)
    write_whole(path, whole_page(title, "", [Section("sessions", "Sessions", parts)], Folders(Path(), None)))
