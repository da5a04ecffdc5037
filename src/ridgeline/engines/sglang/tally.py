"""An SGLang log of any length, summed up in constant memory and in one pass.

Batches are read a block at a time; every other line, batches of other releases included, by the reader of single lines.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.engines.served import ServedSecond, ServedTally
from ridgeline.engines.sglang.log import (
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
    SglangReader,
    WeightsLoaded,
)
from ridgeline.readers.lines import blocks_of, plain

# A block of an SGLang log as columns: which lines are batches of the usual shape, and their figures as arrays.
#
# A long log is read hundreds of thousands of lines a second this way, which no loop over lines in Python does. A line
# whose shape is not exactly the usual one is left out here and goes to the reader of single lines.

_Whole = NDArray[np.int64]
_Real = NDArray[np.float64]
_Mask = NDArray[np.bool_]

_STAMP = 19  # 2026-11-15 07:19:29
_DECODE, _PREFILL = b"Decode batch", b"Prefill batch"
# what stands before each colon, in the order of the line
_DECODE_LABELS = (
    *(b" #running-req", b", #token", b", token usage", b", cuda graph"),
    *(b", gen throughput (token/s)", b", #queue-req"),
)
_PREFILL_LABELS = (
    *(b" #new-seq", b", #new-token", b", #cached-token", b", token usage"),
    *(b", #running-req", b", #queue-req"),
)
_UNSENT = b"#inflight-req"
_BEFORE = 32  # bytes of nothing around a block, so that looking a little beyond it is harmless
_DIGIT_BYTES = 11  # of a figure, its point included; longer ones are torn text


class _BatchColumns:
    """Rows are the batches of a block in its order; `line` counts from 0. What only the other kind of batch has is 0.

    `others` are all further lines that are neither empty nor requests answered with success.
    """

    def __init__(self, block: bytes) -> None:
        padded = bytes(_BEFORE) + block + bytes(_BEFORE)
        self._text = np.frombuffer(padded, np.uint8)
        # eight letters at each place of the text, so that names are compared at once and not letter by letter
        self._words: NDArray[np.uint64] = np.ndarray((len(padded) - 7,), "<u8", padded, strides=(1,))
        self.ends: _Whole = np.flatnonzero(self._text == 10)
        self.starts: _Whole = np.concatenate(([_BEFORE], self.ends[:-1] + 1))
        self._colons: _Whole = np.flatnonzero(self._text == 58)
        closes, known = self._closes()
        decode, decode_figures = self._figures(known, closes, _DECODE, _DECODE_LABELS, exact=True)
        prefill, prefill_figures = self._figures(known, closes, _PREFILL, _PREFILL_LABELS, exact=False)
        if _UNSENT in block:  # a split server tells more than these columns hold
            usual = np.array([_UNSENT not in self.text(line) for line in prefill], np.bool_)
            prefill, prefill_figures = prefill[usual], prefill_figures[usual]
        answered = self._answered(known, closes)
        self._rows(decode, decode_figures, prefill, prefill_figures)
        plain = self.ends > self.starts
        plain[self.line] = plain[answered] = False
        self.others: _Whole = np.flatnonzero(plain)

    def text(self, line: int) -> bytes:
        return self._text[self.starts[line] : self.ends[line]].tobytes()

    def _closes(self) -> tuple[_Whole, _Mask]:
        """Where the bracket of each line's stamp closes, and which lines have a stamp and no other bracket."""
        text, starts, ends = self._text, self.starts, self.ends
        brackets = np.append(np.flatnonzero(text == 93), [len(text) - 1] * 2)
        at = np.searchsorted(brackets, starts)
        closes, following = brackets[at], brackets[at + 1]
        known = (ends - starts > 60) & (closes + 16 < ends) & (following > ends) & (closes - starts > _STAMP)
        for place, letter in ((0, 91), (5, 45), (8, 45), (14, 58), (17, 58)):
            known &= text[starts + place] == letter
        return closes, known

    def _figures(
        self, known: _Mask, closes: _Whole, name: bytes, labels: tuple[bytes, ...], *, exact: bool
    ) -> tuple[_Whole, _Whole]:
        """Lines of one kind of batch, and where their figures begin: a row a line, a column a label."""
        text, colons = self._text, self._colons
        lines = np.flatnonzero(known & (text[np.minimum(closes + 2, len(text) - 1)] == name[0]))
        lines = lines[self._said(name, closes[lines] + 2 + len(name))]
        first = np.searchsorted(colons, closes[lines])
        padded = np.append(colons, [len(text) + 1] * (len(labels) + 1))
        at = padded[first[:, None] + np.arange(len(labels) + 1)]
        good = at[:, len(labels) - 1] < self.ends[lines]
        if exact:
            good &= at[:, len(labels)] > self.ends[lines]
        lines, at = lines[good], at[good][:, : len(labels)]
        comma = closes[lines] + 2 + len(name)
        good = (at[:, 0] - comma == 1 + len(labels[0])) & ((text[comma] == 44) | (text[comma] == 46))
        for label, end in zip(labels, at.T, strict=True):
            good &= self._said(label + b": ", end + 2)
        return lines[good], at[good] + 2

    def _said(self, name: bytes, ends: _Whole) -> _Mask:
        """Whether the text that ends there is `name`."""
        said = np.ones(len(ends), np.bool_)
        for start in {*range(0, len(name) - 7, 8), len(name) - 8}:
            word = int.from_bytes(name[start : start + 8], "little")
            said &= self._words[ends - len(name) + start] == word
        return said

    def _answered(self, known: _Mask, closes: _Whole) -> _Whole:
        """Requests that were answered with success: most lines of a served log, and nothing to learn from."""
        text, ends = self._text, self.ends
        found = known & (text[np.minimum(closes + 2, len(text) - 1)] == 73)
        for back, letter in ((1, 75), (2, 79), (3, 32), (6, 50), (8, 34)):
            found &= text[np.maximum(ends - back, 0)] == letter
        return np.flatnonzero(found)

    def _rows(self, decode: _Whole, decode_at: _Whole, prefill: _Whole, prefill_at: _Whole) -> None:
        count = len(decode)
        both = np.concatenate((decode, prefill))
        order = np.argsort(both, kind="stable")

        def column(decoded: Any, prefilled: Any) -> Any:
            return np.concatenate((decoded, prefilled))[order]

        nothing, none = np.zeros(count), np.zeros(len(prefill))
        figures = np.stack(
            [
                column(self._number(decode_at[:, 0]), self._number(prefill_at[:, 4])),
                column(self._number(decode_at[:, 2], whole=False), none),
                column(self._number(decode_at[:, 4], whole=False), none),
                column(self._number(decode_at[:, 5]), none),
                column(nothing, self._number(prefill_at[:, 1])),
                column(nothing, self._number(prefill_at[:, 2])),
                column(nothing, self._number(prefill_at[:, 0])),
            ]
        )
        whole = ~np.isnan(figures).any(axis=0)
        self.line: _Whole = both[order][whole]
        self.running, self.kv_share, self.decode_tok_s, self.queued, self.tokens, self.cached, _ = figures[:, whole]
        self.decode: _Mask = column(np.ones(count, np.bool_), none.astype(np.bool_))[whole]
        self.eager: _Mask = column(self._text[decode_at[:, 3]] == 70, none.astype(np.bool_))[whole]
        self._times()

    def _times(self) -> None:
        """Where a new second begins, and the time of each row."""
        stamps = self.starts[self.line] + 1
        self.new_second: _Mask = np.zeros(len(stamps), np.bool_)
        self.new_second[:1] = True
        for place in (0, 8, _STAMP - 8):
            word = self._words[stamps + place]
            self.new_second[1:] |= word[1:] != word[:-1]
        seconds = _column_seconds(self._text[stamps[self.new_second][:, None] + np.arange(_STAMP)])
        self.time_s: _Real = np.repeat(seconds, np.diff(np.append(np.flatnonzero(self.new_second), len(stamps))))

    def _number(self, at: _Whole, *, whole: bool = True) -> _Real:
        """The figures that begin there: digits and at most a point, up to a comma or the end of the line.

        Not a number where anything else follows: the line is torn, and the other reader says what is left of it.
        """
        text = self._text
        value, decimals = np.zeros(len(at)), np.zeros(len(at))
        live, pointed = np.ones(len(at), np.bool_), np.zeros(len(at), np.bool_)
        sound = np.zeros(len(at), np.bool_)
        for place in range(_DIGIT_BYTES):
            letter = text[at + place]
            digit = live & (letter >= 48) & (letter <= 57)
            point = live & (letter == 46) & ~pointed & (not whole)
            sound |= live & ((letter == 44) | (letter == 10)) & (place > 0)
            live = digit | point
            if not live.any():
                break
            value = np.where(digit, value * 10 + (letter.astype(np.float64) - 48), value)
            decimals += digit & pointed
            pointed |= point
        return np.where(sound, value / 10.0**decimals, np.nan)


