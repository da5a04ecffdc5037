"""Batch lines of an SGLang log, a block of them at a time, added to the sums of the log.

Nearly all lines of a long log are batches and answered HTTP requests: one pattern takes a whole block of them.
"""

from __future__ import annotations

import re
from datetime import datetime

from ridgeline.readers.served import ServedSecond
from ridgeline.readers.sglang.sums import PrefillStretch, SglangTally

# possessive throughout: a line either is of this shape or is left to the other reader at once
_ROW = re.compile(
    rb"(?:\[(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)[^\]\n]*+\] (?:"
    rb"Decode batch[^#\n]*+#running-req: (\d++), #token: \d++, token usage: ([\d.]++), "
    rb"cuda graph: (True|False), gen throughput \(token/s\): ([\d.]++), #queue-req: (\d++),? ?"
    rb"|Prefill batch[^#\n]*+#new-seq: \d++, #new-token: (\d++), #cached-token: (\d++), "
    rb"token usage: [\d.]++, #running-req: (\d++), #queue-req: \d++[^\n\[]*+"
    rb'|INFO:  [^\n\[]*+" 2\d\d OK)|([^\n]*+))\n'
)
_QUOTED = 20_000  # characters of a line that are kept to be quoted
_DIGITS = 16  # a longer number is torn text
_EPOCH = datetime(1970, 1, 1)  # stamps have no zone: only their differences count
_FULL, _ROOM = 0.95, 0.8


class BatchRows:
    """Adds rows to `tally`; `other` is given each line that the pattern for batches does not match."""

    def __init__(self) -> None:
        self.tally = SglangTally()
        self.second = ServedSecond()
        self.stamp = b""
        self.stretch = PrefillStretch()
        self.chunk = 0.0
        self.graph_limit = -1
        self.cap_limit = float("inf")
        self.pending: dict[str, int] = {}
        self.block_first = 1
        self.starved = False
        self.peak, self.most, self.chunks = 0.0, 0, 0  # as in the sums, at hand

    def block(self, first: int, block: bytes) -> int:
        """Read a block that begins with line `first`; how many lines it has."""
        rows = _ROW.findall(block)
        self.block_first = first
        tally, second, work = self.tally, self.second, self.tally.last_work_line
        for number, row in enumerate(rows, first):
            stamp, running, usage, graph, rate, queued, tokens, cached, beside, other = row
            if running:
                if stamp != self.stamp:
                    second = self.close_second(stamp)
                try:
                    requests, kv_share = int(running), float(usage)
                    second.decode_tok_s += float(rate)
                except ValueError:  # torn
                    continue
                second.decodes += 1
                second.running += requests
                second.kv_share += kv_share
                work = number
                if queued != b"0" or graph == b"False" or kv_share > self.peak or requests > self.most or self.chunks:
                    self.notable(number, requests, kv_share, graph != b"False", queued)
            elif tokens:
                if stamp != self.stamp:
                    second = self.close_second(stamp)
                self.prefill(number, tokens, cached, beside)
                work = number
            elif other:
                tally.last_work_line = work
                self.other(number, other)
                second, work = self.second, tally.last_work_line
        tally.last_work_line = work
        self._take_quotes(first, block)
        return len(rows)

    def _take_quotes(self, first: int, block: bytes) -> None:
        if self.chunks and self.stretch.first_line >= first:
            self.pending["stretch-start"] = self.stretch.first_line
        if self.pending:
            lines = block.split(b"\n")
            for name, number in self.pending.items():
                self.tally.quotes[name] = (number, lines[number - first].decode("utf-8", "replace")[:_QUOTED])
            self.pending.clear()

    def other(self, line: int, raw: bytes) -> None:
        raise NotImplementedError

    def notable(self, line: int, running: int, kv_share: float, graph: bool, queued: bytes) -> None:
        """A decode line that adds more than its figures to the sums."""
        self.end_stretch()
        totals = self.tally.served.totals
        if kv_share > self.peak:
            totals.peak_kv_share = self.peak = kv_share
            self.pending["peak"] = line
        if running > self.most:
            totals.most_running = self.most = running
            self.pending["busiest"] = line
        if not graph:
            self._eager(line, running)
        if queued != b"0" and len(queued) < _DIGITS:
            self._waiting(line, int(queued), running, kv_share)

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

    def prefill(self, line: int, tokens: bytes, cached: bytes, beside: bytes) -> None:
        """`beside` requests were running and got no token meanwhile."""
        if len(tokens) >= _DIGITS or len(cached) >= _DIGITS or len(beside) >= _DIGITS:
            return  # torn
        second, prompts = self.second, self.tally.prompts
        new = int(tokens)
        if not second.prefills and not second.decodes:
            second.from_idle = beside == b"0"
        second.prefills += 1
        prompts.new += new
        if cached != b"0":
            from_cache = int(cached)
            prompts.cached += from_cache
            if from_cache > prompts.most_cached:
                prompts.most_cached = from_cache
                self.pending["cached"] = line
        if beside != b"0":
            second.starved += 1
            if not self.starved:
                self.starved = True
                self.first("starved", line)
            if self.chunk and new >= self.chunk:
                self._chunk(line, int(beside))
                return
        self.end_stretch()

    def _chunk(self, line: int, running: int) -> None:
        stretch, now = self.stretch, _seconds(self.stamp)
        if not stretch.chunks:
            stretch.first_line, stretch.first_s = line, now
        stretch.chunks = self.chunks = stretch.chunks + 1
        stretch.last_line, stretch.last_s, stretch.running = line, now, running
        longest = self.tally.longest
        if stretch is longest or stretch.chunks > longest.chunks:
            self.tally.longest = stretch
            self.pending["stretch-last"] = line
            if stretch.first_line >= self.block_first:
                self.pending["stretch-first"] = stretch.first_line
            elif "stretch-start" in self.tally.quotes:
                self.tally.quotes["stretch-first"] = self.tally.quotes["stretch-start"]

    def end_stretch(self) -> None:
        if self.chunks:
            self.stretch, self.chunks = PrefillStretch(), 0

    def close_second(self, stamp: bytes = b"") -> ServedSecond:
        """What was gathered belongs to the stamp before; from here on to `stamp`."""
        second = self.second
        second.lines = second.decodes + second.prefills
        if second.lines:
            self.tally.served.add(_seconds(self.stamp), second)
            self.second = ServedSecond()
        self.stamp = stamp
        return self.second

    def first(self, name: str, line: int) -> None:
        if name not in self.tally.quotes and name not in self.pending:
            self.pending[name] = line


def _seconds(stamp: bytes) -> float | None:
    try:
        return (datetime.fromisoformat(stamp.decode("ascii")) - _EPOCH).total_seconds() if stamp else None
    except ValueError:
        return None
