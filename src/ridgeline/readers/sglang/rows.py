"""Batch lines of an SGLang log, a block of them at a time, added to the sums of the log.

Nearly all lines of a long log are batches of the usual shape: these are added as columns. Any other line gives facts.
"""

from __future__ import annotations

from datetime import datetime

import numpy as np

from ridgeline.readers.served import ServedSecond
from ridgeline.readers.sglang.columns import BatchColumns, Mask, Whole
from ridgeline.readers.sglang.facts import Fact
from ridgeline.readers.sglang.sums import PrefillStretch, SglangTally

_QUOTED = 20_000  # characters of a line that are kept to be quoted
_DIGITS = 16  # a longer number is torn text
_EPOCH = datetime(1, 1, 1)  # stamps have no zone: only their differences count
_FULL, _ROOM = 0.95, 0.8


class BatchRows:
    """Adds rows to `tally`. Whoever derives from it says what facts another line gives, and takes them."""

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

    def block(self, first: int, block: bytes) -> int:
        """Read a block that begins with line `first`; how many lines it has."""
        columns = BatchColumns(block)
        self.block_first = first
        done = 0  # rows that were added so far
        for line in columns.others.tolist():
            facts = self.facts_of(first + line, columns.text(line))
            if facts:
                # what a line changes holds for the rows behind it, so those in front come first
                upto = int(np.searchsorted(columns.line, line))
                self._add(columns, done, upto)
                done = upto
                self.take(facts)
        self._add(columns, done, len(columns.line))
        self._take_quotes(first, block)
        return len(columns.ends)

    def facts_of(self, line: int, raw: bytes) -> list[Fact]:
        raise NotImplementedError

    def take(self, facts: list[Fact]) -> None:
        raise NotImplementedError

    def _add(self, columns: BatchColumns, start: int, end: int) -> None:
        if start >= end:
            return
        self.close_second()
        rows = slice(start, end)
        lines = columns.line[rows] + self.block_first
        decode = columns.decode[rows]
        waiting = decode & (columns.queued[rows] > 0)
        full = waiting & (columns.kv_share[rows] >= _FULL)
        room = waiting & ~full & (columns.kv_share[rows] < _ROOM)
        masks = {
            "decodes": decode,
            "prefills": ~decode,
            "starved": ~decode & (columns.running[rows] > 0),
            "eager": columns.eager[rows],
            "beyond": columns.eager[rows] & (columns.running[rows] > self.graph_limit) & (self.graph_limit >= 0),
            "full": full,
            "capped": room & (columns.running[rows] >= self.cap_limit),
            "waiting": waiting,
        }
        sums = {
            "running": np.where(decode, columns.running[rows], 0.0),
            "queued": columns.queued[rows],
            "kv_share": columns.kv_share[rows],
            "decode_tok_s": columns.decode_tok_s[rows],
        }
        self._extremes(lines, masks, columns, rows)
        self._prompts(lines, columns, rows)
        self._stretches(lines, columns, rows)
        groups = np.flatnonzero(np.append(True, columns.new_second[rows][1:]))
        from_idle = ~decode[groups] & (columns.running[rows][groups] == 0)
        added = {name: np.add.reduceat(of.astype(np.float64), groups) for name, of in (masks | sums).items()}
        self.tally.served.add_many(columns.time_s[rows][groups], added, from_idle)
        self.tally.last_work_line = int(lines[-1])

    def _extremes(self, lines: Whole, masks: dict[str, Mask], columns: BatchColumns, rows: slice) -> None:
        """The first line of each sort, and the largest figures."""
        tally, totals = self.tally, self.tally.served.totals
        running, kv_share = columns.running[rows], columns.kv_share[rows]
        for name in ("eager", "starved", "waiting", "full", "capped"):
            if masks[name].any():
                self.first(name, int(lines[masks[name].argmax()]))
        if masks["waiting"].any():
            self.pending["last-waiting"] = int(lines[masks["waiting"].nonzero()[0][-1]])
        if masks["capped"].any():
            tally.capped_kv_share = max(tally.capped_kv_share, float(kv_share[masks["capped"]].max()))
        if masks["beyond"].any():
            beyond = np.where(masks["beyond"], running, -1.0)
            least, most = int(running[masks["beyond"]].min()), int(beyond.max())
            tally.least_beyond = min(tally.least_beyond or least, least)
            if most > tally.most_beyond:
                tally.most_beyond = most
                self.pending["beyond"] = int(lines[beyond.argmax()])
        decoded = np.where(masks["decodes"], running, -1.0)
        if decoded.max() > totals.most_running:
            totals.most_running = int(decoded.max())
            self.pending["busiest"] = int(lines[decoded.argmax()])
        if kv_share.max() > totals.peak_kv_share:
            totals.peak_kv_share = float(kv_share.max())
            self.pending["peak"] = int(lines[kv_share.argmax()])

    def _prompts(self, lines: Whole, columns: BatchColumns, rows: slice) -> None:
        prompts, cached = self.tally.prompts, columns.cached[rows]
        prompts.new += int(columns.tokens[rows].sum())
        prompts.cached += int(cached.sum())
        if cached.max() > prompts.most_cached:
            prompts.most_cached = int(cached.max())
            self.pending["cached"] = int(lines[cached.argmax()])

    def _stretches(self, lines: Whole, columns: BatchColumns, rows: slice) -> None:
        """Runs of full chunks; one may have begun in an earlier block."""
        running = columns.running[rows]
        chunk = ~columns.decode[rows] & (running > 0) & (columns.tokens[rows] >= self.chunk) & (self.chunk > 0)
        if not chunk.any():
            self.end_stretch()
            return
        edges = np.flatnonzero(np.diff(np.concatenate(([False], chunk, [False])).astype(np.int8)))
        times = columns.time_s[rows]
        for begin, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            if begin:
                self.end_stretch()
            self.chunks_in_a_row(
                end - begin,
                (int(lines[begin]), int(lines[end - 1])),
                (float(times[begin]), float(times[end - 1])),
                int(running[end - 1]),
            )
        if edges[-1] < len(chunk):
            self.end_stretch()

    def _take_quotes(self, first: int, block: bytes) -> None:
        if self.stretch.chunks and self.stretch.first_line >= first:
            self.pending["stretch-start"] = self.stretch.first_line
        if self.pending:
            lines = block.split(b"\n")
            for name, number in self.pending.items():
                self.tally.quotes[name] = (number, lines[number - first].decode("utf-8", "replace")[:_QUOTED])
            self.pending.clear()

    def notable(self, line: int, running: int, kv_share: float, graph: bool, queued: bytes) -> None:
        """A decode line that adds more than its figures to the sums."""
        self.end_stretch()
        totals = self.tally.served.totals
        if kv_share > totals.peak_kv_share:
            totals.peak_kv_share = kv_share
            self.pending["peak"] = line
        if running > totals.most_running:
            totals.most_running = running
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
            self.first("starved", line)
            if self.chunk and new >= self.chunk:
                now = _seconds(self.stamp) or 0.0
                self.chunks_in_a_row(1, (line, line), (now, now), int(beside))
                return
        self.end_stretch()

    def chunks_in_a_row(self, count: int, lines: tuple[int, int], times: tuple[float, float], running: int) -> None:
        stretch = self.stretch
        if not stretch.chunks:
            stretch.first_line, stretch.first_s = lines[0], times[0]
        stretch.chunks += count
        stretch.last_line, stretch.last_s, stretch.running = lines[1], times[1], running
        longest = self.tally.longest
        if stretch is longest or stretch.chunks > longest.chunks:
            self.tally.longest = stretch
            self.pending["stretch-last"] = lines[1]
            if stretch.first_line >= self.block_first:
                self.pending["stretch-first"] = stretch.first_line
            elif "stretch-start" in self.tally.quotes:
                self.tally.quotes["stretch-first"] = self.tally.quotes["stretch-start"]

    def end_stretch(self) -> None:
        if self.stretch.chunks:
            self.stretch = PrefillStretch()

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
