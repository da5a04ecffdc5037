"""Results of genai-bench: one JSON file per scenario and concurrency, times in the unit it names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ridgeline.serving.metrics import QUANTILES
from ridgeline.serving.traffic.bench.run import AVERAGED, BenchRequest, BenchRun, count, number, spread, without_empty

_NAMES = {name: name for name in QUANTILES}


def is_genai(document: Mapping[str, Any]) -> bool:
    return isinstance(document.get("aggregated_metrics"), dict)


def genai_run(document: Mapping[str, Any], source: str) -> BenchRun:
    whole = document["aggregated_metrics"]
    to_ms = 1.0 if document.get("_time_unit") == "ms" else 1000.0
    stats = whole.get("stats") if isinstance(whole.get("stats"), dict) else {}
    theirs = {"ttft": "ttft", "tpot": "tpot", "e2e": "e2e_latency"}
    latencies = {ours: spread(stats.get(name) or {}, _NAMES, to_ms) for ours, name in theirs.items()}
    total = count(whole.get("num_requests"))
    return BenchRun(
        tool="genai-bench",
        source=source,
        model=str(whole.get("model") or ""),
        concurrency=count(whole.get("num_concurrency")) or None,
        duration_s=number(whole.get("run_duration")),
        requests=total,
        failed=count(whole.get("num_error_requests")),
        requests_s=number(whole.get("requests_per_second")),
        input_tok_s=number(whole.get("mean_input_throughput_tokens_per_s")),
        output_tok_s=number(whole.get("mean_output_throughput_tokens_per_s")),
        latencies_ms=without_empty(latencies),
        derived={"tpot_ms": AVERAGED},
        rows=tuple(_row(r, to_ms / 1000.0) for r in _listed(document)),
    )


def _listed(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    rows = document.get("individual_request_metrics")
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _row(row: Mapping[str, Any], to_s: float) -> BenchRequest:
    ttft, e2e = number(row.get("ttft")), number(row.get("e2e_latency"))
    return BenchRequest(
        ok=row.get("error_code") is None,
        input_tokens=count(row.get("num_input_tokens")),
        output_tokens=count(row.get("num_output_tokens")),
        ttft_s=None if ttft is None else ttft * to_s,
        e2e_s=None if e2e is None else e2e * to_s,
        error=str(row.get("error_message") or "")[:300],
    )
