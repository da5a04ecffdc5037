"""The folder of a service: its journal, its members' scripts and job folders. What runs is what the journal says."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ridgeline.files import write_whole
from ridgeline.records.run import Job
from ridgeline.service.members import ROUTER, Member, first_slot
from ridgeline.service.scripts import ADDRESS_FILE, START_FILE, address_files, member_command, start_script
from ridgeline.service.service import Service
from ridgeline.study.journal import Journal, read_events
from ridgeline.study.lock import StudyLock
from ridgeline.study.logs import last_lines

# events of a service's journal: `keep` takes a member out and starts it again, or could not
RESTART, RESTART_FAILED = "mend", "mend-failed"
DEAD_WAITS_S = (0.0, 15.0, 60.0, 240.0, 600.0)  # before a member that died again is started again
RESTARTS_WITHIN_S = 1800.0  # restarts of a member that count
_POLLED_S = 30.0  # within so much of the end of its wait a member that waited is started again
STEADY_S = 300.0  # a member that served for so long was cured by its last restart: the next trouble is a new one


def _dead_wait_s(restarts: int) -> float:
    return DEAD_WAITS_S[min(restarts, len(DEAD_WAITS_S) - 1)]


@dataclass
class Started:
    """The latest start of a member. Without a ticket it was planned and perhaps never handed over."""

    generation: int
    ticket: str = ""
    ended: str = ""  # why, once its end was seen
    ready: bool = False
    at_s: float = 0.0  # when it was planned, as all times of the journal on the clock of the wall
    ready_at_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _LoweredLimit:
    """What `keep` put in the place of the file's `most_running`; it holds until the file says something else."""

    most_running: int
    instead_of: int


@dataclass(frozen=True, slots=True)
class KeeperRestart:
    """One restart by `keep`."""

    at_s: float
    why: str


@dataclass(frozen=True, slots=True)
class ScaleChange:
    """The latest decision of `keep` about the number of servers of a role."""

    at_s: float
    wanted: int
    why: str
    up: bool


