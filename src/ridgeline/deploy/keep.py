"""Keeping a service well: looks at its servers again and again, and mends what several looks agree on.

Every act is a line in the service's journal before it happens, with its reason. Killed at any point, the next `keep`
finds the servers as they are: one that runs and is not in the router is put back.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from ridgeline.deploy import probe
from ridgeline.deploy.members import Member
from ridgeline.deploy.operate import Operator
from ridgeline.deploy.rolling import RouterAdmin
from ridgeline.deploy.servers import SERVERS
from ridgeline.deploy.watch import Concern, ServerLook, Watch
from ridgeline.errors import RidgelineError

LOOK_EVERY_S = 2.0
AGAIN_AFTER_S = 60.0  # the same word about the same server is said once in so long


@dataclass
class Keeper:
    """`dry_run` says what would be done and does nothing."""

    operator: Operator
    dry_run: bool = False
    ready_s: float = 1800.0
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._watch = Watch()
        self._said: dict[tuple[str, str], float] = {}

    def run(self, stop: Callable[[], bool] = lambda: False) -> None:
        """Until `stop` says so."""
        if not self.dry_run:
            self._put_back()
        while not stop():
            began_s = self.clock()
            self.step()
            time.sleep(max(0.0, LOOK_EVERY_S - (self.clock() - began_s)))

    def step(self) -> list[Concern]:
        """One look at every server, and what follows."""
        operator = self.operator
        operator.folder.refresh()
        servers = [m for m in operator.servers if self._was_started(m)]
        concerns = self._watch.take({member.name: self._look(member) for member in servers})
        for concern in concerns:
            if concern.needs_restart and not self.dry_run:
                self._mend(concern)
            else:
                self._say(concern, "would be restarted" if concern.needs_restart else "noted")
        return concerns

    def _was_started(self, member: Member) -> bool:
        """`down` ends servers on purpose; they are not brought back."""
        start = self.operator.folder.started.get(member.name)
        return start is not None and bool(start.ticket) and not self.operator.folder.is_down

    def _look(self, member: Member) -> ServerLook:
        operator, now_s = self.operator, self.clock()
        start = operator.folder.started[member.name]
        ended = start.ended
        if not ended and (ending := operator.executor.poll([start.ticket]).get(start.ticket)) is not None:
            ended = ending.reason or f"exit code {ending.exit_code}"
        if ended:
            return ServerLook(now_s, ended=ended)
        dialect, seen = SERVERS[operator.service.engine], probe.metrics(operator.folder.url(member))
        return ServerLook(
            now_s,
            seen.get(dialect.load_metric),
            seen.get(dialect.token_metric),
            seen.get(dialect.kv_metric),
            seen.get(dialect.queue_metric, 0.0),
        )

    def _mend(self, concern: Concern) -> None:
        operator = self.operator
        member = operator.member(concern.member)
        with operator.acting():
            operator.folder.record(
                {"event": "mend", "member": member.name, "why": concern.kind, "evidence": concern.evidence}
            )
            operator.say(f"{member.name}: {concern.kind} ({concern.evidence}); taken out and started again")
            try:
                self._restart(member)
            except (RidgelineError, OSError) as error:
                operator.folder.record({"event": "mend-failed", "member": member.name, "reason": str(error)})
                operator.say(f"{member.name}: could not be mended: {error}")
        self._watch.forget(member.name)

    def _restart(self, member: Member) -> None:
        operator = self.operator
        admin, url = self._admin(), operator.folder.url(member)
        if admin is not None and url:
            admin.take_away(url)
        operator.stop(member)
        operator.ensure(member)
        operator.until_ready([member], self.ready_s)
        if admin is not None:
            admin.add(operator.folder.url(member), member.role)
        operator.folder.record({"event": "back", "member": member.name})
        operator.say(f"{member.name}: serves again")

    def _put_back(self) -> None:
        """Servers that a keeper before us took out and did not live to put back."""
        admin, operator = self._admin(), self.operator
        if admin is None:
            return
        with operator.acting():
            listed = admin.workers()
            for member in operator.servers:
                url = operator.folder.url(member)
                if url and url not in listed and member.name not in operator.folder.drained and probe.is_healthy(url):
                    operator.folder.record({"event": "back", "member": member.name})
                    admin.add(url, member.role)

    def _admin(self) -> RouterAdmin | None:
        router = self.operator.router
        url = self.operator.folder.url(router) if router is not None else ""
        return RouterAdmin(url, self.operator.key) if url else None

    def _say(self, concern: Concern, what: str) -> None:
        now_s, key = self.clock(), (concern.member, concern.kind)
        if now_s - self._said.get(key, -AGAIN_AFTER_S) >= AGAIN_AFTER_S:
            self._said[key] = now_s
            self.operator.say(f"{concern.member}: {concern.kind} ({concern.evidence}); {what}")
