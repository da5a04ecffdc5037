"""Keeping a service running: polls its members again and again, and repairs what several polls agree on.

Nothing here waits for a server: a restart is begun, and the server is put back by a later poll that finds it ready. So
the others stay watched meanwhile, and a keeper that was killed at any point is simply followed by the next one: all it
must know is in the journal, where every action is a line, with its reason, before it happens.
"""

from __future__ import annotations

import errno
import gzip
import math
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ParamSpec

from ridgeline.errors import RidgelineError
from ridgeline.service import probe
from ridgeline.service.history import RESTART_FAILED
from ridgeline.service.keep.actions import Actions
from ridgeline.service.keep.canary import Canaries, RouterCanary
from ridgeline.service.keep.plan_check import PlanCheck, commands_after
from ridgeline.service.keep.scaler import RoleScaleState, Scaler
from ridgeline.service.keep.watch import Concern, ServerPoll, Watch, poll_from
from ridgeline.service.members import Member
from ridgeline.service.operate import Operator
from ridgeline.service.servers import server_of
from ridgeline.study.lock import LockHeld

_LARGEST_BYTES = 100_000_000
_KEPT = 3  # older parts, as NAME.1.gz (the latest) and so on


def rotate(path: Path, largest_bytes: int | None = None) -> bool:
    """Whether it was large enough. Lines that are written in the moment of it may be lost, as with copytruncate."""
    try:
        if path.stat().st_size < (_LARGEST_BYTES if largest_bytes is None else largest_bytes):
            return False
    except FileNotFoundError:
        return False
    partial = path.with_name(f"{path.name}.partial")
    try:
        with path.open("rb") as source, gzip.open(partial, "wb", compresslevel=1) as out:
            shutil.copyfileobj(source, out)
    except OSError:
        partial.unlink(missing_ok=True)  # the disk is full, perhaps: this shall not fill it further
        raise
    for number in range(_KEPT - 1, 0, -1):
        older = path.with_name(f"{path.name}.{number}.gz")
        if older.exists():
            older.replace(path.with_name(f"{path.name}.{number + 1}.gz"))
    partial.replace(path.with_name(f"{path.name}.1.gz"))
    os.truncate(path, 0)
    return True


P = ParamSpec("P")


def _is_disk_full(error: BaseException | None) -> bool:
    """Whether it came of a file system, or a quota, that takes no more bytes."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        error = error.__cause__ or error.__context__
    return False


POLL_EVERY_S = 2.0
_AGAIN_AFTER_S = 60.0  # the same message about the same member is printed once in so long
RETRY_S, _LONGEST_RETRY_S = 5.0, 300.0  # before an action that failed is tried again; twice as long each time
_RENEW_SHARE = 0.1  # of a batch system's limit
_REPLACE_AGAIN_S = 300.0  # after a replacement that did not start
_ROTATE_EVERY = 30  # polls
_STARTS = 3.0  # times the longest start that was seen, for each member


def renewal_lead_s(limit_s: float, starting_s: float) -> float:
    """How long before a batch system's limit members begin to be replaced; starting all of them takes `starting_s`."""
    return min(limit_s / 2, max(_RENEW_SHARE * limit_s, _STARTS * starting_s))


MEMBER_STATES = ("ready", "drained", "leaving", "starting", "back-off", "ended")


@dataclass(frozen=True, slots=True)
class _SeenMember:
    """A member after a poll, for whoever watches `keep`. `stalled`: it leaves a canary unanswered."""

    member: str
    state: str  # of MEMBER_STATES
    starts: int
    stalled: bool
    next_try_s: float = 0.0  # of one in back-off: until it is started again


