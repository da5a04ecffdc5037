"""An SGLang log of any length, summed up in constant memory and in one pass.

Batches are read a block at a time; every other line, batches of other releases included, by the reader of single lines.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from ridgeline.readers.lines import blocks_of, plain
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
    WeightsLoaded,
)
from ridgeline.readers.sglang.log import SglangReader
from ridgeline.readers.sglang.rows import BatchRows
from ridgeline.readers.sglang.sums import KvOnItsWay, SglangTally

_ANSWERED = re.compile(rb'" ([45]\d\d) [A-Z]')
_AT_CAP, _FULL_CHUNK = 0.98, 0.95
_MANY_UNDER_WAY = 8  # transfers at once that a split server has no reason to hold, unless they are slow


def tally_sglang_log(lines: Iterable[str]) -> SglangTally:
    """Sum up a log; torn or foreign text gives less, never an error."""
    reader = _Tallying()
    number = 1
    for block in blocks_of(lines):
        number += reader.block(number, block)
    reader.close_second()
    return reader.tally


class _Tallying(BatchRows):
    def __init__(self) -> None:
        super().__init__()
        self.lines = SglangReader()

    def facts_of(self, line: int, raw: bytes) -> list[Fact]:
        if b"HTTP/1" in raw and b" batch" not in raw:
            if refused := _ANSWERED.search(raw):
                code = refused.group(1).decode()
                self.tally.refused[code] = self.tally.refused.get(code, 0) + 1
                self.first(f"answered-{code[0]}", line)
            return []
        return list(self.lines.line(line, plain(raw.decode("utf-8", "replace").rstrip("\r"))))

    def take(self, facts: list[Fact]) -> None:
        for fact in facts:
            if taken := _TAKEN.get(type(fact)):
                taken(self, fact)

    def _row(self, fact: DecodeBatch | PrefillBatch) -> None:
        """A batch line of a shape that the pattern for blocks does not know."""
        time = fact.stamp.time
        stamp = time.isoformat(" ").encode() if time else b""
        if stamp != self.stamp:
            self.close_second(stamp)
        if isinstance(fact, PrefillBatch):
            self._under_way(fact.stamp.line, "unsent", fact.unsent, 0)
            numbers = (fact.new_tokens, fact.cached_tokens, fact.running or 0)
            self.prefill(fact.stamp.line, *(b"%d" % n for n in numbers))
        else:
            self._under_way(fact.stamp.line, "fetching", fact.fetching, fact.running)
            self.second.decodes += 1
            self.second.running += fact.running
            self.second.kv_share += fact.token_usage or 0.0
            self.second.decode_tok_s += fact.gen_tok_s or 0.0
            queued = b"%d" % (fact.queued or 0)
            self.notable(fact.stamp.line, fact.running, fact.token_usage or 0.0, fact.cuda_graph is not False, queued)
        self.tally.last_work_line = fact.stamp.line

    def _under_way(self, line: int, name: str, count: int | None, running: int) -> None:
        if count is None:
            return
        so_far: KvOnItsWay = getattr(self.tally, name)
        so_far.lines += 1
        so_far.many += count >= max(_MANY_UNDER_WAY, running / 2)
        if count > so_far.most:
            so_far.most = count
            self.pending[name] = line

    def _settings(self, fact: ServerArgs) -> None:
        if fact.complete or not self.tally.settings_complete:
            self.tally.settings, self.tally.settings_complete = fact.values, fact.complete
            self.pending["settings"] = fact.stamp.line

    def _limits(self, fact: Limits) -> None:
        tally = self.tally
        if tally.limits is None:
            self.pending["limits"] = fact.stamp.line
        tally.limits = fact
        if fact.max_running_requests:
            tally.cap = min(tally.cap or fact.max_running_requests, fact.max_running_requests)
            self.cap_limit = _AT_CAP * tally.cap
        chunk = fact.chunked_prefill_size or 0
        self.chunk = _FULL_CHUNK * chunk if chunk > 0 else 0.0

    def _graph(self, fact: GraphCapture) -> None:
        if fact.phase == "decode" and fact.sizes:
            self.tally.largest_graph = max(self.tally.largest_graph or 0, *fact.sizes)
            self.graph_limit = self.tally.largest_graph
            self.first("graphs", fact.stamp.line)

    def _pool(self, fact: KvPool) -> None:
        if self.tally.pool is None:
            self.tally.pool = fact
            self.pending["pool"] = fact.stamp.line

    def _weights(self, fact: WeightsLoaded) -> None:
        if self.tally.weights_bytes is None:
            self.tally.weights_bytes = fact.used_bytes

    def _retraction(self, fact: Retraction) -> None:
        self.tally.retracted += fact.requests
        self.tally.retractions += 1
        self.first("retraction", fact.stamp.line)
        self.pending["last-retraction"] = fact.stamp.line

    def _compile(self, fact: Compile) -> None:
        if self.tally.measuring:
            self.tally.late_compiles += 1
            self.first("compile", fact.stamp.line)

    def _notice(self, fact: Notice) -> None:
        self.first(fact.kind, fact.stamp.line)

    def _failure(self, fact: SglangFailure) -> None:
        tally, line = self.tally, fact.stamp.line
        if tally.stop_line and fact.kind in _ECHOES_OF_A_STOP:
            return
        known = tally.failures.get((fact.kind, fact.ready))
        # an exception after which the engine went on working was handled: the next one may not be
        if known is None or (fact.kind == "exception" and known <= tally.last_work_line):
            tally.failures[fact.kind, fact.ready] = line
            self.pending[f"failure-{fact.kind}-{fact.ready}"] = line

    def _result(self, fact: OfflineResult) -> None:
        self.tally.result = fact
        self.tally.last_work_line = max(self.tally.last_work_line, fact.line)

    def _mark(self, fact: Mark) -> None:
        tally, line = self.tally, fact.stamp.line
        if fact.name == "stop":
            tally.stop_line = tally.stop_line or line
            self.first("stop", line)
        elif fact.name in ("ready", "benchmark"):
            tally.measuring = True
            self.first(fact.name, line)
        if fact.name == "benchmark":
            self._begin_anew()

    def _begin_anew(self) -> None:
        """The benchmark begins: what was summed up so far was its warm-up."""
        self.close_second()
        fresh = SglangTally()
        for name in ("served", "prompts", "longest", "least_beyond", "most_beyond", "capped_kv_share", "late_compiles"):
            setattr(self.tally, name, getattr(fresh, name))
        for name in _MEASURED_QUOTES:
            self.tally.quotes.pop(name, None)
            self.pending.pop(name, None)
        self.end_stretch()


# what the processes of a server that was told to stop say to each other
_ECHOES_OF_A_STOP = ("child-died", "signal", "exception", "host-oom")
_MEASURED_QUOTES = (
    *("peak", "busiest", "eager", "beyond", "starved", "waiting", "last-waiting", "full", "capped", "cached"),
    *("stretch-start", "stretch-first", "stretch-last", "compile"),
)
_TAKEN: dict[type, Callable[[_Tallying, Any], None]] = {
    DecodeBatch: _Tallying._row,
    PrefillBatch: _Tallying._row,
    ServerArgs: _Tallying._settings,
    Limits: _Tallying._limits,
    GraphCapture: _Tallying._graph,
    KvPool: _Tallying._pool,
    WeightsLoaded: _Tallying._weights,
    Retraction: _Tallying._retraction,
    Compile: _Tallying._compile,
    Notice: _Tallying._notice,
    SglangFailure: _Tallying._failure,
    OfflineResult: _Tallying._result,
    Mark: _Tallying._mark,
}
