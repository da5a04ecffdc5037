"""What `ridgeline deploy` prints."""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline.deploy.members import Member
from ridgeline.deploy.protection import router_promise
from ridgeline.deploy.routers import ROUTERS
from ridgeline.deploy.service import Service
from ridgeline.deploy.status import MemberState
from ridgeline.serving.engine.knobs.releases import release_text


def service_summary(service: Service, members: Sequence[Member]) -> str:
    """The service in a few lines, then every command line."""
    engine = "the twin" if service.engine == "twin" else release_text(service.engine, service.release)
    lines = [f"{service.name}: {service.model} on {engine}, site {service.site.name}"]
    for member in members:
        lines += [f"  {member.name:<12} port {member.port}", f"    {member.line}"]
    if service.router is not None and not ROUTERS[service.router.kind].checks_keys:
        lines.append(
            f"{service.router.kind} asks nobody for a key before it changes its servers: let only users reach it"
        )
    if promise := router_promise(service):
        lines.append(promise)
    return "\n".join(lines)


def status_text(states: Sequence[MemberState]) -> str:
    rows: list[tuple[str, ...]] = [("member", "state", "running", "tokens", "address")]
    for state in states:
        counts = ["" if n is None else f"{n:,}" for n in (state.running, state.tokens)]
        told = f"{state.url} ({state.detail})" if state.url and state.detail else state.url or state.detail
        rows.append((state.name, state.state, *counts, told))
    widths = [max(len(row[n]) for row in rows) for n in range(4)]
    return "\n".join("  ".join([*(row[n].ljust(widths[n]) for n in range(4)), row[4]]).rstrip() for row in rows)
