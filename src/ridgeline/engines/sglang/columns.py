"""A block of an SGLang log as columns: which lines are batches of the usual shape, and their figures as arrays.

A long log is read hundreds of thousands of lines a second this way, which no loop over lines in Python does. A line
whose shape is not exactly the usual one is left out here and goes to the reader of single lines.
"""

from __future__ import annotations

from datetime import date
from typing import Any

import numpy as np
from numpy.typing import NDArray

Whole = NDArray[np.int64]
Real = NDArray[np.float64]
Mask = NDArray[np.bool_]

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
_DIGITS = 11  # of a figure, its point included; longer ones are torn text


class BatchColumns:
    """Rows are the batches of a block in its order; `line` counts from 0. What only the other kind of batch has is 0.

    `others` are all further lines that are neither empty nor requests answered with success.
    """

    def __init__(self, block: bytes) -> None:
        padded = bytes(_BEFORE) + block + bytes(_BEFORE)
        self._text = np.frombuffer(padded, np.uint8)
        # eight letters at each place of the text, so that names are compared at once and not letter by letter
        self._words: NDArray[np.uint64] = np.ndarray((len(padded) - 7,), "<u8", padded, strides=(1,))
        self.ends: Whole = np.flatnonzero(self._text == 10)
        self.starts: Whole = np.concatenate(([_BEFORE], self.ends[:-1] + 1))
        self._colons: Whole = np.flatnonzero(self._text == 58)
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
        self.others: Whole = np.flatnonzero(plain)

    def text(self, line: int) -> bytes:
        return self._text[self.starts[line] : self.ends[line]].tobytes()

    def _closes(self) -> tuple[Whole, Mask]:
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
        self, known: Mask, closes: Whole, name: bytes, labels: tuple[bytes, ...], *, exact: bool
    ) -> tuple[Whole, Whole]:
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

    def _said(self, name: bytes, ends: Whole) -> Mask:
        """Whether the text that ends there is `name`."""
        said = np.ones(len(ends), np.bool_)
        for start in {*range(0, len(name) - 7, 8), len(name) - 8}:
            word = int.from_bytes(name[start : start + 8], "little")
            said &= self._words[ends - len(name) + start] == word
        return said

    def _answered(self, known: Mask, closes: Whole) -> Whole:
        """Requests that were answered with success: most lines of a served log, and nothing to learn from."""
        text, ends = self._text, self.ends
        found = known & (text[np.minimum(closes + 2, len(text) - 1)] == 73)
        for back, letter in ((1, 75), (2, 79), (3, 32), (6, 50), (8, 34)):
            found &= text[np.maximum(ends - back, 0)] == letter
        return np.flatnonzero(found)

    def _rows(self, decode: Whole, decode_at: Whole, prefill: Whole, prefill_at: Whole) -> None:
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
        self.line: Whole = both[order][whole]
        self.running, self.kv_share, self.decode_tok_s, self.queued, self.tokens, self.cached, _ = figures[:, whole]
        self.decode: Mask = column(np.ones(count, np.bool_), none.astype(np.bool_))[whole]
        self.eager: Mask = column(self._text[decode_at[:, 3]] == 70, none.astype(np.bool_))[whole]
        self._times()

    def _times(self) -> None:
        """Where a new second begins, and the time of each row."""
        stamps = self.starts[self.line] + 1
        self.new_second: Mask = np.zeros(len(stamps), np.bool_)
        self.new_second[:1] = True
        for place in (0, 8, _STAMP - 8):
            word = self._words[stamps + place]
            self.new_second[1:] |= word[1:] != word[:-1]
        seconds = _seconds(self._text[stamps[self.new_second][:, None] + np.arange(_STAMP)])
        self.time_s: Real = np.repeat(seconds, np.diff(np.append(np.flatnonzero(self.new_second), len(stamps))))

    def _number(self, at: Whole, *, whole: bool = True) -> Real:
        """The figures that begin there: digits and at most a point, up to a comma or the end of the line.

        Not a number where anything else follows: the line is torn, and the other reader says what is left of it.
        """
        text = self._text
        value, decimals = np.zeros(len(at)), np.zeros(len(at))
        live, pointed = np.ones(len(at), np.bool_), np.zeros(len(at), np.bool_)
        sound = np.zeros(len(at), np.bool_)
        for place in range(_DIGITS):
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


def _seconds(stamps: NDArray[np.uint8]) -> Real:
    """Seconds since year 1; not a number where the digits are none or the day does not exist."""
    digits = stamps.astype(np.int64) - 48

    def two(place: int) -> Whole:
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
