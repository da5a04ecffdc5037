"""What `keep` does to a service: each action is in the journal, with its reason, before it happens.

An action is never waited for. Its first line says what is to become of a member, and every later poll goes on with it
(`go_on`): so the others stay watched, and whoever comes after a keeper that was killed finds the same line.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from ridgeline.errors import RidgelineError
from ridgeline.service import probe
from ridgeline.service.folder import RESTART
from ridgeline.service.keep.scale import ScaleDecision
from ridgeline.service.keep.watch import Concern
from ridgeline.service.members import SECOND, Member, first_slot
from ridgeline.service.operate import DRAIN_S, Operator
from ridgeline.service.rolling import RouterAdmin
from ridgeline.service.servers import server_of

LEAVE_S = 60.0  # a slow server may take so long over what it has
MOST_RESTARTS = 3  # of one member, lately; what breaks again and again is not cured by another start
# One prompt may look like a hang on every server that the router tries it on: between two of a role there is a wait.
ROLE_WAIT_S = 30.0  # after the first, then twice as long each time
_LOWER_TO = 0.85  # of the requests that are under way
LIMIT_STAYS_S = 120.0  # before it is lowered again
_TOKEN_S = 30.0  # for a replacement's first token


class Actions:
    """One keeper's actions. `alert` gets a kind, a member and what a person may have to know."""

    def __init__(
        self,
        operator: Operator,
        file: str,
        lower_limits: bool,
        alert: Callable[[str, str, str], None] = lambda kind, member, text: None,
    ) -> None:
        self._operator, self._file, self._lower, self._alert = operator, file, lower_limits, alert
        self._limit_at_s = -LIMIT_STAYS_S

    def record(self, event: Mapping[str, Any]) -> None:
        with self._operator.action():
            self._operator.folder.record(event)

    def listed(self) -> dict[str, str] | None:
        """The servers that the router knows; None where there is none, or it does not answer."""
        admin = self._admin()
        try:
            return admin.workers() if admin is not None else None
        except (OSError, ValueError, RidgelineError):
            return None

    # beginning

    def restart(self, concern: Concern) -> bool:
        """Whether anything was begun about it."""
        operator, folder = self._operator, self._operator.folder
        member = operator.member(concern.member)
        generation = folder.started[member.name].generation if member.name in folder.started else 0
        if self._waits(member, concern) or not (concern.certain or concern.kind == "dead" or self._spared(member)):
            return False
        if (
            concern.kind in ("hung", "slow")
            and len(folder.restarts(member.name)) >= MOST_RESTARTS
            and self._spared(member)
        ):
            return self._give_up(member, concern)
        with operator.action():
            now = folder.started.get(member.name)
            if folder.is_down or member.name in folder.leaving or (now is not None and now.generation != generation):
                return False  # somebody else was quicker
            event: dict[str, Any] = {"event": RESTART, "member": member.name, "why": concern.kind}
            until_s = round(time.time() + (LEAVE_S if concern.kind == "slow" else 0.0), 3)
            folder.record({**event, "evidence": concern.evidence, "until": until_s})
            out = "" if member.is_router else "taken out and "
            operator.say(f"{member.name}: {concern.kind} ({concern.evidence}); {out}started again")
        self._alert(concern.kind, member.name, f"{concern.evidence}; it is started again")
        return True

    def _waits(self, member: Member, concern: Concern) -> bool:
        """What was done to it, or to others of its role, needs time to show."""
        folder = self._operator.folder
        if concern.kind == "dead" or member.is_router:
            return folder.next_try_in_s(member.name) > 0
        alike = [other.name for other in self._operator.servers if other.role == member.role]
        acts = sorted(at_s for name in alike for at_s in folder.restarts(name, ("hung", "slow")))
        return bool(acts) and time.time() - acts[-1] < ROLE_WAIT_S * 2 ** (len(acts) - 1)

    def _give_up(self, member: Member, concern: Concern) -> bool:
        operator = self._operator
        if operator.folder.url(member) not in (self.listed() or {}):
            return False
        with operator.action():
            event = {"event": "drained", "member": member.name, "why": concern.kind, "evidence": concern.evidence}
            operator.folder.record(event)
            self._take_out(member)
        text = (
            f"{concern.kind} ({concern.evidence}) after {MOST_RESTARTS} restarts; left out of the router. "
            f"Look at {operator.folder.log(member)}, then `ridgeline deploy restart {self._file} {member.name}`"
        )
        operator.say(f"{member.name}: {text}")
        self._alert("given-up", member.name, text)
        return True

    def _spared(self, member: Member) -> bool:
        """Whether others of its role serve: it is not the last one."""
        listed, folder = self.listed(), self._operator.folder
        if listed is None or member.is_router:
            return False
        others = [other for other in self._operator.servers if other.role == member.role and other.name != member.name]
        return any(
            folder.url(other) in listed
            and (start := folder.started.get(other.name))
            and start.ready
            and not start.ended
            for other in others
        )

    def near_cliff(self, concern: Concern) -> None:
        """A lower limit: at once where that was allowed, else it is only said how."""
        operator = self._operator
        router, choice = operator.router, operator.service.router
        if router is None or choice is None or time.monotonic() - self._limit_at_s < LIMIT_STAYS_S:
            return
        self._limit_at_s = time.monotonic()
        limit = max(1, int(_LOWER_TO * self._under_way()))
        why = f"{concern.member}: {concern.kind} ({concern.evidence})"
        if not self._lower:
            say = f"write `most_running: {limit}` into {self._file} and `ridgeline deploy restart {self._file} router`"
            operator.say(f"{why}; {say}, or start keep with --lower-limits")
            self._alert(concern.kind, concern.member, f"{concern.evidence}; {say}")
            return
        with operator.action():
            before = operator.file_limit
            operator.folder.record({"event": "limit", "most_running": limit, "instead_of": before, "evidence": why})
            operator.apply_journal()
        operator.say(f"{why}; the router is started again with most_running {limit}")
        self._alert(concern.kind, concern.member, f"{concern.evidence}; the router now lets {limit} run")

    def replace(self, member: Member, why: str) -> None:
        """Another server is started in its place; it serves until that one does."""
        operator, folder = self._operator, self._operator.folder
        first = first_slot(member.name)
        by = first if member.name != first else f"{first}{SECOND}"
        with operator.action():
            if folder.is_down or member.name in folder.replacing:
                return
            folder.record({"event": "replacing", "member": member.name, "by": by, "why": why})
            operator.say(f"{member.name}: {why}; {by} takes its place")
            operator.ensure(operator.member(by))

    def scale(self, decision: ScaleDecision) -> None:
        """Servers begin to be added; or one leaves the router, finishes what it has and ends."""
        with self._operator.action():
            if self._operator.folder.is_down:
                return
            names = self._grow(decision) if decision.change > 0 else self._shrink(decision)
        if names:
            number = f"from {decision.replicas} to {decision.wanted}"
            verb = "added" if decision.change > 0 else "removed"
            text = f"{number} {decision.role} servers: {decision.why}; {', '.join(names)} {verb}"
            self._operator.say(f"scale: {text}")
            self._alert("scale-up" if decision.change > 0 else "scale-down", ", ".join(names), text)

    def _grow(self, decision: ScaleDecision) -> list[str]:
        """Those that still finish what they have come back first: they needn't be started."""
        operator, folder = self._operator, self._operator.folder
        free = [member for member in operator.growth(decision.role) if member.name not in folder.retiring]
        back = [m for m in operator.present if m.name in folder.retiring and m.role == decision.role]
        chosen = [*(m for m in back if not operator.is_ending(m)), *free][: decision.change]
        event = {"event": "growing", "role": decision.role, "to": decision.wanted, "why": decision.why}
        for member in chosen:
            folder.record({**event, "member": member.name})
        for member in chosen:
            operator.ensure(member)
        return [member.name for member in chosen]

    def _shrink(self, decision: ScaleDecision) -> list[str]:
        """The last ones by number, of those that nothing else is done to; never the last that serves."""
        operator, folder = self._operator, self._operator.folder
        busy = {*folder.leaving, *folder.replacing, *folder.drained}
        mine = [m for m in operator.servers if m.role == decision.role and m.name not in busy]
        until_s = round(time.time() + DRAIN_S, 3)
        event = {"event": "shrinking", "role": decision.role, "to": decision.wanted, "why": decision.why}
        names = []
        for member in reversed(mine[decision.change :]):
            if self._spared(member):
                folder.record({**event, "member": member.name, "until": until_s})
                operator.apply_journal()
                names.append(member.name)
        return names

    def renew_router(self, router: Member, why: str) -> None:
        """It has one address: it is started again, which cuts off what streams through it."""
        with self._operator.action():
            self._operator.folder.record({"event": "leaving", "member": router.name, "why": why, "until": 0.0})
        self._operator.say(f"{router.name}: {why}; started again")

    # going on

    def go_on(self, member: Member, listed: Mapping[str, str] | None) -> None:
        """The next step of what was begun with it, by us or by somebody who was killed."""
        operator, folder = self._operator, self._operator.folder
        start = folder.started.get(member.name)
        known = listed is not None and folder.url(member) in listed
        if member.name in folder.retiring:
            self._retire(member, known)
        elif member.name in folder.leaving:
            self._leave(member, known)
        elif start is None or (not start.ticket and not start.ended):
            operator.ensure(member)  # planned, and whoever did so never handed it over
        elif self._comes(member) and start.ended and not folder.was_started(member.name):
            operator.ensure(member)  # it ran at an earlier time, and whoever wanted it back never started it
        elif member.name in folder.replacing.values() and (start.ended or operator.ending(member) is not None):
            old = _replaced_by(folder.replacing, member.name)
            with operator.action():
                operator.note_ending(member)
                folder.record({"event": "replace-failed", "member": old})
            self._alert("replace-failed", member.name, f"ended before it served: {folder.started[member.name].ended}")
        elif member.name in folder.growing and (start.ended or operator.ending(member) is not None):
            role = folder.growing[member.name]
            with operator.action():
                operator.note_ending(member)
                folder.record({"event": "grow-failed", "member": member.name, "role": role})
            self._alert("scale-failed", member.name, f"ended before it served: {folder.started[member.name].ended}")
        elif not start.ended and not start.ready:
            self._note_ready(member)
        elif start.ready and not start.ended and member.name in folder.growing:
            self._join(member)
        elif start.ready and not start.ended and member.name in folder.replacing.values():
            self._take_place(member)
        elif known and member.name in folder.drained:
            self._take_out(member)

    def _comes(self, member: Member) -> bool:
        folder = self._operator.folder
        return member.name in folder.growing or member.name in folder.replacing.values()

    def _leave(self, member: Member, listed: bool) -> None:
        operator, folder = self._operator, self._operator.folder
        start = folder.started.get(member.name)
        if listed and start is not None and not start.ended:
            self._take_out(member)
        if not self._may_end(member, folder.leaving[member.name]):
            return
        with operator.action():
            now = folder.started.get(member.name)
            again = now is not None and start is not None and now.generation != start.generation
            if member.name not in folder.leaving or folder.is_down or again:
                return  # a person's `restart` was quicker
            if operator.cancel(member):
                operator.ensure(operator.member(member.name))

    def _retire(self, member: Member, listed: bool) -> None:
        if listed:
            self._take_out(member)
        if not self._may_end(member, self._operator.folder.retiring[member.name]):
            return
        with self._operator.action():
            if self._operator.cancel(member):
                self._operator.folder.record({"event": "retired", "member": member.name})

    def _may_end(self, member: Member, until_s: float) -> bool:
        """It has nothing to finish, or no time left for it."""
        operator = self._operator
        start = operator.folder.started.get(member.name)
        if start is None or start.ended or time.time() >= until_s:
            return True
        metric = server_of(operator.service.engine).metrics.running
        return probe.metrics(operator.folder.url(member)).get(metric, 0.0) <= 0

    def _note_ready(self, member: Member) -> None:
        """A member that was started, by us or by somebody who was killed, and answers now."""
        operator = self._operator
        if not operator.is_ready(member):
            return
        url = operator.folder.url(member)
        with operator.action():
            operator.folder.record({"event": "ready", "member": member.name, "url": url})
            if member.is_router:
                self._keep_out_what_was_drained()
                operator.say(f"{member.name}: serves again")
                self._alert("serves-again", member.name, f"at {url}")
        if not member.is_router and member.name not in operator.folder.drained:
            if member.name in operator.folder.replacing.values():
                self._take_place(member)
            elif member.name in operator.folder.growing:
                self._join(member)
            else:
                self.put_back(member)

    def _join(self, member: Member) -> None:
        """A server that was added and is ready: a token from it, into the router, then it counts."""
        operator, folder, admin = self._operator, self._operator.folder, self._admin()
        if admin is None or not self._makes_token(member):
            return
        admin.add(folder.url(member), member.role)
        with operator.action():
            if member.name in folder.growing:
                folder.record({"event": "grown", "member": member.name})
                operator.apply_journal()
        operator.say(f"{member.name}: serves")

    def _makes_token(self, member: Member) -> bool:
        operator, service = self._operator, self._operator.service
        url = operator.folder.url(member)
        model = service.served_name or probe.served_model(url, operator.key) or service.model
        return probe.makes_token(url, model, operator.key, _TOKEN_S, engine=service.engine, role=member.role)

    def _take_place(self, member: Member) -> None:
        """A replacement that is ready: into the router, a token from it, then the other may go."""
        operator, folder, admin = self._operator, self._operator.folder, self._admin()
        url, old = folder.url(member), _replaced_by(self._operator.folder.replacing, member.name)
        if admin is not None:
            admin.add(url, member.role)
        if not self._makes_token(member):
            return
        with operator.action():
            if folder.replacing.get(old) == member.name:
                until_s = round(time.time() + DRAIN_S, 3)
                folder.record({"event": "replaced", "member": old, "by": member.name, "until": until_s})
                operator.apply_journal()
        operator.say(f"{member.name}: serves in place of {old}")

    def put_back(self, member: Member) -> None:
        operator, admin = self._operator, self._admin()
        with operator.action():
            operator.folder.record({"event": "back", "member": member.name})
            if admin is not None:
                admin.add(operator.folder.url(member), member.role)
            operator.say(f"{member.name}: serves again")
        self._alert("serves-again", member.name, f"at {operator.folder.url(member)}")

    def _take_out(self, member: Member) -> None:
        """As far as the router lets it be done; its own health checks find a server that is gone."""
        admin, url = self._admin(), self._operator.folder.url(member)
        if admin is None or not url or member.is_router:
            return
        try:
            admin.take_away(url)
        except (RidgelineError, OSError) as error:
            self._operator.say(f"{member.name}: the router keeps it: {error}")

    def _keep_out_what_was_drained(self) -> None:
        """A router that starts knows every server of its command line."""
        admin, folder = self._admin(), self._operator.folder
        out = folder.drained | folder.leaving.keys()
        for member in self._operator.servers:
            if member.name in out and admin is not None and folder.url(member):
                admin.take_away(folder.url(member))

    def _under_way(self) -> float:
        operator = self._operator
        metric = server_of(operator.service.engine).metrics.running
        servers = [member for member in operator.servers if member.role != "prefill"]
        return sum(probe.metrics(operator.folder.url(member)).get(metric, 0.0) for member in servers)

    def _admin(self) -> RouterAdmin | None:
        router = self._operator.router
        url = self._operator.folder.url(router) if router is not None else ""
        return RouterAdmin(url, self._operator.key) if url else None


def _replaced_by(replacing: Mapping[str, str], name: str) -> str:
    return next(old for old, by in replacing.items() if by == name)
