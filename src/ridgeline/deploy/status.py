"""How a member of a service is, at one look."""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline.deploy import probe
from ridgeline.deploy.folder import Started
from ridgeline.deploy.members import Member
from ridgeline.deploy.servers import SERVERS
from ridgeline.records.run import Ending


@dataclass(frozen=True, slots=True)
class MemberState:
    """`state` is down, starting, ready, drained (out of the router), silent (runs, does not answer) or ended.

    `detail` says more where there is more.
    """

    name: str
    role: str
    state: str
    url: str = ""
    running: int | None = None
    tokens: int | None = None
    detail: str = ""

    def as_json(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in self.__slots__}


def state_of(
    member: Member, start: Started | None, ending: Ending | None, url: str, engine: str, waits: str
) -> MemberState:
    """`waits` is why a batch system has not started it yet."""
    if start is None or start.ended:
        return MemberState(member.name, member.role, "down", detail=start.ended if start else "")
    if not start.ticket:
        return MemberState(member.name, member.role, "starting", detail="planned, not yet handed over")
    if ending is not None:
        return MemberState(member.name, member.role, "ended", detail=ending.reason or str(ending.cause))
    if not url:
        return MemberState(member.name, member.role, "starting", detail=waits)
    if not probe.is_healthy(url):
        return MemberState(member.name, member.role, "silent", url)
    if member.is_router:
        return MemberState(member.name, member.role, "ready", url)
    dialect, seen = SERVERS[engine], probe.metrics(url)
    running, tokens = (
        None if name not in seen else int(seen[name]) for name in (dialect.load_metric, dialect.token_metric)
    )
    return MemberState(member.name, member.role, "ready", url, running, tokens)