def _column_seconds(stamps: NDArray[np.uint8]) -> _Real:
    """Seconds since year 1; not a number where the digits are none or the day does not exist."""
    digits = stamps.astype(np.int64) - 48

    def two(place: int) -> _Whole:
        return digits[:, place] * 10 + digits[:, place + 1]

    days = np.full(len(stamps), np.nan)
    if len(stamps):
        dates = two(0) * 1_000_000 + two(2) * 10_000 + two(5) * 100 + two(8)
        for packed in np.unique(dates):
            try:
                day = date(int(packed) // 10_000, int(packed) // 100 % 100, int(packed) % 100).toordinal()
            except ValueError:
                continue
            days[dates == packed] = day
    return days * 86400.0 + two(11) * 3600 + two(14) * 60 + two(17)


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
class SglangTally:
    """All that a log said. `quotes` are lines worth showing: name -> line number and text.

    What the measured part is summed from begins anew at the benchmark mark: the warm-up does not count.
    """

    served: ServedTally = field(default_factory=ServedTally)
    prompts: _PromptTokens = field(default_factory=_PromptTokens)
    longest: _PrefillStretch = field(default_factory=_PrefillStretch)
    fetching: KvInFlight = field(default_factory=KvInFlight)
    unsent: KvInFlight = field(default_factory=KvInFlight)
    quotes: dict[str, tuple[int, str]] = field(default_factory=dict)
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
    failures: dict[tuple[str, bool], int] = field(default_factory=dict)
    exceptions: int = 0
    last_work_line: int = 0
    stop_line: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    result: OfflineResult | None = None

    def texts(self) -> dict[int, str]:
        """The quoted lines by their number."""
        return dict(self.quotes.values())

    def line(self, name: str) -> int:
        """The number of a quoted line; 0 where the log has none."""
        return self.quotes.get(name, (0, ""))[0]

    @property
    def cached_token_share(self) -> float | None:
        prompt = self.prompts.new + self.prompts.cached
        return self.prompts.cached / prompt if prompt else None


_QUOTED = 20_000  # characters of a line that are kept to be quoted
_DIGITS = 16  # a longer number is torn text
_EPOCH = datetime(1, 1, 1)  # stamps have no zone: only their differences count
_FULL, _ROOM = 0.95, 0.8


class _BatchRows:
    """Adds rows to `tally`. Whoever derives from it says what facts another line gives, and takes them."""

    def __init__(self) -> None:
        self.tally = SglangTally()
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
        columns = _BatchColumns(block)
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

    def _add(self, columns: _BatchColumns, start: int, end: int) -> None:
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

    def _extremes(self, lines: _Whole, masks: dict[str, _Mask], columns: _BatchColumns, rows: slice) -> None:
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

    def _prompts(self, lines: _Whole, columns: _BatchColumns, rows: slice) -> None:
        prompts, cached = self.tally.prompts, columns.cached[rows]
        prompts.new += int(columns.tokens[rows].sum())
        prompts.cached += int(cached.sum())
        if cached.max() > prompts.most_cached:
            prompts.most_cached = int(cached.max())
            self.pending["cached"] = int(lines[cached.argmax()])

    def _stretches(self, lines: _Whole, columns: _BatchColumns, rows: slice) -> None:
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
            self.stretch = _PrefillStretch()

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


class _Tallying(_BatchRows):
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


# what the processes of a server print when it is asked to stop
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
