"""Our own results: the document of `ridgeline bench`, plain or of a sweep, and the requests kept beside it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ridgeline.diagnose.readers.lines import TextFile
from ridgeline.serving.metrics import LATENCIES, QUANTILES
from ridgeline.serving.traffic.bench.run import BenchRequest, BenchRun, count, number, spread, without_empty

_SUMMARY = ".summary.json"


def is_ridgeline(document: Mapping[str, Any]) -> bool:
    return "successful_requests" in document and isinstance(document.get("client"), dict)


def is_ridgeline_sweep(document: Mapping[str, Any]) -> bool:
    points = document.get("points")
    return isinstance(points, list) and any(isinstance(p, dict) and is_ridgeline(p) for p in points)


def sweep_runs(document: Mapping[str, Any], source: str) -> Iterator[BenchRun]:
    for number_, point in enumerate(document["points"], start=1):
        if isinstance(point, dict) and is_ridgeline(point):
            yield ridgeline_run(point, f"{source} point {number_}")


def ridgeline_run(document: Mapping[str, Any], source: str) -> BenchRun:
    load, traffic, server = (_mapping(document.get(name)) for name in ("load", "traffic", "server"))
    quantiles = {q: q for q in QUANTILES}
    latencies = {name: spread(_mapping(document.get(f"{name}_ms")), quantiles) for name in LATENCIES}
    flaw = str(document.get("why") or "the load generator did not keep up") if document.get("void") else ""
    return BenchRun(
        tool="ridgeline bench",
        source=source,
        model=str(document.get("model") or ""),
        concurrency=count(load.get("concurrency")) or None,
        rate_s=number(load.get("rate_s")),
        duration_s=number(document.get("duration_s")),
        requests=count(document.get("requests")),
        failed=count(document.get("failed_requests")),
        requests_s=number(document.get("requests_s")),
        input_tok_s=number(document.get("input_tok_s")),
        output_tok_s=number(document.get("output_tok_s")),
        latencies_ms=without_empty(latencies),
        rows=_requests(document.get("records_file"), source),
        server=server,
        burstiness=_or_one(number(load.get("burstiness"))),
        dataset=str(traffic.get("dataset") or ""),
        seed=count(traffic.get("seed")),
        shared_prefix_tokens=count(traffic.get("shared_prefix_tokens")),
        flaw=flaw,
    )


def summary_beside(path: Path) -> Path | None:
    """The document that was kept beside a file of requests; None where the file is none or stands alone."""
    beside = path.with_suffix(_SUMMARY)
    return beside if path.suffix == ".jsonl" and beside.is_file() else None


def _requests(named: object, source: str) -> tuple[BenchRequest, ...]:
    """Every request of the run, where its file is still there: as named, or beside the document."""
    if not isinstance(named, str):
        return ()
    beside = Path(source.partition(" point ")[0]).parent / Path(named).name
    for path in (beside, Path(named)):
        if path.is_file():
            return tuple(row for line in TextFile(path) if (row := _request(line)) is not None)
    return ()


def _request(line: str) -> BenchRequest | None:
    try:
        row = json.loads(line)
        sent_s, first_s, end_s = row["sent_s"], row["first_token_s"], row["end_s"]
        return BenchRequest(
            ok=row["status"] == "ok",
            input_tokens=count(row["input_tokens"]),
            output_tokens=count(row["output_tokens"]),
            sent_s=number(row["scheduled_s"]),
            ttft_s=None if first_s is None else first_s - sent_s,
            e2e_s=None if end_s is None else end_s - sent_s,
        )
    except (ValueError, KeyError, TypeError):
        return None  # a torn last line, left by a kill


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _or_one(value: float | None) -> float:
    return 1.0 if value is None else value
