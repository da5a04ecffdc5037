"""How sure each figure of a simulated run is: nine of ten measured ones should lie between its two bounds.

A calibration states how far a new setting's speed falls from its prediction. Three things vary more than that speed,
and what a figure owes to them widens it: prefill rounds without graphs, decode steps that wait for the host, and
kernels compiled while a burst is served. docs/accuracy.md counts how often measured rows fall inside.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ridgeline.serving.traffic.requests import RequestRecord, Spread, Summary
from ridgeline.serving.twin.calibration import Calibration
from ridgeline.serving.twin.evidence.reach import Validation

# Standard deviations of log(measured / predicted), beyond the calibration's own. Steps without a graph took 21 to 39 ms
# for the same work on one machine within minutes; rounds of the same groups on the same nodes differed by half.
PREFILL_SPREAD = 0.30
HOST_SPREAD = 0.25
TTFT_SPREAD = 0.26
ITL_SPREAD = 0.06
# While nothing of a site was measured: how far the speed of public rows falls from its prediction, by what they run.
# With 0.11, nine tenths of SGLang's 259 rows reached 12% beyond the bounds of TPOT, of vLLM's 379 rows 15%.
UNMEASURED_SPREAD = 0.13
# Prefill and decode apart: what a router, a transfer and two engines add.
APART_SPREAD = 0.28
APART_TTFT_SPREAD = 0.40
# Mixtures under vLLM before 0.14 took up to twice as long as their kernels, and nobody here knows why.
_OLD_EXPERTS_SPREAD = 0.30
# Users who wait for each other: a few percent more or less speed decide between a short queue and a long one. From this
# share of the mean TTFT on, its spread grows up to the second figure where waiting is all of it, and the queue may not
# be there at all: then what is left is the wait of the luckiest.
_QUEUED_FROM, _QUEUE_SPREAD = 0.7, 0.85
# First bursts of a size on groups that compile their kernels while serving waited up to this much longer.
COMPILE_WAIT_S = 6.0


_COMPARED = Validation()


@dataclass(frozen=True, slots=True)
class UncertaintySources:
    """What a run's figures rest on: the share of its time in prefill, the share waiting for the host, and a stall."""

    prefill_share: float = 0.0
    host_share: float = 0.0
    stall_s: float = 0.0
    apart: bool = False  # prefill and decode on GPUs of their own
    old_experts: bool = False  # a mixture under a release of vLLM that was slower than its kernels
    queued_share: float = 0.0  # of the mean TTFT: what the luckiest request did not wait
    sent_for_s: float = 0.0  # when the last request is sent, where that is not the server's doing
    validation: Validation = _COMPARED  # how far this is from anything whose prediction was compared


def intervals(
    summary: Summary, last_ttft_s: float | None, calibration: Calibration, doubts: UncertaintySources
) -> dict[str, tuple[float, float]]:
    """Bounds by the name of the figure. Latencies carry the percentile, as in an SLO: ttft_p95_ms. `speed` is how slow
    and how fast the real thing may be, over what is predicted."""
    apart = apart_ttft = queue = 0.0
    if calibration.points == 0:
        new = doubts.validation
        calibration = replace(
            calibration, spread=math.hypot(UNMEASURED_SPREAD, new.speed), first_token_spread=new.first_token
        )
        old = _OLD_EXPERTS_SPREAD if doubts.old_experts else 0.0
        apart, apart_ttft = (APART_SPREAD, APART_TTFT_SPREAD) if doubts.apart else (old, old)
        queue = _QUEUE_SPREAD * max(0.0, doubts.queued_share - _QUEUED_FROM) / (1.0 - _QUEUED_FROM)
    whole = math.hypot(PREFILL_SPREAD * doubts.prefill_share, HOST_SPREAD * doubts.host_share, apart)
    low, high = calibration.ratio_interval(whole)
    longest_s = summary.duration_s * high + doubts.stall_s
    shortest_s = max(summary.duration_s * low, min(doubts.sent_for_s, summary.duration_s))
    slowest = summary.duration_s / longest_s if longest_s > 0 else 1.0
    # a faster server gets no more than is sent: its speed is not bounded by that, its throughput is
    fastest = summary.duration_s / shortest_s if shortest_s > 0 else 1.0
    bounds = {"speed": (slowest, 1.0 / low), "duration_s": (shortest_s, longest_s)}
    for name, value in (("total_tok_s", summary.total_tok_s), ("output_tok_s", summary.output_tok_s)):
        bounds[name] = (value * slowest, value * fastest)
    alone = math.hypot(TTFT_SPREAD, HOST_SPREAD * doubts.host_share, apart_ttft, calibration.first_token_spread)
    ttft = calibration.ratio_interval(math.hypot(alone, queue))
    if queue:
        least = calibration.ratio_interval(alone)[0] * (1.0 - doubts.queued_share)
        ttft = min(ttft[0], least), ttft[1]
    itl = math.hypot(ITL_SPREAD, HOST_SPREAD * doubts.host_share, apart)
    bounds |= _latency("ttft", summary.ttft_ms, ttft, doubts.stall_s)
    bounds |= _latency("itl", summary.itl_ms, calibration.ratio_interval(itl), 0.0)
    bounds |= _latency("e2e", summary.e2e_ms, (low, high), doubts.stall_s)
    for quantile in ("p50", "p95", "p99"):
        if (ttft_ms := bounds.get(f"ttft_{quantile}_ms")) and (e2e_ms := bounds.get(f"e2e_{quantile}_ms")):
            # an answer ends after its first token, so it may end as late as that may come
            bounds[f"e2e_{quantile}_ms"] = e2e_ms[0], max(e2e_ms[1], ttft_ms[1])
    if last_ttft_s is not None:
        low, high = ttft
        bounds["ttft_last_ms"] = (last_ttft_s * low * 1000, (last_ttft_s * high + doubts.stall_s) * 1000)
    return bounds


def queued_share(records: Sequence[RequestRecord]) -> float:
    """How much of the mean TTFT the luckiest request did not wait."""
    waits = [t for r in records if (t := r.ttft_s) is not None]
    return 1.0 - min(waits) * len(waits) / sum(waits) if waits and sum(waits) > 0 else 0.0


def _latency(
    name: str, spread: Spread | None, ratios: tuple[float, float], stall_s: float
) -> dict[str, tuple[float, float]]:
    if spread is None:
        return {}
    points = {"p50": spread.p50, "p95": spread.p95, "p99": spread.p99}
    return {f"{name}_{q}_ms": (v * ratios[0], v * ratios[1] + stall_s * 1000) for q, v in points.items()}
