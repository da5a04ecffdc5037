"""SGLang's log, of an engine or a server, versions 0.4.8 to 0.5.23.

`read_sglang_log` gathers a whole log; `_sglang_facts` streams it, for a log that is still growing. Text that is torn,
interleaved between ranks or not a log at all gives fewer facts, never an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeVar

from ridgeline.diagnose.readers.lines import gib, number, plain, whole
from ridgeline.serving.engines.failures import LogFailure, kind_in
from ridgeline.serving.engines.python_repr import read_call, read_pairs
from ridgeline.serving.engines.sglang.failures import TEXTS, WORDS

READY = "The server is fired up and ready to roll"


@dataclass(frozen=True, slots=True)
class Stamp:
    """Where a fact was written. `ranks` is the prefix's text, such as ('DP0', 'TP3'); empty for a single process."""

    line: int
    time: datetime | None = None
    ranks: tuple[str, ...] = ()

    def rank(self, axis: str) -> int | None:
        """The number after DP, TP, EP or PP, or None when the prefix does not name that axis."""
        for name in self.ranks:
            digits = name.removeprefix(axis)
            if digits != name and digits.isdecimal():
                return int(digits)
        return None


@dataclass(frozen=True, slots=True)
class WeightsLoaded:
    """`before_bytes` was free on the GPU when loading began, `avail_bytes` when it ended."""

    stamp: Stamp
    avail_bytes: int
    before_bytes: int | None
    used_bytes: int | None
    elapsed_s: float | None
    model_class: str | None


@dataclass(frozen=True, slots=True)
class KvPool:
    stamp: Stamp
    tokens: int
    total_bytes: int | None
    dtype: str | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """The max_total_num_tokens line: the scheduler's limits after everything was allocated."""

    stamp: Stamp
    max_total_tokens: int
    chunked_prefill_size: int | None = None
    max_prefill_tokens: int | None = None
    max_running_requests: int | None = None
    context_len: int | None = None
    available_gpu_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class GraphCapture:
    """One capture of CUDA graphs. `phase` is decode, prefill or draft; `sizes` are batch sizes (tokens for prefill)."""

    stamp: Stamp
    phase: str
    sizes: tuple[int, ...]
    elapsed_s: float | None = None
    used_bytes: int | None = None
    avail_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class PrefillBatch:
    stamp: Stamp
    new_seqs: int
    new_tokens: int
    cached_tokens: int
    token_usage: float | None
    running: int | None
    queued: int | None
    cuda_graph: bool | None = None
    input_tok_s: float | None = None
    unsent: int | None = None  # of a prefill server: prompts whose KV has not reached its decode server yet


@dataclass(frozen=True, slots=True)
class DecodeBatch:
    """One line for many steps (decode_log_interval): `running` and `tokens` are of its last step."""

    stamp: Stamp
    running: int
    tokens: int | None
    token_usage: float | None
    cuda_graph: bool | None
    gen_tok_s: float | None
    queued: int | None
    accept_len: float | None = None
    fetching: int | None = None  # of a decode server: requests whose KV has not arrived yet


@dataclass(frozen=True, slots=True)
class Retraction:
    stamp: Stamp
    requests: int


@dataclass(frozen=True, slots=True)
class Notice:
    """A line in which the engine says that it is not at its best.

    `kind` is compile (kernels are being compiled or tuned at run time), moe-untuned (no tuned kernel configuration for
    this GPU) or deprecated (a flag that will go).
    """

    stamp: Stamp
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class OfflineResult:
    """The result block of offline_throughput, or one line of its JSONL."""

    backend: str
    successful_requests: int
    duration_s: float
    input_tokens: int
    output_tokens: int
    request_s: float | None
    input_tok_s: float | None
    output_tok_s: float | None
    total_tok_s: float | None
    line: int


@dataclass(frozen=True, slots=True)
class Mark:
    """A turning point: ready, warmup, benchmark or stop."""

    stamp: Stamp
    name: str


@dataclass(frozen=True, slots=True)
class ServerArgs:
    stamp: Stamp
    values: Mapping[str, object]
    complete: bool


Fact = (
    ServerArgs
    | WeightsLoaded
    | KvPool
    | Limits
    | GraphCapture
    | PrefillBatch
    | DecodeBatch
    | Retraction
    | Notice
    | LogFailure
    | OfflineResult
    | Mark
)


