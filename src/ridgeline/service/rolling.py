"""Taking servers out of the router and putting them back, so that a restart is not noticed by users."""

from __future__ import annotations

import json
import time
import urllib.error
from typing import Any
from urllib.parse import quote

from ridgeline.errors import InputError, SiteError
from ridgeline.service import probe
from ridgeline.service.members import Member
from ridgeline.service.operate import DRAIN_S, POLL_S, Operator
from ridgeline.service.servers import server_of

_ADMIN_S = 60.0
_SAY_AFTER_S = 10.0
# a router that is still taking a server away under this URL refuses to add it
_STILL_THERE = 409


class RouterAdmin:
    """Actions on the router at `url` with the service's key, which its servers want too."""

    def __init__(self, url: str, key: str) -> None:
        self._url, self._key = url, key

    def workers(self) -> dict[str, str]:
        """URL -> the name by which the router takes it away."""
        return {url: str(row.get("id", row["url"])) for url, row in self._rows().items()}

    def _rows(self) -> dict[str, dict[str, Any]]:
        found = json.loads(self._ask("/workers"))
        listed: list[dict[str, Any]] = found.get("workers", found) if isinstance(found, dict) else found
        return {str(row["url"]).rstrip("/"): row for row in listed}

    def take_away(self, url: str) -> None:
        """Gone from the list afterwards: no new request goes to it."""
        if (row := self._rows().get(url)) is not None:
            if "id" not in row and row.get("worker_type") in ("prefill", "decode"):
                # vllm-router forgets servers of split roles for good
                raise SiteError(
                    f"the router at {self._url} could not take {url} back once it is taken away; take the service "
                    "down and up instead"
                )
            known = quote(str(row.get("id", row["url"])), safe="")  # vllm-router calls its workers by their URLs
            self._ask(f"/workers/{known}", method="DELETE")
        self._until(url, listed=False)

    def add(self, url: str, role: str) -> None:
        """Listed afterwards, with everything that the router knew of it when it started."""
        if url not in self.workers():
            self._post(self._worker(url, role))
        self._until(url, listed=True)

    def _worker(self, url: str, role: str) -> dict[str, Any]:
        worker: dict[str, Any] = {"url": url, "worker_type": "regular" if role == "both" else role}
        if self._key:
            worker["api_key"] = self._key  # else the router asks the server without one, and never takes it in
        if role == "prefill" and (port := _bootstrap_port(url, self._key)) is not None:
            worker["bootstrap_port"] = port  # else decode servers wait for KV that nobody sends
        return worker

    def _post(self, worker: dict[str, Any]) -> None:
        deadline = time.monotonic() + _ADMIN_S
        while True:
            try:
                self._ask("/workers", worker)
            except urllib.error.HTTPError as error:
                if error.code != _STILL_THERE or time.monotonic() > deadline:
                    raise
                time.sleep(POLL_S)
            else:
                return

    def _ask(self, path: str, body: object = None, method: str = "") -> bytes:
        try:
            return probe.ask(f"{self._url}{path}", body, key=self._key, method=method)
        except urllib.error.HTTPError as error:
            probe.refuse_wrong_key(self._url, error)
            raise

    def _until(self, url: str, listed: bool) -> None:
        deadline = time.monotonic() + _ADMIN_S
        while (url in self.workers()) is not listed:
            if time.monotonic() > deadline:
                state = "does not list" if listed else "still lists"
                raise SiteError(f"the router at {self._url} {state} {url} after {_ADMIN_S:g} s; look at its log")
            time.sleep(POLL_S)


def _bootstrap_port(url: str, key: str) -> int | None:
    """What a prefill server says of itself; None where it has no such port, as vLLM's."""
    try:
        said = json.loads(probe.ask(f"{url}/server_info", key=key))
        port = said.get("disaggregation_bootstrap_port")
    except (OSError, ValueError, AttributeError):
        return None
    return port if isinstance(port, int) else None


def drain(operator: Operator, member: Member) -> None:
    """No new request goes to it, and what it had is finished; it keeps running until `restart` or `undrain`."""
    admin, url = _admin(operator, member), operator.folder.url(member)
    with operator.action():
        operator.folder.record({"event": "drained", "member": member.name, "url": url})
        admin.take_away(url)
    if not _empty(operator, member, time.time() + DRAIN_S):
        raise SiteError(
            f"{member.name} still has requests after {DRAIN_S:g} s, and gets no new ones; wait, or end them with "
            f"`ridgeline deploy restart FILE {member.name} --force`"
        )
    operator.say(f"{member.name}: drained")


