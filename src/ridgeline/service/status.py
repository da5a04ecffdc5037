"""How a member of a service is, at one poll."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from ridgeline.records.run import Ending
from ridgeline.service import probe
from ridgeline.service.folder import Started
from ridgeline.service.members import ROUTER, Member
from ridgeline.service.servers import server_of

TOKEN_S = 5.0  # for one token, of a server or through the router


@dataclass(frozen=True, slots=True)
class MemberState:
    """`state` is down, starting, ready, drained (out of the router), silent (runs, does not answer) or ended; back-off
    is one that ended, and that `keep` starts again after a wait.

    A server that answers and makes no token on request is stalled; a router that turns a request away although
    servers make tokens refuses. `detail` says more where there is more.
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
    metrics, seen = server_of(engine).metrics, probe.metrics(url)
    running, tokens = (
        None if name not in seen else int(seen[name]) for name in (metrics.running, metrics.output_tokens)
    )
    return MemberState(member.name, member.role, "ready", url, running, tokens)


def asked_for_tokens(states: Sequence[MemberState], engine: str, model: str, key: str) -> list[MemberState]:
    """The same, after a request for one token to each that says it is ready: /health says so of a hung engine too."""

    def asked(state: MemberState) -> MemberState:
        if state.state not in ("ready", "drained"):
            return state
        name = model or probe.served_model(state.url, key)
        if state.role == ROUTER:
            why = probe.why_refused(state.url, name, key, TOKEN_S)
            return replace(state, state="refuses", detail=why) if why else state
        try:
            good = probe.makes_token(state.url, name, key, TOKEN_S, engine=engine, role=state.role)
        except OSError as error:
            return replace(state, detail=f"takes no request for a token: {error}")
        stalled = f"no token within {TOKEN_S:g} s: busy with long prompts, or hung"
        return state if good else replace(state, state="stalled", detail=stalled)

    with ThreadPoolExecutor(max(1, len(states))) as at_once:
        found = list(at_once.map(asked, states))
    serves = any(state.role != ROUTER and state.state == "ready" for state in found)
    # without a server that makes tokens it is not the router's fault
    return [was if now.state == "refuses" and not serves else now for was, now in zip(states, found, strict=True)]
