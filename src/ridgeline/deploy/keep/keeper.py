"""Keeping a service well: looks at its members again and again, and mends what several looks agree on.

Nothing here waits for a server: a restart is begun, and the server is put back by a later look that finds it ready. So
the others stay watched meanwhile, and a keeper that was killed at any point is simply followed by the next one: all it
must know is in the journal, where every act is a line, with its reason, before it happens.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ridgeline.deploy import probe
from ridgeline.deploy.keep.acts import Acts
from ridgeline.deploy.keep.look import look_at
from ridgeline.deploy.keep.plan_check import PlanCheck, commands_after
from ridgeline.deploy.keep.watch import Concern, ServerLook, Watch
from ridgeline.deploy.members import Member
from ridgeline.deploy.operate import Operator
from ridgeline.errors import RidgelineError

LOOK_EVERY_S = 2.0
AGAIN_AFTER_S = 60.0  # the same word about the same member is said once in so long


@dataclass
class Keeper:
    """`dry_run` says what would be done and does nothing; `lower_limits` may restart the router for a lower limit."""

    operator: Operator
    dry_run: bool = False
    ready_s: float = 1800.0
    lower_limits: bool = False
    file: str = "FILE"
    clock: Callable[[], float] = time.monotonic
    _said: dict[tuple[str, str], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._watch = Watch()
        self._plan = PlanCheck(self.operator.service.expected, self.operator.service.engine)
        self._acts = Acts(self.operator, self.file, self.lower_limits)
        self._absent: dict[str, int] = {}  # looks in a row at which the router did not list it

    def run(self, stop: Callable[[], bool] = lambda: False) -> None:
        """Until `stop` says so."""
        while not stop():
            began_s = self.clock()
            try:
                self.step()
            except (RidgelineError, OSError) as error:
                # the batch system is away, or another `deploy` is at work: the next look may find it otherwise
                self._say("keep", "waits", str(error))
            time.sleep(max(0.0, LOOK_EVERY_S - (self.clock() - began_s)))

    def step(self) -> list[Concern]:
        """One look at every member, and what follows."""
        folder = self.operator.folder
        folder.refresh()
        self.operator.heed_limit()
        if folder.is_down:
            return []
        members = [m for m in self.operator.members if (start := folder.started.get(m.name)) and start.ticket]
        pages = {m.name: probe.metrics_page(folder.url(m)) for m in members if self._serves(m) and not m.is_router}
        concerns = self._watch.take({m.name: self._look(m, pages.get(m.name, "")) for m in members})
        late = [late for m in members if (late := self._late(m)) is not None]
        for concern in [*concerns, *late]:
            self._follow(concern)
        if not self.dry_run:
            self._go_on(members)
        self._hold_against_plan(members, pages)
        return [*concerns, *late]

    # looking

    def _serves(self, member: Member) -> bool:
        start = self.operator.folder.started[member.name]
        return start.ready and not start.ended

    def _look(self, member: Member, page: str) -> ServerLook:
        operator, now_s = self.operator, self.clock()
        start = operator.folder.started[member.name]
        ended = start.ended
        if not ended and (ending := operator.ending(member)) is not None:
            ended = ending.reason or f"exit code {ending.exit_code}"
        if ended or not start.ready or member.name in operator.folder.leaving:
            return ServerLook(now_s, running=0.0, tokens=0.0, ended=ended, role=member.role)
        if member.is_router:
            alive = probe.is_healthy(operator.folder.url(member))
            return ServerLook(now_s, running=0.0, tokens=0.0 if alive else None, role=member.role)
        return look_at(operator.service.engine, member.role, page, now_s)

    def _late(self, member: Member) -> Concern | None:
        """Started, and not ready in its time."""
        start = self.operator.folder.started[member.name]
        waited_s = time.time() - start.at_s
        if start.ready or start.ended or waited_s < self.ready_s:
            return None
        return Concern(member.name, "hung", f"not ready {waited_s:.0f} s after its start")

    # acting

    def _follow(self, concern: Concern) -> None:
        if self.dry_run:
            would = "would be restarted" if concern.needs_restart else "its limit would be lowered"
            self._say(concern.member, concern.kind, f"{concern.evidence}; {would}")
        elif concern.needs_restart:
            if self._acts.mend(concern):
                self._watch.forget(concern.member)
        else:
            self._acts.near_cliff(concern)

    def _go_on(self, members: list[Member]) -> None:
        """What an earlier look, or an earlier keeper, began."""
        folder = self.operator.folder
        listed = self._acts.listed()
        for member in members:
            start = folder.started[member.name]
            if start.ended:
                continue
            if member.name in folder.leaving:
                self._acts.restart_when_empty(member)
            elif not start.ready:
                self._acts.note_ready(member)
            elif not member.is_router and listed is not None and member.name not in folder.drained:
                absent = folder.url(member) not in listed
                self._absent[member.name] = self._absent.get(member.name, 0) + 1 if absent else 0
                if self._absent[member.name] > 1:
                    self._acts.put_back(member)

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
            if not self.dry_run:
                self._acts.record({"event": "plan-doubted", "evidence": doubt.evidence, "commands": commands})

    def _say(self, member: str, kind: str, what: str) -> None:
        now_s, key = self.clock(), (member, kind)
        if now_s - self._said.get(key, -AGAIN_AFTER_S) >= AGAIN_AFTER_S:
            self._said[key] = now_s
            self.operator.say(f"{member}: {kind} ({what})")
