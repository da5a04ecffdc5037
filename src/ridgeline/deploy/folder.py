"""The folder of a service: its journal, its members' scripts and job folders. What runs is what the journal says."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ridgeline.deploy.members import Member
from ridgeline.deploy.scripts import ADDRESS_FILE, START_FILE, member_command, start_script
from ridgeline.deploy.service import Service
from ridgeline.files import write_whole
from ridgeline.records.run import Job
from ridgeline.store.journal import Journal, read_events
from ridgeline.store.lock import StudyLock


@dataclass
class Started:
    """The latest start of a member. Without a ticket it was planned and perhaps never handed over."""

    generation: int
    ticket: str = ""
    ended: str = ""  # why, once its end was seen


@dataclass
class ServiceFolder:
    """Reads what happened so far; `opened` may also write."""

    root: Path
    service: Service
    started: dict[str, Started] = field(default_factory=dict)
    drained: set[str] = field(default_factory=set)  # by hand, and not put back yet
    is_down: bool = False
    journal: Journal | None = None

    def __post_init__(self) -> None:
        self.root = self.root.absolute()
        self.refresh()

    def refresh(self) -> None:
        """What others have done meanwhile."""
        self.started.clear()
        self.drained.clear()
        self.is_down = False
        if self._journal_path.exists():
            for event in read_events(self._journal_path):
                self._apply(event)

    @property
    def _journal_path(self) -> Path:
        return self.root / "journal.jsonl"

    def lock(self) -> StudyLock:
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        return StudyLock(self.root / "lock", "service")

    def begin(self) -> None:
        """From here on events may be recorded; call it with the lock held."""
        self.journal = Journal.open(self._journal_path)
        self.refresh()

    def end(self) -> None:
        if self.journal is not None:
            self.journal.close()
            self.journal = None

    def record(self, event: Mapping[str, Any]) -> None:
        assert self.journal is not None, "only who holds the lock may write"
        self.journal.append({"at": round(time.time(), 3), **event})
        self._apply(event)

    def _apply(self, event: Mapping[str, Any]) -> None:
        name = str(event.get("member", ""))
        if event["event"] == "planned":
            self.started[name] = Started(int(event["generation"]))
        elif event["event"] == "submitted":
            self.started[name].ticket = str(event["ticket"])
        elif event["event"] == "ended" and name in self.started:
            self.started[name].ended = str(event["reason"]) or "ended"
        elif event["event"] == "drained":
            self.drained.add(name)
        elif event["event"] == "back":
            self.drained.discard(name)
        self.is_down = event["event"] == "down" or (self.is_down and event["event"] != "planned")

    # a member's files

    def of(self, member: Member) -> Path:
        return self.root / "members" / member.name

    def job(self, member: Member, generation: int) -> Job:
        return Job(
            name=f"{self.service.name}-{member.name}",
            folder=self.of(member) / "runs" / f"{generation:03d}",
            command=member_command(self.service, member, str(self.of(member))),
            resources=member.resources,
            limit_s=self.service.limit_s,
        )

    def prepare(self, member: Member, generation: int) -> Job:
        """Writes the start script and the job's folder; the address of an earlier start is gone afterwards."""
        job = self.job(member, generation)
        job.folder.mkdir(parents=True, exist_ok=True)
        (self.of(member) / ADDRESS_FILE).unlink(missing_ok=True)
        write_whole(self.of(member) / START_FILE, start_script(self.service, member), mode=0o755)
        return job

    def address(self, member: Member) -> str:
        """Where it listens; empty while it has not said so."""
        try:
            return (self.of(member) / ADDRESS_FILE).read_text().strip()
        except OSError:
            return ""

    def url(self, member: Member) -> str:
        address = self.address(member)
        return f"http://{address}:{member.port}" if address else ""

    def last_lines(self, member: Member, count: int = 5) -> str:
        """The end of what its latest start wrote, errors last."""
        found: list[str] = []
        if (start := self.started.get(member.name)) is not None:
            folder = self.job(member, start.generation).folder
            for name in ("stdout", "stderr"):
                found += _tail(folder / name, count)
        return "\n".join(found[-count:])


def _tail(path: Path, count: int) -> list[str]:
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 8192))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return []
    return [line for line in lines if line.strip()][-count:]
