"""Result files of load generators, in our units and words, without judging them: which tool wrote a file, and its runs.

What a tool calls our figures is a table: the field of `BenchRun`, and the places where a document may keep it. Code is
only what a table cannot say.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from ridgeline import catalog
from ridgeline.diagnose.readers.lines import TextFile
from ridgeline.errors import InputError
from ridgeline.files import read_text, read_unzipped
from ridgeline.serving.metrics import LATENCIES, QUANTILES
from ridgeline.serving.traffic.recording import clock_s
from ridgeline.serving.traffic.traffic import SessionRules

_NAMED = (
    "ridgeline bench, genai-bench, evalscope, guidellm, aiperf, inference-perf, llm-d, InferenceX, vllm bench, sglang "
    "bench_serving and bench_one_batch_server"
)
# how tools that keep no token times make up a time per token
_AVERAGED = "(latency - TTFT) / (tokens - 1) of each request: spikes inside a request are averaged away"
_RETOKENIZED = "divided by the tool's own count of tokens, {own:,.0f} where the server counted {server:,.0f}"
_MINUS_TTFT = "output tokens over (latency - TTFT), which leaves out time in which tokens were also made"

_SAME_COUNT = 0.02  # tokens by two tokenizers
_TO_MS = {"ms": 1.0, "milliseconds": 1.0, "s": 1e3, "sec": 1e3, "seconds": 1e3, "us": 1e-3, "ns": 1e-6}
_Document = Mapping[str, Any]
# Where a figure may stand is a text: names of nested objects joined by dots, places by |. The first number counts.


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """One request as the tool recorded it. What it did not record is None; `gaps_s` are times between tokens."""

    ok: bool
    input_tokens: int
    output_tokens: int
    sent_s: float | None = None
    ttft_s: float | None = None
    e2e_s: float | None = None
    gaps_s: tuple[float, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class BenchSessions:
    """How a bench drove its sessions. `closed`: they began at their recorded times. With `warmed` their first requests
    were sent before the run."""

    requests: int
    rules: SessionRules = field(default_factory=SessionRules)
    closed: bool = False
    duration_s: float | None = None
    warmed: bool = False


@dataclass(frozen=True, slots=True)
class BenchRun:
    """One run of a tool. `latencies_ms` maps ttft, itl, tpot and e2e to their mean and percentiles.

    `derived` names figures that the tool computed from others rather than measured, with the way it did. `server` is
    what the server said of itself, under its own names. `dataset` and `seed` are the recipe of the lengths, where the
    tool is ours. `flaw`: why the tool itself says that its figures must not be trusted.
    """

    tool: str
    source: str
    model: str = ""
    concurrency: int | None = None
    rate_s: float | None = None
    duration_s: float | None = None
    requests: int = 0
    failed: int = 0
    requests_s: float | None = None
    input_tok_s: float | None = None
    output_tok_s: float | None = None
    latencies_ms: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    derived: Mapping[str, str] = field(default_factory=dict)
    rows: tuple[BenchRequest, ...] = ()
    server: Mapping[str, Any] = field(default_factory=dict)
    burstiness: float = 1.0
    dataset: str = ""
    seed: int = 0
    shared_prefix_tokens: int = 0
    max_tokens: int | None = None  # that answers of the recipe were cut to
    sessions: BenchSessions | None = None  # where turns waited for answers; `concurrency` and `rate_s` count sessions
    flaw: str = ""
    at_s: float | None = None  # when it began, on the clock on the wall


def _number(value: Any) -> float | None:
    """A finite number or None; tools write NaN, -1, "inf" and text where they have none."""
    if isinstance(value, bool):
        return None
    try:
        found = float(value)
    except (TypeError, ValueError):
        return None
    return found if math.isfinite(found) else None


def _count(value: Any) -> int:
    found = _number(value)
    return int(found) if found is not None and found > 0 else 0


def _when(value: object) -> float | None:
    """2026-11-19T10:30:00+00:00, or 20261119-103000 in local time, which vLLM writes when a run is over."""
    return clock_s(re.sub(r"^(\d{8})-", r"\1T", str(value)))


def _dict(value: object) -> _Document:
    return value if isinstance(value, dict) else {}


def _dicts(value: object) -> list[dict[str, Any]]:
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def _at(document: _Document, place: str) -> Any:
    found: Any = document
    for name in place.split("."):
        found = _dict(found).get(name)
    return found


def _first(document: _Document, places: str) -> float | None:
    found = [value for place in places.split("|") if (value := _number(_at(document, place))) is not None]
    return next((value for value in found if value), found[0] if found else None)


@dataclass(frozen=True, slots=True)
class _Names:
    """What a tool calls our figures and latencies; a latency whose name ends in @s is in seconds. `spread`: where a
    percentile of a latency stands, {} for its name; `unit`: and its unit, where the file says that."""

    tool: str
    figures: Mapping[str, str]
    latencies: Mapping[str, str]
    spread: Mapping[str, str]
    derived: Mapping[str, str] = field(default_factory=dict)
    unit: str = ""

    def run(self, document: _Document, source: str, to_ms: float = 1.0) -> BenchRun:
        found: dict[str, Any] = {name: _first(document, places) for name, places in self.figures.items()}
        found |= {name: _count(found[name]) for name in ("requests", "failed") if name in found}
        found["concurrency"] = _count(found.get("concurrency")) or None
        latencies = {name: self.latency(document, places, to_ms) for name, places in self.latencies.items()}
        kept = {name: values for name, values in latencies.items() if values}
        return BenchRun(self.tool, source, **found, latencies_ms=kept, derived=self.derived)

    def latency(self, document: _Document, places: str, to_ms: float = 1.0) -> dict[str, float]:
        found: dict[str, float] = {}
        for name in places.split("|"):
            unit = str(_at(document, self.unit.format(name))).partition("/")[0]
            factor = 1e3 if name.endswith("@s") else _TO_MS.get(unit, to_ms)
            for quantile, place in self.spread.items():
                value = _number(_at(document, place.format(name.removesuffix("@s"))))
                if value is not None:
                    found.setdefault(quantile, value * factor)
        return found


@dataclass(frozen=True, slots=True)
class _Columns:
    """Where the figures of one request stand; an empty place: the tool keeps none."""

    inputs: str
    outputs: str
    ttft: str
    e2e: str
    sent: str = ""
    gaps: str = ""
    error: str = "error"

    def rows(
        self, entries: Sequence[tuple[_Document, bool]], to_s: float, e2e_to_s: float = 1.0, sent_to_s: float = 1.0
    ) -> tuple[BenchRequest, ...]:
        """`entries` with whether each was answered; times of sending count from the first."""
        starts = [_number(_at(entry, self.sent)) for entry, _ in entries]
        first = min((start for start in starts if start is not None), default=0.0)
        return tuple(
            BenchRequest(
                ok=ok,
                input_tokens=_count(_first(entry, self.inputs)),
                output_tokens=_count(_first(entry, self.outputs)),
                sent_s=None if start is None else (start - first) * sent_to_s,
                ttft_s=_times(_at(entry, self.ttft), to_s),
                e2e_s=_times(_at(entry, self.e2e), e2e_to_s),
                gaps_s=_gaps(_at(entry, self.gaps), to_s),
                error=str(_at(entry, self.error) or "")[:300],
            )
            for (entry, ok), start in zip(entries, starts, strict=True)
        )


def _times(value: Any, factor: float) -> float | None:
    found = _number(value)
    return None if found is None else found * factor


def _gaps(values: object, to_s: float = 1.0) -> tuple[float, ...]:
    return tuple(gap for v in (values if isinstance(values, list) else ()) if (gap := _times(v, to_s)) is not None)


# our own: the document of `ridgeline bench`, and the requests kept beside it

_RIDGELINE = _Names(
    "ridgeline bench",
    {"concurrency": "load.concurrency|load.sessions", "rate_s": "load.rate_s|load.sessions_s",
     "duration_s": "duration_s", "requests": "requests", "failed": "failed_requests", "requests_s": "requests_s",
     "input_tok_s": "input_tok_s", "output_tok_s": "output_tok_s"},
    {name: f"{name}_ms" for name in LATENCIES},
    {q: f"{{}}.{q}" for q in QUANTILES},
)  # fmt: skip


def _is_ridgeline(document: _Document) -> bool:
    return "successful_requests" in document and isinstance(document.get("client"), dict)


def _ridgeline_runs(document: _Document, path: Path) -> Iterator[BenchRun]:
    load, traffic = _dict(document.get("load")), _dict(document.get("traffic"))
    burstiness = _number(load.get("burstiness"))
    yield replace(
        _RIDGELINE.run(document, str(path)),
        model=str(document.get("model") or ""),
        rows=_own_requests(document.get("records_file"), path),
        server=_dict(document.get("server")),
        burstiness=1.0 if burstiness is None else burstiness,
        dataset=str(traffic.get("dataset") or ""),
        seed=_count(traffic.get("seed")),
        shared_prefix_tokens=_count(traffic.get("shared_prefix_tokens")),
        max_tokens=_count(traffic.get("max_tokens")) or None,
        sessions=_bench_sessions(load, traffic),
        flaw=str(document.get("why") or "the load generator did not keep up") if document.get("void") else "",
        at_s=_when(document.get("at")),
    )


def _bench_sessions(load: _Document, traffic: _Document) -> BenchSessions | None:
    closed = load.get("schedule") == "sessions as recorded"
    if not (closed or "sessions" in load or "sessions_s" in load):
        return None
    rules = SessionRules(_number(load.get("idle_cap_s")), _number(load.get("start_within")) or 0.0)
    requests, duration_s = _count(traffic.get("requests")), _number(load.get("duration_s"))
    return BenchSessions(requests, rules, closed, duration_s, load.get("cache_warmup") is True)


def _sweep_runs(document: _Document, path: Path) -> Iterator[BenchRun]:
    """Of `bench --sweep`, as 0.1 and 0.2 wrote it."""
    for number, point in enumerate(document["points"], start=1):
        if isinstance(point, dict) and _is_ridgeline(point):
            for run in _ridgeline_runs(point, path):
                yield replace(run, source=f"{path} point {number}")


def _own_requests(named: object, document: Path) -> tuple[BenchRequest, ...]:
    """Every request of the run, where its file is still there: as named, or beside the document."""
    if not isinstance(named, str):
        return ()
    for path in (document.parent / Path(named).name, Path(named)):
        if path.is_file():
            return tuple(row for line in TextFile(path) if (row := _own_request(line)) is not None)
    return ()


def _own_request(line: str) -> BenchRequest | None:
    try:
        row = json.loads(line)
        sent_s, first_s, end_s = row["sent_s"], row["first_token_s"], row["end_s"]
        return BenchRequest(
            ok=row["status"] == "ok",
            input_tokens=_count(row["input_tokens"]),
            output_tokens=_count(row["output_tokens"]),
            sent_s=_number(row["scheduled_s"]),
            ttft_s=None if first_s is None else first_s - sent_s,
            e2e_s=None if end_s is None else end_s - sent_s,
        )
    except (ValueError, KeyError, TypeError):
        return None  # a torn last line, left by a kill


# `sglang.bench_serving` and `vllm bench serve`, which share names, and `bench_one_batch_server`

_SERVING = _Names(
    "sglang bench_serving",
    {"concurrency": "max_concurrency", "rate_s": "request_rate", "duration_s": "duration",
     "requests_s": "request_throughput", "input_tok_s": "input_throughput", "output_tok_s": "output_throughput"},
    # vLLM calls the whole request e2el, SGLang e2e_latency
    {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e": "e2el|e2e_latency"},
    {"mean": "mean_{}_ms", "p50": "median_{}_ms", "p90": "p90_{}_ms", "p95": "p95_{}_ms", "p99": "p99_{}_ms"},
)  # fmt: skip
_SERVING_ROWS = _Columns("input_lens", "output_lens", "ttfts", "latencies", "start_times", "itls", "errors")
_ONE_BATCH = _Names(
    "sglang bench_one_batch_server",
    {"concurrency": "batch_size", "requests": "batch_size", "duration_s": "latency",
     "input_tok_s": "input_throughput", "output_tok_s": "output_throughput"},
    # the time of the whole batch, and the first token of its last request: no request has a figure of its own
    {"e2e": "latency@s"},
    {"mean": "{}"},
)  # fmt: skip


def _serving_runs(document: _Document, path: Path) -> Iterator[BenchRun]:
    run, rows, said = _SERVING.run(document, str(path)), _serving_rows(document), document.get("server_info")
    asked = _count(document.get("num_prompts")) or max(len(rows), _count(document.get("completed")))
    tokens = _number(document.get("total_input_tokens"))
    if run.input_tok_s is None and tokens is not None and run.duration_s:
        run = replace(run, input_tok_s=tokens / run.duration_s)
    served = _dict(said).get("served_model_name") or _dict(said).get("model_path") or ""
    vllm = "model_id" in document or "tokenizer_id" in document
    # bench_serving keeps the server's arguments, vLLM's names itself as the back end
    backend = str(document.get("backend") or document.get("endpoint_type") or "")
    engine = next((name for name in catalog.names("engines") if backend.startswith(name)), "")
    yield replace(
        run,
        tool="vllm bench serve" if vllm else run.tool,
        model=str(document.get("model_id") or served),
        requests=asked,
        failed=max(0, asked - _count(document.get("completed"))),
        rows=rows,
        server={**({"engine": engine} if engine else {}), **_dict(said)},
        at_s=_when(document.get("date")),
    )


def _serving_rows(document: _Document) -> tuple[BenchRequest, ...]:
    """Per-request lists, where the tool was asked for details (--output-details, --save-detailed)."""
    ttfts = document.get("ttfts")
    if not isinstance(ttfts, list):
        return ()
    lists = {}
    for name in ("ttfts", "input_lens", "output_lens", "itls", "errors", "start_times", "latencies"):
        values = document.get(name)
        lists[name] = values if isinstance(values, list) and len(values) == len(ttfts) else [None] * len(ttfts)
    entries = [{name: values[k] for name, values in lists.items()} for k in range(len(ttfts))]
    # both tools write a TTFT of 0 for a request that failed
    rows = _SERVING_ROWS.rows([(e, not e["errors"] and bool(_number(e["ttfts"]))) for e in entries], 1.0)
    # older versions do not write how long a request took; its gaps leave out what came after the last token
    whole_s = [row.e2e_s or (row.ttft_s or 0.0) + sum(row.gaps_s) for row in rows]
    return tuple(
        replace(row, e2e_s=e2e_s) if row.ok else replace(row, ttft_s=None, e2e_s=None)
        for row, e2e_s in zip(rows, whole_s, strict=True)
    )


def _one_batch_runs(document: _Document, path: Path) -> Iterator[BenchRun]:
    run, derived = _ONE_BATCH.run(document, str(path)), {"output_tok_s": _MINUS_TTFT}
    if any(_number(document.get(name)) is not None for name in ("last_ttft", "ttft")):
        derived["input_tok_s"] = "input tokens over the TTFT of the last request of the batch"
    rate_s = run.requests / run.duration_s if run.duration_s else None
    yield replace(run, model=str(document.get("run_name") or ""), requests_s=rate_s, derived=derived)


# aiperf (and genai-perf, whose shape it keeps): profile_export_aiperf.json, with profile_export.jsonl beside it

_AIPERF = _Names(
    "aiperf",
    {"requests": "request_count.avg", "failed": "error_request_count.avg", "duration_s": "benchmark_duration.avg",
     "requests_s": "request_throughput.avg", "output_tok_s": "output_token_throughput.avg"},
    # inter_chunk_latency holds the gaps themselves, inter_token_latency one average per request
    {"ttft": "time_to_first_token", "itl": "inter_chunk_latency", "tpot": "inter_token_latency",
     "e2e": "request_latency"},
    {"mean": "{}.avg", "p50": "{}.p50", "p90": "{}.p90", "p95": "{}.p95", "p99": "{}.p99"},
    {"tpot_ms": _AVERAGED},
    "{}.unit",
)  # fmt: skip
_AIPERF_ROWS = _Columns(
    "metrics.usage_prompt_tokens.value|metrics.input_sequence_length.value",
    "metrics.usage_completion_tokens.value|metrics.output_sequence_length.value",
    "metrics.time_to_first_token.value",
    "metrics.request_latency.value",
    "metadata.request_start_ns",
    "metrics.inter_chunk_latency.value",
)


def _aiperf_runs(document: _Document, path: Path) -> Iterator[BenchRun]:
    run = _AIPERF.run(document, str(path))
    # by the server's count where the file has it; the tool's own depends on the tokenizer it was given
    inputs = _first(document, "total_usage_prompt_tokens.avg|total_isl.avg")
    counted, own = _first(document, "total_usage_completion_tokens.avg"), _first(document, "total_osl.avg")
    said = _configured(document.get("input_config"))
    yield replace(
        run,
        model=_first_name(said.get("model_names") or said.get("models")),
        concurrency=_count(said.get("concurrency")) or None,
        rate_s=_number(said.get("request_rate") or said.get("rate")),
        requests=run.requests + run.failed,
        input_tok_s=inputs / run.duration_s if inputs is not None and run.duration_s else None,
        output_tok_s=counted / run.duration_s if counted is not None and run.duration_s else run.output_tok_s,
        derived={**run.derived, **_miscounted(own, counted, "tpot_ms")},
        rows=_aiperf_requests(path.with_name("profile_export.jsonl")),
    )


def _miscounted(own: float | None, server: float | None, *figures: str) -> dict[str, str]:
    """The figures that a tool divided by tokens, where its tokenizer counts them differently from the server."""
    if own is None or not server or abs(own - server) <= _SAME_COUNT * server:
        return {}
    return dict.fromkeys(figures, _RETOKENIZED.format(own=own, server=server))


def _configured(config: Any) -> dict[str, Any]:
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
    return found


def _first_name(names: Any) -> str:
    """The first name of ["a"] or of {"items": [{"name": "a"}]}."""
    listed = names.get("items") if isinstance(names, dict) else names
    first = listed[0] if isinstance(listed, list) and listed else ""
    return str(first.get("name") or "") if isinstance(first, dict) else str(first)


def _aiperf_requests(path: Path) -> tuple[BenchRequest, ...]:
    """The requests of the file beside a summary, where there is one."""
    try:
        lines = read_text(path).splitlines()
    except (OSError, UnicodeDecodeError):
        return ()
    found = (entry for line in lines if isinstance(entry := _parsed(line), dict))
    entries = [e for e in found if isinstance(e.get("metrics"), dict) and isinstance(e.get("metadata"), dict)]
    return _AIPERF_ROWS.rows([(e, not e.get("error")) for e in entries], 1e-3, 1e-3, 1e-9)


# genai-bench: one file per scenario and concurrency, times in the unit it names

_GENAI = _Names(
    "genai-bench",
    {"concurrency": "num_concurrency", "duration_s": "run_duration", "requests": "num_requests",
     "failed": "num_error_requests", "requests_s": "requests_per_second",
     "input_tok_s": "mean_input_throughput_tokens_per_s", "output_tok_s": "mean_output_throughput_tokens_per_s"},
    {"ttft": "ttft", "tpot": "tpot", "e2e": "e2e_latency"},
    {q: f"stats.{{}}.{q}" for q in QUANTILES},
    {"tpot_ms": _AVERAGED},
)  # fmt: skip
_GENAI_ROWS = _Columns("num_input_tokens", "num_output_tokens", "ttft", "e2e_latency", error="error_message")


def _genai_runs(document: _Document, path: Path) -> Iterator[BenchRun]:
    to_ms = 1.0 if document.get("_time_unit") == "ms" else 1000.0
    entries = [(row, row.get("error_code") is None) for row in _dicts(document.get("individual_request_metrics"))]
    yield replace(
        _GENAI.run(document["aggregated_metrics"], str(path), to_ms),
        model=str(document["aggregated_metrics"].get("model") or ""),
        rows=_GENAI_ROWS.rows(entries, to_ms / 1000.0, to_ms / 1000.0),
    )


# guidellm: a report of several benchmarks, each with its strategy, metrics and requests by status

_GUIDELLM = _Names(
    "guidellm",
    # up to 0.3 the strategy stood under args
    {"concurrency": "|".join(f"{where}.strategy.{name}" for where in ("config", "args")
                             for name in ("streams", "max_concurrency")),
     "rate_s": "config.strategy.rate|args.strategy.rate", "duration_s": "duration",
     "requests": "metrics.request_totals.successful", "failed": "metrics.request_totals.errored",
     "requests_s": "metrics.requests_per_second.successful.mean",
     "input_tok_s": "metrics.prompt_tokens_per_second.successful.mean",
     "output_tok_s": "metrics.output_tokens_per_second.successful.mean"},
    {"ttft": "time_to_first_token_ms", "itl": "inter_token_latency_ms", "tpot": "time_per_output_token_ms",
     "e2e": "request_latency@s"},
    {"mean": "metrics.{}.successful.mean"}
    | {q: f"metrics.{{}}.successful.percentiles.{q}" for q in ("p50", "p90", "p95", "p99")},
    {"itl_ms": _AVERAGED},
)  # fmt: skip
_GUIDELLM_ROWS = _Columns(
    "prompt_tokens", "output_tokens", "time_to_first_token_ms", "request_latency", "request_start_time"
)


def _guidellm_runs(document: _Document, path: Path) -> Iterator[BenchRun]:
    for benchmark in _dicts(document["benchmarks"]):
        if isinstance(benchmark.get("metrics"), dict):
            run, requests = _GUIDELLM.run(benchmark, str(path)), _dict(benchmark.get("requests"))
            statuses = ("successful", "errored")
            entries = [(row, s == "successful") for s in statuses for row in _dicts(requests.get(s))]
            yield replace(run, requests=run.requests + run.failed, rows=_GUIDELLM_ROWS.rows(entries, 1e-3))


# evalscope perf: benchmark_summary.json, with benchmark_percentile.json beside it. Names changed between 0.x
# ("Average time to first token (s)") and 1.x ("Avg TTFT (ms)").

_EVALSCOPE = _Names(
    "evalscope perf",
    {"duration_s": "Test Duration (s)|Time taken for tests (s)", "concurrency": "Concurrency|Number of concurrency",
     "rate_s": "Request Rate (req/s)|Request rate (req/s)", "requests": "Total Requests|Total requests",
     "failed": "Failed Requests|Failed requests", "requests_s": "Req Throughput (req/s)|Request throughput (req/s)",
     "output_tok_s": "Output Throughput (tok/s)|Output token throughput (tok/s)"},
    {"ttft": "Avg TTFT (ms)|Average time to first token (s)@s", "itl": "Avg ITL (ms)|Average inter-token latency (s)@s",
     "tpot": "Avg TPOT (ms)|Average time per output token (s)@s", "e2e": "Avg Latency (s)@s|Average latency (s)@s"},
    {"mean": "{}"},
)  # fmt: skip
_PERCENTILES = {"ttft": "TTFT (ms)|TTFT (s)@s", "itl": "ITL (ms)|ITL (s)@s", "tpot": "TPOT (ms)|TPOT (s)@s",
                "e2e": "Latency (s)@s"}  # fmt: skip


def _evalscope_runs(document: _Document, path: Path) -> Iterator[BenchRun]:
    run = _EVALSCOPE.run(document, str(path))
    total = _first(document, "Total Throughput (tok/s)|Total token throughput (tok/s)")
    latencies: dict[str, dict[str, float]] = {name: dict(values) for name, values in run.latencies_ms.items()}
    for row in _dicts(_read_json(path.with_name("benchmark_percentile.json"))):
        quantile = f"p{str(row.get('Percentiles', '')).rstrip('%')}"
        for name, places in _PERCENTILES.items() if quantile in QUANTILES else ():
            for value in _EVALSCOPE.latency(row, places).values():
                latencies.setdefault(name, {})[quantile] = value
    yield replace(
        run,
        rate_s=run.rate_s if run.rate_s is not None and run.rate_s > 0 else None,  # -1 stands for a closed loop
        input_tok_s=None if total is None or run.output_tok_s is None else total - run.output_tok_s,
        latencies_ms=latencies,
    )


# inference-perf: stage_N_lifecycle_metrics.json (or the summary of all stages), with every request beside it

_INFERENCE_PERF = _Names(
    "inference-perf",
    {"requests": "load_summary.count", "failed": "failures.count", "duration_s": "benchmark_time_seconds",
     "rate_s": "load_summary.requested_rate", "concurrency": "load_summary.concurrency",
     "requests_s": "successes.throughput.requests_per_sec", "input_tok_s": "successes.throughput.input_tokens_per_sec",
     "output_tok_s": "successes.throughput.output_tokens_per_sec"},
    {"ttft": "time_to_first_token@s", "itl": "inter_token_latency@s", "tpot": "time_per_output_token@s",
     "e2e": "request_latency@s"},
    {q: f"successes.latency.{{}}.{'median' if q == 'p50' else q}" for q in QUANTILES},
    {"tpot_ms": _AVERAGED},
)  # fmt: skip
_STAGES, _ALL_STAGES = "stage_*_lifecycle_metrics.json", "summary_lifecycle_metrics.json"


def _inference_perf_runs(document: _Document, path: Path) -> Iterator[BenchRun]:
    run = _INFERENCE_PERF.run(document, str(path))
    own, counted = (_first(document, f"successes.{name}") for name in ("output_len.mean", "output_tokens.mean"))
    wrong = _miscounted(own, counted, "tpot_ms", "itl_ms")
    if wrong and own and counted and run.output_tok_s:
        run = replace(run, output_tok_s=run.output_tok_s * counted / own)
    entries = _dicts(_read_json(path.with_name("per_request_lifecycle_metrics.json")))
    if len(entries) != run.requests:  # of several stages, and requests do not say of which
        yield replace(run, derived={**run.derived, **wrong})
        return
    first = min((start for entry in entries if (start := _number(entry.get("start_time"))) is not None), default=0.0)
    rows = tuple(_inference_perf_row(entry, first) for entry in entries)
    if wrong and any(row.gaps_s for row in rows):  # the gaps themselves are there
        del wrong["itl_ms"]
        run = replace(run, latencies_ms={name: values for name, values in run.latencies_ms.items() if name != "itl"})
    yield replace(run, derived={**run.derived, **wrong}, rows=rows)


def _inference_perf_row(entry: _Document, first: float) -> BenchRequest:
    answer, start = _dict(_at(entry, "info.response_metrics")), _number(entry.get("start_time"))
    times = _gaps(answer.get("chunk_times") or answer.get("output_token_times"))
    end = _number(entry.get("end_time"))
    return BenchRequest(
        ok=not entry.get("error"),
        input_tokens=_count(_first(entry, "info.request_metrics.text.input_tokens|info.input_tokens")),
        output_tokens=_count(_first(answer, "server_usage.completion_tokens|output_tokens")),
        sent_s=None if start is None else start - first,
        ttft_s=times[0] - start if times and start is not None else None,
        e2e_s=end - start if end is not None and start is not None else None,
        gaps_s=tuple(after - before for before, after in itertools.pairwise(times)),
        error=str(_at(entry, "error.error_msg") or entry.get("error") or "")[:300],
    )


# the benchmark report of llm-d, in YAML: versions 0.2 (results:) and 0.1 (metrics:)

_LLM_D = _Names(
    "llm-d benchmark report",
    {"requests": "requests.total", "failed": "requests.failures",
     "requests_s": "throughput.request_rate.mean|throughput.requests_per_sec",
     "input_tok_s": "throughput.input_token_rate.mean|throughput.input_tokens_per_sec",
     "output_tok_s": "throughput.output_token_rate.mean|throughput.output_tokens_per_sec"},
    {"ttft": "time_to_first_token", "itl": "inter_token_latency", "tpot": "time_per_output_token",
     "e2e": "request_latency"},
    {q: f"latency.{{}}.{q}" for q in QUANTILES},
    {"tpot_ms": _AVERAGED},
    "latency.{}.units",
)  # fmt: skip


def _llm_d_figures(document: _Document) -> _Document:
    return _dict(_at(document, "results.request_performance.aggregate")) or _dict(document.get("metrics"))


def _llm_d_runs(document: _Document, path: Path) -> Iterator[BenchRun]:
    figures, load = _llm_d_figures(document), _dict(_at(document, "scenario.load.standardized"))
    run = _LLM_D.run(figures, str(path), 1e3)
    stack = _dicts(_at(document, "scenario.stack"))
    named = [name for part in stack if (name := _at(part, "standardized.model.name"))]
    tool = str(load.get("tool") or _at(document, "scenario.load.name") or "")
    yield replace(
        run,
        tool=f"{run.tool} of {tool}" if tool else run.tool,
        model=str(named[0] if named else _at(document, "scenario.model.name") or ""),
        concurrency=_count(load.get("concurrency")) or None,
        rate_s=_number(load.get("rate_qps")),
        duration_s=_number(_at(figures, "time.duration")) or _iso_seconds(_at(document, "run.time.duration")),
    )


def _iso_seconds(text: Any) -> float | None:
    """PT1M40.5S, a duration as ISO 8601 writes it."""
    found = re.fullmatch(r"PT(?:(\d+)H)?(?:(\d+)M)?(?:([\d.]+)S)?", str(text))
    return sum(float(n or 0) * unit for n, unit in zip(found.groups(), (3600, 60, 1), strict=True)) if found else None


# InferenceX (InferenceMAX before): one object a run with figures per GPU and seconds, often a list of them

_INFERENCE_X = _Names(
    "InferenceX",
    {"concurrency": "conc"},
    {"ttft": "ttft@s", "tpot": "tpot@s", "itl": "itl@s", "e2e": "e2el@s"},
    {"mean": "mean_{}", "p50": "median_{}"} | {q: f"{q}_{{}}" for q in ("p90", "p95", "p99")},
    {"tpot_ms": _AVERAGED},
)


def _inference_x_runs(document: _Document, path: Path) -> Iterator[BenchRun]:
    """Rates are per GPU there: output rates of split roles per GPU that decodes, total rates per GPU of both."""
    split = [_count(document.get(f"num_{role}_gpu")) for role in ("prefill", "decode")]
    apart = document.get("disagg") is True
    gpus = sum(split) if apart else _count(document.get("tp")) * (_count(document.get("pp")) or 1) or split[1]
    total, output = (_number(document.get(name)) for name in ("tput_per_gpu", "output_tput_per_gpu"))
    made = None if output is None else output * (split[1] if apart else gpus) or None
    engine = str(document.get("framework") or "")
    yield replace(
        _INFERENCE_X.run(document, str(path)),
        model=str(document.get("model") or ""),
        output_tok_s=made,
        input_tok_s=None if total is None or made is None else total * gpus - made,
        server={"engine": engine} if engine in catalog.names("engines") else {},
    )


# whether it is this tool's, and how to read it
_READERS: tuple[tuple[Callable[[_Document], bool], Callable[[_Document, Path], Iterator[BenchRun]]], ...] = (
    (lambda d: any("metrics" in b for b in _dicts(d.get("benchmarks"))), _guidellm_runs),
    (lambda d: any(map(_is_ridgeline, _dicts(d.get("points")))), _sweep_runs),
    (_is_ridgeline, _ridgeline_runs),
    (lambda d: {"request_throughput", "completed"} <= d.keys(), _serving_runs),
    (lambda d: {"batch_size", "input_len", "output_throughput"} <= d.keys(), _one_batch_runs),
    (lambda d: all("avg" in _dict(d.get(n)) for n in ("request_throughput", "request_latency")), _aiperf_runs),
    (lambda d: isinstance(d.get("aggregated_metrics"), dict), _genai_runs),
    (lambda d: isinstance(_at(d, "successes.latency"), dict), _inference_perf_runs),
    (lambda d: "latency" in _llm_d_figures(d), _llm_d_runs),
    (lambda d: {"conc", "tput_per_gpu"} <= d.keys(), _inference_x_runs),
    (lambda d: all(_first(d, _EVALSCOPE.figures[n]) is not None for n in {"requests", "requests_s"}), _evalscope_runs),
)


def read_bench_results(path: Path) -> list[BenchRun]:
    """Every run in a result file, or in all result files of a folder; raises InputError naming what is not one."""
    files = [path]
    if path.is_dir():
        found = (p for p in path.rglob("*") if p.suffix in (".json", ".jsonl", ".yaml", ".yml") and p.is_file())
        files = sorted({_summary_beside(p) for p in found if not _told_in_parts(p)})
    runs = [
        run for file in map(_summary_beside, files) for document in _documents(file) for run in _known(document, file)
    ]
    if not runs:
        raise InputError(f"{path}: no result that we know; `ridgeline twin import` reads files of {_NAMED}")
    return runs


def _summary_beside(path: Path) -> Path:
    """The document that was kept beside a file of requests; the file itself where it is none or stands alone."""
    beside = path.with_suffix(".summary.json")
    return beside if path.suffix == ".jsonl" and beside.is_file() else path


def _told_in_parts(path: Path) -> bool:
    """inference-perf sums its stages up in a further file, and again as a report for llm-d."""
    again = path.name == _ALL_STAGES or path.name.startswith("inference-perf.partial.")
    return again and any(path.parent.glob(_STAGES))


def _known(document: Any, path: Path) -> Iterator[BenchRun]:
    if isinstance(document, list):
        return (run for each in document if isinstance(each, dict) for run in _known(each, path))
    read = next((read for is_it, read in _READERS if isinstance(document, dict) and is_it(document)), None)
    return iter(()) if read is None else read(document, path)


def _documents(path: Path) -> Iterator[Any]:
    try:
        text = read_unzipped(path).decode("utf-8")
    except OSError as bad:
        raise InputError(f"{path}: {bad.strerror}; name a result file or its folder") from None
    except UnicodeDecodeError:
        raise InputError(
            f"{path}: not a text file; `ridgeline twin import` reads JSON and JSONL results of {_NAMED}"
        ) from None
    if path.suffix in (".yaml", ".yml"):
        yield _parsed_yaml(text)
    elif (whole := _parsed(text)) is not None:
        yield whole
    else:  # a torn last line, or a log line between results, is passed over
        yield from (found for line in text.splitlines() if (found := _parsed(line)) is not None)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _parsed_yaml(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):  # ValueError: a date that is none
        return None


def _read_json(path: Path) -> Any:
    try:
        return _parsed(read_text(path))
    except (OSError, UnicodeDecodeError):
        return None
