"""The bytes of a file of any size, gzipped or not, in pieces that fit into memory."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from ridgeline.errors import ReadError
from ridgeline.files import open_regular

_PIECE_BYTES = 1 << 20
_GZIP = b"\x1f\x8b"
_GZIP_WINDOW = 31  # zlib's way of saying: a gzip header and trailer, the largest window

Watch = Callable[[int], None]


class ByteStream:
    """Pieces of a file. `damage` says, once they were read, why the rest of a torn gzip file is missing.

    `watch` is called with how many bytes of the file itself were read so far, zipped ones as they lie on disk.
    """

    def __init__(self, path: Path, watch: Watch | None = None) -> None:
        self.path, self._watch = path, watch
        self.damage = ""

    @property
    def zipped(self) -> bool:
        try:
            with open_regular(self.path) as file:
                return file.read(2) == _GZIP
        except OSError:
            return False

    def __iter__(self) -> Iterator[bytes]:
        self.damage = ""
        try:
            with open_regular(self.path) as file:
                pieces = self._raw(file)
                first = next(pieces, b"")
                if first.startswith(_GZIP):
                    yield from self._unzipped(first, pieces)
                else:
                    yield first
                    yield from pieces
        except OSError as error:
            raise ReadError(f"{self.path}: cannot be read: {error.strerror or error}") from error

    def _raw(self, file: BinaryIO) -> Iterator[bytes]:
        done = 0
        while piece := file.read(_PIECE_BYTES):
            done += len(piece)
            if self._watch:
                self._watch(done)
            yield piece

    def _unzipped(self, first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
        """Never more than a piece at once: a kilobyte of gzip can hold a gigabyte."""
        unzip, waiting = zlib.decompressobj(_GZIP_WINDOW), first
        while True:
            try:
                piece = unzip.decompress(waiting, _PIECE_BYTES)
            except zlib.error as error:
                self.damage = f"the gzip data is damaged ({error}); what came before was read"
                return
            if piece:
                yield piece
            waiting = unzip.unconsumed_tail
            if unzip.eof:
                waiting = unzip.unused_data or next(rest, b"")
                if not waiting.startswith(_GZIP):  # the end, or padding that gzip itself ignores
                    return
                unzip = zlib.decompressobj(_GZIP_WINDOW)
            elif not waiting:
                waiting = next(rest, b"")
                if not waiting and not piece:
                    self.damage = "the gzip data ends too early; what came before was read"
                    return
