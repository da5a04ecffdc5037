"""What `ridgeline rehearse` prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ridgeline.deploy.admission import AdmissionLimits
from ridgeline.deploy.protection import router_promise
from ridgeline.deploy.rehearse.rehearsal import HUNG, KILLED, OVERLOADED, PLAIN, Rehearsal
from ridgeline.deploy.service import Service

_HEAD = ("policy", "case", "goodput/s", "of", "ttft p95", "itl p95", "lost", "cut", "refused", "imbalance")


def rehearsals_text(done: Sequence[Rehearsal], best: str, limits: AdmissionLimits, asked_s: float, speed: float) -> str:
    """A table of the runs, what was chosen and why, and which runs not to trust."""
    rows = [_HEAD, *map(_row, done)]
    widths = [max(len(row[n]) for row in rows) for n in range(len(_HEAD))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines.append(f"use {best}; most_running {limits.most_running}: {limits.reason}")
    if worse := [one.policy for one in done if one.policy not in {o.policy for o in done if o.case == PLAIN}]:
        lines.append(f"others were better with skewed traffic, so not tried further: {', '.join(worse)}")
    lines += [said for one in done if (said := _said(one))]
    sent_s = done[0].offered_s
    if sent_s < 0.999 * asked_s:
        lines.append(
            f"this machine carries {sent_s:.3g} of {asked_s:.3g} requests/s: policies were compared at part load"
        )
    if speed != 1:
        lines.append(f"the servers' time passed {speed:g} times as fast as real; the figures are in their time")
    lines += [f"{one.policy}, {one.case}: do not trust this run: {one.void}" for one in done if one.void]
    return "\n".join([*lines, "servers are the twin's; router, sockets and load generator are real"])


def limits_text(service: Service, limits: AdmissionLimits) -> str:
    """Where the limits are written, and what the router does with them under overload."""
    assert service.router is not None
    chosen = replace(service, router=replace(service.router, most_running=limits.most_running))
    own = ["; ".join(f"{name} {value}" for name, value in unit.items()) for unit in limits.for_servers(service)]
    lines = [f"each server refuses by itself: {said}" for said in dict.fromkeys(own) if said]
    return "\n".join([*lines, router_promise(chosen) or "the router keeps its limit, and answers with Retry-After"])


def _row(one: Rehearsal) -> tuple[str, ...]:
    times = ["-" if ms is None else f"{ms:,.0f} ms" for ms in (one.ttft_p95_ms, one.itl_p95_ms)]
    counts = [str(n) for n in (one.lost, one.cut, one.refused)]
    return (
        one.policy, one.case, f"{one.goodput_s:.2f}", f"{one.offered_s:.2f}", *times, *counts, f"{one.imbalance:.2f}"
    )  # fmt: skip


def _said(one: Rehearsal) -> str:
    if one.case in (KILLED, HUNG) and one.recovery_s is not None:
        watched = ", with keep watching" if one.case == HUNG else ""
        fate = f"requests failed for {one.recovery_s:.1f} s" if one.lost or one.cut else "no request failed"
        return f"a server {one.case}{watched}: {fate}; {one.lost} lost before their first token, {one.cut} cut off"
    if one.case == OVERLOADED:
        return f"offered {one.offered_s:.3g} requests/s with these limits: {one.goodput_s:.3g} kept the SLO"
    return ""