@dataclass(frozen=True, slots=True)
class SglangLog:
    """Everything one log said, in its order."""

    server_args: Mapping[str, object] = field(default_factory=dict)
    weights: tuple[WeightsLoaded, ...] = ()
    kv_pools: tuple[KvPool, ...] = ()
    limits: tuple[Limits, ...] = ()
    graphs: tuple[GraphCapture, ...] = ()
    prefills: tuple[PrefillBatch, ...] = ()
    decodes: tuple[DecodeBatch, ...] = ()
    retractions: tuple[Retraction, ...] = ()
    notices: tuple[Notice, ...] = ()
    failures: tuple[LogFailure, ...] = ()
    results: tuple[OfflineResult, ...] = ()
    ready_line: int | None = None
    benchmark_line: int | None = None

    def cached_token_share(self, after: int = 0) -> float | None:
        """Of all prompt tokens after this line, or else after the benchmark mark, those from cache."""
        measured = [p for p in self.prefills if p.stamp.line > (after or self.benchmark_line or 0)]
        cached = sum(p.cached_tokens for p in measured)
        prompt = cached + sum(p.new_tokens for p in measured)
        return cached / prompt if prompt else None

    @property
    def running_limit(self) -> int | None:
        return min((x.max_running_requests for x in self.limits if x.max_running_requests), default=None)

    @property
    def largest_decode_graph(self) -> int | None:
        sizes = [s for g in self.graphs if g.phase == "decode" for s in g.sizes]
        return max(sizes, default=None)


_RESULT_LABELS = {
    "Backend": "backend",
    "Successful requests": "successful_requests",
    "Benchmark duration (s)": "total_latency",
    "Total input tokens": "total_input_tokens",
    "Total generated tokens": "total_output_tokens",
    "Last generation throughput (tok/s)": "last_gen_throughput",
    "Request throughput (req/s)": "request_throughput",
    "Input token throughput (tok/s)": "input_throughput",
    "Output token throughput (tok/s)": "output_throughput",
    "Total token throughput (tok/s)": "total_throughput",
}


def read_offline_jsonl(lines: Iterable[str]) -> tuple[OfflineResult, ...]:
    """Results that offline_throughput appended to its --result-filename; other lines are skipped."""
    results = []
    for line_number, line in enumerate(lines, 1):
        try:
            values = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(values, dict):
            result = _offline_result({str(k): str(v) for k, v in values.items()}, line_number)
            if result is not None:
                results.append(result)
    return tuple(results)


def _offline_result(row: dict[str, str], line: int) -> OfflineResult | None:
    requests, duration = whole(row.get("successful_requests")), number(row.get("total_latency"))
    inputs, outputs = whole(row.get("total_input_tokens")), whole(row.get("total_output_tokens"))
    if requests is None or duration is None or inputs is None or outputs is None:
        return None
    return OfflineResult(
        backend=row.get("backend", ""),
        successful_requests=requests,
        duration_s=duration,
        input_tokens=inputs,
        output_tokens=outputs,
        request_s=number(row.get("request_throughput")),
        input_tok_s=number(row.get("input_throughput")),
        output_tok_s=number(row.get("output_throughput")),
        total_tok_s=number(row.get("total_throughput")),
        line=line,
    )


_PREFIX = re.compile(
    r"\[(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:[.,]\d{1,9})?((?: [A-Z]{2}[A-Z_]{0,10}\d{1,6}){0,8})\] ?", re.ASCII
)
_FIELD = re.compile(r"([A-Za-z_ ]{1,40})[=:] ?(-?[\d.]+)", re.ASCII)
_SIZES = re.compile(r"\b(?:bs|num_tokens)[= ]\[([\d, ]+)", re.ASCII)
_WORD_TYPE = re.compile(r"type=(\w{1,100})")
_DTYPE = re.compile(r"dtype: ([\w.]{1,40})")
_RETRACTED = re.compile(r"#retracted_reqs: ?(\d{1,9})", re.ASCII)

_COMPILES = ("JIT compil", "JIT Pre-Compile", "Loading JIT ops", "DeepGEMM warmup", "AUTOTUNE ", "Try DeepGEMM JIT")
_NOTICES = {
    **dict.fromkeys(_COMPILES, "compile"),
    "Using default MoE kernel config": "moe-untuned",
    "is deprecated and will be removed in a future release. Use '": "deprecated",
}
# a key that the echo shows in clear must not travel into journals and reports
_SECRETS = ("api_key", "admin_api_key", "ssl_keyfile_password")

F = TypeVar("F")


