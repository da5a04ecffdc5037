"""A simulated run as a person reads it."""

from __future__ import annotations

from collections.abc import Mapping

from ridgeline.traffic.requests import Spread
from ridgeline.twin.simulate import SimulationResult


def simulation_text(title: str, result: SimulationResult) -> str:
    s = result.summary
    low, high = result.interval["total_tok_s"]
    known = "calibrated" if result.calibrated else "not calibrated"
    peak = max(used for _, used in result.kv_usage)
    lines = [
        f"{title}   (modelled, {known})",
        *(_engine(role, applied) for role, applied in result.engines.items()),
        f"  total       {s.total_tok_s:10,.0f} tok/s   90%: {low:,.0f} to {high:,.0f}",
        f"  output      {s.output_tok_s:10,.0f} tok/s   {s.requests_s:.2f} requests/s",
        f"  duration    {s.duration_s:10,.2f} s       {s.ok} of {s.requests} requests",
        f"  {'latency, ms':<11} {'p50':>10} {'p95':>11} {'p99':>11}   p95, 90%",
        *(_latency(name, result) for name in ("ttft", "itl", "e2e")),
        f"  KV pool     {result.memory[-1].kv_tokens:10,} tokens  {peak:.0%} used at most, "
        f"{result.retractions} retracted",
        f"  memory      {result.verdict}: {result.memory[-1].reason}",
    ]
    if s.goodput_s is not None:
        held = ", ".join(f"{slo} {'holds' if s.holds(slo) else 'broken'}" for slo in s.slos)
        lines.append(f"  goodput     {s.goodput_s:10.2f} requests/s   {held}")
    lines += [f"  reach       {result.reach}"] if result.reach else []
    lines += [f"  left out    {note}" for note in result.notes]
    lines += [f"  assumed     {note}" for note in result.assumed]
    lines += [f"  failed      {count:10,} requests: {kind}" for kind, count in s.errors.items()]
    return "\n".join(line for line in lines if line)


def _engine(role: str, applied: Mapping[str, object]) -> str:
    """What was simulated, said or not: a reader must not have to guess the release or the dtype of the KV cache."""
    graphs = f"graphs to {applied['graph_max_bs']}" if applied["graph_max_bs"] else "no graphs"
    parts = (
        f"{applied['engine']} {applied['release']}",
        f"weights {applied['weights']}, KV {applied['kv_cache']}",
        f"{applied['attention_backend']}, chunk {applied['chunk_tokens']}, {graphs}",
        f"at most {applied['max_running_requests']} running",
    )
    return f"  {'engine' if role == 'both' else role:<11} {'; '.join(parts)}"


def _latency(name: str, result: SimulationResult) -> str:
    spread: Spread | None = getattr(result.summary, f"{name}_ms")
    if spread is None:
        return ""
    low, high = result.interval[f"{name}_p95_ms"]
    points = f"{spread.p50:10,.1f} {spread.p95:11,.1f} {spread.p99:11,.1f}"
    return f"  {name.upper():<11} {points}   {low:,.1f} to {high:,.1f}"
