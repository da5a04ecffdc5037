"""What a server that behaves as the twin says would show on /metrics, page after page, under an engine's own names."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import accumulate

from ridgeline.serving.engines.base import engine_named
from ridgeline.serving.traffic.requests import RequestRecord

NINE_S = datetime(2026, 11, 19, 9, tzinfo=UTC).timestamp()
TIMES_S = (0.001, 0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
STEPS_S = (0.002, 0.004, 0.006, 0.0065, 0.007, 0.0075, 0.008, 0.009, 0.01, 0.011, 0.012, 0.015, 0.02, 0.05, 0.1)
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)


def histogram(name: str, values: Sequence[tuple[float, int]], edges: Sequence[float]) -> Iterator[str]:
    """`values` with how often each came."""
    counts = [0] * (len(edges) + 1)
    for value, many in values:
        counts[bisect_left(edges, value)] += many
    for edge, so_far in zip((*map(str, edges), "+Inf"), accumulate(counts), strict=True):
        yield f'{name}_bucket{{engine="0",le="{edge}",model_name="llama-8b"}} {so_far}'
    yield f'{name}_sum{{engine="0",model_name="llama-8b"}} {sum(value * many for value, many in values)}'
    yield f'{name}_count{{engine="0",model_name="llama-8b"}} {sum(many for _, many in values)}'


def page(engine: str, records: Sequence[RequestRecord], until_s: float, base: int = 0) -> str:
    """Everything until then. `base`: what the counters of tokens held before."""
    names = engine_named(engine).metrics
    begun = [r for r in records if r.first_token_s is not None and r.first_token_s <= until_s]
    ended = [r for r in begun if r.end_s is not None and r.end_s <= until_s]
    gaps: list[tuple[float, int]] = []
    for record in begun:
        at_s = record.first_token_s or 0.0
        for gap_s, many in record.gaps_s:
            seen = min(many, int((until_s - at_s) / gap_s + 1e-9) if gap_s else many)
            gaps += [(gap_s, seen)] if seen else []
            at_s += gap_s * many
            if seen < many:
                break
    lines = ["# TYPE of_one_engine gauge"]
    lines += histogram(names.ttft, [(r.ttft_s or 0.0, 1) for r in begun], TIMES_S)
    lines += histogram(names.itl, gaps, STEPS_S)
    lines += histogram(names.e2e, [(r.e2e_s or 0.0, 1) for r in ended], TIMES_S)
    if engine == "vllm":  # SGLang has these only where it is asked for them
        lines += histogram(names.prompt_lengths, [(r.input_tokens, 1) for r in ended], TOKENS)
        lines += histogram(names.output_lengths, [(r.output_tokens, 1) for r in ended], TOKENS)
    counted = {
        names.prompt_tokens: sum(r.input_tokens for r in ended),
        names.output_tokens: sum(r.output_tokens for r in ended),
        names.cached_tokens: sum(r.cached_tokens for r in ended),
        names.cache_queries: sum(r.input_tokens for r in ended),
    }
    lines += [f'{name}{{engine="0",model_name="llama-8b"}} {base + n}' for name, n in counted.items() if name]
    return "\n".join(lines)


def scraped(pages: Iterable[tuple[float, str]]) -> str:
    return "".join(f"# scraped {datetime.fromtimestamp(at_s, UTC).isoformat()}\n{text}\n" for at_s, text in pages)


def of_run(engine: str, records: Sequence[RequestRecord], every_s: float, begins_s: float = NINE_S) -> str:
    """Pages of a whole run, the first before its first request."""
    lasts_s = max(r.end_s or 0.0 for r in records)
    looks = [k * every_s for k in range(int(lasts_s / every_s) + 2)]
    return scraped((begins_s + at_s, page(engine, records, at_s)) for at_s in looks)
