"""A journal followed as it grows, read-only: each complete line once, from the start again if it was truncated."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from ridgeline.errors import StoreError
from ridgeline.files import open_regular
from ridgeline.study.journal import Event, damage, parse_line


@dataclass
class JournalTail:
    """Reads what was added since the last poll. An incomplete last line is left for the next one."""

    path: Path
    lines: int = field(default=0, init=False)  # read so far
    _read_bytes: int = field(default=0, init=False)
    _file: tuple[int, int] | None = field(default=None, init=False)

    def poll(self) -> tuple[bool, list[Event]]:
        """Whether all that was read before is void, and the events since.

        A resumed controller cuts a torn line off; a restored copy is another file. StoreError where a line in the
        middle is damaged, and where the journal is not there.
        """
        try:
            with open_regular(self.path) as file:
                seen = os.fstat(file.fileno())
                anew = self._file is not None and ((seen.st_dev, seen.st_ino) != self._file or self._is_cut(seen))
                if anew:
                    self.restart()
                self._file = seen.st_dev, seen.st_ino
                file.seek(self._read_bytes)
                return anew, self._whole_lines(file.read())
        except OSError as error:
            raise StoreError(f"{self.path}: cannot be read ({error.strerror}); was the folder moved?") from None

    def restart(self) -> None:
        """From the first line again."""
        self._read_bytes = self.lines = 0

    def _is_cut(self, seen: os.stat_result) -> bool:
        return seen.st_size < self._read_bytes

    def _whole_lines(self, text: bytes) -> list[Event]:
        events: list[Event] = []
        lines = text.split(b"\n")
        for at, line in enumerate(lines[:-1]):
            event = parse_line(line)
            if event is None:
                if any(lines[at + 1 :]):
                    raise StoreError(damage(self.path, self.lines + 1))
                break  # the last line, torn by a crash: its repair will cut it off
            events.append(event)
            self.lines += 1
            self._read_bytes += len(line) + 1
        return events
