"""Which ways to serve no other beats in everything at once."""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline.planner.operating_point import Option
from ridgeline.traffic.requests import Spread

LATENCIES, ALIKE = ("ttft", "itl"), 0.03


def pareto(options: Sequence[Option]) -> set[int]:
    """Indices of options that no other beats in GPUs, goodput, TTFT, ITL and the loss with a GPU at once.

    Latencies within a few percent are the same: no prediction is surer than that.
    """

    def beats(a: Option, b: Option) -> bool:
        fewer, more = b.scheme.gpus - a.scheme.gpus, round(a.goodput_s - b.goodput_s, 3)
        safer = round(b.loss.gpu - a.loss.gpu, 3)
        if min(fewer, more, safer) < 0:
            return False
        shorter = [_p95(b, name) - _p95(a, name) for name in LATENCIES]
        same = [ALIKE * _p95(b, name) for name in LATENCIES]
        if any(gain < -limit for gain, limit in zip(shorter, same, strict=True)):
            return False
        return max(fewer, more, safer) > 0 or any(gain > limit for gain, limit in zip(shorter, same, strict=True))

    return {i for i, option in enumerate(options) if not any(beats(other, option) for other in options)}


def _p95(option: Option, latency: str) -> float:
    spread: Spread | None = getattr(option.summary, f"{latency}_ms")
    return spread.p95 if spread else 0.0
