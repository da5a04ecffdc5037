"""Lines of files that nobody promised to keep tidy: binary garbage, no last newline, progress bars of a megabyte."""

from __future__ import annotations

import gzip
import math
import os
import re
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from pathlib import Path

from ridgeline.errors import ReadError
from ridgeline.files import open_regular

_PIECE_BYTES = 1 << 20
_GZIP = b"\x1f\x8b"
# Longer lines exist only as progress bars and binary garbage; cutting them bounds memory and every regex below it.
_LONGEST_LINE_BYTES = 1 << 20
_TAIL_BYTES = 1 << 20
_UNZIPPED_LOOK = 200_000  # lines of a gzipped file, which has no end to jump to

_ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")

Watch = Callable[[int], None]


class TextFile:
    """The lines of a file of any size, without their newline; can be iterated again, and holds a block of them at most.

    Lines are counted as `grep -n` counts them: only a newline ends one, a carriage return does not. A gzipped file is
    unpacked on the way; `damage` says, once it was read, why the rest of a torn one is missing.
    `watch` is called with how many bytes of the file itself were read so far, zipped ones as they lie on disk.
    """

    def __init__(self, path: Path, watch: Watch | None = None) -> None:
        self.path, self._watch = path, watch
        self.damage = ""

    def pieces(self) -> Iterator[bytes]:
        """Its bytes, unpacked, in pieces that fit into memory."""
        self.damage = ""
        try:
            with open_regular(self.path) as file:
                zipped = file.read(2) == _GZIP
                file.seek(0)
                # of a zipped file one block at a time: what came before a damaged place is not lost
                read = gzip.GzipFile(fileobj=file).read1 if zipped else file.read
                while piece := read(_PIECE_BYTES):
                    if self._watch:
                        self._watch(file.tell())
                    yield piece
        except EOFError:
            self.damage = "the gzip data ends too early; what came before was read"
        except (zlib.error, gzip.BadGzipFile) as error:
            self.damage = f"the gzip data is damaged ({error}); what came before was read"
        except OSError as error:
            raise ReadError(f"{self.path}: cannot be read: {error.strerror or error}") from error

    def __iter__(self) -> Iterator[str]:
        for block in self.blocks():
            for line in block[:-1].decode("utf-8", "replace").split("\n"):
                yield line.rstrip("\r\n")

    def blocks(self) -> Iterator[bytes]:
        """The same lines as bytes, many at a time, each with its newline, also the last."""
        return _blocks(self.pieces())

    def ends(self, first: int, last: int) -> Iterator[str]:
        """The first and last lines, without reading what lies between."""
        lines = iter(self)
        yield from islice(lines, first)
        following = next(lines, None)
        if following is None:
            return
        try:
            with open_regular(self.path) as file:
                zipped = file.read(2) == _GZIP
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - _TAIL_BYTES))
                tail_bytes = b"" if zipped else file.read(_TAIL_BYTES)
        except OSError as error:
            raise ReadError(f"{self.path}: cannot be read: {error.strerror or error}") from error
        if zipped:
            yield from deque(chain((following,), islice(lines, _UNZIPPED_LOOK)), maxlen=last)
        else:
            yield from tail_bytes.decode("utf-8", "replace").split("\n")[-last - 1 :]


def blocks_of(lines: Iterable[str]) -> Iterator[bytes]:
    """Lines as blocks of bytes, each line with its newline, for readers that look at many lines at once."""
    if isinstance(lines, TextFile):
        yield from lines.blocks()
        return
    source = iter(lines)
    while some := list(islice(source, 5000)):
        yield ("\n".join(line.replace("\n", " ") for line in some) + "\n").encode("utf-8", "replace")


def _blocks(pieces: Iterable[bytes]) -> Iterator[bytes]:
    rest: bytes = b""
    torn = False  # within a line that is longer than we keep
    for piece in pieces:
        if torn:
            _, newline, piece = piece.partition(b"\n")
            if not newline:
                continue
            torn = False
        whole, newline, left = piece.rpartition(b"\n")
        if newline:
            yield from _cut(rest + whole + newline)
            rest = left
        else:
            rest += piece
        if len(rest) >= _LONGEST_LINE_BYTES:
            yield rest[:_LONGEST_LINE_BYTES] + b"\n"
            rest, torn = b"", True
    if rest:
        yield rest + b"\n"


def _cut(block: bytes) -> Iterator[bytes]:
    """The block, with its first line cut where that is too long; the others lie within one piece."""
    end = block.index(b"\n")
    if end > _LONGEST_LINE_BYTES:
        yield block[:_LONGEST_LINE_BYTES] + b"\n"
        block = block[end + 1 :]
    if block:
        yield block


def plain(line: str) -> str:
    """Without colour codes, which engines print even into files."""
    return _ESCAPE.sub("", line) if "\x1b" in line else line


def number(text: str | None) -> float | None:
    """A finite number, also in Fortran's notation (1.58D-02), or None."""
    if text is None or len(text) > 40:
        return None
    try:
        value = float(text.replace("D", "E").replace("d", "e"))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def whole(text: str | None) -> int | None:
    """A whole number of at most 18 digits, so that it is exact and never overflows a float, or None."""
    if text is None or len(text) > 19:
        return None
    try:
        return int(text)
    except ValueError:
        return None


def gib(text: str | None) -> int | None:
    """Bytes from a number of GiB; engines write GB and mean 2**30."""
    value = number(text)
    return None if value is None else round(value * 2**30)
