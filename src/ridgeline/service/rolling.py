"""Taking servers out of the router and putting them back, so that a restart is not noticed by users."""

from __future__ import annotations

import json
import math
import time
import urllib.error
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any
from urllib.parse import quote

from ridgeline.errors import InputError, SiteError
from ridgeline.files import read_text
from ridgeline.service import probe
from ridgeline.service.keep.watch import ServerPoll, poll_from
from ridgeline.service.members import Member
from ridgeline.service.operate import DRAIN_S, POLL_S, Operator
from ridgeline.service.scripts import START_FILE
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
            _start_again(operator, member, operator.folder.started[member.name].generation)
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
        _start_again(operator, member, generation)
        operator.until_ready([member], limit_s)
        with operator.action():
            operator.folder.record({"event": "back", "member": member.name})
            admin.add(operator.folder.url(member), member.role)
        operator.say(f"{member.name}: serves again")


def _start_again(operator: Operator, member: Member, generation: int, script: str | None = None) -> None:
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
    _start_again(operator, router, generation)
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


# A change tried on one server of a role first, under the load it gets: then the others follow, or it goes back.
#
# Servers are compared at the same moments by tokens a second for each request on them, running or waiting: what its
# users notice. The change goes on only where it is shown to cost them no more than `LOSS`; without that it goes back.

_LOSS = 0.1  # of the others' speed, which a change may cost
STEP_S = 5.0  # between two polls: long enough for a mean of many tokens
_ERROR = 0.05  # how often a change that costs exactly LOSS would go on, or back, by chance

_Polls = Mapping[str, ServerPoll]


@dataclass(frozen=True, slots=True)
class CanaryVerdict:
    """`ratio` is the canary's speed over the others', between `low` and `high`; None: nothing to compare."""

    goes_on: bool
    reason: str
    ratio: float | None = None
    low: float | None = None
    high: float | None = None


def _judge(canary: str, others: Sequence[str], rows: Sequence[_Polls]) -> CanaryVerdict:
    """What rows of polls of all of them say, taken at the same moments."""
    if (last := rows[-1][canary] if rows else None) is not None and last.ended:
        return CanaryVerdict(False, f"{canary} ended: {last.ended}")
    ratios = [
        own / theirs
        for before, after in pairwise(rows)
        if (own := _speed([canary], before, after)) is not None
        and (theirs := _speed(others, before, after)) is not None
        and theirs > 0
    ]
    if (outside := _outside(len(ratios))) is None:
        seen = f"{canary} and the others had requests at the same time in {len(ratios)} polls"
        return CanaryVerdict(False, f"too little load to compare them: {seen}; watch for longer, or under load")
    ordered = sorted(ratios)
    middle, low, high = median(ordered), ordered[outside], ordered[-1 - outside]
    seen = f"{canary} makes {middle:.2f} of the others' tokens a second and request ({low:.2f} to {high:.2f})"
    if low >= 1 - _LOSS:
        return CanaryVerdict(True, seen, middle, low, high)
    why = "slower" if high < 1 - _LOSS else f"not shown to keep {1 - _LOSS:.0%} of it"
    return CanaryVerdict(False, f"{seen}: {why}", middle, low, high)


def canary_restart(
    operator: Operator,
    members: Sequence[Member],
    limit_s: float,
    watch_s: float,
    polls: Callable[[], _Polls] | None = None,
) -> None:
    """Restarts all `members`, role by role: one, which is watched, then the others. SiteError where one went back."""
    roles = dict.fromkeys(member.role for member in members)
    for role in roles:
        if sum(member.role == role for member in members) < 2:
            what = "server" if role == "both" else f"{role} server"
            raise InputError(f"there is one {what}, and nothing to compare it with; restart without --canary")
    for role in roles:
        first, *others = [member for member in members if member.role == role]
        script = operator.folder.of(first) / START_FILE
        before = read_text(script)
        verdict = _tried(operator, first, others, limit_s, watch_s, polls or (lambda: _poll(operator)))
        operator.say(f"{first.name}: {verdict.reason}")
        if not verdict.goes_on:
            _go_back(operator, first, before, limit_s)
            raise SiteError(
                f"{verdict.reason}; {first.name} runs as it did before, and no other server was restarted for it. "
                "Correct the file and try again, or restart all of them with --rolling alone"
            )
        restart(operator, others, limit_s)


def _tried(
    operator: Operator,
    canary: Member,
    others: Sequence[Member],
    limit_s: float,
    watch_s: float,
    polls: Callable[[], _Polls],
) -> CanaryVerdict:
    try:
        restart(operator, [canary], limit_s)
    except SiteError as error:
        return CanaryVerdict(False, str(error))
    rows = [polls()]
    for _ in range(math.ceil(watch_s / STEP_S)):
        time.sleep(min(STEP_S, watch_s))
        rows.append(polls())
        if rows[-1][canary.name].ended:
            break
    return _judge(canary.name, [member.name for member in others], rows)


def _go_back(operator: Operator, member: Member, script: str, limit_s: float) -> None:
    """Started as it was; only what a batch system is asked for is the new file's."""
    folder = operator.folder
    assert operator.router is not None, "a service of several servers has one"
    if operator.ending(member) is None and folder.url(member):
        drain(operator, member)
    _start_again(operator, member, folder.started[member.name].generation, script)
    operator.until_ready([member], limit_s)
    with operator.action():
        folder.record({"event": "back", "member": member.name})
        RouterAdmin(folder.url(operator.router), operator.key).add(folder.url(member), member.role)
    operator.say(f"{member.name}: serves again, as before")


def _poll(operator: Operator) -> _Polls:
    now_s = time.monotonic()
    found = {}
    for member in operator.servers:
        if (ending := operator.ending(member)) is not None:
            found[member.name] = ServerPoll(now_s, ended=ending.reason or str(ending.cause), role=member.role)
        else:
            page = probe.metrics_page(operator.folder.url(member))
            found[member.name] = poll_from(operator.service.engine, member.role, page, now_s)
    return found


def _speed(names: Sequence[str], before: _Polls, after: _Polls) -> float | None:
    """Tokens a second and request of these servers together between two polls; None where they had none on them."""
    pairs = [(before[name], after[name]) for name in names]
    known = [(a, b) for a, b in pairs if a.made is not None and b.made is not None and not b.ended]
    load_s = sum((a.on_it + b.on_it) / 2 * (b.at_s - a.at_s) for a, b in known)
    return sum(max(0.0, (b.made or 0.0) - (a.made or 0.0)) for a, b in known) / load_s if load_s > 0 else None


def _outside(count: int) -> int | None:
    """How many of so many ordered values lie below an interval for their median; None: too few for one."""
    below, chance = -1, 0.0
    while below + 1 < count / 2:
        chance += math.comb(count, below + 1) / 2**count
        if 2 * chance > _ERROR:
            break
        below += 1
    return below if below >= 0 else None
