"""`ridgeline plan`: the best ways to serve a model on given GPUs."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ridgeline import files
from ridgeline.cli.text.table import aligned, json_text
from ridgeline.errors import InputError, NothingFound
from ridgeline.records import measurement
from ridgeline.serving.engines import base
from ridgeline.serving.engines.releases import USUAL_ENGINE
from ridgeline.serving.hardware import cluster
from ridgeline.serving.planner import commands, planner
from ridgeline.serving.service import from_results
from ridgeline.serving.verbs import options as option

if TYPE_CHECKING:
    from ridgeline.serving.planner.commands import LintReport
    from ridgeline.serving.planner.operating_point import Option
    from ridgeline.serving.planner.planner import Choice, Plan


@dataclass(frozen=True)
class PlanArguments:
    """Every option under the name that it has in `PlanRequest`."""

    model: option.ModelName
    gpu: option.GpuName
    nodes: Annotated[int, typer.Option(help="Nodes to plan for.")] = 1
    gpus_per_node: option.GpusPerNode = 8
    fabric: option.Fabric = None
    traffic: option.TrafficText = "sharegpt"
    rate_s: Annotated[
        float | None, typer.Option("--rate", help="Requests per second; default: the highest within the limits.")
    ] = None
    concurrency: Annotated[int | None, typer.Option(help="Requests at once, instead of a rate.")] = None
    requests: Annotated[int | None, typer.Option(help="Requests in a run without rate or limits.")] = None
    slos: option.Slos = None
    engine: option.EngineName = USUAL_ENGINE
    attention_backend: option.AttentionBackend = None
    dtype: option.Dtype = None
    kv_dtype: option.KvDtype = None
    calibration: option.CalibrationFile = None
    top: Annotated[int, typer.Option(help="How many choices to show.")] = 8
    named: Annotated[
        list[str] | None,
        typer.Option("--layout", help="Try and show this one too, such as P3x3D4 or 'tp 16 dp 2'; repeatable."),
    ] = None
    goal: Annotated[
        str,
        typer.Option(help="throughput, or energy: the fewest joules for each token of an answer, within the limits."),
    ] = "throughput"
    seed: Annotated[int, typer.Option(help="Seed of the traffic.")] = 0

    def answer(self) -> Plan:
        given = {each.name: getattr(self, each.name) for each in fields(self)}
        return planner.answer_plan(**{**given, "slos": self.slos or (), "named": self.named or ()})


@option.takes(PlanArguments)
def plan(
    arguments: PlanArguments,
    out: Annotated[Path | None, typer.Option(help="Folder for the commands and study file of each choice.")] = None,
    deploy: Annotated[
        Path | None, typer.Option(help="File for the first choice as `ridgeline service` reads it.")
    ] = None,
    gpu_hour: Annotated[
        float | None,
        typer.Option(help="Price of a GPU in dollars an hour, to get dollars per million tokens.", min=0.0),
    ] = None,
    verdict: Annotated[bool, typer.Option("--verdict", help="Only say whether to split prefill from decode.")] = False,
    as_json: option.AsJson = False,
) -> None:
    """Rank layouts for a model, GPUs, traffic and limits, with commands that start them and a study that checks them.

    With --rate the fewest GPUs that keep every limit come first, else the most requests per second. --out DIR writes
    commands.txt and study.yaml for each choice.

    Exit code 1: the model does not fit, or no choice keeps every limit and up with --rate.

    Example: ridgeline plan --model deepseek-r1 --gpu h200 --nodes 2 --traffic fixed:313:194 --slo ttft_p95_ms=2000
    --slo itl_p95_ms=50
    """
    if gpu_hour is not None and not gpu_hour < math.inf:
        raise InputError(f"--gpu-hour {gpu_hour:g} is not a price; give dollars an hour, such as 2.5")
    answer, further = arguments.answer(), list[str]()
    if out is not None:
        with option.writing("--out", out):
            first = shlex.quote(str(from_results.write_plan(answer, out)))
        further.append(f"\nwritten to {out}, a folder for each choice; next: ridgeline check {first}")
    if deploy is not None:
        with option.writing("--deploy", deploy):
            files.write_whole(deploy, from_results.deployable_text(answer, deploy.name))
        check = f"ridgeline service check {shlex.quote(str(deploy))}"
        further.append(f"\n{deploy} written; next: name your model's folder and site in it, then {check}")
    if as_json:
        print(json_text(answer.verdict.as_json() if verdict else from_results.plan_json(answer)), flush=True)
    else:
        print(verdict_text(answer) if verdict else plan_text(answer, gpu_hour), *further, sep="\n", flush=True)
    best = answer.choices[0].option
    if not best.meets:
        remedy = "lower the rate" if best.overloaded else "raise a limit"
        raise NothingFound(f"no way to serve it is good enough: #1 {best.shortfall}; {remedy}, or give more GPUs")


def _question(plan: Plan) -> str:
    q = plan.question
    limits = ", ".join(map(str, q.slos)) or "no limits"
    return f"{q.model.name} on {q.cluster}   {q.input_tokens:.0f} tokens in, {q.output_tokens:.0f} out   {limits}"


def verdict_text(plan: Plan) -> str:
    verdict = plan.verdict
    lines = [_question(plan), ""]
    ways = [(name, o) for name, o in (("together", verdict.together), ("apart", verdict.apart)) if o is not None]
    rows = [("", "layout", "gpus", _measure(plan), "ttft p95", "itl p95")]
    rows += [
        (name, str(o.layout), str(o.scheme.gpus), _speed(o), _latency(o, "ttft"), _latency(o, "itl"))
        for name, o in ways
    ]
    lines += [*aligned(rows, left=(0, 1)), "  in brackets: where 9 of 10 measurements should lie", ""]
    if verdict.gain is not None and verdict.low is not None and verdict.high is not None:
        between = f"{verdict.low:.2f} to {verdict.high:.2f} in 9 of 10 cases; what both ways share cancels"
        lines.append(f"apart serves {verdict.gain:.2f} times as much for each GPU ({between})")
    lines += [f"{verdict.answer}: {verdict.because}", *_origin(plan)]
    return "\n".join(lines)


def _origin(plan: Plan) -> list[str]:
    """What was measured, and what the twin makes of it."""
    calibration = plan.question.calibration
    if not calibration.points:
        found = ["modelled, and nothing measured: step times, queues, transfers and pairing are the twin's"]
        more = "to measure: `--out DIR` writes studies of prefill alone and decode alone, for the GPUs of one engine"
        return [*found, more] if plan.halves else found
    sources = ", ".join(calibration.sources) or "rows without a name"
    return [
        f"measured: {calibration.points} step times ({sources})",
        "composed by the twin from them: other layouts and batches, queues, KV transfers, and the pairing of groups",
    ]


def _measure(plan: Plan) -> str:
    best = plan.choices[0].option
    return measurement.unit_of("total_tok_s" if best.capacity_s is None else "requests_s")


def _speed(option: Option) -> str:
    name = "total_tok_s" if option.capacity_s is None else "capacity"
    value = option.total_tok_s if option.capacity_s is None else option.capacity_s
    both = option.bounds.get(name)
    return _figure(value) if both is None else f"{_figure(value)} ({_figure(both[0])} to {_figure(both[1])})"


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _latency(option: Option, name: str) -> str:
    spread, both = getattr(option.summary, f"{name}_ms"), option.bounds.get(f"{name}_p95_ms")
    if spread is None:
        return "-"
    return f"{spread.p95:.0f} ms" if both is None else f"{spread.p95:.0f} ({both[0]:.0f} to {both[1]:.0f}) ms"


# A choice that serves less than this share of the best is not offered for its smaller loss alone.
_WORTH_LESS_RISK = 0.5


def plan_text(plan: Plan, gpu_hour: float | None = None) -> str:
    """`gpu_hour` is what an hour of one GPU costs, in dollars."""
    q = plan.question
    sure = "calibrated" if q.calibration.points else "not calibrated"
    low, high = plan.choices[0].option.speed_ratios
    lines = [
        _question(plan),
        f"modelled, {sure}: the real speed of #1 is expected at {low:.2f} to {high:.2f} times this (9 of 10 cases)",
        *(f"assumed: {note}" for note in plan.assumed),
        *([f"calibration of #1: {reach}"] if (reach := plan.choices[0].option.reach) else []),
        "",
        *_speeds(plan.choices),
        "",
        *_settings(plan.choices),
        "",
        *_costs(plan.choices, gpu_hour),
        f"  ways to serve compared by step times: {plan.considered:,}; simulated: {plan.simulated}",
        *_no_split(plan),
        *(f"  left out: {note}" for note in q.model.notes),
        "",
    ]
    best = plan.choices[0]
    if not best.option.meets:
        nearest = f"no layout keeps {'every limit' if q.slos else 'up'}; nearest is #1, which {best.option.shortfall}"
        lines += [nearest, *_way_out(plan.choices), ""]
    said = from_results.printed(best)
    lines += [*_details(best, said.lint), *_safer(plan.choices)]
    lines += ["", f"  for {commands.written_for(best.option.scheme)}:"]
    if q.model.own_code:
        lines.append(
            "  the model's files bring code of their own (auto_map): where you trust it, add --trust-remote-code"
        )
    lines += [f"  {c.what} on {c.node}:\n    {c}" for c in said.commands]
    return "\n".join(lines)


def _no_split(plan: Plan) -> list[str]:
    if (engine := base.engine_named(plan.question.settings.engine)).planned_whole:
        apart = "prefill and decode apart, attention DP and engines over several nodes"
        return [f"  {apart} are not planned for {engine.title};", "  ask about SGLang without --engine"]
    smallest, gpus = min(c.option.scheme.main.gpus for c in plan.choices), plan.question.cluster.gpus
    if any(c.option.layout.disaggregated for c in plan.choices) or 2 * smallest <= gpus:
        return []
    return [f"  prefill and decode cannot be split here: the smallest engine that fits takes {smallest} of {gpus} GPUs"]


def _safer(choices: Sequence[Choice]) -> list[str]:
    """The choice that serves most after a failure, where that is not the first: a larger unit is a larger risk."""
    best = choices[0]
    able = [c for c in choices if c.option.meets] or [best]
    after = max(able, key=lambda c: c.option.goodput_s * (1 - c.option.scheme.loss()))
    share = after.option.goodput_s / max(best.option.goodput_s, 1e-9)
    if after.option.scheme.loss() >= best.option.scheme.loss() or share < _WORTH_LESS_RISK:
        return []
    return [
        f"  safer is #{after.rank}, {after.option.layout}: {share:.0%} of this goodput, and one GPU costs "
        f"{after.option.scheme.loss():.0%} of it"
    ]


def _way_out(choices: Sequence[Choice]) -> list[str]:
    """What these GPUs do carry, where a rate was asked for that they do not."""
    able = [c for c in choices if c.option.overloaded and c.option.capacity_s]
    if not able:
        return ["  relax that limit, shorten prompts or answers, or use faster GPUs"]
    most = max(able, key=lambda c: c.option.capacity_s or 0.0)
    within = " within the limits" if most.option.summary.slos else ""
    carried = f"  these GPUs can sustain {most.option.capacity_s:.3g} requests/s{within} (#{most.rank})"
    return [f"{carried}: lower the rate, or add GPUs"]


def _speeds(choices: tuple[Choice, ...]) -> list[str]:
    """What each choice reaches, in 80 columns."""
    rows = [("#", "layout", "gpus", "goodput/s", measurement.unit_of("total_tok_s"), "ttft p95", "itl p95")]
    for choice in choices:
        o = choice.option
        ttft, itl = o.summary.ttft_ms, o.summary.itl_ms
        rows.append(
            (
                f"{choice.rank}{'*' if choice.on_front else ''}{'' if o.meets else '!'}",
                str(o.layout),
                str(o.scheme.gpus),
                f"{o.goodput_s:.2f}",
                f"{o.total_tok_s:,.0f}",
                f"{ttft.p95:.0f} ms" if ttft else "-",
                f"{itl.p95:.1f} ms" if itl else "-",
            )
        )
    legend = ["  * no other is better in all of GPUs, goodput, TTFT, ITL and what a dead GPU costs"]
    if not all(c.option.meets for c in choices):
        piled = "" if all(c.option.keeps_up for c in choices) else ", or requests pile up"
        legend.append(f"  ! a limit is broken{piled}")
    return [*aligned(rows, left=(0, 1)), *legend]


def _costs(choices: tuple[Choice, ...], gpu_hour: float | None) -> list[str]:
    """What a million tokens, in and out, take of GPUs, energy and money."""
    unit = measurement.unit_of("joules_per_output_token")
    head = ("#", "GPU-hours", "kWh at most", "W a GPU", f"{unit} of an answer", measurement.unit_of("dollars"))
    rows: list[tuple[str, ...]] = [head if gpu_hour is not None else head[:-1]]
    for choice in choices:
        o = choice.option
        hours, joules = o.gpu_hours_per_million, o.most_joules_per_token
        row = [
            str(choice.rank),
            "-" if hours is None else f"{hours:.3g}",
            "-" if joules is None else f"{joules / 3.6:.3g}",
            "-" if o.gpu_power_w is None else f"{o.gpu_power_w:.0f}",
            _energy(o),
        ]
        if gpu_hour is not None:
            row.append("-" if hours is None else f"{hours * gpu_hour:.3g}")
        rows.append(tuple(row))
    text = "  GPU-hours and kWh for a million tokens, in and out; kWh were each GPU at its limit of power"
    ask = "" if gpu_hour is not None else "; --gpu-hour 2.5 for dollars"
    return [*aligned(rows), text + ask, "  power and energy of the GPUs alone; in brackets: where 9 of 10 should lie"]


def _energy(option: Option) -> str:
    joules = option.joules_per_output_token
    if joules is None:
        return "-"
    low, high = option.interval["joules_per_output_token"]
    return f"{joules:.3g} ({low:.2g} to {high:.2g})"


def _settings(choices: tuple[Choice, ...]) -> list[str]:
    """What to set for each choice, how much is to spare, and what a failure costs."""
    rows = [("#", "cap", "chunk", "fraction", "spare", "P:D GPUs", "takes off", "GPU lost", "node lost")]
    for choice in choices:
        o, unit, first = choice.option, choice.option.scheme.main, choice.option.scheme.units[0]
        groups = o.layout.prefill, o.layout.decode
        rows.append(
            (
                str(choice.rank),
                str(unit.cap),
                f"{first.chunk_flag}{' mixed' if first.settings.mixed_chunk else ''}",
                f"{unit.memory.mem_fraction:g}",
                f"{o.margin_bytes / cluster.GIB:.1f} GiB",
                f"{groups[0].gpus}:{groups[1].gpus}" if groups[0] and groups[1] else "-",
                f"{o.knee.batch:,}" if o.knee else "-",
                f"-{o.scheme.loss():.0%}",
                f"-{o.scheme.loss(node=True):.0%}",
            )
        )
    mixed = any(c.option.scheme.units[0].settings.mixed_chunk for c in choices)
    legend = [
        *(f"  {line}" for line in base.engine_named(choices[0].option.scheme.question.settings.engine).plan_legend),
        *(["  mixed: prompts are computed in the steps that decode (--enable-mixed-chunk)"] if mixed else []),
        "  takes off: requests at once beyond which TTFT passes its limit; lost: capacity gone until repaired",
    ]
    return [*aligned(rows, left=(0,)), *legend]


def _details(choice: Choice, lint: LintReport) -> list[str]:
    o = choice.option
    lines = [f"#{choice.rank}  {o.layout}"]
    if o.knee is not None:
        lines.append(
            f"  TTFT takes off beyond {o.knee.batch:,} requests of {o.knee.input_tokens:,} tokens at once "
            f"({o.knee.bound})"
        )
    latencies = [(f"{name.upper()} p95", o.bounds.get(f"{name}_p95_ms")) for name in ("ttft", "itl")]
    if found := [f"{name} {both[0]:.0f} to {both[1]:.0f} ms" for name, both in latencies if both]:
        lines.append(f"  expected in 9 of 10 cases: {', '.join(found)}")
    lines.append(
        f"  losing one GPU costs {o.scheme.loss():.0%} of the capacity, one node {o.scheme.loss(node=True):.0%}"
    )
    checked = f"  checked: {'; '.join(lint.proofs[-2:])}"
    lines.append(checked if lint.ok else "  these commands do not reach the predicted point:")
    lines += [f"    {p}" for p in lint.problems]
    return lines
