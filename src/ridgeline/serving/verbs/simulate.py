"""`ridgeline twin simulate`: send traffic to a simulated cluster and print what a benchmark would have printed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ridgeline.cli.text.table import json_text
from ridgeline.records import measurement
from ridgeline.serving.engines import base
from ridgeline.serving.figures import sessions as figures
from ridgeline.serving.traffic import requests as traffic_requests
from ridgeline.serving.traffic import traffic as traffic_traffic
from ridgeline.serving.twin import simulate as twin_simulate
from ridgeline.serving.verbs import options as option

if TYPE_CHECKING:
    from ridgeline.serving.traffic.requests import Spread
    from ridgeline.serving.twin.simulate import SimulationResult


_ENGINE = ("schedule_conservativeness", "page_size", "radix_cache", "eviction", "prefill_graph")
_TRAFFIC = (
    "requests", "rate_s", "concurrency", "burstiness",
    "sessions", "closed", "idle_cap_s", "start_within", "duration_s", "seed",
)  # fmt: skip


@dataclass(frozen=True)
class SimulationArguments(option.DeploymentArguments):
    """A deployment, what only the twin can be told about it, and its traffic."""

    schedule_conservativeness: Annotated[float, typer.Option(help="KV kept free for running requests.")] = 1.0
    page_size: option.PageSize = 1
    radix_cache: Annotated[bool, typer.Option(help="Reuse the KV of shared prefixes.")] = True
    eviction: option.Eviction = "lru"
    host_tier: option.HostTier = None
    prefill_graph: Annotated[
        bool | None, typer.Option(help="CUDA graphs of prefill steps; default: the engine's choice.")
    ] = None
    routing: option.Routing = "round-robin"
    traffic: option.TrafficText = "sharegpt"
    requests: Annotated[int | None, typer.Option(help="How many; default: 1000, or the whole trace.")] = None
    concurrency: option.Concurrency = None
    rate_s: option.Rate = None
    burstiness: option.Burstiness = 1.0
    sessions: option.Sessions = None
    closed: option.Closed = False
    idle_cap_s: option.IdleCap = None
    start_within: option.StartWithin = 0.0
    duration_s: option.Duration = None
    calibration: option.CalibrationFile = None
    seed: Annotated[int, typer.Option(help="The same seed gives the same answer.")] = 0
    slos: option.Slos = None

    def some(self, names: Sequence[str]) -> dict[str, Any]:
        return {name: getattr(self, name) for name in names}


@option.takes(SimulationArguments)
def simulate(
    arguments: SimulationArguments,
    out: Annotated[
        Path | None, typer.Option(help="File for one JSON line per request, as `bench --out` writes.")
    ] = None,
    html: option.Html = None,
    as_json: option.AsJson = False,
) -> None:
    """Predict throughput and latency of a layout under given traffic, without a GPU.

    Without --rate and --concurrency all requests are sent at once, or at the times of a trace.

    Example: ridgeline twin simulate --model deepseek-r1 --gpu h100 --nodes 2 --tp 16 --traffic sharegpt --requests 2000
    """
    kept = option.host_tier(arguments.host_tier)
    deployment = arguments.deployment(arguments.routing, **arguments.some(_ENGINE), **kept)
    sent = traffic_traffic.parse_traffic(arguments.traffic, **arguments.some(_TRAFFIC))
    limits = [traffic_requests.Slo.parse(text) for text in arguments.slos or ()]
    result = twin_simulate.simulate(deployment, sent, option.fitted(arguments.calibration), limits)
    if out is not None:
        traffic_requests.write_records(out, result.records)
    print(json_text(result.as_json()) if as_json else _simulation_text(str(deployment), result))
    if html is not None:
        with option.writing("--html", html):
            drawn = [*figures.figures([figures.SessionRun("", predicted=result.records)])]
            figures.write_figures(html, str(deployment), result.shown(), drawn)


def _simulation_text(title: str, result: SimulationResult) -> str:
    s = result.summary
    low, high = result.interval["total_tok_s"]
    known = "calibrated" if result.calibrated else "not calibrated"
    peak = max(used for _, used in result.kv_usage)
    lines = [
        f"{title}   (modelled, {known})",
        *(_engine(role, applied) for role, applied in result.engines.items()),
        f"  total       {s.total_tok_s:10,.0f} tok/s   90%: {low:,.0f} to {high:,.0f}",
        f"  output      {s.output_tok_s:10,.0f} tok/s   {s.requests_s:.2f} requests/s",
        *_energy(result),
        f"  duration    {s.duration_s:10,.2f} s       {s.ok} of {s.requests} requests",
        f"  {'latency, ms':<11} {'p50':>10} {'p95':>11} {'p99':>11}   p95, 90%",
        *(_latency(name, result) for name in ("ttft", "itl", "e2e")),
        *_ttft_parts(result),
        f"  KV pool     {result.memory[-1].kv_tokens:10,} tokens  {peak:.0%} used at most, "
        f"{result.retractions} sent back ({_counter_of_sent_back(result)})",
        *_sessions(result),
        f"  memory      {result.verdict}: {result.memory[-1].reason}",
    ]
    if s.goodput_s is not None:
        held = ", ".join(f"{slo} {'holds' if s.holds(slo) else 'broken'}" for slo in s.slos)
        lines.append(f"  goodput     {s.goodput_s:10.2f} requests/s   {held}")
    lines += [f"  load        {result.keeping_up}"] if result.keeping_up else []
    lines += [f"  reach       {result.reach}"] if result.reach else []
    lines += [f"  left out    {note}" for note in result.notes]
    lines += [f"  assumed     {note}" for note in result.assumed]
    lines += [f"  failed      {count:10,} requests: {kind}" for kind, count in s.errors.items()]
    return "\n".join(line for line in lines if line)


def _ttft_parts(result: SimulationResult) -> list[str]:
    """Where requests of split roles wait."""
    parts = [f"{part} {spent_ms:,.0f}" for part, spent_ms in result.ttft_parts_ms.items()]
    return [f"  mean TTFT   {' + '.join(parts)} ms"] if parts else []


def _energy(result: SimulationResult) -> list[str]:
    watts, joules = result.gpu_power_w, result.joules_per_output_token
    if watts is None or joules is None:
        return []
    drawn, each = (result.interval[name] for name in ("gpu_power_w", "joules_per_output_token"))
    unit = measurement.unit_of("joules_per_output_token")
    return [
        f"  power       {watts:10,.0f} W a GPU   90%: {drawn[0]:,.0f} to {drawn[1]:,.0f}",
        f"  energy      {joules:10,.3g} {unit} of an answer   90%: {each[0]:,.3g} to {each[1]:,.3g}",
    ]


def _counter_of_sent_back(result: SimulationResult) -> str:
    """What the engine itself calls them: SGLang retracts, vLLM preempts."""
    *_, applied = result.engines.values()
    return base.engine_named(str(applied["engine"])).metrics.retractions


def _engine(role: str, applied: Mapping[str, object]) -> str:
    """What was simulated, said or not: a reader must not have to guess the release or the dtype of the KV cache."""
    graphs = f"graphs to {applied['graph_max_bs']}" if applied["graph_max_bs"] else "no graphs"
    if applied["graph_max_bs"] and not applied["prefill_graph"]:
        graphs += ", none for prefill"
    parts = (
        f"{applied['engine']} {applied['release']}",
        f"weights {applied['weights']}, KV {applied['kv_cache']}",
        f"{applied['attention_backend']}, chunk {applied['chunk_tokens']}, {graphs}",
        f"at most {applied['max_running_requests']} running",
    )
    return f"  {'engine' if role == 'both' else role:<11} {'; '.join(parts)}"


def _sessions(result: SimulationResult) -> list[str]:
    """What was found in the caches, and what became of sessions."""
    lines, found = [], result.sessions
    if result.cache.hit_tokens or result.cache.host_hit_tokens or found is not None:
        host = f", {result.host_hit_rate:.1%} in the host's memory" if result.cache.host_hit_tokens else ""
        lines.append(f"  prompts     {result.hit_rate:10.1%} found in the GPUs' cache{host}")
    if found is None:
        return lines
    lines.append(f"  sessions    {found.completed:10,} of {found.begun:,} completed, {found.completed_s:.3g} a second")
    if found.cut_off:
        lines[-1] += f"; {found.cut_off:,} cut off by the end of the run"
    if found.session_p50_s is not None and found.session_p95_s is not None:
        lines[-1] += f"; they took p50 {found.session_p50_s:,.0f} s, p95 {found.session_p95_s:,.0f} s"
    return lines + [
        f"  {f'TTFT, turn {each.turns}':<23}{each.ttft_ms.p50:10,.1f}{each.ttft_ms.p95:12,.1f}{each.ttft_ms.p99:12,.1f}"
        for each in found.ttft_by_turn
    ]


def _latency(name: str, result: SimulationResult) -> str:
    spread: Spread | None = getattr(result.summary, f"{name}_ms")
    if spread is None:
        return ""
    low, high = result.interval[f"{name}_p95_ms"]
    points = f"{spread.p50:10,.1f} {spread.p95:11,.1f} {spread.p99:11,.1f}"
    return f"  {name.upper():<11} {points}   {low:,.1f} to {high:,.1f}"