@dataclass
class ServiceFolder:
    """Reads what happened so far; between `begin` and `end` it may also write.

    What an act still has to do follows from its lines alone, so that whoever comes next can go on with it: a member
    that is `leaving` is ended when it is empty and started again, one that is `retiring` is only ended, one that was
    planned without a ticket is handed over, one that is ready and neither drained nor leaving is in the router. One
    that is `growing` is started and becomes a member when it makes tokens.
    """

    root: Path
    service: Service
    started: dict[str, Started] = field(default_factory=dict)
    drained: set[str] = field(default_factory=set)  # by hand, and not put back yet
    leaving: dict[str, float] = field(default_factory=dict)  # out of the router; ended then, or earlier when empty
    retiring: dict[str, float] = field(default_factory=dict)  # the same for one whose replacement serves
    replacing: dict[str, str] = field(default_factory=dict)  # member -> the one that will take its place
    not_replaced: dict[str, float] = field(default_factory=dict)  # when that failed last
    second: set[str] = field(default_factory=set)  # servers that run in their second slot: they were replaced
    growing: dict[str, str] = field(default_factory=dict)  # server that scaling adds -> its role
    before_coming: dict[str, int] = field(default_factory=dict)  # generation of one that grows or replaces, before that
    added: set[str] = field(default_factory=set)  # first slots that scaling added to those of the file
    removed: set[str] = field(default_factory=set)  # or took from them
    scale_changes: dict[str, ScaleChange] = field(default_factory=dict)  # by role
    not_grown: dict[str, float] = field(default_factory=dict)  # by role: when an added server failed to start last
    keeper_restarts: dict[str, list[KeeperRestart]] = field(default_factory=dict)
    retries: dict[str, float] = field(default_factory=dict)  # member -> when an action that failed is tried again
    lowered: _LoweredLimit | None = None
    is_down: bool = False  # or on its way there
    journal: Journal | None = None

    def __post_init__(self) -> None:
        self.root = self.root.absolute()
        self.refresh()

    def refresh(self) -> None:
        """What others have done meanwhile."""
        self._forget()
        self.started.clear()
        self.is_down = False
        if self._journal_path.exists():
            for event in read_events(self._journal_path):
                self._apply(event)

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
        self._apply(dated)
        if dated["event"] == "ended":
            self._forget_address(str(dated["member"]))

    def _apply(self, event: Mapping[str, Any]) -> None:
        name, what, at_s = str(event.get("member", "")), event["event"], float(event.get("at", 0.0))
        if what == "planned":
            self.started[name] = Started(int(event["generation"]), at_s=at_s)
            self.leaving.pop(name, None)
        elif what == RESTART:
            if self._was_steady(name, at_s):
                self.keeper_restarts.pop(name, None)
            self.keeper_restarts.setdefault(name, []).append(KeeperRestart(at_s, str(event.get("why", ""))))
            self.leaving[name] = float(event.get("until", at_s))
        elif what == RESTART_FAILED:
            self.retries[name] = at_s + float(event.get("again_s", 0.0))
        elif what == "leaving":
            self.leaving[name] = float(event.get("until", at_s))
        elif what == "replacing":
            self.replacing[name] = str(event["by"])
            self._comes(str(event["by"]))
        elif what == "replaced":
            self.replacing.pop(name, None)
            self.second ^= {first_slot(name)}
            self.retiring[name] = float(event["until"])
        elif what == "replace-failed":
            self.replacing.pop(name, None)
            self.not_replaced[name] = at_s
        elif what == "retired":
            self.retiring.pop(name, None)
        elif what in ("growing", "shrinking"):
            self._apply_scaling(name, event)
        elif what == "grown":
            self.growing.pop(name, None)
            self.added.add(first_slot(name))
            self.removed.discard(first_slot(name))
        elif what == "grow-failed":
            self.growing.pop(name, None)
            self.not_grown[str(event["role"])] = at_s
        elif what == "drained":
            self.drained.add(name)
            self.leaving.pop(name, None)
        elif what == "back":
            self.drained.discard(name)
            self.leaving.pop(name, None)
        elif what == "limit":
            self.lowered = _LoweredLimit(int(event["most_running"]), int(event["instead_of"]))
            self.leaving[ROUTER] = at_s
        elif what == "down":
            self._forget()
        elif name in self.started:
            self._apply_to(name, event)
        if what in ("down", "going-down"):
            self.is_down = True
        elif what in ("planned", "going-up"):
            self.is_down = False

    def _apply_scaling(self, name: str, event: Mapping[str, Any]) -> None:
        role, at_s, up = str(event["role"]), float(event.get("at", 0.0)), event["event"] == "growing"
        self.scale_changes[role] = ScaleChange(at_s, int(event["to"]), str(event.get("why", "")), up)
        if up:
            self.growing[name] = role
            self._comes(name)
            self.retiring.pop(name, None)
        else:
            self.added.discard(first_slot(name))
            self.removed.add(first_slot(name))
            self.retiring[name] = float(event["until"])

    def _comes(self, name: str) -> None:
        self.before_coming[name] = self.started[name].generation if name in self.started else 0

    def was_started(self, name: str) -> bool:
        """One that grows or replaces: since it began to, not at an earlier time."""
        return name in self.started and self.started[name].generation > self.before_coming.get(name, 0)

    def restarts(self, name: str, why: tuple[str, ...] = ()) -> list[float]:
        """When `keep` started it again lately, for one of these reasons or any; none where it has served well since."""
        now_s = time.time()
        restarts = () if self._was_steady(name, now_s) else self.keeper_restarts.get(name, ())
        return [m.at_s for m in restarts if now_s - m.at_s < RESTARTS_WITHIN_S and (not why or m.why in why)]

    def _was_steady(self, name: str, at_s: float) -> bool:
        """Whether it had served for long by then; time that it spent dead in back-off is no service."""
        start, before = self.started.get(name), [m.at_s for m in self.keeper_restarts.get(name, ())]
        if start is None or not start.ready or at_s - start.ready_at_s < STEADY_S:
            return False
        if before and before[-1] > start.ready_at_s:
            return False  # it is being restarted
        lately = [before_s for before_s in before if at_s - before_s < RESTARTS_WITHIN_S]
        return not lately or at_s > lately[-1] + _dead_wait_s(len(lately)) + _POLLED_S

    def next_try_in_s(self, name: str) -> float:
        """Until `keep` starts a member again that has ended; 0: at its next poll. What keeps dying waits longer."""
        lately = self.restarts(name)
        wait_s = _dead_wait_s(len(lately))
        next_s = max(lately[-1] + wait_s if lately else 0.0, self.retries.get(name, 0.0))
        return max(0.0, next_s - time.time())

    def _apply_to(self, name: str, event: Mapping[str, Any]) -> None:
        start = self.started[name]
        if event["event"] == "submitted":
            start.ticket = str(event["ticket"])
            self.retries.pop(name, None)
        elif event["event"] == "ready":
            start.ready, start.ready_at_s = True, float(event.get("at", 0.0))
        elif event["event"] == "ended":
            start.ended = str(event["reason"]) or "ended"

    def _forget(self) -> None:
        """What a service that is taken down leaves behind for the next one: nothing but who runs where."""
        self.drained.clear()
        self.leaving.clear()
        self.retiring.clear()
        self.replacing.clear()
        self.not_replaced.clear()
        for scaled in (self.growing, self.before_coming, self.added, self.removed, self.scale_changes, self.not_grown):
            scaled.clear()
        self.keeper_restarts.clear()
        self.retries.clear()
        self.lowered = None
        self.second.clear()

    # a member's files

    def of(self, member: Member) -> Path:
        return self.root / "members" / member.name

    def job(self, member: Member, generation: int) -> Job:
        return Job(
            name=f"{self.service.name}-{member.name}",
            folder=self.of(member) / "runs" / f"{generation:03d}",
            command=member_command(self.service, member, str(self.of(member))),
            resources=member.resources,
            limit_s=self.service.job_limit_s,
        )

    def prepare(self, member: Member, generation: int) -> Job:
        """Writes the start script and the job's folder; the address of an earlier start is gone afterwards."""
        job = self.job(member, generation)
        job.folder.mkdir(parents=True, exist_ok=True)
        self._forget_address(member.name)
        write_whole(self.of(member) / START_FILE, start_script(self.service, member), mode=0o755)
        return job

    def has_script_of(self, member: Member) -> bool:
        """Whether its latest start was of the command that the file now gives."""
        try:
            return (self.of(member) / START_FILE).read_text() == start_script(self.service, member)
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
