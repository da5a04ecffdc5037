"""Whether a job still writes anything: a program that hangs stops writing long before its wall limit."""

from __future__ import annotations

import os
import time
from pathlib import Path

from ridgeline.executors.processes import now_s
from ridgeline.files import write_whole
from ridgeline.records.run import QUIET_FILE

LOOKS_PER_LIMIT = 8


class Silence:
    """Looks at a run folder a few times per limit. Any file that grows or changes counts as a sign of life."""

    def __init__(self, folder: Path, limit_s: float, *, began_before_us: bool) -> None:
        self.limit_s = limit_s
        self._folder = folder
        self._seen = _size_and_newest(folder)
        self._looked_at_s = self._changed_at_s = now_s()
        if began_before_us:
            # The time before we came counts; a file server whose clock is ahead must not make it negative
            self._changed_at_s -= max(0.0, time.time() - self._seen[1] / 1e9)

    @property
    def next_look_s(self) -> float:
        """When to look again, on the clock of `processes.now_s`."""
        return self._looked_at_s + self.limit_s / LOOKS_PER_LIMIT

    def reached(self) -> bool:
        now = now_s()
        if now < self.next_look_s:
            return False
        self._looked_at_s = now
        seen = _size_and_newest(self._folder)
        if seen != self._seen:
            self._seen, self._changed_at_s = seen, now
        return now - self._changed_at_s >= self.limit_s


def note_quiet(folder: Path) -> None:
    """Write down what the run has written up to now, before it is told to end."""
    lines = []
    for entry in os.scandir(folder):
        if entry.is_file(follow_symlinks=False):
            seen = entry.stat(follow_symlinks=False)
            lines.append(f"{seen.st_mtime_ns / 1e9:.9f} {seen.st_size} {entry.name}\n")
    write_whole(folder / QUIET_FILE, "".join(lines), survives_power_cut=False)


def _size_and_newest(folder: Path) -> tuple[int, int]:
    """Total size and latest change of all files below; links are not followed (they lead to builds and inputs)."""
    size = newest = 0
    for home, _, names in os.walk(folder):
        for name in names:
            try:
                seen = Path(home, name).lstat()
            except OSError:  # a file that was there a moment ago
                continue
            size, newest = size + seen.st_size, max(newest, seen.st_mtime_ns)
    return size, newest
