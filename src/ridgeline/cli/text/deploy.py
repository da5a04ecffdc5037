"""What `ridgeline deploy` prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

from ridgeline.engines.knobs.releases import release_text
from ridgeline.service.keep.scaler import RoleScaleState
from ridgeline.service.keys import without_key
from ridgeline.service.members import Member
from ridgeline.service.protection import router_promise
from ridgeline.service.quoting import shell_line
from ridgeline.service.routers import ROUTERS
from ridgeline.service.service import Service
from ridgeline.service.status import MemberState


def service_summary(
    service: Service, members: Sequence[Member], requests: Mapping[str, str] | None = None, notes: Sequence[str] = ()
) -> str:
    """The service in a few lines, then every command line, what a batch system is asked for, and what to know."""
    engine = "the twin" if service.engine == "twin" else release_text(service.engine, service.release)
    lines = [f"{service.name}: {service.model} on {engine}, site {service.site.name}"]
    for member in members:
        lines += [f"  {member.name:<12} port {member.port}", f"    {shell_line(without_key(member.argv))}"]
        if asked := (requests or {}).get(member.name):
            lines.append(f"    asks {service.site.batch} for {asked}")
    if service.router is not None and not ROUTERS[service.router.kind].checks_keys:
        lines.append(
            f"{service.router.kind} changes its servers for anyone who can reach it, without a key: "
            "let only trusted users reach it"
        )
    if service.api_key_env:
        lines.append(f"each takes the API key from {service.api_key_env} itself; it is on no command line")
    if promise := router_promise(service):
        lines.append(promise)
    lines += [f"note: {note}" for note in notes]
    return "\n".join(lines)


def front_text(url: str, file: Path) -> str:
    """Where users reach it now, and where they find it after it has moved."""
    return f"users: {url} (always in {file})" if url else f"users: not reachable now; the address will be in {file}"


def scale_text(states: Sequence[RoleScaleState]) -> str:
    """A line for each role that is scaled: how many there are, between which limits, and the latest change."""
    lines = []
    for state in states:
        more = "".join(f", {n} {what}" for n, what in ((state.starting, "starting"), (state.leaving, "leaving")) if n)
        line = f"scale: {state.serving} {state.role} servers serve{more} ({state.limits})"
        if state.change:
            at = datetime.fromtimestamp(state.changed_at_s).strftime("%Y-%m-%d %H:%M:%S")
            line += f"; {at} {state.change}"
        lines.append(line)
    return "\n".join(lines)


def status_text(states: Sequence[MemberState]) -> str:
    rows: list[tuple[str, ...]] = [("member", "state", "running", "tokens", "address")]
    for state in states:
        counts = ["" if n is None else f"{n:,}" for n in (state.running, state.tokens)]
        text = f"{state.url} ({state.detail})" if state.url and state.detail else state.url or state.detail
        rows.append((state.name, state.state, *counts, text))
    widths = [max(len(row[n]) for row in rows) for n in range(4)]
    return "\n".join("  ".join([*(row[n].ljust(widths[n]) for n in range(4)), row[4]]).rstrip() for row in rows)