@dataclass
class Keeper:
    """`dry_run` says what would be done and does nothing; `lower_limits` may restart the router for a lower limit.

    `alert` is called with what a person may have to know: a kind, a member and what was seen and done.
    """

    operator: Operator
    dry_run: bool = False
    ready_s: float = 1800.0
    lower_limits: bool = False
    file: str = "FILE"
    clock: Callable[[], float] = time.monotonic
    alert: Callable[[str, str, str], None] = lambda kind, member, text: None
    counts: Counter[str] = field(default_factory=Counter)  # polls, and actions by kind
    polls: dict[str, ServerPoll] = field(default_factory=dict)  # the last ones
    seen: tuple[_SeenMember, ...] = ()
    scaled: tuple[RoleScaleState, ...] = ()  # how many of each role there are, and their limits
    wall: Callable[[], float] = time.time
    _said: dict[tuple[str, str], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._watch = Watch()
        self._plan = PlanCheck(self.operator.service.expected, self.operator.service.engine)
        self._actions = Actions(self.operator, self.file, self.lower_limits, self._notify)
        self._absent: dict[str, int] = {}  # polls in a row at which the router did not list it
        self._canaries: dict[str, tuple[int, Canaries]] = {}  # by member: the start they are of, and they
        self._front: tuple[int, RouterCanary] | None = None
        self._failed: dict[str, tuple[int, float]] = {}  # by member: failures in a row, and the next try
        self._scaler = Scaler(self.operator, self.clock, self.wall) if self.operator.service.scale is not None else None
        self._engine = server_of(self.operator.service.engine)
        self._step_tokens = {
            unit.role: self._engine.step_tokens(self._engine.flags.canonical(unit.settings), unit.gpus > 0)
            for unit in self.operator.service.units
        }
        self._paces: dict[str, float] = {}  # by role: the best that a server of it has shown

    def run(self, stop: Callable[[], bool] = lambda: False) -> None:
        """Until `stop` says so."""
        while not stop():
            began_s = self.clock()
            try:
                self.step()
            except (RidgelineError, OSError) as error:
                # the batch system is away, or another `deploy` is running: retried at the next poll
                self._say("keep", "waits", str(error))
            time.sleep(max(0.0, POLL_EVERY_S - (self.clock() - began_s)))

    def step(self) -> list[Concern]:
        """One poll of every member, and what follows."""
        folder = self.operator.folder
        self.operator.refresh()
        self.counts["polls"] += 1
        if folder.is_down:
            self._note()
            return []
        self.operator.adopt()
        members = [member for member in self.operator.present if member.name in folder.started]
        serving = [m for m in members if self._serves(m) and not m.is_router]
        with ThreadPoolExecutor(max(1, len(serving))) as at_once:  # one that hangs must not hold up the others
            texts = list(at_once.map(lambda m: probe.metrics_page(folder.url(m)), serving))
        pages = {member.name: text for member, text in zip(serving, texts, strict=True)}
        self.polls = {m.name: self._poll(m, pages.get(m.name, "")) for m in members}
        concerns = self._watch.take(self.polls)
        for member in members:
            self._ask_for_a_token(member)
        concerns += [found for m in members if (found := self._late(m)) is not None]
        concerns += self._refusing()
        for concern in concerns:
            self._attempt(concern.member, self._follow, concern)
        if not self.dry_run:
            self._go_on(members)
            self._renew()
        self._scale(pages)
        self._hold_against_plan(members, pages)
        self._rotate_logs(members)
        self._note()
        return concerns

    # polling

    @property
    def knows_paces(self) -> bool:
        """Whether it has measured how long prompts take, in every role where it can."""
        return bool(self.polls) and all(
            role in self._paces or not any(c.measurable for _, c in self._canaries.values() if c.role == role)
            for role in self._step_tokens
        )

    def _serves(self, member: Member) -> bool:
        start = self.operator.folder.started[member.name]
        return start.ready and not start.ended

    def _poll(self, member: Member, page: str) -> ServerPoll:
        operator, now_s = self.operator, self.clock()
        start = operator.folder.started[member.name]
        ended = start.ended
        if not ended and start.ticket and (ending := operator.ending(member)) is not None:
            ended = ending.reason or f"exit code {ending.exit_code}"
        folder = operator.folder
        if member.name in folder.moving:
            self._watch.forget(member.name)  # what it makes from here on is not to be compared with what it made
            return ServerPoll(now_s, running=0.0, role=member.role)
        if ended or not start.ready:
            return ServerPoll(now_s, running=0.0, tokens=0.0, ended=ended, role=member.role)
        if member.is_router:
            alive = probe.is_healthy(operator.folder.url(member))
            return ServerPoll(now_s, role=member.role, asked=not alive, confirmed=not alive)
        canaries = self._canaries_of(member)
        if (pace_s := canaries.pace_s) is not None:
            self._paces[member.role] = min(pace_s, self._paces.get(member.role, pace_s))
        found = replace(
            poll_from(operator.service.engine, member.role, page, now_s),
            asked=canaries.waiting,
            confirmed=canaries.confirmed,
            answers=canaries.answers,
            pace_s=self._paces.get(member.role) if pace_s is None else pace_s,
            step_tokens=self._step_tokens.get(member.role, 0),
            on_gpus=member.resources.gpus > 0 or bool(operator.service.gpu) or not self._engine.works_on_cpus,
        )
        activity = operator.activity(member) if canaries.waiting else None
        if activity is None:
            return found
        found = replace(found, cpu_s=activity.cpu_s, waited_s=activity.waited_s)
        return replace(found, stopped=activity.stopped, runnable=activity.runnable, compiles=activity.compiles)

    def _canaries_of(self, member: Member) -> Canaries:
        operator = self.operator
        generation = operator.folder.started[member.name].generation
        known = self._canaries.get(member.name)
        if known is None or known[0] != generation:
            url, service = operator.folder.url(member), operator.service
            model = service.served_name or probe.served_model(url, operator.key) or service.model
            fresh = Canaries(service.engine, member.role, url, model, operator.key, self.clock)
            known = self._canaries[member.name] = (generation, fresh)
            self._watch.forget(member.name)
        return known[1]

    def _ask_for_a_token(self, member: Member) -> None:
        if (known := self._canaries.get(member.name)) is None or not self._serves(member):
            return
        canaries, poll = known[1], self.polls[member.name]
        quiet, verdict_in_s = self._watch.is_quiet(member.name), self._watch.verdict_in_s(member.name)
        canaries.poll(quiet, poll.on_it > 0, verdict_in_s, slow=self._watch.is_patient(member.name))
        if canaries.refused:
            self._say(member.name, "takes no canaries", canaries.refused)

    def _refusing(self) -> list[Concern]:
        """Servers that answer, and a router that lets nobody through to them."""
        operator, router = self.operator, self.operator.router
        start = operator.folder.started.get(router.name) if router is not None else None
        if router is None or start is None or not self._serves(router) or router.name in operator.folder.leaving:
            return []
        if self._front is None or self._front[0] != start.generation:
            first = operator.folder.url(operator.servers[0])
            service = operator.service
            model = service.served_name or probe.served_model(first, operator.key) or service.model
            self._front = (start.generation, RouterCanary(operator.folder.url(router), model, operator.key, self.clock))
        door = self._front[1]
        serving = [m for m in operator.servers if m.name in self.polls and self._serves(m)]
        idle = [m for m in serving if self.polls[m.name].on_it == 0 and not self.polls[m.name].asked]
        door.poll(servers_idle=bool(serving) and len(idle) == len(serving))
        if not door.refuses:
            return []
        names = ", ".join(member.name for member in idle)
        return [Concern(router.name, "refuses", f"{door.why}, though {names} make tokens", certain=True)]

    def _late(self, member: Member) -> Concern | None:
        """Started, and not ready in its time; how long it waits in a queue is not its fault."""
        folder = self.operator.folder
        start, began_s = folder.started[member.name], folder.began_s(member)
        waited_s = time.time() - (began_s or start.at_s)
        queued = not began_s and not self.operator.service.on_this_machine
        if start.ready or start.ended or not start.ticket or queued or waited_s < self.ready_s:
            return None
        return Concern(member.name, "hung", f"not ready {waited_s:.0f} s after its start", certain=True)

    def _note(self) -> None:
        folder, rows = self.operator.folder, list[_SeenMember]()
        for name, start in sorted(folder.started.items()):
            over = bool(start.ended or (name in self.polls and self.polls[name].ended))
            next_try_s = folder.next_try_in_s(name) if over or not start.ticket else 0.0
            state = "back-off" if next_try_s else "ended" if over else "ready" if start.ready else "starting"
            if state == "ready" and name in {*folder.leaving, *folder.retiring}:
                state = "leaving"
            elif state == "ready" and name in folder.drained:
                state = "drained"
            stalled = name in self.polls and self.polls[name].asked
            rows.append(_SeenMember(name, state, start.generation, stalled, next_try_s))
        self.seen = tuple(rows)

    # acting

    def _follow(self, concern: Concern) -> None:
        if self.dry_run:
            would = "would be restarted" if concern.needs_restart else "its limit would be lowered"
            self._say(concern.member, concern.kind, f"{concern.evidence}; {would}")
        elif concern.member in self.operator.folder.replacing:
            return  # another one is on its way to its place
        elif concern.needs_restart:
            if self._actions.restart(concern):
                self._watch.forget(concern.member)
                self._canaries.pop(concern.member, None)
            elif next_try_s := self.operator.folder.next_try_in_s(concern.member) if concern.kind == "dead" else 0.0:
                text = f"{concern.evidence}; back-off, next try in {next_try_s:.0f} s"
                if self._say(concern.member, concern.kind, text):
                    self._notify("back-off", concern.member, text)
            else:
                self._say(concern.member, concern.kind, f"{concern.evidence}; nothing is done yet")
        else:
            self._actions.near_cliff(concern)

    def _go_on(self, members: list[Member]) -> None:
        """What an earlier poll, or an earlier keeper, began."""
        folder = self.operator.folder
        listed = self._actions.listed()
        for member in members:
            self._attempt(member.name, self._actions.go_on, member, listed)
        begun = [m for m in self.operator.present if m.name not in folder.started]
        for member in begun:
            if member.name in folder.replacing.values() or member.name in folder.growing:
                self._attempt(member.name, self._actions.go_on, member, listed)
        for member in members:
            if member.is_router or listed is None or member.name in folder.out or not self._serves(member):
                continue
            absent = folder.url(member) not in listed
            self._absent[member.name] = self._absent.get(member.name, 0) + 1 if absent else 0
            if self._absent[member.name] > 1:
                self._attempt(member.name, self._actions.put_back, member)

    def _attempt(self, name: str, act: Callable[P, None], *args: P.args, **named: P.kwargs) -> None:
        """An action that fails is tried again, ever more rarely, and keeps nobody from the others."""
        times, again_s = self._failed.get(name, (0, -math.inf))
        if self.clock() < again_s:
            return
        try:
            act(*args, **named)
        except LockHeld:
            raise
        except (RidgelineError, OSError) as error:
            # a disk that is full has room again from one moment to the next
            wait_s = RETRY_S if _is_disk_full(error) else min(RETRY_S * 2**times, _LONGEST_RETRY_S)
            self._failed[name] = (times + 1, self.clock() + wait_s)
            self.operator.say(f"{name}: {error}; tried again in {wait_s:.0f} s")
            self._notify("failed", name, str(error))
            self._note_failure(name, str(error), wait_s)
        else:
            if name not in self.operator.folder.started or self._serves_now(name):
                self._failed.pop(name, None)

    def _note_failure(self, name: str, reason: str, again_s: float) -> None:
        try:
            self._actions.record({"event": RESTART_FAILED, "member": name, "reason": reason, "again_s": again_s})
        except (RidgelineError, OSError) as error:
            self._say("keep", "cannot write its journal", str(error))

    def _serves_now(self, name: str) -> bool:
        start = self.operator.folder.started[name]
        return start.ready and not start.ended

    def _renew(self) -> None:
        """Jobs of a batch system end at their limit: each member gives its place to another one before, in turn."""
        operator, folder = self.operator, self.operator.folder
        limit_s = operator.service.job_limit_s
        if math.isinf(limit_s) or folder.leaving or folder.retiring or folder.replacing or folder.growing:
            return
        starts = [s.ready_at_s - s.at_s for s in folder.started.values() if s.ready]
        lead_s = renewal_lead_s(limit_s, max(starts, default=0.0) * len(operator.members))
        serving = [m for m in operator.members if m.name in folder.started and self._serves(m) and folder.began_s(m)]
        left = {m.name: folder.began_s(m) + limit_s - time.time() for m in serving}
        for member in sorted(serving, key=lambda m: (m.is_router, left[m.name])):
            if left[member.name] > lead_s or time.time() - folder.not_replaced.get(member.name, 0.0) < _REPLACE_AGAIN_S:
                continue
            why = f"its job ends in {left[member.name] / 60:.0f} min"
            if not member.is_router:
                self._attempt(member.name, self._actions.replace, member, why)
            elif left[member.name] < lead_s / 2 or not any(poll.on_it for poll in self.polls.values()):
                self._attempt(member.name, self._actions.renew_router, member, why)
            return

    def _scale(self, pages: dict[str, str]) -> None:
        if self._scaler is None:
            return
        serving = {m.name: m for m in self.operator.servers if m.name in self.polls and self._in_router(m)}
        decisions = self._scaler.poll({name: self.polls[name] for name in serving}, pages)
        for decision in decisions:
            if decision.short:
                if self._say("scale", f"{decision.role} needs more servers", decision.why):
                    self._notify("scale-limit", decision.role, "needs more servers than its limits allow")
            elif self.dry_run:
                would = f"would go from {decision.replicas} to {decision.wanted} {decision.role} servers"
                self._say("scale", would, decision.why)
            else:
                self._attempt(f"scale {decision.role}", self._actions.scale, decision)
        self.scaled = self._scaler.states()

    def _in_router(self, member: Member) -> bool:
        return member.name not in self.operator.folder.out and self._serves(member)

    def _rotate_logs(self, members: list[Member]) -> None:
        """Jobs on this machine append to their logs, so that these can be emptied under them."""
        if self.dry_run or not self.operator.service.on_this_machine or self.counts["polls"] % _ROTATE_EVERY:
            return
        for member in members:
            log = self.operator.folder.log(member)
            for path in (log, log.with_name("stdout")):
                self._attempt(f"log of {member.name}", self._rotate, path)

    def _rotate(self, path: Path) -> None:
        rotate(path)

    def _hold_against_plan(self, members: list[Member], pages: dict[str, str]) -> None:
        answering = [pages[m.name] for m in members if m.name in pages and m.role != "prefill"]
        for doubt in self._plan.take(self.clock(), answering):
            if doubt.overloaded:
                planned = self.operator.service.expected["requests_s"]
                self._say("plan", doubt.figure, f"{doubt.evidence}: more than the {planned:g} that were planned for")
                continue
            logs = [str(self.operator.folder.log(m)) for m in members if not m.is_router]
            commands = commands_after(self.operator.service, self.file, logs)
            self._say("plan", doubt.figure, "; ".join([f"no longer holds: {doubt.evidence}. Learn from it", *commands]))
            self._notify("plan", doubt.figure, f"no longer holds: {doubt.evidence}")
            if not self.dry_run:
                event = {"event": "plan-doubted", "evidence": doubt.evidence, "commands": commands}
                self._attempt("plan", self._actions.record, event)

    def _notify(self, kind: str, member: str, text: str) -> None:
        self.counts[kind] += 1
        self.alert(kind, member, text)

    def _say(self, member: str, kind: str, what: str) -> bool:
        """Whether it was time to say it again."""
        now_s, key = self.clock(), (member, kind)
        if now_s - self._said.get(key, -_AGAIN_AFTER_S) < _AGAIN_AFTER_S:
            return False
        self._said[key] = now_s
        self.operator.say(f"{member}: {kind} ({what})")
        return True
