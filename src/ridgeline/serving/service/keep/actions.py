"""What `keep` does to a service: each action is in the journal, with its reason, before it happens.

An action is never waited for. Its first line says what is to become of a member, and every later poll goes on with it
(`steps.py`): so the others stay watched, and whoever comes after a keeper that was killed finds the same line.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from ridgeline.serving.service import probe
from ridgeline.serving.service.history import RESTART
from ridgeline.serving.service.keep.scale import ScaleDecision
from ridgeline.serving.service.keep.stand_in import StandIn
from ridgeline.serving.service.keep.watch import Concern
from ridgeline.serving.service.members import SECOND, Member, first_slot
from ridgeline.serving.service.operate import DRAIN_S, Operator
from ridgeline.serving.service.servers import server_of
from ridgeline.serving.service.steps import Steps

LEAVE_S = 60.0  # a slow server may take so long over what it has
MOST_RESTARTS = 3  # of one member, lately; what breaks again and again is not cured by another start
# One prompt may look like a hang on every server that the router tries it on: between two of a role there is a wait.
ROLE_WAIT_S = 30.0  # after the first, then twice as long each time
_NEXT_WITHIN_S = 60.0  # of the end of that wait: a prompt that goes round looks like a hang as soon as anybody looks
_LOWER_TO = 0.85  # of the requests that are under way
LIMIT_AGAIN_S = 120.0  # before another one is named


class Actions(Steps):
    """One keeper's decisions, carried out. `alert` gets a kind, a member and what a person may have to know."""

    def __init__(
        self,
        operator: Operator,
        file: str,
        alert: Callable[[str, str, str], None] = lambda kind, member, text: None,
    ) -> None:
        super().__init__(operator, alert)
        self._file = file
        self._limit_said_s = -math.inf
        self._stand_in = StandIn()

    def record(self, event: Mapping[str, Any]) -> None:
        with self._operator.action():
            self._operator.folder.record(event)

    def attend(self, listed: Mapping[str, Mapping[str, Any]]) -> None:
        """While no server is in the router somebody must say so. Where roles are split routers say it themselves."""
        operator, folder, admin = self._operator, self._operator.folder, self.admin()
        if admin is None or operator.service.split:
            return
        serve = {folder.url(m) for m in operator.servers if folder.serves(m.name) and m.name not in folder.out}
        model = operator.service.served_name or operator.service.model
        self._stand_in.attend(admin, listed, model, bool(serve & listed.keys()))

    def restart(self, concern: Concern) -> bool:
        """Whether anything was begun about it."""
        operator, folder = self._operator, self._operator.folder
        member = operator.member(concern.member)
        generation = folder.generation(member.name)
        if self._waits(member, concern) or not (concern.certain or concern.kind == "dead" or self._spared(member)):
            return False
        if (
            concern.kind in ("hung", "slow")
            and len(folder.restarts(member.name)) >= MOST_RESTARTS
            and self._spared(member)
        ):
            return self._give_up(member, concern)
        with operator.action():
            if folder.is_down or member.name in folder.leaving or folder.generation(member.name) != generation:
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
        wait_s, last_s = ROLE_WAIT_S, -math.inf
        for at_s in acts:
            wait_s = 2 * wait_s if at_s - last_s < wait_s + _NEXT_WITHIN_S else ROLE_WAIT_S
            last_s = at_s
        return time.time() - last_s < wait_s

    def _give_up(self, member: Member, concern: Concern) -> bool:
        operator = self._operator
        if operator.folder.url(member) not in (self.listed() or {}):
            return False
        with operator.action():
            event = {"event": "drained", "member": member.name, "why": concern.kind, "evidence": concern.evidence}
            operator.folder.record(event)
            self.take_out(member)
        text = (
            f"{concern.kind} ({concern.evidence}) after {MOST_RESTARTS} restarts; left out of the router. "
            f"Look at {operator.folder.log(member)}, then `ridgeline service restart {self._file} {member.name}`"
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
        return any(folder.url(other) in listed and folder.serves(other.name) for other in others)

    def near_cliff(self, concern: Concern) -> None:
        """Says which limit would keep the router below it: a new one needs a new router, which cuts streams off."""
        operator = self._operator
        if operator.router is None or time.monotonic() - self._limit_said_s < LIMIT_AGAIN_S:
            return
        self._limit_said_s = time.monotonic()
        limit = max(1, int(_LOWER_TO * self._under_way()))
        say = f"write `most_running: {limit}` into {self._file} and `ridgeline service restart {self._file} router`"
        operator.say(f"{concern.member}: {concern.kind} ({concern.evidence}); {say}")
        self._alert(concern.kind, concern.member, f"{concern.evidence}; {say}")

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

    def _under_way(self) -> float:
        operator = self._operator
        metric = server_of(operator.service.engine).metrics.running
        servers = [member for member in operator.servers if member.role != "prefill"]
        return sum(probe.metrics(operator.folder.url(member)).get(metric, 0.0) for member in servers)
