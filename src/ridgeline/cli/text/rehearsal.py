"""What `ridgeline rehearse` prints."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, stdev

from ridgeline.service.admission import AdmissionLimits
from ridgeline.service.protection import router_promise
from ridgeline.service.rehearse.rehearsal import (
    HUNG,
    KILLED,
    LEVEL,
    OVERLOADED,
    PAIRED,
    PolicyChoice,
    Rehearsal,
    Rehearsed,
)
from ridgeline.service.rehearse.scaling import RehearsedScaling, ScaledRun
from ridgeline.service.service import Service
from ridgeline.stats.student import interval
from ridgeline.stats.verdict import FEWEST_BLOCKS

_HEAD = ("policy", "case", "goodput/s", "of", "ttft p95", "itl p95", "lost", "cut", "refused", "imbalance")


def scaling_text(done: RehearsedScaling, start_s: float) -> str:
    """When servers would be added and removed, and why; then cost and limits beside numbers that stay."""
    run = done.scaled
    rows: list[tuple[str, ...]] = [("at", "role", "servers", "why")]
    rows += [(_clock(s), d.role, f"{d.replicas} -> {d.wanted}", d.why) for s, d in run.decisions]
    lines = _table(rows) if run.decisions else ["nothing was changed"]
    lines += ["", *_table([_SCALED_HEAD, _scaled_row("scaled", run), *(_scaled_row(n, r) for n, r in done.fixed)])]
    if done.first_up_s is not None:
        lines.append(f"scaled up {done.first_up_s:.0f} s after the load doubled")
    lines.append(f"{run.turns} changes of direction; a server starts in {start_s:g} s")
    return "\n".join([*lines, "servers, router and time are simulated; the router's own limits are not"])


_SCALED_HEAD = ("", "server-hours", "requests", "ttft p95", "tpot p95", "within the SLO", "held")


def _scaled_row(name: str, run: ScaledRun) -> tuple[str, ...]:
    times = [f"{spread.p95:,.0f} ms" if spread else "" for spread in (run.summary.ttft_ms, run.summary.tpot_ms)]
    kept = "" if run.kept_share is None else f"{run.kept_share:.1%}"
    held = "" if run.slo_held is None else "yes" if run.slo_held else "no"
    return (name, f"{run.server_hours:.2f}", f"{run.summary.requests:,}", *times, kept, held)


def _clock(seconds: float) -> str:
    return f"{int(seconds // 3600)}:{int(seconds // 60) % 60:02d}:{int(seconds) % 60:02d}"


def rehearsals_text(done: Rehearsed, limits: AdmissionLimits, asked_s: float, speed: float) -> str:
    """A table of the runs, one of the pairs with intervals, what was chosen and why, and which runs not to trust."""
    runs = done.runs
    lines = _table([_HEAD, *(_row(one) for one in runs if one.case != PAIRED)])
    lines += [*_pairs(done), *_verdict(done.choice)]
    lines.append(f"use {done.choice.policy}; most_running {limits.most_running}: {limits.reason}")
    lines += [said for one in runs if (said := _said(one))]
    sent_s = runs[0].offered_s
    if sent_s < 0.999 * asked_s:
        lines.append(
            f"this machine can sustain {sent_s:.3g} of {asked_s:.3g} requests/s: policies were compared at part load"
        )
    if speed != 1:
        lines.append(f"the servers ran {speed:g} times faster than real time; the figures are in the servers' time")
    lines += [f"{one.policy}, {one.case}: do not trust this run: {one.void}" for one in runs if one.void]
    return "\n".join([*lines, "servers are the twin's; router, sockets and load generator are real"])


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _pairs(done: Rehearsed) -> list[str]:
    """Each policy of the pairs with the interval of its mean."""
    choice = done.choice
    if choice.goodput is None:
        return []
    rows = [(f"{choice.goodput.blocks} pairs of runs", "goodput/s", "ttft p95")]
    for policy in (choice.own, choice.other):
        runs = [one for one in done.runs if one.case == PAIRED and one.policy == policy]
        first = [one.ttft_p95_ms for one in runs if one.ttft_p95_ms is not None]
        rows.append((policy, _mean([one.goodput_s for one in runs], ".2f"), f"{_mean(first, ',.0f')} ms"))
    return ["", *_table(rows)]


def _mean(values: Sequence[float], form: str) -> str:
    """The mean of the logs where there is one, as the comparison takes them, with the interval of the mean."""
    if len(values) < FEWEST_BLOCKS:
        return "-"
    logs = min(values) > 0
    seen = [math.log(value) for value in values] if logs else list(values)
    middle = fmean(seen)
    ends = interval(middle, stdev(seen) / math.sqrt(len(seen)), len(seen) - 1, LEVEL)
    shown = [math.exp(value) if logs else value for value in (middle, *ends)]
    return f"{shown[0]:{form}} ({shown[1]:{form}} to {shown[2]:{form}})"


def _verdict(choice: PolicyChoice) -> list[str]:
    if not choice.other:
        return [f"no policy did better than {choice.own} in the first runs; it stays"]
    lines = []
    for name, comparison in (("goodput", choice.goodput), ("ttft p95", choice.ttft)):
        if comparison is not None:
            lines.append(f"{choice.other}, {name}: {comparison.text(than=choice.own)}")
    if not choice.changed:
        lines.append(f"{choice.other} is not shown to be better: {choice.own} stays")
    return [*lines, ""]


def limits_text(service: Service, limits: AdmissionLimits) -> str:
    """Where the limits are written, and what the router does with them under overload."""
    assert service.router is not None
    chosen = replace(service, router=replace(service.router, most_running=limits.most_running))
    own = ["; ".join(f"{name} {value}" for name, value in unit.items()) for unit in limits.for_servers(service)]
    lines = [f"each server refuses requests on its own: {said}" for said in dict.fromkeys(own) if said]
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
