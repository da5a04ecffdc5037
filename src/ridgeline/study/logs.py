"""The end of what a program writes while it runs: plain text that any face can show, whatever the program wrote."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ridgeline.files import open_regular
from ridgeline.records.secrets import masked

_LINE_BYTES, _TAIL_BYTES = 4096, 32768
_LONGEST_LINE = 1000
_LOGS = (".log", ".out", ".err")
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


def latest_line(folder: Path) -> str:
    """The last line of the log written to last, without control characters; empty where nothing was written."""
    return next(iter(last_lines(newest_log(folder), 1)), "").strip()


def newest_log(folder: Path) -> Path | None:
    newest: tuple[float, Path] | None = None
    try:
        for entry in os.scandir(folder):
            log = entry.name in ("stdout", "stderr") or entry.name.endswith(_LOGS)
            if log and entry.is_file() and (seen := entry.stat()).st_size:
                newest = max(newest or (0.0, Path(entry)), (seen.st_mtime, Path(entry)))
    except OSError:
        return None  # deleted meanwhile, or on a disk that is away: the picture goes on without it
    return None if newest is None else newest[1]


def last_lines(log: Path | None, count: int) -> list[str]:
    """Without control characters and secrets, indented as they were; empty lines are left out."""
    if log is None:
        return []
    size = _LINE_BYTES if count == 1 else _TAIL_BYTES
    try:
        with open_regular(log) as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - size))
            tail = stream.read(size).decode(errors="replace")
    except OSError:
        return []
    # a progress bar goes back to the start of its line instead of beginning another
    lines = [line for line in _COLOURS.sub("", tail).replace("\r", "\n").split("\n") if line.strip()]
    return [_plain(line) for line in lines[-count:]]


def _plain(line: str) -> str:
    return masked("".join(c if c.isprintable() else " " for c in line[:_LONGEST_LINE]).rstrip())
