"""journal.jsonl: one event a line, on disk before the campaign acts on it.

The last line may be torn by a crash or a full disk; it is repaired when the journal is next opened for writing, and
what was cut off is kept in journal.torn. A damaged line anywhere else is never repaired by guessing.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from ridgeline.errors import StoreError
from ridgeline.files import open_regular, sync_folder

_Event = dict[str, Any]
_FULL = (errno.ENOSPC, errno.EDQUOT)
_LONGEST_NUMBER = 300  # digits; a float has at most 309
_AS_ZEROS = bytes.maketrans(b"123456789", b"000000000")
_LONG_NUMBER = b"0" * _LONGEST_NUMBER


class Journal:
    """Made by `Journal.open`. Only the controller that holds the study's lock may have one."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        self._size = os.fstat(descriptor).st_size
        self._place = path.resolve()

    @classmethod
    def open(cls, path: Path) -> Journal:
        """Ready to append; creates the file, or repairs its last line."""
        try:
            new = not path.exists()
            if not new:
                open_regular(path).close()  # a pipe would take everything and keep nothing
            descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        except OSError as error:
            raise StoreError(
                f"{path}: cannot be opened for writing ({error.strerror}); check its permissions"
            ) from None
        try:
            if new:
                sync_folder(path.parent)
            else:
                _repair(path, descriptor)
        except OSError as error:
            os.close(descriptor)
            raise failure(path, path.parent, error) from None
        return cls(path, descriptor)

    def append(self, event: Mapping[str, Any]) -> None:
        """Returns once the event is on disk. After a StoreError the journal is as it was before the call."""
        self.require_in_place()
        line = json.dumps(event, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        try:
            _write_all(self._descriptor, line)
            os.fsync(self._descriptor)
        except OSError as error:
            with suppress(OSError):  # else the half line stays behind; the next open cuts it off
                os.ftruncate(self._descriptor, self._size)
            raise failure(self.path, self.path.parent, error) from None
        self._size += len(line)

    @property
    def in_place(self) -> bool:
        """Whether the file we write to is still the one in the study folder: it may have been moved or deleted."""
        try:
            there = self._place.stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        ours = os.fstat(self._descriptor)
        # some network file systems make up inode numbers: by itself another one says nothing
        return there.st_ino == ours.st_ino or there.st_size == ours.st_size

    def require_in_place(self) -> None:
        if not self.in_place:
            raise StoreError(
                f"{self._place.parent}: this study folder was moved or deleted while its campaign ran, so the campaign "
                "ended; nothing was recorded since. If it was moved, continue there with `ridgeline resume`"
            )

    def read(self) -> Iterator[_Event]:
        return read_events(self.path)

    def close(self) -> None:
        os.close(self._descriptor)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def read_events(path: Path) -> Iterator[_Event]:
    """The events, oldest first. A torn last line is left out: a controller may be writing it right now."""
    try:
        file = open_regular(path)
    except OSError as error:
        raise StoreError(f"{path}: cannot be read ({error.strerror}); is this a study folder?") from None
    with file:
        yield from _events(file, path)


def _events(lines: Iterable[bytes], path: Path, before: int = 0) -> Iterator[_Event]:
    """Up to a torn last line. StoreError where a line that is no event is not the last; `before` is how many came
    before these."""
    damaged = 0
    for number, line in enumerate(lines, before + 1):
        if damaged:
            raise StoreError(
                f"{path}:{damaged}: this line is not a journal event, and others follow it; the file was edited "
                f"or damaged. Restore a copy of it; or cut it off from line {damaged} on and resume: later runs are "
                "repeated"
            )
        event = _parse_line(line)
        if event is None:
            damaged = number
        else:
            yield event


def _parse_line(line: bytes) -> _Event | None:
    """The event of a line, or None where it is torn or damaged."""
    try:
        text = line.decode()  # here: loads would first guess the encoding of every line
        # so asked, of a long journal, it takes a hundredth of the time that a pattern would
        long = _LONG_NUMBER in line.translate(_AS_ZEROS)
        event = json.loads(text, parse_int=_sensible) if long else json.loads(text)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) else None


def _sensible(digits: str) -> int:
    """ValueError for a whole number that is too large for a float, which no metric is."""
    if len(digits) > _LONGEST_NUMBER:
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)


def _repair(path: Path, descriptor: int) -> None:
    """Finish or cut off a last line that a crash left unfinished."""
    start, tail = _last_line(descriptor, os.fstat(descriptor).st_size)
    whole = _parse_line(tail) is not None
    if not tail or (whole and tail.endswith(b"\n")):
        return
    if whole:  # complete but for its line end
        _write_all(descriptor, b"\n")
    else:
        _keep_aside(path.with_name("journal.torn"), tail)
        os.ftruncate(descriptor, start)
    os.fsync(descriptor)


def _last_line(descriptor: int, size: int) -> tuple[int, bytes]:
    """Where the last line starts, and the line. Read backwards: journals are long and lines are short."""
    tail, start = b"", size
    while start > 0:
        step = min(65536, start)
        start -= step
        tail = os.pread(descriptor, step, start) + tail
        cut = tail.rfind(b"\n", 0, len(tail) - 1)
        if cut >= 0:
            return start + cut + 1, tail[cut + 1 :]
    return 0, tail


def _keep_aside(path: Path, tail: bytes) -> None:
    # not through a link: this name is only ever ours
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    with os.fdopen(descriptor, "ab") as file:
        file.write(tail.rstrip(b"\n") + b"\n")
        file.flush()
        os.fsync(file.fileno())
    sync_folder(path.parent)


def _write_all(descriptor: int, content: bytes) -> None:
    while content:
        content = content[os.write(descriptor, content) :]


def failure(path: Path, study_folder: Path, error: OSError) -> StoreError:
    """The message when the file system refuses to write `path` of a study folder."""
    if error.errno in _FULL:
        what = "the disk or your quota there is full; free some space"
    else:
        what = f"cannot be written ({error.strerror}); check the disk"
    return StoreError(f"{path}: {what}, then continue with `ridgeline resume {study_folder}`; nothing recorded is lost")


# A journal followed as it grows, read-only: each complete line once, from the start again if it was truncated.


@dataclass
class JournalTail:
    """Reads what was added since the last poll. An incomplete last line is left for the next one."""

    path: Path
    lines: int = field(default=0, init=False)  # read so far
    _read_bytes: int = field(default=0, init=False)
    _file: tuple[int, int] | None = field(default=None, init=False)

    def poll(self) -> tuple[bool, list[_Event]]:
        """Whether all that was read before is void, and the events since.

        A resumed controller cuts a torn line off; a restored copy is another file. StoreError where a line in the
        middle is damaged, and where the journal is not there.
        """
        try:
            with open_regular(self.path) as file:
                seen = os.fstat(file.fileno())
                before, self._file = self._file, (seen.st_dev, seen.st_ino)
                anew = before is not None and (before != self._file or seen.st_size < self._read_bytes)
                if anew:
                    self.restart()
                file.seek(self._read_bytes)
                lines = file.read().split(b"\n")[:-1]
        except OSError as error:
            raise StoreError(f"{self.path}: cannot be read ({error.strerror}); was the folder moved?") from None
        events = list(_events(lines, self.path, self.lines))
        self.lines += len(events)
        self._read_bytes += sum(len(line) + 1 for line in lines[: len(events)])
        return anew, events

    def restart(self) -> None:
        """From the first line again."""
        self._read_bytes = self.lines = 0
