"""One controller at a time in a study folder.

The kernel drops a flock when its holder dies, so a crash leaves nothing to clean up. Where the file system has no flock
(Lustre mounted without it, some NFS), a file made with O_EXCL stands in for it, and counts as abandoned once its
process is gone from this host.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any

from ridgeline.errors import StoreError
from ridgeline.files import read_text
from ridgeline.records.json_form import JsonForm

_NO_FLOCK = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


class LockHeld(StoreError):  # noqa: N818  a state of the lock, not a malfunction
    """The lock is taken, and by whom."""


class StudyLock:
    """`with StudyLock(folder / "lock"):` or LockHeld, which says who holds it. `what` the folder is of."""

    def __init__(self, path: Path, what: str = "study") -> None:
        self.path, self.what = path, what
        self.exclusive_path = path.with_name(f"{path.name}.exclusive")  # used only without flock
        self._descriptor: int | None = None
        self._made_exclusive = False

    def acquire(self) -> None:
        try:
            # a link here could lead to any file of ours, and the lock is emptied and written
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise StoreError(f"{self.path}: is a link to somewhere else; remove it, then try again") from None
            raise StoreError(f"{self.path}: cannot be opened ({error.strerror}); check the permissions") from None
        try:
            self._lock(descriptor)
            _write_holder(descriptor)
        except OSError as error:
            os.close(descriptor)
            raise StoreError(
                f"{self.path}: cannot be written ({error.strerror}); free space or check the disk"
            ) from None
        except StoreError:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def _lock(self, descriptor: int) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LockHeld(_held(self.path, self.what, holder_of(self.path))) from None
        except OSError as error:
            if error.errno not in _NO_FLOCK:
                raise
            self._make_exclusive()

    def _make_exclusive(self) -> None:
        for _ in range(2):
            try:
                descriptor = os.open(self.exclusive_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            except FileExistsError:
                self._clear_abandoned()
                continue
            _write_holder(descriptor)
            os.close(descriptor)
            self._made_exclusive = True
            return
        raise LockHeld(_held(self.exclusive_path, self.what, holder_of(self.exclusive_path)))

    def _clear_abandoned(self) -> None:
        holder = holder_of(self.exclusive_path)
        if not _is_gone(holder):
            raise LockHeld(_held(self.exclusive_path, self.what, holder, by_file=True))
        # another controller may do the same now: move it away under our name, and check what we got
        aside = self.exclusive_path.with_name(f"{self.exclusive_path.name}.{os.getpid()}")
        try:
            self.exclusive_path.rename(aside)
        except FileNotFoundError:
            return
        if (taken := holder_of(aside)) != holder:
            aside.rename(self.exclusive_path)
            raise LockHeld(_held(self.exclusive_path, self.what, taken, by_file=True))
        aside.unlink()

    def release(self) -> None:
        if self._descriptor is None:
            return
        os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)
        self._descriptor = None
        if self._made_exclusive:
            self.exclusive_path.unlink(missing_ok=True)
            self._made_exclusive = False

    def __enter__(self) -> StudyLock:
        self.acquire()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()


def _write_holder(descriptor: int) -> None:
    holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
    holder["born"] = _birth(os.getpid())
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(holder).encode() + b"\n", 0)
    os.fsync(descriptor)


def holder_of(path: Path) -> dict[str, Any]:
    """Who wrote the lock; empty when that is unknown."""
    try:
        holder = json.loads(read_text(path))
    except (OSError, ValueError):
        return {}
    return holder if isinstance(holder, dict) else {}


def _birth(pid: int) -> str:
    """When a process started, in the kernel's ticks, since numbers are used again. "" if unknown."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def _is_gone(holder: dict[str, Any]) -> bool:
    """Whether the holder was a process of this host and is no longer; for other hosts this can't be known."""
    pid = holder.get("pid")
    if holder.get("host") != socket.gethostname() or not isinstance(pid, int):
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return bool(holder.get("born")) and _birth(pid) != holder["born"]


def _held(path: Path, what: str, holder: dict[str, Any], by_file: bool = False) -> str:
    who = "another controller"
    remedy = "wait for it to end"
    if holder:
        pid, host = holder.get("pid"), holder.get("host")
        who = f"process {pid} on {host} since {holder.get('since')}"
        remedy = f"wait for it, or stop it cleanly with `kill -INT {pid}` on {host}"
    if by_file:
        remedy += f"; if it is certainly gone, delete {path}"
    return f"{path.parent}: this {what} is being run by {who}; {remedy}"


class Presence(StrEnum):
    HERE = "here"  # a living process of this host
    GONE = "gone"  # it was killed, or its host restarted: whoever ends in order empties the lock
    ELSEWHERE = "elsewhere"  # on another host, which we can't see into


@dataclass(frozen=True, slots=True)
class ControllerState(JsonForm):
    """`pid` is None where the lock names nobody; `last_write_s` is that of the journal, since the epoch."""

    presence: Presence
    pid: int | None
    host: str
    since: str
    last_write_s: float


def find_controller(lock: Path, journal: Path) -> ControllerState:
    holder, here = holder_of(lock), socket.gethostname()
    host, pid = str(holder.get("host", here)), holder.get("pid")
    pid = pid if isinstance(pid, int) else None
    presence = Presence.GONE if pid is None or _is_gone(holder) else Presence.HERE
    if host != here:
        presence = Presence.ELSEWHERE
    return ControllerState(presence, pid, host, str(holder.get("since", "")), journal.stat().st_mtime)
