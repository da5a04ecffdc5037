"""The folder of a service: its journal, what was accepted, its members' scripts and job folders.

What was accepted to run is one file: the settings of each member. `up` and `restart` accept what the deployment file
says, each member's at the moment it is started with it, and a canary when it has passed. Whoever starts a member,
`keep` above all, starts it as this file says: what lies in the deployment file since is an edit that nobody applied.
"""

from __future__ import annotations

import functools
import hashlib
import json
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ridgeline import __version__
from ridgeline.errors import InputError, StoreError
from ridgeline.files import read_text, stamp, write_whole
from ridgeline.records.run import Job
from ridgeline.serving.service.history import ServiceHistory
from ridgeline.serving.service.members import Member, every_member, first_slot
from ridgeline.serving.service.scripts import ADDRESS_FILE, START_FILE, address_files, member_command, start_script
from ridgeline.serving.service.service import Service
from ridgeline.study.journal import Journal, read_events
from ridgeline.study.lock import LockHeld, Presence, StudyLock, find_controller
from ridgeline.study.state_files import last_lines

ACCEPTED_FILE = "accepted.json"
_FORMAT = 1
# fields of a service -> their keys in the deployment file, where they are called something else
_KEYS = {"release": "engine", "python": "engine", "gpu": "engine", "planned_release": "engine", "pods": "kubernetes"}
_KEYS |= {"in_turn": "start", "limit_s": "limit"}


class DamagedAcceptedError(StoreError):
    """What was accepted cannot be made out; `path` is the file."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"{path}: is damaged, so that nobody knows what was accepted to run; restore a copy of it, or run "
            "`ridgeline service down FILE`, which sets it aside, and then `up`. Nothing was started"
        )
        self.path = path


def set_aside(path: Path) -> Path:
    """For whoever wants to find out what happened to it."""
    return path.replace(path.with_suffix(".damaged"))


@functools.cache
def _form() -> TypeAdapter[Service]:
    return TypeAdapter(Service)


@dataclass(frozen=True, slots=True)
class Accepted:
    """`service` is that of the whole, and of members that come later; `members` are those that run with other settings.

    A server and the one that takes its place before its job ends are the same one here.
    """

    service: Service
    members: Mapping[str, Service] = field(default_factory=dict)

    def of(self, name: str) -> Service:
        return self.members.get(first_slot(name), self.service)

    def with_member(self, name: str, settings: Service, servers: Collection[str]) -> Accepted:
        """After this member was started with these settings; they are the whole's once all `servers` have them."""
        found = Accepted(self.service, {**self.members, first_slot(name): settings})
        whole = all(_start_of(found.of(server), server) == _start_of(settings, server) for server in servers)
        return found.with_service(settings, found.members) if whole else found

    def with_service(self, settings: Service, names: Collection[str]) -> Accepted:
        """These for the whole; those of `names` that would be started differently keep their own."""
        kept = {first_slot(n): self.of(n) for n in names if _start_of(self.of(n), n) != _start_of(settings, n)}
        return Accepted(settings, kept)

    def edits(self, file: Service, names: Collection[str]) -> tuple[list[str], list[str]]:
        """Members of `names` that the file would start with other settings, and its keys that differ."""
        members = [n for n in names if _start_of(self.of(n), n) != _start_of(file, n)]
        keys = [f.name for f in fields(Service) if getattr(file, f.name) != getattr(self.service, f.name)]
        return members, list(dict.fromkeys(_KEYS.get(key, key) for key in keys))


def _start_of(service: Service, name: str) -> object:
    """All that a start of this member consists of, wherever its service's other members run; None: it has no such."""
    member = every_member(service).get(first_slot(name))
    if member is None:
        return None
    return start_script(service, member), member_command(service, member, "."), member.resources, service.job_limit_s


def read_accepted(root: Path, name: str = "") -> Accepted | None:
    """None where nothing was accepted yet. StoreError where it cannot be used: damaged, or of another service."""
    path = root / ACCEPTED_FILE
    try:
        text = read_text(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"{path}: cannot be read ({error.strerror}); check its permissions") from None
    try:
        found = json.loads(text)
        newer = found["format"] > _FORMAT
        if not newer:
            intact = found["digest"] == _digest(found["settings"], found["members"])
            services = [_form().validate_python(settings) for settings in found["settings"]] if intact else []
    except (ValueError, KeyError, TypeError, ValidationError):
        newer = intact = False
    if newer:
        by = f"ridgeline {found.get('written_by', 'of a later release')}, which is newer than this one ({__version__})"
        raise StoreError(f"{path}: was written by {by}; use that release. Nothing was started")
    if not intact or not services:
        raise DamagedAcceptedError(path)
    members = {member: services[number] for member, number in found["members"].items()}
    if name and services[0].name != name:
        raise StoreError(
            f"{path}: is of the service {services[0].name!r}, and the deployment file describes {name!r}; name that "
            "service's own folder with --folder, or give the file its old name back. Nothing was started"
        )
    return Accepted(services[0], members)


def write_accepted(root: Path, accepted: Accepted) -> None:
    """In one step: whoever is killed meanwhile leaves what was accepted before, or this."""
    services = list(dict.fromkeys(map(_text, (accepted.service, *accepted.members.values()))))
    settings = [json.loads(text) for text in services]
    members = {name: services.index(_text(service)) for name, service in accepted.members.items()}
    head = {"format": _FORMAT, "written_by": __version__, "digest": _digest(settings, members)}
    write_whole(
        root / ACCEPTED_FILE,
        json.dumps({**head, "settings": settings, "members": members}, indent=1) + "\n",
        mode=0o600,
    )


def _text(service: Service) -> str:
    return _form().dump_json(service, by_alias=True).decode()


def _digest(settings: Any, members: Any) -> str:
    return hashlib.sha256(json.dumps([settings, members], sort_keys=True).encode()).hexdigest()


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
        """When its job began to run (wall-clock time): it writes its address then. 0 before that."""
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
