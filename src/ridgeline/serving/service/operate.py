"""Bringing a service up, looking at it, and taking it down: each may be killed and called again.

Every start is a line in the journal before it happens. Whoever comes next finds each member by that line: still
running, ended, or never handed over.

Two locks: a command of a person holds one from its beginning to its end, so that two of them don't mix. Whoever writes
to the journal holds the other, for one act: nobody waits for a server with it, so that `keep` can restart one member
while a person waits for another.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from ridgeline import catalog
from ridgeline.diagnose.readers.lines import TextFile
from ridgeline.errors import InputError, SiteError
from ridgeline.executors.base import Activity, Executor
from ridgeline.records.run import Ending, Resources
from ridgeline.serving.engines.failures import advice_on, leading_cause
from ridgeline.serving.ports import why_not_free
from ridgeline.serving.service import probe
from ridgeline.serving.service.folder import Accepted, ServiceFolder
from ridgeline.serving.service.members import ROUTER, Member, every_member, members_of, router_of
from ridgeline.serving.service.service import Service, server_of
from ridgeline.study.lock import LockHeld, StudyLock

# How a member of a service is, at one poll.

TOKEN_S = 5.0  # for one token, of a server or through the router


@dataclass(frozen=True, slots=True)
class MemberState:
    """`state` is down, starting, ready, drained (out of the router), silent (was ready, answers no more) or ended;
    back-off is one that ended, and that `keep` starts again after a wait.

    A server that answers and makes no token on request is stalled; one that refuses to try refuses, and so does a
    router that turns a request away although servers make tokens. `detail` says more where there is more.
    """

    name: str
    role: str
    state: str
    url: str = ""
    running: int | None = None
    tokens: int | None = None
    detail: str = ""


def _asked_for_tokens(states: Sequence[MemberState], engine: str, model: str, key: str) -> list[MemberState]:
    """The same, after a request for one token to each that says it is ready: /health says so of a hung engine too."""

    def asked(state: MemberState) -> MemberState:
        if state.state not in ("ready", "drained"):
            return state
        name = model or probe.served_model(state.url, key)
        if state.role == ROUTER:
            why = probe.why_refused(state.url, name, key, TOKEN_S)
            return replace(state, state="refuses", detail=why) if why else state
        found = probe.ask_for_token(state.url, name, key, TOKEN_S, path=probe.split_path(engine, state.role))
        if found.good:
            return state
        if found.refused:
            return replace(state, state="refuses", detail=f"refuses a request for a token: {found.why}")
        stalled = f"{found.why}: busy with long prompts, or hung" if not found.broken else found.why
        return replace(state, state="stalled", detail=stalled)

    with ThreadPoolExecutor(max(1, len(states))) as at_once:
        found = list(at_once.map(asked, states))
    serves = any(state.role != ROUTER and state.state == "ready" for state in found)
    # without a server that makes tokens it is not the router's fault
    spared = [now.role == ROUTER and now.state == "refuses" and not serves for now in found]
    return [was if spare else now for was, now, spare in zip(states, found, spared, strict=True)]


POLL_S = 0.2
DRAIN_S = 600.0
_END_S = 120.0
ACTION_WAIT_S = 30.0  # for an action of another process to end
_WARM_S = 0.5  # for which a poll waits for a server's first answer; most take less
_CANCEL_AGAIN_S = 60.0  # a batch system may have lost the request


class Operator:
    """Operates one service. `say` gets a line for each thing that happens."""

    def __init__(self, service: Service | None, root: Path, say: Callable[[str], None] = lambda line: None) -> None:
        """`service` is what the deployment file says; None where it cannot be read, and what was accepted is enough."""
        self.file, self.say = service, say
        self.folder = ServiceFolder(root, service)
        self._endings: dict[str, Ending] = {}
        self._warm_ups: dict[str, threading.Thread] = {}  # by ticket
        self._cancelled: dict[str, float] = {}  # ticket -> when it was cancelled last
        self.apply_journal()
        service = self.service
        self.key = probe.key_of(service.api_key_env)
        self.executor: Executor = catalog.part("executors", service.site.batch)(service.site)
        if service.api_key_env and not self.key:
            raise InputError(
                f"{service.api_key_env} is empty; set it to the API key, put the key into "
                f"{probe.kept_in(service.api_key_env)} (mode 600), or remove api_key_env"
            )

    @property
    def service(self) -> Service:
        """What was accepted for the service as a whole; the file's where nothing was yet."""
        return self.folder.service

    def apply_journal(self) -> None:
        """The members as they were accepted, each in the slot that it runs in."""
        servers = [self._as_accepted(server) for server in self._servers(self.service)]
        self.members = [*servers, *router_of(self.folder.settings_of(ROUTER), servers)]

    def _as_accepted(self, server: Member) -> Member:
        """As it was accepted itself: a file that is applied to one after the other may have moved their ports."""
        own = self.folder.settings_of(server.name)
        return server if own is self.service else every_member(own).get(server.name, server)

    def _servers(self, service: Service) -> list[Member]:
        return [member for member in members_of(service, self.folder.second) if not member.is_router]

    def proposed(self) -> list[Member]:
        """The members as the deployment file would have them now. InputError where it could not be read."""
        if self.file is None:
            raise InputError("the deployment file cannot be read as it is; correct it: `ridgeline service check FILE`")
        servers = self._servers(self.file)
        return [*servers, *router_of(self.file, servers)]

    def edited(self) -> tuple[list[str], list[str]]:
        """Members that the file would start otherwise than they were accepted, and which of its keys differ."""
        if self.file is None or self.folder.accepted is None or self.folder.is_down:
            return [], []
        members, keys = self.folder.accepted.edits(self.file, [member.name for member in self.members])
        # of a service that an earlier release started nobody knows what was accepted, but its scripts are there
        other = [m.name for m in self.servers if self.folder.serves(m.name) and not self.folder.has_script_of(m)]
        return list(dict.fromkeys([*members, *other])), keys

    def refresh(self) -> None:
        """What others have done meanwhile."""
        self.folder.refresh()
        self.apply_journal()

    @property
    def servers(self) -> list[Member]:
        return [member for member in self.members if not member.is_router]

    @property
    def router(self) -> Member | None:
        return next((member for member in self.members if member.is_router), None)

    @property
    def front(self) -> Member:
        """Where users go."""
        return self.router or self.members[0]

    def member(self, name: str) -> Member:
        found = next((member for member in self.present if member.name == name), None)
        if found is None:
            raise InputError(
                f"{name!r} is not part of {self.service.name}; it has {', '.join(m.name for m in self.members)}"
            )
        return found

    @property
    def present(self) -> list[Member]:
        """The members, those that will take the place of one, and those that are on their way out."""
        others = [*self.folder.replacing.values(), *self.folder.retiring]
        every = every_member(self.service) if others else {}
        return [*self.members, *(self._as_accepted(every[name]) for name in others if name in every)]

    @contextmanager
    def commanding(self) -> Iterator[None]:
        """One command of a person at a time; `keep` goes on meanwhile. StoreError where another one is running."""
        with self.folder.command_lock():
            self.refresh()
            yield

    @contextmanager
    def action(self) -> Iterator[None]:
        """One act, with the journal; another's is waited for. Within an act it is the same one."""
        if self.folder.journal is not None:
            yield
            return
        lock = self.folder.action_lock()
        _acquire(lock)
        try:
            self.folder.begin()
            self.apply_journal()
            try:
                yield
            finally:
                self.folder.end()
        finally:
            lock.release()

    # up

    def up(self, limit_s: float) -> str:
        """The URL that serves, after a real request through it. What the file says is accepted.

        Members that already run are left alone, with the settings that they were accepted with.
        """
        with self.commanding():
            began_s = time.monotonic()
            proposed = self.proposed()
            with self.action():
                self._accept_file([member.name for member in proposed])
                self.folder.record({"event": "going-up"})
            for stray in [m for m in self._everybody() if m not in self.present]:
                self.say(f"{stray.name}: runs and is no longer in the file; `ridgeline service down` ends it too")
            for group in [[member] for member in self.servers] if self.service.in_turn else [self.servers]:
                for member in group:
                    self.ensure(member, self.file)
                self.until_ready([self.member(member.name) for member in group], limit_s)
            if self.router is not None:
                self.ensure(self.router, self.file)
                self.until_ready([self.member(ROUTER)], limit_s)
            self.first_request(self.front, limit_s)
            with self.action():
                self.folder.record({"event": "up", "url": self.folder.url(self.front)})
            self.say(f"serves after {time.monotonic() - began_s:.0f} s")
        return self.folder.url(self.front)

    def _accept_file(self, names: Sequence[str]) -> None:
        """For the service as a whole and all that does not run; what runs keeps what it was started with."""
        assert self.file is not None, "who proposes members has one"
        before = self.folder.accepted or Accepted(self.file)
        running = [n for n in names if n in self.folder.started and not self.folder.started[n].ended]
        self.folder.accept(before.with_service(self.file, running))
        self.apply_journal()

    def accept_member(self, name: str, settings: Service) -> None:
        """What it is started with from now on, by whoever starts it."""
        servers = [m.name for m in self._servers(settings)]
        before = self.folder.accepted or Accepted(self.service)
        self.folder.accept(before.with_member(name, settings, servers))
        self.apply_journal()

    def ensure(self, member: Member, settings: Service | None = None, trial: bool = False) -> None:
        """Running, or started now: as it was accepted, or with these settings, which are accepted by that.

        A `trial` of settings is not their acceptance: whoever starts the member next starts it as it was before.
        """
        with self.action():
            start = self.folder.started.get(member.name)
            if start is not None and not start.ended:
                ticket = self._handed_over(member)
                if ticket and self.note_ending(member) is None:
                    before = f"`ridgeline service restart FILE {member.name}` applies the edited file"
                    edited = member.name in self.edited()[0]
                    self.say(f"{member.name}: runs already{f', as it was accepted before: {before}' if edited else ''}")
                    return
            if settings is not None and not trial and self.folder.accepted is not None:
                self.accept_member(member.name, settings)
                member = self.member(member.name)
            self._check_ports(member)
            generation = self.folder.generation(member.name) + 1
            event = {"event": "planned", "member": member.name, "generation": generation}
            self.folder.record({**event, "trial": True} if trial else event)
            job = self.folder.prepare(
                member, generation, settings if trial and settings is not None else self.folder.settings_of(member.name)
            )
            ticket = self.executor.submit(job)
            self.folder.record({"event": "submitted", "member": member.name, "ticket": ticket})
        shown = job.folder.relative_to(Path.cwd()) if job.folder.is_relative_to(Path.cwd()) else job.folder
        self.say(f"{member.name}: started, log in {shown}")

    def _handed_over(self, member: Member) -> str:
        """Its ticket, also where whoever submitted it died before that was written down; empty where it never was."""
        start = self.folder.started[member.name]
        if start.ticket:
            return start.ticket
        ticket = self.executor.find(self.folder.job(member, start.generation))
        if ticket:
            self.folder.record({"event": "submitted", "member": member.name, "ticket": ticket})
        return ticket or ""

    def _check_ports(self, member: Member) -> None:
        if not self.service.on_this_machine:
            return
        for port in member.ports:
            if why := why_not_free(port, self.service.host or "127.0.0.1"):
                raise SiteError(
                    f"{member.name}: port {port} cannot be used ({why}); choose another first_port, "
                    "first_bootstrap_port or router port, or end what holds it"
                )

    def ending(self, member: Member) -> Ending | None:
        """How the member's job ended, if it did. One question to the site for all."""
        start = self.folder.started[member.name]
        open_tickets = [s.ticket for s in self.folder.started.values() if s.ticket and not s.ended]
        self._endings.update(self.executor.poll([t for t in open_tickets if t not in self._endings]))
        return self._endings.get(start.ticket)

    def note_ending(self, member: Member) -> Ending | None:
        """The same, and recorded."""
        ending = self.ending(member)
        if ending is not None and not self.folder.started[member.name].ended:
            code = ending.exit_code if ending.exit_code is not None else ""
            reason = ending.reason or f"{ending.cause} {code}".strip()
            self.folder.record({"event": "ended", "member": member.name, "reason": reason})
        return ending

    def activity(self, member: Member) -> Activity | None:
        """What the processes of its job have done, where they can be seen from here."""
        start = self.folder.started.get(member.name)
        return self.executor.activity(start.ticket) if start is not None and start.ticket else None

    def model_of(self, member: Member) -> str:
        """What requests call the model on this server."""
        url = self.folder.url(member)
        return self.service.served_name or probe.served_model(url, self.key) or self.service.model

    def running(self, member: Member) -> float:
        """Requests that this server runs; 0 where it does not say."""
        return probe.metrics(self.folder.url(member)).get(server_of(self.service.engine).metrics.running, 0.0)

    def ask_for_token(self, member: Member, limit_s: float) -> bool:
        url, path = self.folder.url(member), probe.split_path(self.service.engine, member.role)
        return probe.ask_for_token(url, self.model_of(member), self.key, limit_s, path=path).good

    def _waits(self, member: Member) -> str:
        """Why the batch system has not started it yet, where it says so."""
        start = self.folder.started.get(member.name)
        return self.executor.waiting.get(start.ticket, "") if start is not None else ""

    def until_ready(self, members: Sequence[Member], limit_s: float) -> None:
        deadline = time.monotonic() + limit_s
        waiting, said = list(members), ""
        while waiting:
            self.refresh()  # `keep` may have started one of them again
            for member in list(waiting):
                url = self.folder.url(member)
                if self.is_ready(member):
                    waiting.remove(member)
                    with self.action():
                        self.folder.record({"event": "ready", "member": member.name, "url": url})
                    self.say(f"{member.name}: ready at {url}")
                elif (ending := self.ending(member)) is not None:
                    raise SiteError(self._died(member, ending))
            said = self._report_waiting(waiting, said)
            if waiting and time.monotonic() > deadline:
                names = ", ".join(member.name for member in waiting)
                raise SiteError(
                    f"{names} not ready after {limit_s:g} s{f' ({said})' if said else ''}; look at "
                    f"{self.folder.of(waiting[0])}, and give more time with --timeout or take it down with "
                    "`ridgeline service down`"
                )
            if waiting:
                time.sleep(POLL_S)

    def _report_waiting(self, waiting: Sequence[Member], said: str) -> str:
        """A queue's reason, once; what it was last."""
        for member in waiting:
            if (why := self._waits(member)) and why != said:
                self.say(f"{member.name}: waits in the queue ({why})")
                return why
        return said

    def is_ready(self, member: Member) -> bool:
        """Healthy, itself and nobody else at its port, and warm."""
        url = self.folder.url(member)
        return bool(url) and probe.is_healthy(url) and self.ending(member) is None and self._is_warm(member, url)

    def _is_warm(self, member: Member, url: str) -> bool:
        """It has answered a sampled request, or refused it.

        Engines compile some kernels at their first use (SGLang those of sampling, for over a minute): users should not
        be the ones who wait for that. Servers of split roles are warmed by the first request through their router.
        """
        ticket = self.folder.started[member.name].ticket
        if member.role != "both":
            return True
        if ticket not in self._warm_ups:
            arguments = (url, self.model_of(member), self.key)
            self._warm_ups[ticket] = threading.Thread(target=probe.warm_up, args=arguments, daemon=True)
            self._warm_ups[ticket].start()
        self._warm_ups[ticket].join(_WARM_S)
        return not self._warm_ups[ticket].is_alive()

    def _died(self, member: Member, ending: Ending) -> str:
        said = self.folder.last_lines(member)
        how = ending.reason or f"exit code {ending.exit_code}"
        return (
            f"{member.name} ended before it was ready: {how}\n{said}\n{self._cause(member)}"
            f"its log is in {self.folder.of(member)}; correct the cause and run `ridgeline service up` again"
        )

    def _cause(self, member: Member) -> str:
        """What its engine says of such a log, with what to do; empty where that is nothing, and of routers."""
        log = self.folder.log(member)
        if member.is_router or not log.is_file():
            return ""
        engine = server_of(self.service.engine)
        failures = engine.read(TextFile(log)).failures
        found = leading_cause(failures)
        if found is None:
            return ""
        _, failure, line = found
        text = next(said for *_, number, said in failures if number == line)
        advice = advice_on(text, failure, engine.failure_texts, engine.flags).format(memory_flag=engine.memory_flag)
        return f"{failure.claim} ({log.name}:{line}). {advice}\n"

    def first_request(self, front: Member, limit_s: float) -> None:
        """Answered, through this member: a router may be healthy before it knows its workers."""
        url, deadline = self.folder.url(front), time.monotonic() + limit_s
        while True:
            try:
                return probe.first_answer(url, self.model_of(self.servers[0]), self.key)
            except OSError as error:
                if time.monotonic() > deadline:
                    what = f"{url} does not answer a request: {error}"
                    raise SiteError(f"{what}; see `ridgeline service status`") from None
                if front.is_router and (ending := self.ending(front)) is not None:
                    raise SiteError(self._died(front, ending)) from None
            time.sleep(POLL_S)

    # status

    def status(self) -> list[MemberState]:
        """Each of them, after a request for a token."""
        states = [self._state(member) for member in self._everybody()]
        return _asked_for_tokens(states, self.service.engine, self.service.served_name, self.key)

    def _state(self, member: Member) -> MemberState:
        start, found = self.folder.started.get(member.name), self._plain_state(member)
        over = start is not None and (found.state in ("ended", "down") or not start.ticket) and not self.folder.is_down
        if over and (next_try_s := self.folder.next_try_in_s(member.name)):
            detail = f"back-off, next try in {next_try_s:.0f} s: {found.detail}"
            return replace(found, state="back-off", detail=detail)
        out = found.state == "ready" and (member.name in self.folder.drained or member.name in self.folder.leaving)
        return replace(found, state="drained") if out else found

    def _plain_state(self, member: Member) -> MemberState:
        start, url = self.folder.started.get(member.name), self.folder.url(member)
        found = partial(MemberState, member.name, member.role)
        if start is None or start.ended:
            return found("down", detail=start.ended if start else "")
        if not start.ticket:
            return found("starting", detail="planned, not yet handed over")
        if (ending := self.ending(member)) is not None:
            return found("ended", detail=ending.reason or str(ending.cause))
        if not url:
            return found("starting", detail=self._waits(member))
        if not probe.is_healthy(url):
            return found("silent" if start.ready else "starting", url)
        if member.is_router:
            return found("ready", url)
        metrics, seen = server_of(self.service.engine).metrics, probe.metrics(url)
        running, tokens = (int(seen[n]) if n in seen else None for n in (metrics.running, metrics.output_tokens))
        return found("ready", url, running, tokens)

    # down

    def down(self) -> None:
        """Everything of this service ends, the router first; nothing else is touched."""
        with self.commanding():
            with self.action():
                self.folder.record({"event": "going-down"})  # so that `keep` does not restart what we end
            for member in reversed(self._everybody()):
                self.stop(member)
            with self.action():
                self.folder.record({"event": "down"})

    def _everybody(self) -> list[Member]:
        """Also those that were started by an earlier text of the file, which no longer names them."""
        known = {member.name for member in self.present}
        left = [name for name, start in self.folder.started.items() if name not in known and not start.ended]
        return [*(Member(name, "left over", 0, (), Resources()) for name in left), *self.present]

    def stop(self, member: Member) -> None:
        """Its job has ended afterwards."""
        deadline = time.monotonic() + _END_S
        while not self.cancel(member):
            if time.monotonic() > deadline:
                ticket = self.folder.started[member.name].ticket
                raise SiteError(f"{member.name} did not end within {_END_S:g} s; end it by hand: {ticket}")
            self.executor.wait(POLL_S)

    def cancel(self, member: Member) -> bool:
        """Asks the site to end its job, without waiting for it; whether it has ended."""
        with self.action():
            start = self.folder.started.get(member.name)
            if start is None or start.ended:
                return True
            if not self._handed_over(member):
                self.folder.record({"event": "ended", "member": member.name, "reason": "was never handed over"})
                return True
            cancelled_s = self._cancelled.get(start.ticket)
            if self.note_ending(member) is None:
                if cancelled_s is None or time.monotonic() - cancelled_s >= _CANCEL_AGAIN_S:
                    cancelled_s = self._cancelled[start.ticket] = time.monotonic()
                    self.executor.cancel(start.ticket)
                if self.note_ending(member) is None:
                    return False
        if cancelled_s is not None:
            self.say(f"{member.name}: ended")
        return True


def _acquire(lock: StudyLock) -> None:
    """Other processes hold it for one action, which is short: so wait for it."""
    deadline = time.monotonic() + ACTION_WAIT_S
    while True:
        try:
            return lock.acquire()
        except LockHeld:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.05)