def read_sglang_log(lines: Iterable[str]) -> SglangLog:
    """Gather every fact of a log. Of several ServerArgs echoes the last complete one is what was applied."""
    facts: list[Fact] = []
    marks: dict[str, int] = {}
    for fact in _sglang_facts(lines):
        if isinstance(fact, Mark):
            marks.setdefault(fact.name, fact.stamp.line)
        else:
            facts.append(fact)
    echoes = _all_of(ServerArgs, facts)
    applied = max(enumerate(echoes), key=lambda e: (e[1].complete, e[0]), default=(0, None))[1]
    return SglangLog(
        server_args=applied.values if applied else {},
        weights=_all_of(WeightsLoaded, facts),
        kv_pools=_all_of(KvPool, facts),
        limits=_all_of(Limits, facts),
        graphs=_all_of(GraphCapture, facts),
        prefills=_all_of(PrefillBatch, facts),
        decodes=_all_of(DecodeBatch, facts),
        retractions=_all_of(Retraction, facts),
        notices=_all_of(Notice, facts),
        failures=_all_of(LogFailure, facts),
        results=_all_of(OfflineResult, facts),
        ready_line=marks.get("ready"),
        benchmark_line=marks.get("benchmark"),
    )


def _all_of(kind: type[F], facts: Iterable[Fact]) -> tuple[F, ...]:
    return tuple(f for f in facts if isinstance(f, kind))


def _sglang_facts(lines: Iterable[str]) -> Iterator[Fact]:
    """Stream the facts of a log in its order."""
    reader = SglangReader()
    for line_number, raw in enumerate(lines, 1):
        yield from reader.line(line_number, plain(raw))


def _messages(line_number: int, line: str) -> Iterator[tuple[Stamp, str]]:
    start, stamp = 0, Stamp(line_number)
    for found in _PREFIX.finditer(line):
        if found.start() > start:
            yield stamp, line[start : found.start()]
        try:
            time = datetime.fromisoformat(found.group(1))
        except ValueError:
            time = None
        start, stamp = found.end(), Stamp(line_number, time, tuple(found.group(2).split()))
    yield stamp, line[start:]


class SglangReader:
    """Keeps what a later line needs from an earlier one: the free memory before loading, the sizes being captured."""

    def __init__(self) -> None:
        self.ready = False
        self.before: dict[tuple[str, ...], int | None] = {}
        self.sizes: dict[tuple[tuple[str, ...], str], tuple[int, ...]] = {}
        self.result: dict[str, str] | None = None
        self.result_line = 0

    def line(self, line_number: int, text: str) -> Iterator[Fact]:
        # ranks write into one file without locking: several messages can share a physical line
        for stamp, message in _messages(line_number, text):
            yield from self.read(stamp, message)

    def read(self, stamp: Stamp, message: str) -> Iterator[Fact]:
        if (result := self._result(stamp.line, message)) is not None:
            yield result
        batch = _batch(stamp, message)
        if batch is not None:
            yield batch
        elif "ServerArgs(" in message:
            values, complete = read_call(message, message.index("ServerArgs("))
            if values:
                yield ServerArgs(stamp, {k: _hidden(k, v) for k, v in values.items()}, complete)
        elif message.startswith("server_args={"):  # as releases from 0.5.20 on print it
            if values := read_pairs(message):
                yield ServerArgs(stamp, {k: _hidden(k, v) for k, v in values.items()}, complete=True)
        elif "apture" in message and "graph" in message:
            yield from self._graph(stamp, message)
        elif "Load weight" in message:
            yield from self._weights(stamp, message)
        elif "KV Cache is allocated" in message:
            yield from _kv_pool(stamp, message)
        # what an assertion says of the pool is no line of limits
        elif "max_total_num_tokens=" in message and "max_running_requests=" in message:
            limits = _limits(stamp, message)
            if limits is not None:
                self.ready = True
                yield limits
        else:
            yield from self._rest(stamp, message)

    def _result(self, line: int, message: str) -> OfflineResult | None:
        """The result, when `message` is the rule that ends its block; other messages may stand in between."""
        if "Offline Throughput Benchmark Result" in message:
            self.result, self.result_line = {}, line
            return None
        if self.result is None:
            return None
        label, separator, value = message.partition(":")
        if separator and label.strip() in _RESULT_LABELS:
            self.result[_RESULT_LABELS[label.strip()]] = value.strip()
        elif "=====" in message and self.result:
            row, self.result = self.result, None
            return _offline_result(row, self.result_line)
        return None

    def _rest(self, stamp: Stamp, message: str) -> Iterator[Fact]:
        if "retracted_reqs" in message:
            found = _RETRACTED.search(message)
            if found:
                yield Retraction(stamp, int(found.group(1)))
        elif message.strip() in ("Warmup...", "Benchmark..."):
            yield Mark(stamp, message.strip(" .\n").lower())
        elif READY in message:
            yield Mark(stamp, "ready")
        elif "SIGTERM received" in message:
            yield Mark(stamp, "stop")
        elif kind := next((kind for word, kind in _NOTICES.items() if word in message), ""):
            yield Notice(stamp, kind, message[:300])
        else:
            yield from self._failure(stamp, message)

    def _failure(self, stamp: Stamp, message: str) -> Iterator[Fact]:
        if any(word in message for word in WORDS) and (kind := kind_in(message, TEXTS)):
            yield LogFailure(kind, self.ready, stamp.line, message[:500])

    def _weights(self, stamp: Stamp, message: str) -> Iterator[Fact]:
        fields = _fields(message)
        if "begin" in message:
            self.before[stamp.ranks] = gib(fields.get("avail mem"))
            return
        avail = gib(fields.get("avail mem"))
        if avail is None:
            return
        model = _WORD_TYPE.search(message)
        yield WeightsLoaded(
            stamp,
            avail_bytes=avail,
            before_bytes=self.before.pop(stamp.ranks, None),
            used_bytes=gib(fields.get("mem usage")),
            elapsed_s=number(fields.get("elapsed")),
            model_class=model.group(1) if model else None,
        )

    def _graph(self, stamp: Stamp, message: str) -> Iterator[Fact]:
        phase = next((p for p in ("draft", "prefill") if p in message), "decode")
        found = _SIZES.search(message)
        if found:
            sizes = tuple(n for n in (whole(s.strip()) for s in found.group(1).split(",")) if n is not None)
            self.sizes[stamp.ranks, phase] = sizes
        if "graph end" not in message:
            yield from self._failure(stamp, message)
            return
        fields = _fields(message)
        yield GraphCapture(
            stamp,
            phase,
            self.sizes.pop((stamp.ranks, phase), ()),
            elapsed_s=number(fields.get("elapsed", fields.get("Time elapsed"))),
            used_bytes=gib(fields.get("mem usage")),
            avail_bytes=gib(fields.get("avail mem")),
        )


