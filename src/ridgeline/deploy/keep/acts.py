"""What `keep` does to a service: each act is in the journal, with its reason, before it happens."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from ridgeline.deploy import probe
from ridgeline.deploy.keep.watch import Concern
from ridgeline.deploy.members import Member
from ridgeline.deploy.operate import Operator
from ridgeline.deploy.rolling import RouterAdmin
from ridgeline.deploy.servers import SERVERS
from ridgeline.errors import RidgelineError

LEAVE_S = 60.0  # a slow server may take so long over what it has
MOST_MENDS, MENDS_WITHIN_S = 3, 1800.0  # of one member; what breaks again and again is not cured by another start
LOWER_TO = 0.85  # of the requests that are under way
LIMIT_STAYS_S = 120.0  # before it is lowered again


class Acts:
    """One keeper's hands."""

    def __init__(self, operator: Operator, file: str, lower_limits: bool) -> None:
        self._operator, self._file, self._lower = operator, file, lower_limits
        self._limit_at_s = -LIMIT_STAYS_S

    def record(self, event: Mapping[str, Any]) -> None:
        with self._operator.acting():
            self._operator.folder.record(event)

    def listed(self) -> dict[str, str] | None:
        """The servers that the router knows; None where there is none, or it does not answer."""
        admin = self._admin()
        try:
            return admin.workers() if admin is not None else None
        except OSError:
            return None

    def mend(self, concern: Concern) -> bool:
        """Whether anything was done about it."""
        operator = self._operator
        member, folder = operator.member(concern.member), operator.folder
        lately = [at_s for at_s in folder.mended.get(member.name, ()) if time.time() - at_s < MENDS_WITHIN_S]
        if len(lately) >= MOST_MENDS:
            return self._give_up(member, concern)
        if concern.kind == "slow" and not self._others_serve(member):
            return False  # slow is better than nobody
        with operator.acting():
            told = {"event": "mend", "member": member.name, "why": concern.kind, "evidence": concern.evidence}
            folder.record(told)
            out = "" if member.is_router else "taken out and "
            operator.say(f"{member.name}: {concern.kind} ({concern.evidence}); {out}started again")
            try:
                self._take_out(member)
                if concern.kind == "slow":
                    folder.record({"event": "leaving", "member": member.name})
                else:
                    self._restart(member)
            except (RidgelineError, OSError) as error:
                folder.record({"event": "mend-failed", "member": member.name, "reason": str(error)})
                operator.say(f"{member.name}: could not be mended: {error}")
        return True

    def restart_when_empty(self, member: Member) -> None:
        operator = self._operator
        url, metric = operator.folder.url(member), SERVERS[operator.service.engine].load_metric
        waited_s = time.time() - operator.folder.leaving[member.name]
        if probe.metrics(url).get(metric, 0.0) > 0 and waited_s < LEAVE_S:
            return
        with operator.acting():
            self._restart(member)

    def note_ready(self, member: Member) -> None:
        """A member that was started, by us or by somebody who was killed, and answers now."""
        operator = self._operator
        url = operator.folder.url(member)
        if not url or not probe.is_healthy(url):
            return
        with operator.acting():
            operator.folder.record({"event": "ready", "member": member.name, "url": url})
            if member.is_router:
                self._keep_out_what_was_drained()
                operator.say(f"{member.name}: serves again")
        if not member.is_router:
            self.put_back(member)

    def put_back(self, member: Member) -> None:
        operator, admin = self._operator, self._admin()
        with operator.acting():
            operator.folder.record({"event": "back", "member": member.name})
            if admin is not None:
                admin.add(operator.folder.url(member), member.role)
            operator.say(f"{member.name}: serves again")

    def near_cliff(self, concern: Concern) -> None:
        """A lower limit: at once where that was allowed, else it is only said how."""
        operator = self._operator
        router, choice = operator.router, operator.service.router
        if router is None or choice is None or time.monotonic() - self._limit_at_s < LIMIT_STAYS_S:
            return
        self._limit_at_s = time.monotonic()
        limit = max(1, int(LOWER_TO * self._under_way()))
        why = f"{concern.member}: {concern.kind} ({concern.evidence})"
        if not self._lower:
            say = f"write `most_running: {limit}` into {self._file} and `ridgeline deploy restart {self._file} router`"
            operator.say(f"{why}; {say}, or start keep with --lower-limits")
            return
        with operator.acting():
            before = operator.file_limit
            told = {"event": "limit", "most_running": limit, "instead_of": before, "evidence": why}
            operator.folder.record(told)
            operator.heed_limit()
            operator.say(f"{why}; the router is started again with most_running {limit}")
            self._restart(router)

    def _restart(self, member: Member) -> None:
        self._operator.stop(member)
        self._operator.ensure(self._operator.member(member.name))

    def _take_out(self, member: Member) -> None:
        admin, url = self._admin(), self._operator.folder.url(member)
        if admin is not None and url and not member.is_router:
            admin.take_away(url)

    def _give_up(self, member: Member, concern: Concern) -> bool:
        operator = self._operator
        if operator.folder.url(member) not in (self.listed() or {}):
            return False
        with operator.acting():
            told = {"event": "drained", "member": member.name, "why": concern.kind, "evidence": concern.evidence}
            operator.folder.record(told)
            self._take_out(member)
        log = operator.folder.log(member)
        operator.say(
            f"{member.name}: {concern.kind} ({concern.evidence}) after {MOST_MENDS} restarts; left out of the router. "
            f"Look at {log}, then `ridgeline deploy restart {self._file} {member.name}`"
        )
        return True

    def _others_serve(self, member: Member) -> bool:
        listed, folder = self.listed(), self._operator.folder
        others = [other for other in self._operator.servers if other.role == member.role and other is not member]
        return any(folder.url(other) in (listed or ()) and folder.started[other.name].ready for other in others)

    def _keep_out_what_was_drained(self) -> None:
        """A router that starts knows every server of its command line."""
        admin, folder = self._admin(), self._operator.folder
        out = folder.drained | folder.leaving.keys()
        for member in self._operator.servers:
            if member.name in out and admin is not None:
                admin.take_away(folder.url(member))

    def _under_way(self) -> float:
        operator = self._operator
        metric = SERVERS[operator.service.engine].load_metric
        servers = [member for member in operator.servers if member.role != "prefill"]
        return sum(probe.metrics(operator.folder.url(member)).get(metric, 0.0) for member in servers)

    def _admin(self) -> RouterAdmin | None:
        router = self._operator.router
        url = self._operator.folder.url(router) if router is not None else ""
        return RouterAdmin(url, self._operator.key) if url else None
