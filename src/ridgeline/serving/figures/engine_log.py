"""What an engine's own log shows of a run: requests, KV and queue over time, and what a step takes at which batch."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from ridgeline.diagnose.readers.lines import TextFile
from ridgeline.errors import RidgelineError
from ridgeline.files import read_text
from ridgeline.records.answer import Answer
from ridgeline.records.measurement import unit_of
from ridgeline.records.run import Run
from ridgeline.records.study import Study
from ridgeline.report.figures.shapes import (
    Axis,
    BarFigure,
    BarPart,
    BarRow,
    FigureGroup,
    PlotFigure,
    PlotPoint,
    PlotSeries,
)
from ridgeline.report.figures.values import needs_log, settings_shown
from ridgeline.serving.engines.sglang.log import DecodeBatch, PrefillBatch, SglangLog, read_sglang_log
from ridgeline.serving.node.monitor import read_samples
from ridgeline.stats.wording import metric_text
from ridgeline.study.history import History

LOGS = ("engine.log", "sglang.log")
LARGEST_BYTES = 64 * 2**20  # of a log that is read for a figure; what is larger is for `ridgeline diagnose`
_MOST_POINTS = 240  # of a line
_FEWEST_STEPS = 4  # decode lines of a run, below which there is no course to draw


@dataclass(frozen=True, slots=True)
class EngineCourse:
    """One run whose log says how its decode steps went: those of the whole engine, whatever ranks it consists of."""

    label: str
    look: str
    steps: tuple[DecodeBatch, ...]
    run: Run


def logged_runs(study: Study, history: History, answer: Answer) -> list[EngineCourse]:
    """The latest run of the baseline and of the setting whose log still lies in its folder and can be read."""
    found = []
    for at, (label, runs) in enumerate(settings_shown(study, history, answer)):
        for run in reversed(runs):
            ranks = history.trials[run.trial].settings.get("attn_dp")
            steps, note = whole_engine(_steps(run.folder), ranks if isinstance(ranks, int) else 1)
            if len(steps) >= _FEWEST_STEPS:
                look = "baseline" if at == 0 else "winner"
                found.append(EngineCourse(f"{label} (#{run.trial}{note})", look, steps, run))
                break
    return found


def _steps(folder: Path) -> tuple[DecodeBatch, ...]:
    return tuple(step for step in _read(folder).decodes if step.stamp.time is not None)


def _read(folder: Path) -> SglangLog:
    for name in LOGS:
        path = folder / name
        try:
            if path.is_file() and path.stat().st_size <= LARGEST_BYTES:
                return read_sglang_log(TextFile(path))
        except (RidgelineError, OSError):
            continue  # gone meanwhile, or not what it was taken for: the page does without it
    return SglangLog()


def measured_prefills(folder: Path) -> list[tuple[float, int, int]]:
    """Of each since the load began: seconds, tokens of prompts, and how many of them were in the engine's caches."""
    try:
        first = int(json.loads(read_text(folder / "measured.json"))["measured_from_line"])
    except (OSError, LookupError, TypeError, ValueError):
        return []  # what was warm-up cannot be told
    measured = [each for each in _read(folder).prefills if each.stamp.line > first and each.stamp.time is not None]
    return [(_time(p) - _time(measured[0]), p.new_tokens + p.cached_tokens, p.cached_tokens) for p in measured]


def whole_engine(steps: Sequence[DecodeBatch], ranks: int) -> tuple[tuple[DecodeBatch, ...], str]:
    """Steps of all attention-DP ranks together, so that layouts can be compared, and what was assumed for that.

    Every rank has requests of its own and logs them. Where only one rank's lines are there, as of a node that logs for
    itself, the others are taken to be like it.
    """
    names = list(dict.fromkeys(_rank(step) for step in steps))
    if len(names) < 2:
        if ranks < 2 or not steps or not names[0]:
            return tuple(steps), ""
        return tuple(_together(step, [step] * ranks) for step in steps), f", {ranks} ranks taken to be like {names[0]}"
    latest: dict[str, DecodeBatch] = {}
    found = []
    for step in steps:
        latest[_rank(step)] = step
        if len(latest) == len(names) and _rank(step) == names[0]:
            found.append(_together(step, [*latest.values()]))
    return tuple(found), f", {len(names)} ranks together"


def _rank(step: DecodeBatch) -> str:
    return next((name for name in step.stamp.ranks if name.startswith("DP")), "")


def _together(step: DecodeBatch, parts: Sequence[DecodeBatch]) -> DecodeBatch:
    usage = [part.token_usage for part in parts if part.token_usage is not None]
    return replace(
        step,
        running=sum(part.running for part in parts),
        tokens=_sum([part.tokens for part in parts]),
        token_usage=sum(usage) / len(usage) if usage else None,
        gen_tok_s=_sum([part.gen_tok_s for part in parts]),
        queued=_sum([part.queued for part in parts]),
    )


_Number = TypeVar("_Number", int, float)


def _sum(values: Sequence[_Number | None]) -> _Number | None:
    known = [value for value in values if value is not None]
    return sum(known[1:], start=known[0]) if known and len(known) == len(values) else None


