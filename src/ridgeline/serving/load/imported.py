"""Results of other load generators as our records and figures, each figure with the reason not to trust it, if any."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ridgeline.serving.metrics import LATENCIES
from ridgeline.serving.traffic.bench_results import BenchRun, read_bench_results
from ridgeline.serving.traffic.requests import RequestRecord, Spread, record_line, summarise

_FEW = 100
# Closed loop: requests under way = rate x time in the system. A client that stands in its own way breaks this first.
_KEPT = 0.9
_SUM = 0.05
_LUMPS = 0.1


@dataclass(frozen=True, slots=True)
class Imported:
    """One run of another tool. `doubts` maps a figure to why it should not be compared with a measured one."""

    run: BenchRun
    records: tuple[RequestRecord, ...]
    latencies_ms: Mapping[str, Mapping[str, float]]
    doubts: Mapping[str, str]

    def as_json(self) -> dict[str, object]:
        run = self.run
        return {
            "tool": run.tool,
            "source": run.source,
            "model": run.model,
            "concurrency": run.concurrency,
            "rate_s": run.rate_s,
            "duration_s": run.duration_s,
            "requests": run.requests,
            "failed_requests": run.failed,
            "requests_s": run.requests_s,
            "input_tok_s": run.input_tok_s,
            "output_tok_s": run.output_tok_s,
            **{f"{name}_ms": dict(values) for name, values in self.latencies_ms.items()},
            "records": len(self.records),
            "doubts": dict(self.doubts),
        }


def import_results(paths: Sequence[Path], out: Path | None = None) -> list[Imported]:
    """Reads the files; with `out`, every request they hold is written there as our records."""
    found = [_imported(run) for path in paths for run in read_bench_results(path)]
    if out is not None:
        with out.open("w", encoding="utf-8") as lines:
            for one in found:
                lines.writelines(map(record_line, one.records))
    return found


def _imported(run: BenchRun) -> Imported:
    records = tuple(_records(run))
    latencies = _latencies(run, records)
    return Imported(run, records, latencies, _doubts(run, latencies))


def _records(run: BenchRun) -> Iterator[RequestRecord]:
    for number, row in enumerate(run.rows):
        sent_s = row.sent_s or 0.0
        yield RequestRecord(
            number=number,
            scheduled_s=sent_s,
            sent_s=sent_s,
            first_token_s=None if row.ttft_s is None else sent_s + row.ttft_s,
            end_s=None if row.e2e_s is None else sent_s + row.e2e_s,
            input_tokens=row.input_tokens,
            output_tokens=row.output_tokens,
            status="ok" if row.ok else "failed",
            gaps_s=tuple((gap, 1) for gap in row.gaps_s),
            error=row.error,
            worker=run.tool,
        )


def _latencies(run: BenchRun, records: Sequence[RequestRecord]) -> dict[str, Mapping[str, float]]:
    """The tool's own figures; what it left out is computed from its requests where it kept them."""
    found: dict[str, Mapping[str, float]] = dict(run.latencies_ms)
    summary = summarise(records) if records else None
    for name in LATENCIES:
        spread: Spread | None = getattr(summary, f"{name}_ms") if summary else None
        if spread is not None:
            found[name] = {**spread.as_json(), **found.get(name, {})}
    return found


def _doubts(run: BenchRun, latencies: Mapping[str, Mapping[str, float]]) -> dict[str, str]:
    doubts = {figure: f"not measured: {how}" for figure, how in run.derived.items()}
    good = run.requests - run.failed
    if 0 < good < _FEW and any("p99" in values for values in latencies.values()):
        doubts["p99"] = f"{good} requests are too few for a p99"
    if run.failed:
        doubts["requests_s"] = f"{run.failed} of {run.requests} requests failed"
    doubts |= _broken_balance(run, latencies.get("e2e", {}))
    itl = latencies.get("itl", {})
    if {"p50", "mean"} <= set(itl) and itl["p50"] < _LUMPS * itl["mean"]:
        doubts["itl_ms"] = "most gaps are next to nothing: tokens came in lumps, by the server's or the client's doing"
    for figure, reason in _broken_sum(run, latencies).items():
        doubts.setdefault(figure, reason)
    return doubts


def _broken_balance(run: BenchRun, e2e: Mapping[str, float]) -> dict[str, str]:
    if not (run.concurrency and run.requests_s and "mean" in e2e) or run.requests <= 3 * run.concurrency:
        return {}
    at_once, rounds = run.requests_s * e2e["mean"] / 1e3, run.requests / run.concurrency
    # the last round of a closed loop is rarely full
    if at_once < _KEPT * run.concurrency * rounds / math.ceil(rounds):
        load = f"only {at_once:.0f} of {run.concurrency} requests were under way on average (rate x time)"
        return {"requests_s": f"{load}: the client did not keep its load up"}
    if at_once > run.concurrency / _KEPT:
        load = f"rate x time gives {at_once:.0f} requests under way where {run.concurrency} were allowed"
        return dict.fromkeys(("e2e_ms", "ttft_ms"), f"{load}: the client's own queue is in its latencies")
    return {}


def _broken_sum(run: BenchRun, latencies: Mapping[str, Mapping[str, float]]) -> dict[str, str]:
    means = {name: values.get("mean") for name, values in latencies.items()}
    ttft, itl, e2e = means.get("ttft"), means.get("itl"), means.get("e2e")
    if not (run.output_tok_s and run.requests_s) or "output_tok_s" in run.derived:
        return {}
    tokens = run.output_tok_s / run.requests_s
    if tokens <= 1 or ttft is None or itl is None or not e2e:
        return {}
    total = ttft + (tokens - 1) * itl
    if abs(total - e2e) <= _SUM * e2e:
        return {}
    return {"itl_ms": f"TTFT + {tokens - 1:.0f} gaps is {total:.4g} ms, but requests took {e2e:.4g} ms"}
