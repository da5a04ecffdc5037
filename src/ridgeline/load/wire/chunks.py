"""Chunked HTTP bodies as servers of tokens send them: one chunk a segment, one event a chunk, one token an event.

A few calls that each look at all bytes of an answer do for such a stretch what would cost far more token by token. What
does not fit goes to the HTTP parser and down the careful road.
"""

from __future__ import annotations

import functools
from bisect import bisect_right
from itertools import accumulate
from operator import itemgetter, methodcaller

# events without text before the first token (a role) and after the last (finish, usage, [DONE])
_EDGE = 6
_SIZE_BYTES = 8
_QUOTE = 34


def realigned(times_s: list[float], pieces: list[bytes]) -> tuple[list[float], list[bytes], int]:
    """The same bytes cut where chunks begin, each with the time at which its first byte came, and how many are whole.

    `pieces` begin between two chunks. What follows the whole chunks is left as it is.
    """
    if all(map(bytes.startswith, pieces[:-1], map(_chunk_head, map(len, pieces)))):
        return times_s, pieces, len(pieces) - 1
    text, ends = b"".join(pieces), list(accumulate(map(len, pieces)))
    at, times, chunks = 0, [], []
    while (size := _size_at(text, at)) and (end := at + size) <= len(text):
        times.append(times_s[bisect_right(ends, at)])
        chunks.append(text[at:end])
        at = end
    whole = len(chunks)
    if at < len(text):
        first = bisect_right(ends, at)
        times += times_s[first:]
        chunks += [text[at : ends[first]], *pieces[first + 1 :]]
    return times, chunks, whole


def token_stretch(chunks: list[bytes], key: bytes) -> tuple[int, int]:
    """The part of an answer in which each chunk is one event with text under `key`; maybe empty."""
    start, end = 0, len(chunks)
    while start < end and start < _EDGE and key not in chunks[start]:
        start += 1
    while start < end and len(chunks) - end < _EDGE and key not in chunks[end - 1]:
        end -= 1
    if start == end:
        return 0, 0
    stretch = chunks[start:end]
    at, joined = stretch[0].find(key), b"".join(stretch)
    # All events of a stream are alike up to their text. A chunk that holds none, two or part of one event would have
    # the text's key at another offset, end otherwise, or have more or fewer lines than size, event, nothing, end.
    plain = (
        b"\r\ndata: {" in stretch[0]
        and all(map(methodcaller("endswith", b"}\n\n\r\n"), stretch))
        and joined.count(b"\n") == 4 * len(stretch)
        and all(map(methodcaller("startswith", key, at), stretch))
        and _QUOTE not in map(itemgetter(at + len(key)), stretch)  # a quote right there is an empty text
    )
    return (start, end) if plain else (0, 0)


def _size_at(text: bytes, at: int) -> int:
    """How many bytes the chunk that begins there takes; 0 for the last chunk, or where none begins."""
    line_end = text.find(b"\r\n", at, at + _SIZE_BYTES)
    digits = text[at:line_end]
    if line_end < 0 or not digits.isalnum():
        return 0
    try:
        size = int(digits, 16)
    except ValueError:
        return 0
    return len(digits) + size + 4 if size else 0


@functools.cache
def _chunk_head(length: int) -> bytes:
    """How a chunk begins that takes `length` bytes with its size and line ends; what none begins with if none can."""
    for digits in range(1, _SIZE_BYTES - 2):
        size = length - digits - 4
        if size > 0 and len(head := b"%x\r\n" % size) == digits + 2:
            return head
    return b"\r\n"
