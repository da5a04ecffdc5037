"""Results of guidellm: a report of several benchmarks, each with its strategy, metrics and requests by status."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ridgeline.serving.traffic.bench.run import AVERAGED, BenchRequest, BenchRun, count, number, spread, without_empty

_LATENCIES = {
    "ttft": ("time_to_first_token_ms", 1.0),
    "itl": ("inter_token_latency_ms", 1.0),
    "tpot": ("time_per_output_token_ms", 1.0),
    "e2e": ("request_latency", 1e3),
}


def is_guidellm(document: Mapping[str, Any]) -> bool:
    benchmarks = document.get("benchmarks")
    return isinstance(benchmarks, list) and any(isinstance(b, dict) and "metrics" in b for b in benchmarks)


def guidellm_runs(document: Mapping[str, Any], source: str) -> Iterator[BenchRun]:
    for benchmark in document["benchmarks"]:
        if isinstance(benchmark, dict) and isinstance(benchmark.get("metrics"), dict):
            yield _run(benchmark, source)


def _run(benchmark: Mapping[str, Any], source: str) -> BenchRun:
    metrics = benchmark["metrics"]
    totals = _dict(metrics.get("request_totals"))
    # up to 0.3 the strategy stood under args
    settings = _dict(benchmark.get("config")) or _dict(benchmark.get("args"))
    strategy = _dict(settings.get("strategy"))
    return BenchRun(
        tool="guidellm",
        source=source,
        concurrency=count(strategy.get("streams") or strategy.get("max_concurrency")) or None,
        rate_s=number(strategy.get("rate")),
        duration_s=number(benchmark.get("duration")),
        requests=count(totals.get("successful")) + count(totals.get("errored")),
        failed=count(totals.get("errored")),
        requests_s=number(_good(metrics, "requests_per_second").get("mean")),
        input_tok_s=number(_good(metrics, "prompt_tokens_per_second").get("mean")),
        output_tok_s=number(_good(metrics, "output_tokens_per_second").get("mean")),
        latencies_ms=without_empty({name: _spread(_good(metrics, n), k) for name, (n, k) in _LATENCIES.items()}),
        derived={"itl_ms": AVERAGED},
        rows=tuple(_rows(_dict(benchmark.get("requests")))),
    )


def _rows(requests: Mapping[str, Any]) -> Iterator[BenchRequest]:
    listed = [
        (row, status == "successful") for status in ("successful", "errored") for row in _listed(requests, status)
    ]
    starts = [number(row.get("request_start_time")) for row, _ in listed]
    first_s = min((s for s in starts if s is not None), default=0.0)
    for row, ok in listed:
        start_s, ttft_ms = number(row.get("request_start_time")), number(row.get("time_to_first_token_ms"))
        yield BenchRequest(
            ok=ok,
            input_tokens=count(row.get("prompt_tokens")),
            output_tokens=count(row.get("output_tokens")),
            sent_s=None if start_s is None else start_s - first_s,
            ttft_s=None if ttft_ms is None else ttft_ms / 1e3,
            e2e_s=number(row.get("request_latency")),
            error=str(row.get("error") or "")[:300],
        )


def _listed(requests: Mapping[str, Any], status: str) -> list[dict[str, Any]]:
    rows = requests.get(status)
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _spread(summary: Mapping[str, Any], to_ms: float) -> dict[str, float]:
    quantiles = _dict(summary.get("percentiles"))
    found = spread(quantiles, {q: q for q in ("p50", "p90", "p95", "p99")}, to_ms)
    return spread(summary, {"mean": "mean"}, to_ms) | found


def _good(metrics: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return _dict(_dict(metrics.get(name)).get("successful"))


def _dict(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
