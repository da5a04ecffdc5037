"""Results of `sglang.bench_serving` and `vllm bench serve`, which share names, and of `bench_one_batch_server`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ridgeline import catalog
from ridgeline.serving.traffic.bench.run import BenchRequest, BenchRun, count, number, spread, without_empty

# vLLM calls the whole request e2el, SGLang e2e_latency
_LATENCIES = {"ttft": ("ttft",), "tpot": ("tpot",), "itl": ("itl",), "e2e": ("e2e_latency", "e2el")}
_MINUS_TTFT = "output tokens over (latency - TTFT), which leaves out time in which tokens were also made"


def is_serving(document: Mapping[str, Any]) -> bool:
    return "request_throughput" in document and "completed" in document


def is_one_batch(document: Mapping[str, Any]) -> bool:
    return "batch_size" in document and "input_len" in document and "output_throughput" in document


def serving_run(document: Mapping[str, Any], source: str) -> BenchRun:
    rows = _rows(document)
    asked = count(document.get("num_prompts")) or max(len(rows), count(document.get("completed")))
    return BenchRun(
        tool="vllm bench serve" if "model_id" in document or "tokenizer_id" in document else "sglang bench_serving",
        source=source,
        model=str(document.get("model_id") or _served_model(document)),
        concurrency=count(document.get("max_concurrency")) or None,
        rate_s=number(document.get("request_rate")),
        duration_s=number(document.get("duration")),
        requests=asked,
        failed=max(0, asked - count(document.get("completed"))),
        requests_s=number(document.get("request_throughput")),
        input_tok_s=_input_rate(document),
        output_tok_s=number(document.get("output_throughput")),
        latencies_ms=without_empty({name: _latency(document, name) for name in _LATENCIES}),
        rows=rows,
        server=_server(document),
    )


def one_batch_run(document: Mapping[str, Any], source: str) -> BenchRun:
    batch, latency_s = count(document.get("batch_size")), number(document.get("latency"))
    ttft_s = number(document.get("last_ttft"))
    if ttft_s is None:
        ttft_s = number(document.get("ttft"))
    derived = {"output_tok_s": _MINUS_TTFT}
    if ttft_s is not None:
        derived["input_tok_s"] = "input tokens over the TTFT of the last request of the batch"
    return BenchRun(
        tool="sglang bench_one_batch_server",
        source=source,
        model=str(document.get("run_name") or ""),
        concurrency=batch or None,
        duration_s=latency_s,
        requests=batch,
        requests_s=batch / latency_s if latency_s else None,
        input_tok_s=number(document.get("input_throughput")),
        output_tok_s=number(document.get("output_throughput")),
        # the time of the whole batch, and the first token of its last request: no request has a figure of its own
        latencies_ms=without_empty({"e2e": {} if latency_s is None else {"mean": latency_s * 1e3}}),
        derived=derived,
    )


def _latency(document: Mapping[str, Any], name: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for theirs in _LATENCIES[name]:
        names = {"mean": f"mean_{theirs}_ms", "p50": f"median_{theirs}_ms"}
        names |= {f"p{q}": f"p{q}_{theirs}_ms" for q in (90, 95, 99)}
        found |= spread(document, names)
    return found


def _served_model(document: Mapping[str, Any]) -> str:
    server = document.get("server_info")
    return str(server.get("served_model_name") or server.get("model_path") or "") if isinstance(server, dict) else ""


def _server(document: Mapping[str, Any]) -> dict[str, Any]:
    """bench_serving keeps the server's arguments, vLLM's names itself as the back end."""
    said = document.get("server_info")
    backend = str(document.get("backend") or document.get("endpoint_type") or "")
    engine = next((name for name in catalog.names("engines") if backend.startswith(name)), "")
    named = {"engine": engine} if engine else {}
    return {**named, **said} if isinstance(said, dict) else named


def _input_rate(document: Mapping[str, Any]) -> float | None:
    rate = number(document.get("input_throughput"))
    if rate is not None:
        return rate
    tokens, duration_s = number(document.get("total_input_tokens")), number(document.get("duration"))
    return tokens / duration_s if tokens is not None and duration_s else None


def _rows(document: Mapping[str, Any]) -> tuple[BenchRequest, ...]:
    """Per-request lists, where the tool was asked for details (--output-details, --save-detailed)."""
    ttfts = document.get("ttfts")
    if not isinstance(ttfts, list):
        return ()
    size = len(ttfts)
    inputs, outputs = _list(document, "input_lens", size), _list(document, "output_lens", size)
    gaps, errors = _list(document, "itls", size), _list(document, "errors", size)
    starts, wholes = _list(document, "start_times", size), _list(document, "latencies", size)
    first = min((s for s in map(number, starts) if s is not None), default=0.0)
    rows = []
    for k, ttft in enumerate(ttfts):
        ttft_s, start_s, whole_s = number(ttft), number(starts[k]), number(wholes[k])
        times = tuple(g for g in map(number, gaps[k] if isinstance(gaps[k], list) else ()) if g is not None)
        # both tools write a TTFT of 0 for a request that failed
        ok = not errors[k] and bool(ttft_s)
        rows.append(
            BenchRequest(
                ok=ok,
                input_tokens=count(inputs[k]),
                output_tokens=count(outputs[k]),
                sent_s=None if start_s is None else start_s - first,
                ttft_s=ttft_s if ok else None,
                # older versions do not write how long a request took; its gaps leave out what came after the last token
                e2e_s=(whole_s or ttft_s + sum(times)) if ok and ttft_s is not None else None,
                gaps_s=times,
                error=str(errors[k] or "")[:300],
            )
        )
    return tuple(rows)


def _list(document: Mapping[str, Any], name: str, size: int) -> list[Any]:
    values = document.get(name)
    return values if isinstance(values, list) and len(values) == size else [None] * size
