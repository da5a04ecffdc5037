"""The burst of requests at which first tokens take off, found in the twin."""

from __future__ import annotations

from dataclasses import replace

from ridgeline.planner.operating_point import Knee, Option
from ridgeline.planner.scheme import Scheme
from ridgeline.traffic.traffic import Fixed, Traffic

# Without a TTFT limit, TTFT has taken off when it is this many times that of a lone request.
TAKE_OFF = 5.0


def with_knee(option: Option) -> Option:
    """The same option with the burst at which its TTFT takes off, found in the twin."""
    scheme, q = option.scheme, option.scheme.question
    tokens = max(1, round(q.input_tokens)), max(1, round(q.output_tokens))
    limit_ms = _ttft_limit_ms(scheme, tokens)

    def keeps(batch: int) -> bool:
        each = max(1, -(-batch // scheme.slices))
        spread = scheme.run(Traffic(Fixed(*tokens), each)).summary.ttft_ms
        return spread is not None and spread.p95 <= limit_ms

    cap = scheme.main.cap * scheme.slices * max(1, scheme.parts[1])
    batch = max(1, scheme.slices)
    while batch < 4 * cap and keeps(2 * batch):
        batch *= 2
    low, high = batch, 2 * batch
    for _ in range(3):
        middle = (low + high) // 2
        low, high = (middle, high) if keeps(middle) else (low, middle)
    bound = "running limit" if low >= 0.8 * cap else "prefill speed"
    return replace(option, knee=Knee(low, tokens[0], bound))


def _ttft_limit_ms(scheme: Scheme, tokens: tuple[int, int]) -> float:
    limit_s = scheme.question.limit_s("ttft")
    if limit_s is not None:
        return limit_s * 1000
    alone = scheme.run(Traffic(Fixed(*tokens), 1)).summary.ttft_ms
    assert alone is not None
    return TAKE_OFF * alone.p95