def undrain(operator: Operator, member: Member) -> None:
    """Back into the router, as it is."""
    admin, url = _admin(operator, member), operator.folder.url(member)
    start = operator.folder.started.get(member.name)
    if start is None or start.ended or not probe.is_healthy(url):
        raise SiteError(f"{member.name} does not run; start it with `ridgeline deploy restart FILE {member.name}`")
    with operator.action():
        operator.folder.record({"event": "back", "member": member.name})
        admin.add(url, member.role)
    operator.say(f"{member.name}: serves again")


def restart(operator: Operator, members: list[Member], limit_s: float, force: bool = False) -> None:
    """One after the other: out of the router, ended, started, ready, back. The others serve meanwhile.

    A server has ten minutes for the requests that it has, or none with `force`. Killed at any point, it is finished by
    `keep`, or by the next `restart`.
    """
    for member in members:
        if member.is_router:
            _restart_router(operator, member, limit_s)
            continue
        if operator.router is None:  # nobody can take its requests meanwhile
            start_again(operator, member, operator.folder.started[member.name].generation)
            operator.until_ready([member], limit_s)
            continue
        admin, url, until_s = _admin(operator, member), operator.folder.url(member), time.time() + DRAIN_S
        generation = operator.folder.started[member.name].generation if member.name in operator.folder.started else 0
        with operator.action():
            operator.folder.record(
                {"event": "leaving", "member": member.name, "why": "restart", "until": 0.0 if force else until_s}
            )
            if url:
                admin.take_away(url)
        if not force:
            _empty(operator, member, until_s)
        start_again(operator, member, generation)
        operator.until_ready([member], limit_s)
        with operator.action():
            operator.folder.record({"event": "back", "member": member.name})
            admin.add(operator.folder.url(member), member.role)
        operator.say(f"{member.name}: serves again")


def start_again(operator: Operator, member: Member, generation: int, script: str | None = None) -> None:
    """Ended and started, by `script` where it is given, unless somebody else did that since this generation."""
    while True:
        with operator.action():
            start = operator.folder.started.get(member.name)
            if start is not None and start.generation != generation:
                return
            if operator.cancel(member):
                operator.ensure(member, script)
                return
        operator.executor.wait(POLL_S)


def _empty(operator: Operator, member: Member, until_s: float) -> bool:
    """Whether it has finished what it had by then. Nobody is kept from acting meanwhile."""
    metric, said = server_of(operator.service.engine).metrics.running, False
    began_s, generation = time.time(), operator.folder.started[member.name].generation
    while (left := probe.metrics(operator.folder.url(member)).get(metric, 0.0)) > 0:
        if time.time() > until_s:
            return False
        operator.refresh()
        if operator.folder.started[member.name].generation != generation:
            return True  # `keep` was quicker
        if not said and time.time() - began_s > _SAY_AFTER_S:
            said = True
            operator.say(f"{member.name}: waits for {left:.0f} requests; `--force` would end them")
        time.sleep(POLL_S)
    return True


def _restart_router(operator: Operator, router: Member, limit_s: float) -> None:
    """What streams through it is cut off after a few seconds; what was drained stays out."""
    with operator.action():
        operator.folder.record({"event": "leaving", "member": router.name, "why": "restart", "until": 0.0})
        generation = operator.folder.started[router.name].generation
    start_again(operator, router, generation)
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


def refuse_last(operator: Operator, member: Member) -> None:
    """InputError where no other server of its role is left in the router: users would be refused until it is back."""
    if not (url := operator.folder.url(member)):
        return
    listed = _admin(operator, member).workers()
    others = [m for m in operator.servers if m.role == member.role and m.name != member.name]
    if url in listed and not any(operator.folder.url(other) in listed for other in others):
        role = "server" if member.role == "both" else f"{member.role} server"
        raise InputError(
            f"{member.name} is the last {role} in the router, and without it every request is refused; put another one "
            f"back first with `ridgeline deploy restart FILE NAME`, or end all of it with `ridgeline deploy down FILE`"
        )
