"""SGLang's log, of an engine or a server, versions 0.4.8 to 0.5.23.

`read_sglang_log` gathers a whole log; `sglang_facts` streams it, for a log that is still growing. Text that is torn,
interleaved between ranks or not a log at all gives fewer facts, never an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import TypeVar

from ridgeline.readers.lines import gib, number, plain, whole
from ridgeline.readers.python_repr import read_call, read_pairs
from ridgeline.readers.sglang.facts import (
    Compile,
    DecodeBatch,
    Fact,
    GraphCapture,
    KvPool,
    Limits,
    Mark,
    Notice,
    OfflineResult,
    PrefillBatch,
    Retraction,
    ServerArgs,
    SglangFailure,
    SglangLog,
    Stamp,
    WeightsLoaded,
)
from ridgeline.readers.sglang.offline import ResultBlock

_PREFIX = re.compile(
    r"\[(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:[.,]\d{1,9})?((?: [A-Z]{2}[A-Z_]{0,10}\d{1,6}){0,8})\] ?", re.ASCII
)
_FIELD = re.compile(r"([A-Za-z_ ]{1,40})[=:] ?(-?[\d.]+)", re.ASCII)
_SIZES = re.compile(r"\b(?:bs|num_tokens)[= ]\[([\d, ]+)", re.ASCII)
_WORD_TYPE = re.compile(r"type=(\w{1,100})")
_DTYPE = re.compile(r"dtype: ([\w.]{1,40})")
_RETRACTED = re.compile(r"#retracted_reqs: ?(\d{1,9})", re.ASCII)

# first match wins: the more telling line is above the more general
_FAILURES: tuple[tuple[str, re.Pattern[str]], ...] = (
    # before `exception`: SGLang refuses a port by a ValueError, as it refuses a setting (0.5.15)
    (
        "port-taken",
        re.compile(
            r"[Aa]ddress already in use|EADDRINUSE|SGLANG_GRPC_PORT \(\d{1,9}\) must |^ValueError: Port out of range|"
            r"_port(?: at \d{1,5})? (?:is not available|is used by a process already|has invalid port number)|"
            r"engine_info_bootstrap_port \d{1,5} is already in use"
        ),
    ),
    ("pool-too-small", re.compile(r"Not enough memory\. Please try (?:to increase|increasing) --mem-fraction-static")),
    ("pool-too-small", re.compile(r"Loaded weights leave no GPU memory for the KV cache")),  # 0.5.15
    ("graph-capture", re.compile(r"Capture (?:\w+ ){0,3}(?:cuda|CUDA) graph failed")),
    ("cuda-oom", re.compile(r"OutOfMemoryError: CUDA out of memory|CUDA error: out of memory")),
    ("host-oom", re.compile(r"\(exit code: -9\)|Out of memory: Killed process|oom-kill")),
    ("kv-transfer", re.compile(r"KVTransferError\(")),
    ("watchdog", re.compile(r"[Ww]atchdog (?:timeout|caught collective operation timeout)")),
    ("signal", re.compile(r"Segmentation fault|Fatal Python error:|\(exit code: -\d{1,2}\)")),
    ("rejected", re.compile(r"error: (?:unrecognized arguments|argument --|the following arguments are required)")),
    ("child-died", re.compile(r"Received sigquit from a child process|SIGQUIT received\.|scheduler died during init")),
    ("exception", re.compile(r"Scheduler hit an exception|^\w{0,60}(?:Error|Exception): ")),
)
_FAILURE_WORDS = (
    "in use",
    "ADDRINUSE",
    "rror",
    "xception",
    "emory",
    "SIGQUIT",
    "sigquit",
    "atchdog",
    "failed",
    "exit code",
    "fault",
    "oom-",
)
_COMPILES = ("JIT compil", "JIT Pre-Compile", "Loading JIT ops", "DeepGEMM warmup", "AUTOTUNE ", "Try DeepGEMM JIT")
_NOTICES = {
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
    for fact in sglang_facts(lines):
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
        compiles=_all_of(Compile, facts),
        notices=_all_of(Notice, facts),
        failures=_all_of(SglangFailure, facts),
        results=_all_of(OfflineResult, facts),
        ready_line=marks.get("ready"),
        benchmark_line=marks.get("benchmark"),
    )


def _all_of(kind: type[F], facts: Iterable[Fact]) -> tuple[F, ...]:
    return tuple(f for f in facts if isinstance(f, kind))


def sglang_facts(lines: Iterable[str]) -> Iterator[Fact]:
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
        self.block = ResultBlock()

    def line(self, line_number: int, text: str) -> Iterator[Fact]:
        # ranks write into one file without locking: several messages can share a physical line
        for stamp, message in _messages(line_number, text):
            yield from self.read(stamp, message)

    def read(self, stamp: Stamp, message: str) -> Iterator[Fact]:
        if (result := self.block.read(stamp.line, message)) is not None:
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
        elif "max_total_num_tokens=" in message:
            limits = _limits(stamp, message)
            if limits is not None:
                self.ready = True
                yield limits
        else:
            yield from self._rest(stamp, message)

    def _rest(self, stamp: Stamp, message: str) -> Iterator[Fact]:
        if "retracted_reqs" in message:
            found = _RETRACTED.search(message)
            if found:
                yield Retraction(stamp, int(found.group(1)))
        elif message.strip() in ("Warmup...", "Benchmark..."):
            yield Mark(stamp, message.strip(" .\n").lower())
        elif "The server is fired up and ready to roll" in message:
            yield Mark(stamp, "ready")
        elif "SIGTERM received" in message:
            yield Mark(stamp, "stop")
        elif any(word in message for word in _COMPILES):
            yield Compile(stamp, message[:200])
        elif any(word in message for word in _NOTICES):
            kind = next(kind for word, kind in _NOTICES.items() if word in message)
            yield Notice(stamp, kind, message[:300])
        else:
            yield from self._failure(stamp, message)

    def _failure(self, stamp: Stamp, message: str) -> Iterator[Fact]:
        if not any(word in message for word in _FAILURE_WORDS):
            return
        for kind, pattern in _FAILURES:
            if pattern.search(message):
                yield SglangFailure(stamp, kind, self.ready, message[:500])
                return

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
    yield KvPool(stamp, tokens, together, k, v, dtype.group(1) if dtype else None)


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
