"""An SGLang log of any length, summed up in constant memory and in one pass.

One pattern reads the lines that a long log is made of; every other line, batches of other releases included, goes to
the reader of single lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from ridgeline.diagnose.readers.lines import blocks_of, plain
from ridgeline.serving.engines.failures import LogFailure
from ridgeline.serving.engines.served import LogTally, ServedSecond
from ridgeline.serving.engines.sglang.log import (
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
    SglangReader,
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
    first_s: float = 0.0
    last_s: float = 0.0
    running: int = 0


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

    new_tokens: int = 0  # of prompts
    cached_tokens: int = 0
    most_cached: int = 0  # of one prefill line
    longest: _PrefillStretch = field(default_factory=_PrefillStretch)
    fetching: KvInFlight = field(default_factory=KvInFlight)
    unsent: KvInFlight = field(default_factory=KvInFlight)
    settings: Mapping[str, object] = field(default_factory=dict)
    settings_complete: bool = False
    limits: Limits | None = None
    pool: KvPool | None = None
    largest_graph: int | None = None
    least_beyond: int = 0
    most_beyond: int = 0
    capped_kv_share: float = 0.0
    retracted: int = 0
    late_compiles: int = 0
    measuring: bool = False
    refused: dict[str, int] = field(default_factory=dict)
    result: OfflineResult | None = None

    @property
    def cached_token_share(self) -> float | None:
        prompt = self.new_tokens + self.cached_tokens
        return self.cached_tokens / prompt if prompt else None


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
            self._take(fact)

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
        tally = self.tally
        if tally.largest_graph is not None and running > tally.largest_graph:
            self.second.beyond += 1
            tally.least_beyond = min(tally.least_beyond or running, running)
            if running > tally.most_beyond:
                tally.most_beyond = running
                self.pending["beyond"] = line

    def _waiting(self, line: int, queued: int, running: int, kv_share: float) -> None:
        second, cap = self.second, self.tally.cap
        second.queued += queued
        second.waiting += 1
        self.first("waiting", line)
        self.pending["last-waiting"] = line
        if kv_share >= _FULL:
            second.full += 1
            self.first("full", line)
        elif cap is not None and running >= _AT_CAP * cap and kv_share < _ROOM:
            second.capped += 1
            self.tally.capped_kv_share = max(self.tally.capped_kv_share, kv_share)
            self.first("capped", line)

    def _prefill(self, line: int, new: int, cached: int, beside: int) -> None:
        """`beside` requests were running and got no token meanwhile."""
        self.tally.last_work_line = line
        if max(new, cached, beside) >= _TORN:
            return
        second, tally = self.second, self.tally
        if not second.prefills and not second.decodes:
            second.from_idle = beside == 0
        second.prefills += 1
        tally.new_tokens += new
        tally.cached_tokens += cached
        if cached > tally.most_cached:
            tally.most_cached = cached
            self.pending["cached"] = line
        if beside:
            second.starved += 1
            self.first("starved", line)
            chunk = tally.limits.chunked_prefill_size if tally.limits else None
            if chunk is not None and chunk > 0 and new >= _FULL_CHUNK * chunk:
                self._full_chunk(line, beside)
                return
        self.end_stretch()

    def _full_chunk(self, line: int, running: int) -> None:
        stretch, now = self.stretch, _seconds(self.stamp) or 0.0
        if not stretch.chunks:
            stretch.first_line, stretch.first_s = line, now
        stretch.chunks += 1
        stretch.last_s, stretch.running = now, running
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

    def _take(self, fact: Fact) -> None:
        tally = self.tally
        match fact:
            case DecodeBatch() | PrefillBatch():
                self._row(fact)
            case LogFailure():
                if name := tally.failed(fact):
                    self.pending[name] = fact.line
            case ServerArgs(stamp):
                if fact.complete or not tally.settings_complete:
                    tally.settings, tally.settings_complete = fact.values, fact.complete
                    self.pending["settings"] = stamp.line
            case Limits(stamp):
                if tally.limits is None:
                    self.pending["limits"] = stamp.line
                tally.limits = fact
                if cap := fact.max_running_requests:
                    tally.cap = min(tally.cap or cap, cap)
            case GraphCapture(stamp, "decode", sizes) if sizes:
                tally.largest_graph = max(tally.largest_graph or 0, *sizes)
                self.first("graphs", stamp.line)
            case KvPool(stamp) if tally.pool is None:
                tally.pool = fact
                self.pending["pool"] = stamp.line
            case Retraction(stamp):
                tally.retracted += fact.requests
                self.first("retraction", stamp.line)
                self.pending["last-retraction"] = stamp.line
            case Notice(stamp, kind) if kind != "compile" or tally.measuring:
                tally.late_compiles += kind == "compile"
                self.first(kind, stamp.line)
            case OfflineResult():
                tally.result = fact
                tally.last_work_line = max(tally.last_work_line, fact.line)
            case Mark(stamp, "stop"):
                tally.stop_line = tally.stop_line or stamp.line
                self.first("stop", stamp.line)
            case Mark(stamp, "ready" | "benchmark"):
                tally.measuring = True
                self.first(fact.name, stamp.line)
                if fact.name == "benchmark":
                    self._begin_anew()

    def _begin_anew(self) -> None:
        """The benchmark begins: what was summed up so far was its warm-up."""
        self.close_second()
        fresh = SglangTally()
        for name in _MEASURED:
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


_MEASURED = (
    *("served", "new_tokens", "cached_tokens", "most_cached", "longest"),
    *("least_beyond", "most_beyond", "capped_kv_share", "late_compiles"),
)
_MEASURED_QUOTES = (
    *("peak", "busiest", "eager", "beyond", "starved", "waiting", "last-waiting", "full", "capped", "cached"),
    *("stretch-start", "stretch-first", "stretch-last", "compile"),
)
