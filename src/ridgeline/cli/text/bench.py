"""A bench, for a terminal."""

from __future__ import annotations

from ridgeline.cli.text.table import aligned
from ridgeline.serving.load.bench import BenchResult
from ridgeline.serving.load.goodput import Edge, Probe
from ridgeline.serving.load.sweep import Sweep, SweepPoint
from ridgeline.serving.traffic.requests import Spread, Summary


def session_text(found: BenchResult | Edge | Sweep) -> str:
    """The answer of `ridgeline bench`, whichever of its questions was asked."""
    if isinstance(found, BenchResult):
        return result_text(found)
    return edge_text(found) if isinstance(found, Edge) else sweep_text(found)


def progress_text(part: Probe | SweepPoint) -> str:
    """One line for each probe of a search and each point of a sweep."""
    if isinstance(part, Probe):
        return probe_text(part)
    return f"  {part.concurrency} at once, input {part.input_tokens}, output {part.output_tokens}: done"


def result_text(result: BenchResult) -> str:
    s, f = result.summary, result.fidelity
    lines = [
        f"{result.plan.endpoint.url}   {result.model or 'model not named'}",
        f"{s.ok} of {s.requests} requests in {s.duration_s:.1f} s",
        "",
        f"  requests/s {s.requests_s:,.2f}   output tok/s {s.output_tok_s:,.0f}   input tok/s {s.input_tok_s:,.0f}",
        "",
        *aligned([("", "mean", "p50", "p90", "p95", "p99"), *_latencies(s)]),
    ]
    if s.slos:
        lines += ["", f"  goodput {s.goodput_s or 0.0:,.2f} requests/s within " + ", ".join(map(str, s.slos))]
        lines += [f"    {slo}: {'held' if s.holds(slo) else 'not held'}" for slo in s.slos]
    for k, stage in enumerate(result.stages):
        lines += ["", f"  stage {k + 1}: {stage.requests_s:,.2f} requests/s, {stage.ok} of {stage.requests}"]
        lines += aligned(_latencies(stage))
    lines += ["", *(f"  {note}" for note in result.notes)] if result.notes else []
    lag = f"{f.lag_ms.p99:.2f} ms" if f.lag_ms else "-"
    lines += [
        "",
        f"  the load generator itself: {f.cpu_ms_per_request:.2f} CPU-ms a request, {f.cpu_share:.0%} of a core, "
        f"send lag p99 {lag}, time stamps within {f.timestamp_error_ms:.2g} ms",
    ]
    if result.void:
        lines += ["", "VOID: " + ("\n      ".join(f.why))]
    return "\n".join(lines)


def probe_text(probe: Probe) -> str:
    axis = "concurrency" if probe.result.plan.traffic.concurrency is not None else "rate"
    s = probe.result.summary
    seen = f"TTFT p95 {s.ttft_ms.p95:.1f} ms" if s.ttft_ms else "no TTFT"
    seen += f", ITL p95 {s.itl_ms.p95:.2f} ms" if s.itl_ms else ""
    verdict = "void" if probe.result.void else "holds" if probe.holds else "too much"
    return f"  {axis} {probe.load:.6g}: {s.requests_s:.2f} requests/s, {seen}: {verdict}"


def edge_text(edge: Edge) -> str:
    above = f"{edge.fails:.6g} does not" if edge.fails is not None else "no load tried was too much"
    low, middle, high = edge.goodput_s
    lines = [
        f"{edge.axis} {edge.holds:.6g} holds the SLO ({edge.held} of {edge.repeats} repeats); {above}",
        f"goodput there {middle:.2f} requests/s (repeats {low:.2f} to {high:.2f})",
    ]
    if edge.knee is not None:
        lines.append(f"knee: TTFT p50 is twice its unloaded value at {edge.axis} {edge.knee:.4g}")
    if edge.limited_by_client is not None:
        lines.append(
            f"the load generator gave out at {edge.axis} {edge.limited_by_client:.6g}: the server may carry more; "
            "use --workers or another host for the load"
        )
    return "\n".join(lines)


def sweep_text(sweep: Sweep) -> str:
    lines = aligned([_SWEEP_HEAD, *map(_sweep_row, sweep.points)])
    for knee in sweep.knees():
        if knee["concurrency"] is not None:
            lines.append(
                f"  knee at input {knee['input_tokens']}, output {knee['output_tokens']}: {knee['concurrency']} "
                f"at once ({knee['prompt_tokens_at_once']} prompt tokens): TTFT p50 twice its unloaded value"
            )
    return "\n".join(lines)


_SWEEP_HEAD = ("at once", "input", "output", "requests/s", "out tok/s", "TTFT p50", "TTFT p95", "ITL p50", "failed", "")


def _sweep_row(point: SweepPoint) -> tuple[str, ...]:
    s = point.result.summary
    return (
        str(point.concurrency),
        str(point.input_tokens),
        str(point.output_tokens),
        f"{s.requests_s:.2f}",
        f"{s.output_tok_s:.0f}",
        "-" if s.ttft_ms is None else f"{s.ttft_ms.p50:.2f}",
        "-" if s.ttft_ms is None else f"{s.ttft_ms.p95:.2f}",
        "-" if s.itl_ms is None else f"{s.itl_ms.p50:.3f}",
        str(s.requests - s.ok),
        "void" if point.result.void else "",
    )


def _latencies(s: Summary) -> list[tuple[str, ...]]:
    rows = []
    for name, spread in (("TTFT ms", s.ttft_ms), ("ITL ms", s.itl_ms), ("TPOT ms", s.tpot_ms), ("E2E ms", s.e2e_ms)):
        if spread is not None:
            rows.append((name, *_figures(spread)))
    return rows


def _figures(spread: Spread) -> tuple[str, ...]:
    return tuple(f"{v:,.2f}" for v in (spread.mean, spread.p50, spread.p90, spread.p95, spread.p99))
