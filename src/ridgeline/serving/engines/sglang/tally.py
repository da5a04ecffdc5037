"""An SGLang log of any length, summed up in constant memory and in one pass.

One pattern reads the lines that a long log is made of; every other line, batches of other releases included, goes to
the reader of single lines.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ridgeline.diagnose.readers.lines import blocks_of, plain
from ridgeline.serving.engines.failures import LogFailure
from ridgeline.serving.engines.served import LogTally, ServedSecond
from ridgeline.serving.engines.sglang.log import (
    Compile,
    DecodeBatch,
    GraphCapture,
    KvPool,
    Limits,
    Mark,
    Notice,
    OfflineResult,
    PrefillBatch,
    Retraction,
    ServerArgs,
    SglangReader,
    WeightsLoaded,
)

# Every line is one match, so that matches count lines. A number of more digits is torn text, and so is a batch that
# tells less or more than this: a split server's, and those of other releases.
_LINE = re.compile(
    rb"^(?:\[(?P<stamp>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)[^\]\n]*\] (?:"
    rb"Decode batch[,.] #running-req: (?P<decoding>\d{1,9}), #token: \d{1,9}, "
    rb"token usage: (?P<usage>\d{1,9}\.\d{1,9}), cuda graph: (?P<graph>True|False), "
    rb"gen throughput \(token/s\): (?P<rate>\d{1,9}\.\d{1,9}), "
    rb"#queue-req: (?P<queued>\d{1,9})"
    rb"|Prefill batch[,.] #new-seq: \d{1,9}, #new-token: (?P<new>\d{1,9}), #cached-token: (?P<cached>\d{1,9}), "
    rb"token usage: \d{1,9}\.\d{1,9}, #running-req: (?P<beside>\d{1,9}), #queue-req: \d{1,9}"
    rb"(?:, #pending-token: \d{1,9}, cuda graph: \w{4,5}, input throughput \(token/s\): \d{1,9}\.\d{1,9})?(?:, )?"
    rb'|INFO: +[\d.]{7,15}:\d{1,5} - "[A-Z]{3,6} [^"\s]{1,200} HTTP/1.1" 200 OK)|(?P<other>.*))$',
    re.MULTILINE,
)


@dataclass(slots=True)
class _PrefillStretch:
    """Full prefill chunks in a row, with requests running and no decode line between."""

    chunks: int = 0
    first_line: int = 0
    last_line: int = 0
    first_s: float | None = None
    last_s: float | None = None
    running: int = 0


@dataclass(slots=True)
class _PromptTokens:
    new: int = 0
    cached: int = 0
    most_cached: int = 0


@dataclass(slots=True)
class KvInFlight:
    """Batch lines of a split server that tell how many requests have their KV under way, and those with many."""

    lines: int = 0
    many: int = 0
    most: int = 0


@dataclass(slots=True)
class SglangTally(LogTally):
    """All that a log said. What the measured part is summed from begins again at the benchmark mark."""

    # what the processes of a server print when it is asked to stop
    echoes = ("child-died", "signal", "exception", "host-oom")

    prompts: _PromptTokens = field(default_factory=_PromptTokens)
    longest: _PrefillStretch = field(default_factory=_PrefillStretch)
    fetching: KvInFlight = field(default_factory=KvInFlight)
    unsent: KvInFlight = field(default_factory=KvInFlight)
    settings: Mapping[str, object] = field(default_factory=dict)
    settings_complete: bool = False
    limits: Limits | None = None
    cap: int | None = None
    pool: KvPool | None = None
    weights_bytes: int | None = None
    largest_graph: int | None = None
    least_beyond: int = 0
    most_beyond: int = 0
    capped_kv_share: float = 0.0
    retracted: int = 0
    retractions: int = 0
    late_compiles: int = 0
    measuring: bool = False
    refused: dict[str, int] = field(default_factory=dict)
    result: OfflineResult | None = None

    @property
    def cached_token_share(self) -> float | None:
        prompt = self.prompts.new + self.prompts.cached
        return self.prompts.cached / prompt if prompt else None


_QUOTED = 20_000  # characters of a line that are kept to be quoted
_TORN = 10**15  # no figure of a batch is as large
_EPOCH = datetime(1, 1, 1)  # stamps have no zone: only their differences count
_FULL, _ROOM = 0.95, 0.8  # shares of the KV pool
_AT_CAP, _FULL_CHUNK = 0.98, 0.95
_MANY_UNDER_WAY = 8  # transfers at once that a split server has no reason to hold, unless they are slow
_ANSWERED = re.compile(rb'" ([45]\d\d) [A-Z]')


def tally_sglang_log(lines: Iterable[str]) -> SglangTally:
    """Sum up a log; torn or foreign text gives less, never an error."""
    reader = _Tallying()
    number = 1
    for block in blocks_of(lines):
        number += reader.block(number, block)
    reader.close_second()
    return reader.tally


class _Tallying:
    """Adds lines to `tally`, a block of them at a time. `pending` are lines of this block that are to be quoted."""

    def __init__(self) -> None:
        self.tally = SglangTally()
        self.lines = SglangReader()
        self.second = ServedSecond()
        self.stamp = b""
        self.stretch = _PrefillStretch()
        self.chunk = 0.0
        self.graph_limit = -1
        self.cap_limit = float("inf")
        self.pending: dict[str, int] = {}
        self.block_first = 1

    def block(self, first: int, block: bytes) -> int:
        """Read a block that begins with line `first`; how many lines it has."""
        self.block_first = number = first
        for number, found in enumerate(_LINE.finditer(block, 0, len(block) - 1), first):
            stamp, decoding, usage, graph, rate, queued, new, cached, beside, other = found.groups()
            if decoding:
                self._at(stamp)
                self._decode(number, int(decoding), float(usage), graph == b"True", float(rate), int(queued))
            elif new:
                self._at(stamp)
                self._prefill(number, int(new), int(cached), int(beside))
            elif other:
                self._other(number, other)
        self._take_quotes(first, block)
        return number - first + 1

    def _other(self, line: int, raw: bytes) -> None:
        if b"HTTP/1" in raw and b" batch" not in raw:
            if refused := _ANSWERED.search(raw):
                code = refused.group(1).decode()
                self.tally.refused[code] = self.tally.refused.get(code, 0) + 1
                self.first(f"answered-{code[0]}", line)
            return
        for fact in self.lines.line(line, plain(raw.decode("utf-8", "replace").rstrip("\r"))):
            if taken := _TAKEN.get(type(fact)):
                taken(self, fact)

    def _take_quotes(self, first: int, block: bytes) -> None:
        if self.stretch.chunks and self.stretch.first_line >= first:
            self.pending["stretch-start"] = self.stretch.first_line
        if self.pending:
            lines = block.split(b"\n")
            for name, number in self.pending.items():
                self.tally.quotes[name] = (number, lines[number - first].decode("utf-8", "replace")[:_QUOTED])
            self.pending.clear()

    def _at(self, stamp: bytes) -> None:
        if stamp != self.stamp:
            self.close_second()
            self.stamp = stamp

    def close_second(self) -> None:
        """What was gathered belongs to the stamp so far."""
        second = self.second
        second.lines = second.decodes + second.prefills
        if second.lines:
            self.tally.served.add(_seconds(self.stamp), second)
            self.second = ServedSecond()

    def _row(self, fact: DecodeBatch | PrefillBatch) -> None:
        """A batch line of another shape than the usual."""
        line, time = fact.stamp.line, fact.stamp.time
        self._at(time.isoformat(" ").encode() if time else b"")
        if isinstance(fact, PrefillBatch):
            self._under_way(line, "unsent", fact.unsent, 0)
            self._prefill(line, fact.new_tokens, fact.cached_tokens, fact.running or 0)
        else:
            self._under_way(line, "fetching", fact.fetching, fact.running)
            usage, graph = fact.token_usage or 0.0, fact.cuda_graph is not False
            self._decode(line, fact.running, usage, graph, fact.gen_tok_s or 0.0, fact.queued or 0)

    def _decode(self, line: int, running: int, kv_share: float, graph: bool, tok_s: float, queued: int) -> None:
        self.end_stretch()
        self.tally.last_work_line = line
        second, totals = self.second, self.tally.served.totals
        second.decodes += 1
        second.running += running
        second.kv_share += kv_share
        second.decode_tok_s += tok_s
        if kv_share > totals.peak_kv_share:
            totals.peak_kv_share = kv_share
            self.pending["peak"] = line
        if running > totals.most_running:
            totals.most_running = running
            self.pending["busiest"] = line
        if not graph:
            self._eager(line, running)
        if 0 < queued < _TORN:
            self._waiting(line, queued, running, kv_share)

    def _eager(self, line: int, running: int) -> None:
        self.second.eager += 1
        self.first("eager", line)
        if self.graph_limit >= 0 and running > self.graph_limit:
            self.second.beyond += 1
            tally = self.tally
            tally.least_beyond = min(tally.least_beyond or running, running)
            if running > tally.most_beyond:
                tally.most_beyond = running
                self.pending["beyond"] = line

    def _waiting(self, line: int, queued: int, running: int, kv_share: float) -> None:
        second = self.second
        second.queued += queued
        second.waiting += 1
        self.first("waiting", line)
        self.pending["last-waiting"] = line
        if kv_share >= _FULL:
            second.full += 1
            self.first("full", line)
        elif running >= self.cap_limit and kv_share < _ROOM:
            second.capped += 1
            self.tally.capped_kv_share = max(self.tally.capped_kv_share, kv_share)
            self.first("capped", line)

    def _prefill(self, line: int, new: int, cached: int, beside: int) -> None:
        """`beside` requests were running and got no token meanwhile."""
        self.tally.last_work_line = line
        if max(new, cached, beside) >= _TORN:
            return
        second, prompts = self.second, self.tally.prompts
        if not second.prefills and not second.decodes:
            second.from_idle = beside == 0
        second.prefills += 1
        prompts.new += new
        prompts.cached += cached
        if cached > prompts.most_cached:
            prompts.most_cached = cached
            self.pending["cached"] = line
        if beside:
            second.starved += 1
            self.first("starved", line)
            if self.chunk and new >= self.chunk:
                self._full_chunk(line, beside)
                return
        self.end_stretch()

    def _full_chunk(self, line: int, running: int) -> None:
        stretch, now = self.stretch, _seconds(self.stamp) or 0.0
        if not stretch.chunks:
            stretch.first_line, stretch.first_s = line, now
        stretch.chunks += 1
        stretch.last_line, stretch.last_s, stretch.running = line, now, running
        if stretch is self.tally.longest or stretch.chunks > self.tally.longest.chunks:
            self.tally.longest = stretch
            self.pending["stretch-last"] = line
            if stretch.first_line >= self.block_first:
                self.pending["stretch-first"] = stretch.first_line
            elif "stretch-start" in self.tally.quotes:
                self.tally.quotes["stretch-first"] = self.tally.quotes["stretch-start"]

    def end_stretch(self) -> None:
        if self.stretch.chunks:
            self.stretch = _PrefillStretch()

    def first(self, name: str, line: int) -> None:
        if name not in self.tally.quotes and name not in self.pending:
            self.pending[name] = line

    def _under_way(self, line: int, name: str, count: int | None, running: int) -> None:
        if count is None:
            return
        so_far: KvInFlight = getattr(self.tally, name)
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

    def _failure(self, fact: LogFailure) -> None:
        if name := self.tally.failed(fact):
            self.pending[name] = fact.line

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


def _seconds(stamp: bytes) -> float | None:
    try:
        return (datetime.fromisoformat(stamp.decode("ascii")) - _EPOCH).total_seconds() if stamp else None
    except ValueError:
        return None


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
    LogFailure: _Tallying._failure,
    OfflineResult: _Tallying._result,
    Mark: _Tallying._mark,
}