def _batch(stamp: Stamp, message: str) -> PrefillBatch | DecodeBatch | None:
    prefill = message.find("Prefill batch")
    decode = message.find("Decode batch") if prefill < 0 else -1
    if prefill < 0 and decode < 0:
        return None
    row: dict[str, str] = {}
    for cell in message[max(prefill, decode) + 12 :].split(","):
        label, separator, value = cell.rpartition(":")
        if separator:
            # 0.4.x writes 'Prefill batch. #new-seq: 1', 0.5 'Prefill batch [7], #new-seq: 1'
            row.setdefault(label.strip(" .").rpartition(". ")[2], value.strip(" ."))
    usage = number(row.get("token usage", row.get("full token usage")))
    graph = {"True": True, "False": False}.get(row.get("cuda graph", ""))
    running, queued = whole(row.get("#running-req")), whole(row.get("#queue-req"))
    if prefill >= 0:
        new_seqs, new_tokens = whole(row.get("#new-seq")), whole(row.get("#new-token"))
        cached = whole(row.get("#cached-token"))
        if new_seqs is None or new_tokens is None or cached is None:
            return None
        rate, unsent = number(row.get("input throughput (token/s)")), whole(row.get("#inflight-req"))
        return PrefillBatch(stamp, new_seqs, new_tokens, cached, usage, running, queued, graph, rate, unsent)
    if running is None:
        return None
    tokens = whole(row.get("#token", row.get("#full token")))
    rate, accept = number(row.get("gen throughput (token/s)")), number(row.get("accept len"))
    fetching = whole(row.get("#transfer-req"))
    return DecodeBatch(stamp, running, tokens, usage, graph, rate, queued, accept, fetching)


def _kv_pool(stamp: Stamp, message: str) -> Iterator[KvPool]:
    fields = _fields(message)
    tokens = whole(fields.get("tokens"))
    if tokens is None:
        return
    k, v, together = (gib(fields.get(f"{name} size")) for name in ("K", "V", "KV"))
    if together is None and k is not None and v is not None:
        together = k + v
    dtype = _DTYPE.search(message)
    yield KvPool(stamp, tokens, together, dtype.group(1) if dtype else None)


def _limits(stamp: Stamp, message: str) -> Limits | None:
    fields = _fields(message)
    total = whole(fields.get("max_total_num_tokens"))
    if total is None:
        return None
    return Limits(
        stamp,
        max_total_tokens=total,
        chunked_prefill_size=whole(fields.get("chunked_prefill_size")),
        max_prefill_tokens=whole(fields.get("max_prefill_tokens")),
        max_running_requests=whole(fields.get("max_running_requests")),
        context_len=whole(fields.get("context_len")),
        available_gpu_bytes=gib(fields.get("available_gpu_mem")),
    )


def _fields(message: str) -> dict[str, str]:
    return {label.strip(): value.rstrip(".") for label, value in _FIELD.findall(message)}


def _hidden(name: str, value: object) -> object:
    return "(hidden)" if name in _SECRETS and value is not None else value
