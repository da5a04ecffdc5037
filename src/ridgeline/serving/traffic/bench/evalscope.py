"""Results of `evalscope perf`: benchmark_summary.json, with benchmark_percentile.json beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ridgeline.files import read_text
from ridgeline.serving.traffic.bench.run import BenchRun, count, number, without_empty

# Names changed between 0.x ("Average time to first token (s)") and 1.x ("Avg TTFT (ms)"); (name, factor to our unit).
_FIELDS: dict[str, tuple[tuple[str, float], ...]] = {
    "duration_s": (("Test Duration (s)", 1.0), ("Time taken for tests (s)", 1.0)),
    "concurrency": (("Concurrency", 1.0), ("Number of concurrency", 1.0)),
    "rate_s": (("Request Rate (req/s)", 1.0), ("Request rate (req/s)", 1.0)),
    "requests": (("Total Requests", 1.0), ("Total requests", 1.0)),
    "failed": (("Failed Requests", 1.0), ("Failed requests", 1.0)),
    "requests_s": (("Req Throughput (req/s)", 1.0), ("Request throughput (req/s)", 1.0)),
    "output_tok_s": (("Output Throughput (tok/s)", 1.0), ("Output token throughput (tok/s)", 1.0)),
    "total_tok_s": (("Total Throughput (tok/s)", 1.0), ("Total token throughput (tok/s)", 1.0)),
    "ttft": (("Avg TTFT (ms)", 1.0), ("Average time to first token (s)", 1e3)),
    "tpot": (("Avg TPOT (ms)", 1.0), ("Average time per output token (s)", 1e3)),
    "itl": (("Avg ITL (ms)", 1.0), ("Average inter-token latency (s)", 1e3)),
    "e2e": (("Avg Latency (s)", 1e3), ("Average latency (s)", 1e3)),
}
_COLUMNS = {
    "ttft": (("TTFT (ms)", 1.0), ("TTFT (s)", 1e3)),
    "itl": (("ITL (ms)", 1.0), ("ITL (s)", 1e3)),
    "tpot": (("TPOT (ms)", 1.0), ("TPOT (s)", 1e3)),
    "e2e": (("Latency (s)", 1e3),),
}


def is_evalscope(document: Mapping[str, Any]) -> bool:
    return _first(document, _FIELDS["requests_s"]) is not None and _first(document, _FIELDS["requests"]) is not None


def evalscope_run(document: Mapping[str, Any], source: str) -> BenchRun:
    seen = {name: _first(document, names) for name, names in _FIELDS.items()}
    total, output = seen["total_tok_s"], seen["output_tok_s"]
    means = {name: value for name in _COLUMNS if (value := seen[name]) is not None}
    rate_s = seen["rate_s"]
    return BenchRun(
        tool="evalscope perf",
        source=source,
        concurrency=count(seen["concurrency"]) or None,
        rate_s=rate_s if rate_s is not None and rate_s > 0 else None,  # -1 stands for a closed loop
        duration_s=seen["duration_s"],
        requests=count(seen["requests"]),
        failed=count(seen["failed"]),
        requests_s=seen["requests_s"],
        input_tok_s=None if total is None or output is None else total - output,
        output_tok_s=output,
        latencies_ms={name: {"mean": value} for name, value in means.items()},
    )


def with_percentiles(run: BenchRun, summary: Path) -> BenchRun:
    """The run with the percentiles of the file beside its summary, where there is one."""
    beside = summary.with_name("benchmark_percentile.json")
    try:
        rows = json.loads(read_text(beside))
    except (OSError, ValueError, RecursionError):
        return run
    latencies = {name: dict(values) for name, values in run.latencies_ms.items()}
    for row in rows if isinstance(rows, list) else []:
        quantile = f"p{str(row.get('Percentiles', '')).rstrip('%')}" if isinstance(row, dict) else ""
        if quantile in ("p50", "p90", "p95", "p99"):
            for name, names in _COLUMNS.items():
                value = _first(row, names)
                if value is not None:
                    latencies.setdefault(name, {})[quantile] = value
    return replace(run, latencies_ms=without_empty(latencies))


def _first(document: Mapping[str, Any], names: tuple[tuple[str, float], ...]) -> float | None:
    for name, factor in names:
        value = number(document.get(name))
        if value is not None:
            return value * factor
    return None
