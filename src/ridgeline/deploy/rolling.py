"""Taking servers out of the router and putting them back, so that a restart is not noticed by users."""

from __future__ import annotations

import json
import time
from typing import Any

from ridgeline.deploy import probe
from ridgeline.deploy.members import Member
from ridgeline.deploy.operate import DRAIN_S, LOOK_S, Operator
from ridgeline.deploy.servers import SERVERS
from ridgeline.errors import InputError, SiteError

ADMIN_S = 60.0


class RouterAdmin:
    """The workers a running router knows, by URL."""

    def __init__(self, url: str, key: str) -> None:
        self._url, self._key = url, key

    def workers(self) -> dict[str, str]:
        """URL -> the name by which the router takes it away."""
        found = json.loads(probe.ask(f"{self._url}/workers", key=self._key))
        listed: list[dict[str, Any]] = found.get("workers", found) if isinstance(found, dict) else found
        return {str(worker["url"]).rstrip("/"): str(worker.get("id", worker["url"])) for worker in listed}

    def take_away(self, url: str) -> None:
        if (known := self.workers().get(url)) is not None:
            probe.ask(f"{self._url}/workers/{known}", key=self._key, method="DELETE")
        self._until(url, listed=False)

    def add(self, url: str, role: str) -> None:
        if url not in self.workers():
            kind = "regular" if role == "both" else role
            probe.ask(f"{self._url}/workers", {"url": url, "worker_type": kind}, key=self._key)
        self._until(url, listed=True)

    def _until(self, url: str, listed: bool) -> None:
        deadline = time.monotonic() + ADMIN_S
        while (url in self.workers()) is not listed:
            if time.monotonic() > deadline:
                state = "does not list" if listed else "still lists"
                raise SiteError(f"the router at {self._url} {state} {url} after {ADMIN_S:g} s; look at its log")
            time.sleep(LOOK_S)


def drain(operator: Operator, member: Member) -> None:
    """No new request goes to it, and what it had is finished; it keeps running."""
    admin = _admin(operator, member)
    url = operator.folder.url(member)
    admin.take_away(url)
    operator.folder.record({"event": "drained", "member": member.name, "url": url})
    metric, deadline = SERVERS[operator.service.engine].load_metric, time.monotonic() + DRAIN_S
    while probe.metrics(url).get(metric, 0.0) > 0:
        if time.monotonic() > deadline:
            raise SiteError(
                f"{member.name} still has requests after {DRAIN_S:g} s; wait, or stop it with `deploy down`"
            )
        time.sleep(LOOK_S)
    operator.say(f"{member.name}: drained")


def restart(operator: Operator, members: list[Member], limit_s: float) -> None:
    """One after the other: out of the router, ended, started, ready, back. The others serve meanwhile."""
    for member in members:
        if member.is_router:
            _restart_router(operator, member, limit_s)
            continue
        drain(operator, member)
        operator.stop(member)
        operator.ensure(member)
        operator.until_ready([member], limit_s)
        _admin(operator, member).add(operator.folder.url(member), member.role)
        operator.folder.record({"event": "back", "member": member.name})
        operator.say(f"{member.name}: serves again")


def _restart_router(operator: Operator, router: Member, limit_s: float) -> None:
    """What streams through it is cut off after a few seconds; what was drained stays out."""
    operator.stop(router)
    operator.ensure(router)
    operator.until_ready([router], limit_s)
    for member in operator.servers:
        if member.name in operator.folder.drained:
            _admin(operator, member).take_away(operator.folder.url(member))


def _admin(operator: Operator, member: Member) -> RouterAdmin:
    if member.is_router or operator.router is None:
        raise InputError(f"{member.name} is not behind a router; take the service down and up instead")
    if not (url := operator.folder.url(operator.router)):
        raise InputError(f"the router of {operator.service.name} is not up; start it with `ridgeline deploy up`")
    return RouterAdmin(url, operator.key)
