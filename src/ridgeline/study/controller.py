"""Who runs the campaign of a study folder, according to its lock and its journal. Never takes the lock."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from ridgeline.study.lock import holder_of, is_gone


class Presence(StrEnum):
    HERE = "here"  # a living process of this host
    GONE = "gone"  # it was killed, or its host restarted: whoever ends in order empties the lock
    ELSEWHERE = "elsewhere"  # on another host, which we can't see into


@dataclass(frozen=True, slots=True)
class ControllerSighting:
    """`pid` is None where the lock names nobody; `last_write_s` is that of the journal, since the epoch."""

    presence: Presence
    pid: int | None
    host: str
    since: str
    last_write_s: float

    def as_json(self) -> dict[str, Any]:
        return {
            "presence": self.presence.value,
            "pid": self.pid,
            "host": self.host,
            "since": self.since,
            "last_write_s": self.last_write_s,
        }


def look_for_controller(lock: Path, journal: Path) -> ControllerSighting:
    holder = holder_of(lock)
    here, pid = socket.gethostname(), holder.get("pid")
    host = str(holder.get("host", here))
    if host != here:
        presence = Presence.ELSEWHERE
    else:
        presence = Presence.GONE if not isinstance(pid, int) or is_gone(holder) else Presence.HERE
    known = pid if isinstance(pid, int) else None
    return ControllerSighting(presence, known, host, str(holder.get("since", "")), journal.stat().st_mtime)
