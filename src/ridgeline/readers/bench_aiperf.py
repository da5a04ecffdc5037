"""Results of aiperf (and of genai-perf, whose shape it keeps): profile_export_aiperf.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ridgeline.readers.bench_run import AVERAGED, BenchRun, count, number, spread, without_empty

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
        output_tok_s=_value(document, "output_token_throughput"),
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
                if name in ("concurrency", "request_rate", "model_names", "models") and name not in found:
                    found[name] = value
                pending.append(value)
        elif isinstance(node, list):
            pending += node
    names = found.get("model_names") or found.get("models")
    model = names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""
    return count(found.get("concurrency")) or None, number(found.get("request_rate")), model
