"""One run of a search for the most load a server carries: how it is sent, and what it says about that load."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from ridgeline.serving.load.bench import BenchPlan, BenchResult, summary_of
from ridgeline.serving.load.flow import Backlog, Stretch, backlog_of, steady_part
from ridgeline.serving.traffic.requests import RequestRecord, Slo, Summary
from ridgeline.serving.traffic.traffic import ClosedLoop, OpenLoop, Replay, Traffic

# A probe lasts this many times the latency of a request: two fill the server, one is left out at the end.
LENGTHS = 6.0
# and is run again for longer when its own latency turned out to be more than this part of it
_ENOUGH = 4.0
# the later half of the steady part may be this much over a limit: it has fewer requests, but a queue shows there first
_LATER = 1.1


class ProbeVerdict(StrEnum):
    """What a probe says about its load. The last two say nothing about it."""

    HOLDS = "holds"
    TOO_MUCH = "too much"
    SATURATED = "saturated"
    FAILED = "failed"
    VOID = "void"
    TOO_SHORT = "too short"

    @property
    def judged(self) -> bool:
        return self not in (ProbeVerdict.VOID, ProbeVerdict.TOO_SHORT)


@dataclass(frozen=True, slots=True)
class Probe:
    """One run at one load. `steady` are the figures of its steady part alone, `reason` why it does not hold."""

    load: float
    verdict: ProbeVerdict
    reason: str
    steady: Summary
    span: Stretch
    window_s: float
    offered_s: float
    e2e_s: float | None
    backlog: Backlog | None
    result: BenchResult

    @property
    def holds(self) -> bool:
        return self.verdict is ProbeVerdict.HOLDS

    @property
    def judged(self) -> bool:
        return self.verdict.judged

    def as_json(self) -> dict[str, object]:
        s = self.steady
        return {
            "load": self.load,
            "verdict": str(self.verdict),
            "reason": self.reason,
            "holds": self.holds if self.judged else None,
            "saturated": self.verdict is ProbeVerdict.SATURATED,
            "window_s": self.window_s,
            "steady_s": [self.span.start_s, self.span.end_s],
            "offered_requests_s": self.offered_s,
            "requests_s": s.requests_s,
            "goodput_s": s.goodput_s,
            "output_tok_s": s.output_tok_s,
            "ttft_ms": s.ttft_ms.as_json() if s.ttft_ms else None,
            "itl_ms": s.itl_ms.as_json() if s.itl_ms else None,
            "e2e_ms": s.e2e_ms.as_json() if s.e2e_ms else None,
            "errors": dict(self.result.summary.errors),
            "void": self.result.void,
            "why": "; ".join(self.result.fidelity.why),
        }


def probe_plan(plan: BenchPlan, load: float, window_s: float, number: int) -> BenchPlan:
    """The plan sent at `load` for `window_s`. Each number draws arrival times of its own, so that a repeat is one."""
    path, pace = plan.records_path, plan.traffic.pace
    if path is not None:
        plan = replace(plan, records_path=path.with_name(f"{path.stem}-{number:02}-at-{load:g}{path.suffix}"))
    traffic = replace(plan.traffic, seed=plan.traffic.seed + number)
    if isinstance(pace, OpenLoop):
        # so many requests and not so many seconds: the draw is stretched to the rate, the window is then exact
        traffic = _of_length(replace(traffic, pace=replace(pace, rate_s=load)), math.ceil(load * window_s))
        return replace(plan, traffic=traffic, duration_s=None)
    return replace(plan, traffic=replace(traffic, pace=ClosedLoop(int(load))), duration_s=window_s)


def _of_length(traffic: Traffic, requests: int) -> Traffic:
    lengths = traffic.lengths
    if isinstance(lengths, Replay) and len(lengths.rows) < requests:
        # a trace gone through again must not find its own prompts in the server's cache
        apart = 1 + max((h for row in lengths.rows for h in row.prefix_hashes), default=0)
        again = [
            replace(row, prefix_hashes=tuple(h + k * apart for h in row.prefix_hashes))
            for k in range(math.ceil(requests / len(lengths.rows)))
            for row in lengths.rows
        ]
        lengths = replace(lengths, rows=tuple(again))
    return replace(traffic, lengths=lengths, requests=requests)


def judge_probe(load: float, window_s: float, e2e_s: float | None, result: BenchResult) -> Probe:
    """`e2e_s` is the latency the probe was laid out for, None where none was known."""
    closed = isinstance(result.plan.traffic.pace, ClosedLoop)
    span = steady_part(window_s, e2e_s)
    records, slos = result.records, result.summary.slos
    due = sorted(span.due(records), key=lambda r: r.scheduled_s)
    # rates over the part up to the end of the load: what is due at the end of the steady part ends after it
    look = Stretch(span.start_s, window_s)
    steady = summary_of(records, slos, look, due=due)
    backlog = None if closed else backlog_of(records, look)
    latency = steady.e2e_ms or result.summary.e2e_ms
    seen_s = latency.p90 / 1e3 if latency else None
    verdict, reason = _verdict(result, steady, due, backlog)
    if verdict is ProbeVerdict.HOLDS and (text := _too_short(closed, backlog, window_s, seen_s or 0.0)):
        verdict, reason = ProbeVerdict.TOO_SHORT, text
    return Probe(
        load=load,
        verdict=verdict,
        reason=reason,
        steady=steady,
        span=span,
        window_s=window_s,
        offered_s=len(look.due(records)) / look.seconds,
        e2e_s=seen_s,
        backlog=backlog,
        result=replace(result, records=()),
    )


def _verdict(
    result: BenchResult, steady: Summary, due: Sequence[RequestRecord], backlog: Backlog | None
) -> tuple[ProbeVerdict, str]:
    whole = result.summary
    if whole.ok == 0 and whole.requests:
        return ProbeVerdict.FAILED, _failures(whole)
    if result.void:
        return ProbeVerdict.VOID, result.fidelity.why[0]
    if whole.ok < whole.requests:
        return ProbeVerdict.FAILED, _failures(whole)
    if backlog is not None and backlog.grows:
        return ProbeVerdict.SATURATED, "requests came faster than they were answered"
    later = summary_of(due[len(due) // 2 :], steady.slos)
    for slo in steady.slos if due else ():
        if not steady.holds(slo):
            return ProbeVerdict.TOO_MUCH, _missed(slo, steady)
        if not later.holds(replace(slo, limit_ms=_LATER * slo.limit_ms)):
            return ProbeVerdict.TOO_MUCH, _missed(slo, later) + " in the later half"
    return ProbeVerdict.HOLDS, ""


def _too_short(closed: bool, backlog: Backlog | None, window_s: float, e2e_s: float) -> str:
    """Why a probe that seems to hold may yet not; empty if it has shown enough."""
    if window_s < _ENOUGH * e2e_s or (backlog is None and not closed):
        return f"{window_s:.3g} s are too short for requests of {e2e_s:.3g} s"
    if backlog is not None and backlog.grows is None:
        return f"in {window_s:.3g} s it did not show whether requests go on piling up"
    return ""


def _failures(summary: Summary) -> str:
    return f"requests failed ({', '.join(f'{k} x {n}' for k, n in summary.errors.items())})"


def _missed(slo: Slo, summary: Summary) -> str:
    spread = getattr(summary, f"{slo.latency}_ms")
    if spread is None:
        return f"{slo.latency} was never seen"
    return f"{slo.latency} {slo.quantile} is {spread.quantile(slo.quantile):.4g} ms"
