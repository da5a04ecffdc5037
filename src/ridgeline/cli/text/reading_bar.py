"""How far a long file has been read: one line on a terminal that overwrites itself, nothing anywhere else."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TextIO

from ridgeline.cli.terminal import clean_line, uncleaned

_WAIT_S, _STEP_S, _BAR = 0.5, 0.2, 24


class ReadingBar:
    """Call it with the bytes read so far. It shows itself only to people, and only when they would wait."""

    def __init__(self, path: Path, to: TextIO | None = None) -> None:
        self._to = uncleaned(sys.stderr if to is None else to)
        self._on = self._to.isatty()
        self._name = clean_line(path.name)
        self._size = path.stat().st_size if path.is_file() else 0
        self._began = self._last = time.monotonic()
        self._width = 0

    def __call__(self, done: int) -> None:
        now = time.monotonic()
        if not self._on or now - self._began < _WAIT_S or now - self._last < _STEP_S:
            return
        self._last = now
        self._show(reading_line(self._name, done, self._size, now - self._began))

    def close(self) -> None:
        if self._width:
            self._show("")

    def _show(self, line: str) -> None:
        self._to.write("\r" + line.ljust(self._width) + ("" if line else "\r"))
        self._to.flush()
        self._width = len(line)


def reading_line(name: str, done: int, size: int, seconds: float) -> str:
    """`server.log [######------]  50%  4.0 of 8.0 GB, 95 MB/s`, within 79 columns."""
    share = min(1.0, done / size) if size else 0.0
    bar = "#" * round(_BAR * share) + "-" * (_BAR - round(_BAR * share))
    short = name if len(name) <= 20 else "…" + name[-19:]
    return f"{short} [{bar}] {share:4.0%}  {done / 1e9:.1f} of {size / 1e9:.1f} GB, {done / 1e6 / seconds:.0f} MB/s"
