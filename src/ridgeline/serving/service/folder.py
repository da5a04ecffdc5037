"""The folder of a service: its journal, what was accepted, its members' scripts and job folders."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError
from ridgeline.files import stamp, write_whole
from ridgeline.records.run import Job
from ridgeline.serving.service.accepted import ACCEPTED_FILE, Accepted, read_accepted, write_accepted
from ridgeline.serving.service.history import ServiceHistory
from ridgeline.serving.service.members import Member
from ridgeline.serving.service.scripts import ADDRESS_FILE, START_FILE, address_files, member_command, start_script
from ridgeline.serving.service.service import Service
from ridgeline.study.journal import Journal, read_events
from ridgeline.study.lock import LockHeld, Presence, StudyLock, find_controller
from ridgeline.study.state_files import last_lines


class ServiceFolder(ServiceHistory):
    """Reads what happened so far and what was accepted; between `begin` and `end` it may also write.

    `file` is what the deployment file says, where it can be read. Where nothing was accepted yet it is all there is.
    """

    def __init__(self, root: Path, file: Service | None = None) -> None:
        super().__init__()
        self.root, self.file = root.absolute(), file
        self.accepted: Accepted | None = None
        self.journal: Journal | None = None
        self._read: object = None
        self.refresh()

    def refresh(self) -> None:
        """What others have done meanwhile."""
        self.replay(read_events(self._journal_path) if self._journal_path.exists() else ())
        if (now := self._stamp()) != self._read or self.accepted is None:
            self.accepted, self._read = read_accepted(self.root, self.file.name if self.file is not None else ""), now
        if self.accepted is None and self.file is None:
            raise InputError(
                f"{self.root}: nothing was accepted to run here; start it with `ridgeline service up FILE`"
            )

    @property
    def service(self) -> Service:
        """The service as it was accepted as a whole, or else as the file describes it."""
        found = self.accepted.service if self.accepted is not None else self.file
        assert found is not None
        return found

    def settings_of(self, name: str) -> Service:
        """Those that a member was accepted with."""
        return self.accepted.of(name) if self.accepted is not None else self.service

    def accept(self, accepted: Accepted) -> None:
        """On disk afterwards; what else lies in the folder is as it was."""
        assert self.journal is not None, "only who holds the lock may write"
        write_accepted(self.root, accepted)
        self.accepted, self._read = accepted, self._stamp()

    def _stamp(self) -> object:
        """Of what was accepted: each change makes a new file."""
        path = self.root / ACCEPTED_FILE
        return (path.stat().st_ino, *stamp(path)) if path.exists() else None

    @property
    def _journal_path(self) -> Path:
        return self.root / "journal.jsonl"

    def command_lock(self) -> StudyLock:
        """Held by a command of a person from its beginning to its end."""
        return self._lock("lock")

    def action_lock(self) -> StudyLock:
        """Held for one act, by whoever writes to the journal."""
        return self._lock("journal.lock")

    def _lock(self, name: str) -> StudyLock:
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        return StudyLock(self.root / name, "service")

    def is_commanded(self) -> bool:
        """Whether somebody holds the lock of a command: the kernel drops that of one who was killed."""
        presence = find_controller(self.root / "lock", self._journal_path).presence
        if presence is not Presence.ELSEWHERE:
            return presence is Presence.HERE
        try:
            with self.command_lock():
                return False
        except LockHeld:
            return True

    def begin(self) -> None:
        """From here on events may be recorded; call it with the lock of an act held."""
        self.journal = Journal.open(self._journal_path)
        self.refresh()

    def end(self) -> None:
        if self.journal is not None:
            self.journal.close()
            self.journal = None

    def record(self, event: Mapping[str, Any]) -> None:
        assert self.journal is not None, "only who holds the lock may write"
        dated = {"at": round(time.time(), 3), **event}
        self.journal.append(dated)
        self.apply(dated)
        if dated["event"] == "ended":
            self._forget_address(str(dated["member"]))

    # a member's files

    def of(self, member: Member) -> Path:
        return self.root / "members" / member.name

    def job(self, member: Member, generation: int, settings: Service | None = None) -> Job:
        """With these settings, or those that were accepted."""
        service = settings or self.settings_of(member.name)
        return Job(
            name=f"{service.name}-{member.name}",
            folder=self.of(member) / "runs" / f"{generation:03d}",
            command=member_command(service, member, str(self.of(member))),
            resources=member.resources,
            limit_s=service.job_limit_s,
        )

    def prepare(self, member: Member, generation: int, settings: Service) -> Job:
        """Writes the start script and the job's folder; the address of an earlier start is gone afterwards."""
        job = self.job(member, generation, settings)
        job.folder.mkdir(parents=True, exist_ok=True)
        self._forget_address(member.name)
        write_whole(self.of(member) / START_FILE, start_script(settings, member), mode=0o755)
        return job

    def has_script_of(self, member: Member) -> bool:
        """Whether its latest start was with the settings that were accepted."""
        try:
            return (self.of(member) / START_FILE).read_text() == start_script(self.settings_of(member.name), member)
        except OSError:
            return False

    def address(self, member: Member) -> str:
        """Where it listens; empty while it has not said so."""
        try:
            return (self.of(member) / ADDRESS_FILE).read_text().strip()
        except OSError:
            return ""

    def began_s(self, member: Member) -> float:
        """When its job began to run, on the clock of the wall: it writes its address then. 0 before that."""
        try:
            return (self.of(member) / ADDRESS_FILE).stat().st_mtime
        except OSError:
            return 0.0

    def url(self, member: Member) -> str:
        address = self.address(member)
        return f"http://{address}:{member.port}" if address else ""

    def _forget_address(self, name: str) -> None:
        """It listens there no longer, and where users were sent to it, nobody does."""
        for path in address_files(self.service, name, self.root / "members" / name):
            path.unlink(missing_ok=True)

    def log(self, member: Member) -> Path:
        """What its latest start writes; engines write to stderr."""
        start = self.started.get(member.name)
        return self.job(member, start.generation if start else 1).folder / "stderr"

    def last_lines(self, member: Member, count: int = 12) -> str:
        """The end of what its latest start wrote, errors last."""
        found: list[str] = []
        if (start := self.started.get(member.name)) is not None:
            folder = self.job(member, start.generation).folder
            for name in ("stdout", "stderr"):
                found += last_lines(folder / name, count)
        return "\n".join(found[-count:])
