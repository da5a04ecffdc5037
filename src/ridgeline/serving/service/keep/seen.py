"""What `keep` sees of a service: a poll of every member, what comes of canaries, and the state of each for people."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from ridgeline.serving.service import probe
from ridgeline.serving.service.keep.canary import REFUSALS, Canaries, RouterCanary
from ridgeline.serving.service.keep.watch import HUNG_AFTER_S, Concern, ServerPoll, Watch, poll_from
from ridgeline.serving.service.members import Member
from ridgeline.serving.service.operate import Operator
from ridgeline.serving.service.service import server_of

MEMBER_STATES = ("ready", "drained", "leaving", "starting", "back-off", "ended", "refuses")


@dataclass(frozen=True, slots=True)
class SeenMember:
    """A member after a poll. `stalled`: it leaves a canary unanswered."""

    member: str
    state: str  # of MEMBER_STATES
    starts: int
    stalled: bool
    next_try_s: float = 0.0  # of one in back-off: until it is started again
    canaries: Counter[str] = field(default_factory=Counter)  # of this start, by what came of them
    requests: Counter[str] = field(default_factory=Counter)  # that it answered, by status, where it counts them


def _answered(page: str) -> Counter[str]:
    """2xx, 4xx, 5xx -> requests, as vLLM and SGLang count what their HTTP server answers."""
    found: Counter[str] = Counter()
    for labels, value in re.findall(r"^http_requests_total\{([^}]*)\} (\S+)$", page, re.MULTILINE):
        status = re.search(r'status(?:_code)?="(\d)', labels)
        if status is not None and "/metrics" not in labels and "/health" not in labels:
            found[f"{status[1]}xx"] += int(float(value))
    return found


class Seen:
    """One keeper's view. `polls` and `pages` are the latest, by member."""

    def __init__(self, operator: Operator, clock: Callable[[], float] = time.monotonic) -> None:
        self._operator, self._clock, self.watch = operator, clock, Watch()
        self.polls: dict[str, ServerPoll] = {}
        self.pages: dict[str, str] = {}
        self.states: tuple[SeenMember, ...] = ()
        self._canaries: dict[str, tuple[int, Canaries]] = {}  # by member: the start they are of, and they
        self._front: tuple[int, RouterCanary] | None = None
        self._engine = server_of(operator.service.engine)
        self._paces: dict[str, float] = {}  # by role: the best that a server of it has shown

    def look(self, members: Sequence[Member]) -> None:
        """Polls each of them at once: one that hangs must not hold up the others."""
        folder = self._operator.folder
        serving = [m for m in members if folder.serves(m.name) and not m.is_router]
        with ThreadPoolExecutor(max(1, len(serving))) as at_once:
            texts = list(at_once.map(lambda m: probe.metrics_page(folder.url(m)), serving))
        self.pages = {member.name: text for member, text in zip(serving, texts, strict=True)}
        self.polls = {m.name: self._poll(m) for m in members}

    def ask(self, members: Sequence[Member]) -> None:
        """A canary to each that is due one, after this poll was judged."""
        for member in members:
            if (known := self._canaries.get(member.name)) is not None and not self.polls[member.name].suspended:
                watch, poll, name = self.watch, self.polls[member.name], member.name
                arguments = (watch.is_quiet(name), poll.on_it, watch.verdict_in_s(name), watch.is_patient(name))
                clean, late = watch.is_clean(name, known[1].at_prompt), watch.seems_late(name)
                known[1].poll(*arguments, clean, poll.prompts_s, late)

    def forget(self, name: str) -> None:
        """It is started again."""
        self.watch.forget(name)
        self._canaries.pop(name, None)

    @property
    def knows_paces(self) -> bool:
        """Whether it has measured how long prompts take, in every role where it can."""
        return bool(self.polls) and all(
            unit.role in self._paces or not any(c.measurable for _, c in self._canaries.values() if c.role == unit.role)
            for unit in self._operator.service.units
        )

    def _poll(self, member: Member) -> ServerPoll:
        operator, folder, now_s = self._operator, self._operator.folder, self._clock()
        start = folder.started[member.name]
        ended = start.ended
        if not ended and start.ticket and (ending := operator.ending(member)) is not None:
            ended = ending.reason or f"exit code {ending.exit_code}"
        if member.name in folder.moving:
            return ServerPoll(now_s, running=0.0, role=member.role, suspended=True)
        if ended or not start.ready:
            return ServerPoll(now_s, running=0.0, tokens=0.0, ended=ended, role=member.role)
        if member.is_router:
            alive = probe.is_healthy(folder.url(member))
            return ServerPoll(now_s, role=member.role, asked=not alive, confirmed=not alive)
        page, canaries = self.pages.get(member.name, ""), self._canaries_of(member)
        found = poll_from(operator.service.engine, member.role, page, now_s)
        if member.name in folder.drained:
            return replace(found, suspended=True)
        if (pace_s := canaries.pace_s) is not None:
            self._paces[member.role] = min(pace_s, self._paces.get(member.role, pace_s))
        # a server with requests on it that only refuses makes no token either
        refused = canaries.refusals >= REFUSALS and found.on_it > 0
        unit = next(unit for unit in folder.settings_of(member.name).units if unit.role == member.role)
        found = replace(
            found,
            asked=canaries.waiting or refused,
            confirmed=canaries.confirmed or refused,
            answers=canaries.answers,
            pace_s=self._paces.get(member.role) if pace_s is None else pace_s,
            best_pace_s=self._paces.get(member.role),
            step_tokens=self._engine.step_tokens(self._engine.flags.canonical(unit.settings), unit.gpus > 0),
            on_gpus=member.resources.gpus > 0 or bool(operator.service.gpu) or not self._engine.works_on_cpus,
            took=tuple(canaries.took),
            flies_s=canaries.flies_s if found.on_it else 0.0,  # else nobody knows yet what it waits for
        )
        activity = operator.activity(member) if found.asked else None
        if activity is None:
            return found
        found = replace(found, cpu_s=activity.cpu_s, waited_s=activity.waited_s)
        return replace(found, stopped=activity.stopped, runnable=activity.runnable, compiles=activity.compiles)

    def _canaries_of(self, member: Member) -> Canaries:
        operator = self._operator
        generation = operator.folder.generation(member.name)
        known = self._canaries.get(member.name)
        if known is None or known[0] != generation:
            url, model = operator.folder.url(member), operator.model_of(member)
            fresh = Canaries(operator.service.engine, member.role, url, model, operator.key, self._clock)
            known = self._canaries[member.name] = (generation, fresh)
            self.watch.forget(member.name)
        return known[1]

    def canaries(self, member: Member) -> Canaries | None:
        """Those of its present start, if it is watched."""
        known = self._canaries.get(member.name)
        watched = known is not None and not self.polls[member.name].suspended
        return known[1] if known is not None and watched and self._operator.folder.serves(member.name) else None

    def broken(self, member: Member) -> Concern | None:
        """It answers canaries, and there is no token in its answers."""
        canaries = self.canaries(member)
        if canaries is None or canaries.broken_for_s < HUNG_AFTER_S:
            return None
        what = f"it answers canaries without a token for {canaries.broken_for_s:.0f} s: {canaries.why}"
        return Concern(member.name, "hung", what, certain=True)

    def refusing(self) -> list[Concern]:
        """Servers that answer, and a router that lets nobody through to them."""
        operator, router = self._operator, self._operator.router
        if router is None or not operator.folder.serves(router.name) or router.name in operator.folder.leaving:
            return []
        generation = operator.folder.generation(router.name)
        if self._front is None or self._front[0] != generation:
            model = operator.model_of(operator.servers[0])
            self._front = (generation, RouterCanary(operator.folder.url(router), model, operator.key, self._clock))
        door = self._front[1]
        serving = [m for m in operator.servers if m.name in self.polls and operator.folder.serves(m.name)]
        idle = [m for m in serving if self.polls[m.name].on_it == 0 and not self._in_doubt(m)]
        door.poll(servers_idle=bool(serving) and len(idle) == len(serving))
        if not door.refuses:
            return []
        names = ", ".join(member.name for member in idle)
        return [Concern(router.name, "refuses", f"{door.why}, though {names} make tokens", certain=True)]

    def _in_doubt(self, member: Member) -> bool:
        """A canary of it waits, or was refused: that a router passes nothing on to it is not the router's fault."""
        canaries = self.canaries(member)
        return self.polls[member.name].asked or (canaries is not None and bool(canaries.why))

    def note(self) -> None:
        """The states of all members, as the journal and the last polls have them."""
        folder, rows = self._operator.folder, list[SeenMember]()
        for name, start in sorted(folder.started.items()):
            poll, known = self.polls.get(name), self._canaries.get(name)
            over = bool(start.ended or (poll is not None and poll.ended))
            next_try_s = folder.next_try_in_s(name) if over or not start.ticket else 0.0
            state = "back-off" if next_try_s else "ended" if over else "ready" if start.ready else "starting"
            if state == "ready" and name in folder.moving:
                state = "leaving"
            elif state == "ready" and name in folder.drained:
                state = "drained"
            elif state == "ready" and known is not None and (known[1].wrong_key or known[1].refusals >= REFUSALS):
                state = "refuses"
            counted = known[1].counts if known is not None else Counter[str]()
            stalled = poll is not None and poll.asked
            answered = _answered(self.pages.get(name, ""))
            rows.append(SeenMember(name, state, start.generation, stalled, next_try_s, counted, answered))
        self.states = tuple(rows)
