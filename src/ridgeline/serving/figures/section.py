"""What a report shows of serving: latency and goodput against load, the engine's log, energy and cost of tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from ridgeline.records.answer import Answer
from ridgeline.records.expression import is_number
from ridgeline.records.measurement import CO2, DOLLARS, DOLLARS_PER_TOKENS, JOULES, unit_of
from ridgeline.records.run import Run
from ridgeline.records.site import costs
from ridgeline.records.study import Study
from ridgeline.records.trial import Stage, Trial
from ridgeline.report.figures.shapes import (
    BASELINE,
    WINNER,
    Axis,
    BarFigure,
    BarPart,
    BarRow,
    Figure,
    FigureGroup,
    PlotFigure,
    PlotLimit,
    PlotPoint,
    PlotSeries,
)
from ridgeline.report.figures.values import measured_unit, needs_log, settings_shown
from ridgeline.serving.figures.engine_log import logged_runs, over_time, power, step_times, time_split
from ridgeline.serving.figures.sessions import figures as session_figures
from ridgeline.serving.figures.sessions import session_runs
from ridgeline.serving.traffic.limits import terms, within_each
from ridgeline.serving.traffic.requests import stated_slos
from ridgeline.stats.wording import metric_text
from ridgeline.study.history import History

LOADS = ("rate", "rate_s", "request_rate", "concurrency")  # knobs that say how much is sent
LATENCIES = {"ttft": "time to first token", "itl": "time between tokens"}
QUANTILES = ("p50", "p95", "p99")
TOKENS = 1e6


def section(study: Study, history: History, answer: Answer) -> Iterator[Figure | FigureGroup]:
    logged = logged_runs(study, history, answer)
    group = over_time(logged)
    drawn = power(logged)
    if group is not None and drawn is not None:
        group = replace(group, figures=(*group.figures, drawn))
    for part in (
        against_load(study, history, answer),
        *session_figures(session_runs(study, history, answer)),
        group,
        step_times(logged),
        time_split(study, history, answer),
        *energy_and_cost(study, history, answer),
    ):
        if part is not None:
            yield part


def notes(study: Study, history: History, answer: Answer) -> Iterator[str]:
    """What stands with the answer itself: what share of the requests goodput counts."""
    if study.goal.metric == "goodput":
        yield from within_limits(study, history, answer)


def against_load(study: Study, history: History, answer: Answer) -> FigureGroup | None:
    """TTFT, ITL and goodput against what was sent, or where that never changed, against what was served."""
    runs = history.ok_runs(*Stage)
    metrics = {name for _, run in runs for name in run.metrics}
    knob = next((k for k in LOADS if len({t.settings.get(k) for t, _ in runs}) > 1), None)
    loaded = _LoadedRuns(runs, knob)
    figures = [
        _latency(study, loaded, short, told)
        for short, told in LATENCIES.items()
        if any(f"{short}_{q}_ms" in metrics for q in QUANTILES)
    ]
    if "goodput" in metrics:
        figures.append(_goodput(history, loaded))
    shown = tuple(figure for figure in figures if figure.series)
    if not shown:
        return None
    says = (
        "One point for each run, against what was sent."
        if knob
        else "One point for each run, against what was served: all were sent the same load, which settings served at "
        "different speeds."
    )
    said_first = study.goal.metric == "goodput"  # with the answer
    notes = () if said_first else tuple(within_limits(study, history, answer))
    return FigureGroup("load", "Latency and goodput against load", says, shown, notes=notes)


def within_limits(study: Study, history: History, answer: Answer) -> Iterator[str]:
    """What share of the requests goodput counts, setting by setting."""
    shown = [(label, [run.metrics for run in runs]) for label, runs in settings_shown(study, history, answer)]
    shares = [
        f"{fmean(each):.0%} of {label}'s"
        for label, runs in shown
        if (each := [m["goodput"] / m["requests_s"] for m in runs if m.get("requests_s") and "goodput" in m])
    ]
    if not shares:
        return
    counted = within_each(stated_slos(study.workload.options.get("slo", ())))
    yield f"Goodput counts the requests {counted}: {', '.join(shares)}."


@dataclass(frozen=True, slots=True)
class _LoadedRuns:
    """Runs against what was sent, by the knob that says so, or None: against what was served."""

    runs: Sequence[tuple[Trial, Run]]
    knob: str | None

    @property
    def axis(self) -> Axis:
        return Axis(self.knob or f"{unit_of('requests_s')} served")

    @property
    def kind(self) -> str:
        return "points" if self.knob is None else "both"

    def points(self, metric: str) -> tuple[PlotPoint, ...]:
        found = [
            (x, run.metrics[metric], trial.number)
            for trial, run in self.runs
            if metric in run.metrics and (x := self._load(trial, run)) is not None
        ]
        if self.knob is None:
            return tuple(PlotPoint(x, y, label=f"#{n}: {metric} {metric_text(y)}", trial=n) for x, y, n in found)
        loads = sorted({x for x, _, _ in found})
        return tuple(_mean_point(x, [y for at, y, _ in found if at == x], metric) for x in loads)

    def _load(self, trial: Trial, run: Run) -> float | None:
        if self.knob is None:
            return run.metrics.get("requests_s")
        sent = trial.settings.get(self.knob)
        return float(sent) if is_number(sent) else None


def _latency(study: Study, loaded: _LoadedRuns, short: str, told: str) -> PlotFigure:
    series = [
        PlotSeries(quantile, points, str(at), loaded.kind)
        for at, quantile in enumerate(QUANTILES)
        if (points := loaded.points(f"{short}_{quantile}_ms"))
    ]
    limits = [
        PlotLimit(f"limit {name.removeprefix(f'{short}_').removesuffix('_ms')} {value:g} ms", value)
        for name, value in ((limit.metric, limit.most) for limit in terms(study).limits)
        if name.startswith(f"{short}_")
    ]
    values = [p.y for s in series for p in s.points]
    knee = _knee(series, limits) if loaded.knob is not None else None
    across = [PlotLimit(f"knee at {knee:g}", knee, "x")] if knee is not None else []
    y = Axis("ms", log=needs_log([*values, *(line.value for line in limits)]))
    return PlotFigure(f"load-{short}", told, "", loaded.axis, y, tuple(series), limits=(*limits, *across), small=True)


def _goodput(history: History, loaded: _LoadedRuns) -> PlotFigure:
    points = loaded.points("goodput")
    y = Axis(measured_unit(history, "goodput"), from_zero=True)
    series = (PlotSeries("goodput", points, "0", loaded.kind),) if points else ()
    return PlotFigure("load-goodput", "goodput", "", loaded.axis, y, series, small=True)


def _mean_point(x: float, values: Sequence[float], metric: str) -> PlotPoint:
    mean = fmean(values)
    low, high = (min(values), max(values)) if len(values) > 1 else (None, None)
    return PlotPoint(x, mean, low, high, f"{metric} at {x:g}: {metric_text(mean)}")


def _knee(series: Sequence[PlotSeries], limits: Sequence[PlotLimit]) -> float | None:
    """The last load at which the limit holds; without one, where the p95 has doubled from its lowest load."""
    last = next((s for s in series if s.name == "p95"), series[-1] if series else None)
    if last is None or len(last.points) < 3:
        return None
    bound = limits[0].value if limits else 2 * last.points[0].y
    kept = [p.x for p in last.points if p.y <= bound]
    return max(kept) if kept and len(kept) < len(last.points) else None


def energy_and_cost(study: Study, history: History, answer: Answer) -> list[BarFigure]:
    """Wh and dollars for a million tokens, and what one run cost, of the baseline and the setting; what is not known is
    left out."""
    shown = settings_shown(study, history, answer)
    energy = [(label, _mean(runs, lambda r: _watt_hours(r.metrics))) for label, runs in shown]
    answered = [(label, _mean(runs, lambda r: r.metrics.get("joules_per_output_token"))) for label, runs in shown]
    tokens, answer_token, run = "per million tokens", "per token of an answer", "of one run"
    says = {
        tokens: "Mean over the runs of each setting; input and output tokens both count.",
        answer_token: "Mean over the runs of each setting, of GPUs alone; what a twin ran is modelled.",
        run: "Mean over the runs of each setting, each from its start to its end.",
    }
    if (watts := study.site.prices.node_watts) is not None:
        says[run] += f" Power is not measured but stated: {watts:g} W a node."

    def priced(metric: str) -> list[tuple[str, float | None]]:
        return [(label, _mean(runs, lambda r: _cost(study, r, metric))) for label, runs in shown]

    kinds = (
        ("energy", "Energy", tokens, "Wh", energy),
        ("answer-energy", "Energy", answer_token, "J", answered),
        ("cost", "Cost", tokens, unit_of(DOLLARS_PER_TOKENS), priced(DOLLARS_PER_TOKENS)),
        ("run-cost", "Cost", run, unit_of(DOLLARS), priced(DOLLARS)),
        ("run-energy", "Energy", run, unit_of(JOULES), priced(JOULES)),
        ("run-co2", "CO2", run, unit_of(CO2), priced(CO2)),
    )
    return [
        BarFigure(key, f"{title} {of}", says[of], Axis(f"{unit} {of}", from_zero=True), tuple(_bars(rows, unit)))
        for key, title, of, unit, rows in kinds
        if any(value is not None for _, value in rows)
    ]


def _bars(rows: Sequence[tuple[str, float | None]], unit: str) -> Iterator[BarRow]:
    for (label, value), look in zip(rows, (BASELINE, WINNER), strict=False):
        if value is not None:
            yield BarRow(label, (BarPart(unit, value),), f"{metric_text(value)} {unit}", look)


def _mean(runs: Sequence[Run], of: Callable[[Run], float | None]) -> float | None:
    values = [value for run in runs if (value := of(run)) is not None]
    return fmean(values) if values else None


def _watt_hours(metrics: Mapping[str, float]) -> float | None:
    joules = metrics.get("joules_per_token")
    return None if joules is None else joules * TOKENS / 3600.0


def _cost(study: Study, run: Run, metric: str) -> float | None:
    found = costs(run, study.site).get(metric)
    return None if found is None else found.value
