"""Results of aiperf (and of genai-perf, whose shape it keeps): profile_export_aiperf.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ridgeline.files import read_text
from ridgeline.serving.traffic.bench.run import AVERAGED, BenchRequest, BenchRun, count, number, spread, without_empty

_NAMES = {"mean": "avg", "p50": "p50", "p90": "p90", "p95": "p95", "p99": "p99"}
_TO_MS = {"ms": 1.0, "milliseconds": 1.0, "s": 1e3, "sec": 1e3, "seconds": 1e3, "us": 1e-3, "ns": 1e-6}


def is_aiperf(document: Mapping[str, Any]) -> bool:
    return "avg" in _metric(document, "request_throughput") and "avg" in _metric(document, "request_latency")


def aiperf_run(document: Mapping[str, Any], source: str) -> BenchRun:
    good, bad = _value(document, "request_count"), _value(document, "error_request_count")
    duration_s, inputs = _value(document, "benchmark_duration"), _value(document, "total_isl")
    latencies = {
        "ttft": _latency(document, "time_to_first_token"),
        # inter_chunk_latency holds the gaps themselves, inter_token_latency one average per request
        "itl": _latency(document, "inter_chunk_latency"),
        "tpot": _latency(document, "inter_token_latency"),
        "e2e": _latency(document, "request_latency"),
    }
    concurrency, rate_s, model = _load(document.get("input_config"))
    return BenchRun(
        tool="aiperf",
        source=source,
        model=model,
        concurrency=concurrency,
        rate_s=rate_s,
        duration_s=duration_s,
        requests=count(good) + count(bad),
        failed=count(bad),
        requests_s=_value(document, "request_throughput"),
        input_tok_s=inputs / duration_s if inputs is not None and duration_s else None,
        output_tok_s=_output_rate(document, duration_s),
        latencies_ms=without_empty(latencies),
        derived={"tpot_ms": AVERAGED},
    )


def _metric(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    metric = document.get(name)
    return metric if isinstance(metric, dict) else {}


def _value(document: Mapping[str, Any], name: str) -> float | None:
    return number(_metric(document, name).get("avg"))


def _latency(document: Mapping[str, Any], name: str) -> dict[str, float]:
    metric = _metric(document, name)
    return spread(metric, _NAMES, _TO_MS.get(str(metric.get("unit", "ms")), 1.0))


def _load(config: Any) -> tuple[int | None, float | None, str]:
    """Concurrency, rate and model, wherever this version of the file keeps its configuration."""
    found: dict[str, Any] = {}
    pending = [config]
    while pending:
        node = pending.pop()
        if isinstance(node, dict):
            for name, value in node.items():
                if name in ("concurrency", "request_rate", "rate", "model_names", "models") and name not in found:
                    found[name] = value
                pending.append(value)
        elif isinstance(node, list):
            pending += node
    rate_s = number(found.get("request_rate") or found.get("rate"))
    return count(found.get("concurrency")) or None, rate_s, _model(found.get("model_names") or found.get("models"))


def _model(names: Any) -> str:
    """The first name of ["a"] or of {"items": [{"name": "a"}]}."""
    listed = names.get("items") if isinstance(names, dict) else names
    first = listed[0] if isinstance(listed, list) and listed else ""
    return str(first.get("name") or "") if isinstance(first, dict) else str(first)


def with_requests(run: BenchRun, summary: Path) -> BenchRun:
    """The run with the requests of the JSONL file beside its summary, where there is one."""
    try:
        lines = read_text(summary.with_name("profile_export.jsonl")).splitlines()
    except (OSError, UnicodeDecodeError):
        return run
    rows = []
    for line in lines:
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            continue  # a torn last line
        if (
            isinstance(entry, dict)
            and isinstance(entry.get("metrics"), dict)
            and isinstance(entry.get("metadata"), dict)
        ):
            rows.append(entry)
    starts = [number(entry["metadata"].get("request_start_ns")) for entry in rows]
    first_ns = min((s for s in starts if s is not None), default=0.0)
    return replace(run, rows=tuple(_row(e, s, first_ns) for e, s in zip(rows, starts, strict=True)))


def _row(entry: Mapping[str, Any], start_ns: float | None, first_ns: float) -> BenchRequest:
    metrics = entry["metrics"]
    ttft_ms, e2e_ms = (number(_metric(metrics, n).get("value")) for n in ("time_to_first_token", "request_latency"))
    gaps = _metric(metrics, "inter_chunk_latency").get("value")
    outputs = _metric(metrics, "usage_completion_tokens") or _metric(metrics, "output_sequence_length")
    inputs = _metric(metrics, "usage_prompt_tokens") or _metric(metrics, "input_sequence_length")
    return BenchRequest(
        ok=not entry.get("error"),
        input_tokens=count(inputs.get("value")),
        output_tokens=count(outputs.get("value")),
        sent_s=None if start_ns is None else (start_ns - first_ns) * 1e-9,
        ttft_s=None if ttft_ms is None else ttft_ms / 1e3,
        e2e_s=None if e2e_ms is None else e2e_ms / 1e3,
        gaps_s=tuple(g / 1e3 for v in gaps if (g := number(v)) is not None) if isinstance(gaps, list) else (),
        error=str(entry.get("error") or "")[:300],
    )


def _output_rate(document: Mapping[str, Any], duration_s: float | None) -> float | None:
    """By the server's count where the file has it; the tool's own count depends on the tokenizer it was given."""
    counted = _value(document, "total_usage_completion_tokens")
    return counted / duration_s if counted is not None and duration_s else _value(document, "output_token_throughput")
