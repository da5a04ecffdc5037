"""What `ridgeline deploy` prints."""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline.deploy.members import Member
from ridgeline.deploy.operate import MemberState
from ridgeline.deploy.rehearse.rehearsal import Rehearsal
from ridgeline.deploy.service import Service
from ridgeline.serving.engine.knobs.releases import release_text


def service_summary(service: Service, members: Sequence[Member]) -> str:
    """The service in a few lines, then every command line."""
    engine = "the twin" if service.engine == "twin" else release_text(service.engine, service.release)
    lines = [f"{service.name}: {service.model} on {engine}, site {service.site.name}"]
    for member in members:
        lines += [f"  {member.name:<12} port {member.port}", f"    {member.line}"]
    return "\n".join(lines)


def status_text(states: Sequence[MemberState]) -> str:
    rows: list[tuple[str, ...]] = [("member", "state", "running", "tokens", "address")]
    for state in states:
        counts = ["" if n is None else f"{n:,}" for n in (state.running, state.tokens)]
        rows.append((state.name, state.state, *counts, state.url or state.detail))
    widths = [max(len(row[n]) for row in rows) for n in range(4)]
    return "\n".join("  ".join([*(row[n].ljust(widths[n]) for n in range(4)), row[4]]).rstrip() for row in rows)


def rehearsals_text(done: Sequence[Rehearsal], best: Rehearsal) -> str:
    """A table of the runs, what was chosen, and which runs not to trust."""
    rows: list[tuple[str, ...]] = [("policy", "goodput/s", "ttft p95", "itl p95", "failed", "imbalance")]
    for one in done:
        times = ["-" if ms is None else f"{ms:,.0f} ms" for ms in (one.ttft_p95_ms, one.itl_p95_ms)]
        name = f"{one.policy}, one lost" if one.lost_server else one.policy
        rows.append((name, f"{one.goodput_s:.2f}", *times, str(one.failed), f"{one.imbalance:.2f}"))
    widths = [max(len(row[n]) for row in rows) for n in range(6)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines.append(f"use {best.policy} ({best.offered_s:g} requests/s were offered; servers are the twin's)")
    lines += [f"with a server lost, requests failed for {o.recovery_s:.1f} s" for o in done if o.recovery_s is not None]
    lines += [f"{one.policy}: do not trust this run: {one.void}" for one in done if one.void]
    return "\n".join(lines)
