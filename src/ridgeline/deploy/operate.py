"""Bringing a service up, looking at it, and taking it down: each may be killed and called again.

Every start is a line in the journal before it happens. Whoever comes next finds each member by that line: still
running, ended, or never handed over.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from ridgeline import catalog
from ridgeline.deploy import keys, probe
from ridgeline.deploy.folder import ServiceFolder
from ridgeline.deploy.members import Member, members_of
from ridgeline.deploy.service import Service
from ridgeline.deploy.status import MemberState, state_of
from ridgeline.errors import InputError, SiteError
from ridgeline.executors.base import Executor
from ridgeline.ports import why_not_free
from ridgeline.records.run import Ending, Resources

LOOK_S = 0.2
DRAIN_S = 600.0
END_S = 120.0


class Operator:
    """Acts on one service. `say` is told, a line each, what happens."""

    def __init__(self, service: Service, root: Path, say: Callable[[str], None] = lambda line: None) -> None:
        self.service, self.say = service, say
        self.file_limit = service.router.most_running or 0 if service.router is not None else 0
        self.folder = ServiceFolder(root, service)
        self.members = members_of(service)
        self._endings: dict[str, Ending] = {}
        self.heed_limit()
        self.key = probe.key_of(service.api_key_env)
        self.executor: Executor = catalog.part("executors", service.site.batch)(service.site)
        if service.api_key_env and not self.key:
            raise InputError(
                f"{service.api_key_env} is empty; set it to the API key, put the key into "
                f"{keys.kept_in(service.api_key_env)} (mode 600), or remove api_key_env"
            )

    def heed_limit(self) -> None:
        """What `keep` has lowered holds until the file is given another limit, or the service is taken down."""
        lowered, router = self.folder.lowered, self.service.router
        if router is None:
            return
        holds = lowered is not None and lowered.instead_of == self.file_limit
        most = lowered.most_running if holds and lowered is not None else self.file_limit or None
        if most != router.most_running:
            self.service = replace(self.service, router=replace(router, most_running=most))
            self.folder.service = self.service
            self.members = members_of(self.service)

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
        found = next((member for member in self.members if member.name == name), None)
        if found is None:
            raise InputError(
                f"{name!r} is not part of {self.service.name}; it has {', '.join(m.name for m in self.members)}"
            )
        return found

    @contextmanager
    def acting(self) -> Iterator[None]:
        """With the lock and the journal; StoreError where another `deploy` is at work."""
        with self.folder.lock():
            self.folder.begin()
            try:
                yield
            finally:
                self.folder.end()

    # up

    def up(self, limit_s: float) -> str:
        """The URL that serves, after a real request through it. Members that already run are left alone."""
        with self.acting():
            began_s = time.monotonic()
            for stray in [m for m in self._everybody() if m not in self.members]:
                self.say(f"{stray.name}: runs and is no longer in the file; `ridgeline deploy down` ends it too")
            for group in [[member] for member in self.servers] if self.service.in_turn else [self.servers]:
                for member in group:
                    self.ensure(member)
                self.until_ready(group, limit_s)
            if self.router is not None:
                self.ensure(self.router)
                self.until_ready([self.router], limit_s)
            self._first_request(limit_s)
            self.folder.record({"event": "up", "url": self.folder.url(self.front)})
            self.say(f"serves after {time.monotonic() - began_s:.0f} s")
        return self.folder.url(self.front)

    def ensure(self, member: Member) -> None:
        """Running, or started now."""
        start = self.folder.started.get(member.name)
        if start is not None and not start.ended:
            job = self.folder.job(member, start.generation)
            ticket = start.ticket or self.executor.find(job)
            if ticket:
                if not start.ticket:
                    self.folder.record({"event": "submitted", "member": member.name, "ticket": ticket})
                if self.ending(member) is None:
                    self.say(f"{member.name}: runs already{self._as_before(member)}")
                    return
        self._check_ports(member)
        generation = 1 if start is None else start.generation + 1
        self.folder.record({"event": "planned", "member": member.name, "generation": generation})
        job = self.folder.prepare(member, generation)
        ticket = self.executor.submit(job)
        self.folder.record({"event": "submitted", "member": member.name, "ticket": ticket})
        shown = job.folder.relative_to(Path.cwd()) if job.folder.is_relative_to(Path.cwd()) else job.folder
        self.say(f"{member.name}: started, log in {shown}")

    def _as_before(self, member: Member) -> str:
        if self.folder.has_script_of(member):
            return ""
        return f", as the file was before: `ridgeline deploy restart FILE {member.name}` applies what was changed"

    def _check_ports(self, member: Member) -> None:
        if not self.service.on_this_machine:
            return
        for port in member.ports:
            if why := why_not_free(port, self.service.host or "127.0.0.1"):
                raise SiteError(
                    f"{member.name}: port {port} cannot be used ({why}); choose another first_port "
                    "or router port, or end what holds it"
                )

    def ending(self, member: Member) -> Ending | None:
        """How the member's job ended, if it did; recorded where we may write. One question to the site for all."""
        start = self.folder.started[member.name]
        open_tickets = [s.ticket for s in self.folder.started.values() if s.ticket and not s.ended]
        self._endings.update(self.executor.poll([t for t in open_tickets if t not in self._endings]))
        ending = self._endings.get(start.ticket)
        if ending is not None and self.folder.journal is not None and not start.ended:
            reason = (
                ending.reason or f"{ending.cause} {ending.exit_code if ending.exit_code is not None else ''}".strip()
            )
            self.folder.record({"event": "ended", "member": member.name, "reason": reason})
        return ending

    def _waits(self, member: Member) -> str:
        """Why the batch system has not started it yet, where it says so."""
        start = self.folder.started.get(member.name)
        why: dict[str, str] = getattr(self.executor, "waiting", {})
        return why.get(start.ticket, "") if start is not None else ""

    def until_ready(self, members: Sequence[Member], limit_s: float) -> None:
        deadline = time.monotonic() + limit_s
        waiting, said = list(members), ""
        while waiting:
            for member in list(waiting):
                url = self.folder.url(member)
                if url and probe.is_healthy(url) and self._alive(member):
                    waiting.remove(member)
                    self.folder.record({"event": "ready", "member": member.name, "url": url})
                    self.say(f"{member.name}: ready at {url}")
                elif (ending := self.ending(member)) is not None:
                    raise SiteError(self._died(member, ending))
            said = self._say_what_is_waited_for(waiting, said)
            if waiting and time.monotonic() > deadline:
                names = ", ".join(member.name for member in waiting)
                raise SiteError(
                    f"{names} not ready after {limit_s:g} s{f' ({said})' if said else ''}; look at "
                    f"{self.folder.of(waiting[0])}, and give more time with --timeout or take it down with "
                    "`ridgeline deploy down`"
                )
            if waiting:
                time.sleep(LOOK_S)

    def _say_what_is_waited_for(self, waiting: Sequence[Member], said: str) -> str:
        """A queue's reason, once; what it was last."""
        for member in waiting:
            if (why := self._waits(member)) and why != said:
                self.say(f"{member.name}: waits in the queue ({why})")
                return why
        return said

    def _alive(self, member: Member) -> bool:
        """Somebody else may answer at its port."""
        return self.ending(member) is None

    def _died(self, member: Member, ending: Ending) -> str:
        said = self.folder.last_lines(member)
        how = ending.reason or f"exit code {ending.exit_code}"
        return (
            f"{member.name} ended before it was ready: {how}\n{said}\n"
            f"its log is in {self.folder.of(member)}; correct the cause and run `ridgeline deploy up` again"
        )

    def _first_request(self, limit_s: float) -> None:
        """A router may be healthy before it knows its workers."""
        url, deadline = self.folder.url(self.front), time.monotonic() + limit_s
        while True:
            try:
                model = self.service.served_name or probe.served_model(self.folder.url(self.servers[0]), self.key)
                probe.first_answer(url, model or self.service.model, self.key)
            except OSError as error:
                if time.monotonic() > deadline:
                    raise SiteError(
                        f"{url} does not answer a request: {error}; see `ridgeline deploy status`"
                    ) from None
                if self.router is not None and (ending := self.ending(self.router)) is not None:
                    raise SiteError(self._died(self.router, ending)) from None
                time.sleep(LOOK_S)
            else:
                return

    # status

    def status(self) -> list[MemberState]:
        return [self._state(member) for member in self._everybody()]

    def _state(self, member: Member) -> MemberState:
        start = self.folder.started.get(member.name)
        runs = start is not None and bool(start.ticket) and not start.ended
        ending = self.ending(member) if runs else None
        found = state_of(member, start, ending, self.folder.url(member), self.service.engine, self._waits(member))
        out = found.state == "ready" and (member.name in self.folder.drained or member.name in self.folder.leaving)
        return replace(found, state="drained") if out else found

    # down

    def down(self) -> None:
        """Everything of this service ends, the router first; nothing else is touched."""
        with self.acting():
            for member in reversed(self._everybody()):
                self.stop(member)
            self.folder.record({"event": "down"})

    def _everybody(self) -> list[Member]:
        """Also those that were started by an earlier text of the file, which no longer names them."""
        known = {member.name for member in self.members}
        left = [name for name, start in self.folder.started.items() if name not in known and not start.ended]
        return [*(Member(name, "left over", 0, (), Resources()) for name in left), *self.members]

    def stop(self, member: Member) -> None:
        start = self.folder.started.get(member.name)
        if start is None or start.ended:
            return
        ticket = start.ticket or self.executor.find(self.folder.job(member, start.generation))
        if not ticket:
            self.folder.record({"event": "ended", "member": member.name, "reason": "was never handed over"})
            return
        if not start.ticket:
            self.folder.record({"event": "submitted", "member": member.name, "ticket": ticket})
        if self.ending(member) is not None:
            return
        self.executor.cancel(ticket)
        deadline = time.monotonic() + END_S
        while self.ending(member) is None:
            if time.monotonic() > deadline:
                raise SiteError(f"{member.name} did not end within {END_S:g} s; end it by hand: {ticket}")
            self.executor.wait(LOOK_S)
        self.say(f"{member.name}: ended")