def over_time(logged: Sequence[EngineCourse]) -> FigureGroup | None:
    kinds: tuple[tuple[str, str, Callable[[DecodeBatch], float | None]], ...] = (
        ("running requests", "requests", lambda s: s.running),
        ("KV in use", "share of the pool", lambda s: s.token_usage),
        ("queue", "requests waiting", lambda s: s.queued),
        ("output tokens", unit_of("output_tok_s"), lambda s: s.gen_tok_s),
    )
    figures = tuple(_course(f"time-{at}", title, unit, logged, of) for at, (title, unit, of) in enumerate(kinds))
    drawn = [figure for figure in figures if figure.series]
    shown = tuple(figure for figure in drawn if any(p.y for one in figure.series for p in one.points))
    if not shown:
        return None
    flat = ", ".join(figure.title for figure in drawn if figure not in shown)
    notes = (f"Not shown, since nothing but 0 was logged: {flat}.",) if flat else ()
    says = "From the engine's own log, since its first decode step, warm-up included."
    return FigureGroup("over-time", "The engine over time", says, shown, notes=notes)


def _course(
    key: str, title: str, unit: str, logged: Sequence[EngineCourse], of: Callable[[DecodeBatch], float | None]
) -> PlotFigure:
    series = []
    for one in logged:
        known = [(_time(step), value) for step in one.steps if (value := of(step)) is not None]
        known = known[:: len(known) // _MOST_POINTS + 1]
        if known:
            points = tuple(
                PlotPoint(t - known[0][0], v, label=f"{metric_text(v)} after {t - known[0][0]:g} s") for t, v in known
            )
            series.append(PlotSeries(one.label, points, one.look, "line"))
    x, y = Axis("seconds", from_zero=True), Axis(unit, from_zero=True)
    return PlotFigure(key, title, "", x, y, tuple(series), small=True)


def _time(step: DecodeBatch | PrefillBatch) -> float:
    return step.stamp.time.timestamp() if step.stamp.time is not None else 0.0


def step_times(logged: Sequence[EngineCourse]) -> PlotFigure | None:
    """Milliseconds of one decode step by its batch; steps without a CUDA graph are series of their own."""
    series = []
    for one in logged:
        for graph, told in ((True, ""), (False, ", without CUDA graph")):
            steps = [s for s in one.steps if s.gen_tok_s and s.running and (s.cuda_graph is not False) == graph]
            steps = steps[:: len(steps) // _MOST_POINTS + 1]
            points = tuple(_step_point(s) for s in steps)
            if points:
                series.append(PlotSeries(one.label + told, points, one.look if graph else "other"))
    if not series:
        return None
    says = (
        "A decode step produces one token per running request, so it takes running requests over tokens per second. "
        "What grows with the batch is attention and KV cache; what is left at a small batch is weights, launches and "
        "communication. A point far above the others is a stretch of the log in which prompts were computed, too."
    )
    x, y = Axis("running requests in the step"), [point.y for one in series for point in one.points]
    # one slow step, such as the first beside a prefill, would press all others onto the axis
    step = Axis("ms a step", log=True) if needs_log(y) else Axis("ms a step", from_zero=True)
    return PlotFigure("steps-time", "What a decode step takes", says, x, step, tuple(series))


def _step_point(step: DecodeBatch) -> PlotPoint:
    ms = 1000.0 * step.running / (step.gen_tok_s or 1.0)
    return PlotPoint(step.running, ms, label=f"{step.running} requests: {ms:.1f} ms a step")


def time_split(study: Study, history: History, answer: Answer) -> BarFigure | None:
    rows = []
    for label, runs in settings_shown(study, history, answer):
        metrics = runs[-1].metrics
        wall, ready, measured = metrics.get("wall_s"), metrics.get("ready_s"), metrics.get("duration_s")
        if wall is None or measured is None or wall < measured:
            continue
        graphs = min(metrics.get("graph_capture_s", 0.0), ready or 0.0)
        parts = [("start of the engine", (ready or 0.0) - graphs), ("CUDA graphs", graphs), ("measured", measured)]
        parts.append(("warm-up and the rest", max(0.0, wall - (ready or 0.0) - measured)))
        rows.append(BarRow(label, tuple(BarPart(name, value) for name, value in parts if value > 0), f"{wall:.0f} s"))
    if not rows:
        return None
    says = "The wall time of one run of each setting. Only the measured part counts for the goal; the rest is overhead."
    return BarFigure("time-split", "Where a run's time goes", says, Axis("seconds", from_zero=True), tuple(rows))


def power(logged: Sequence[EngineCourse]) -> PlotFigure | None:
    series = []
    for one in logged:
        try:
            samples = read_samples(TextFile(one.run.folder / "samples.csv"))
        except (RidgelineError, OSError):
            continue
        drawn = [(s.time_s, sum(g.power_w or 0.0 for g in s.gpus)) for s in samples if s.gpus]
        if len(drawn) >= _FEWEST_STEPS:
            points = tuple(
                PlotPoint(t - drawn[0][0], w, label=f"{w:.0f} W after {t - drawn[0][0]:.0f} s") for t, w in drawn
            )
            series.append(PlotSeries(one.label, points, one.look, "line"))
    if not series:
        return None
    x, y = Axis("seconds", from_zero=True), Axis("W, all GPUs", from_zero=True)
    return PlotFigure("time-power", "GPU power while measured", "", x, y, tuple(series), small=True)
