"""Lines of files that nobody promised to keep tidy: binary garbage, no last newline, progress bars of a megabyte."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path

from ridgeline.errors import ReadError

# Longer lines exist only as progress bars and binary garbage; cutting them bounds memory and every regex below it.
LONGEST_LINE_BYTES = 1 << 20

_ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


class TextFile:
    """The lines of a file, without their newline; can be iterated again, and never holds more than one line.

    Lines are counted as `grep -n` counts them: only a newline ends one, a carriage return does not.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def __iter__(self) -> Iterator[str]:
        try:
            with self.path.open("rb") as file:
                torn = False
                while piece := file.readline(LONGEST_LINE_BYTES):
                    if not torn:
                        yield piece.decode("utf-8", "replace").rstrip("\r\n")
                    torn = not piece.endswith(b"\n")
        except OSError as error:
            raise ReadError(f"{self.path}: cannot be read: {error.strerror or error}") from error


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
