"""Sentences beside the figures of a run: what a reader should know before using them."""

from __future__ import annotations

from ridgeline.load.discover import Server
from ridgeline.load.flow import Flow
from ridgeline.load.workers.assignment import LoadResult
from ridgeline.traffic.requests import Summary


def notes_on(stream: bool, server: Server, out: LoadResult, summary: Summary, flow: Flow | None) -> tuple[str, ...]:
    notes = [server.note] if server.note else []
    good = [r for r in out.records if r.ok]
    if out.interrupted:
        notes.append(f"stopped early: {len(out.records)} requests ended, {out.unfinished} under way were dropped")
    for kind in sorted(summary.errors):
        example = next(r.error for r in out.records if r.status == kind)
        notes.append(f"{kind} x {summary.errors[kind]}: {example}" if example else f"{kind} x {summary.errors[kind]}")
    if out.paused:
        notes.append(f"{out.paused} answers carried Retry-After; their slots waited (5 s at most) before going on")
    events, tokens = sum(r.counted_tokens or 0 for r in good), sum(r.output_tokens for r in good)
    if stream and events and tokens > 1.02 * events:
        notes.append(
            f"{tokens / events:.2f} tokens came per event: itl_ms is the time between events, tpot_ms per token"
        )
    if stream and good and not events:
        notes.append("the server answered in one piece although a stream was asked for: no TTFT, no ITL")
    notes += [text] if (text := _backlog_note(summary, flow)) else []
    if out.stats.clock_steps:
        notes.append(f"the wall clock was moved {out.stats.clock_steps} times; all times are on the monotonic clock")
    if 0 < len(good) < 100:
        notes.append(f"{len(good)} requests are few for a p99; 1000 or more make it steady")
    if out.records_problem:
        notes.append(out.records_problem)
    return tuple(notes)


def _backlog_note(summary: Summary, flow: Flow | None) -> str:
    if flow is None or summary.e2e_ms is None or flow.saturated is False:
        return ""
    rates = f"{flow.offered_s:.4g} requests/s were offered and {flow.completed_s:.4g}/s completed"
    if flow.saturated:
        return f"saturated: {rates}, so the queue grew all through the run; its latencies would grow with its length"
    return (
        f"{rates} in {flow.window_s:.3g} s: too short for requests of {summary.e2e_ms.p50 / 1e3:.3g} s to show "
        f"whether the server keeps up; send for {6 * summary.e2e_ms.p90 / 1e3:.2g} s or longer"
    )
