"""ridgeline service rehearse FILE --traffic T"""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Annotated

import typer

from ridgeline.cli.text.table import aligned, json_text
from ridgeline.serving.service import admission, rehearsal, routers
from ridgeline.serving.service import file as service_file
from ridgeline.serving.verbs import options as option
from ridgeline.stats import student, verdict

if TYPE_CHECKING:
    from ridgeline.serving.service.admission import AdmissionLimits
    from ridgeline.serving.service.rehearsal import PolicyChoice, Rehearsal, Rehearsed
    from ridgeline.serving.service.service import Service


_SHARE_OF_CAPACITY = 0.8


@dataclass(frozen=True)
class RehearsalArguments:
    """A deployment, and what is tried on twins of it."""

    file: Annotated[Path, typer.Argument(help="The deployment file.")]
    traffic: option.TrafficText = "sharegpt"
    rate: Annotated[
        float | None, typer.Option(help="Requests per second; default: 0.8 of what the servers can sustain.")
    ] = None
    seconds: Annotated[
        float,
        typer.Option(help="How long a run with a fault lasts; runs that compare policies take half as long.", min=1),
    ] = 8.0
    shared_prefix: Annotated[int, typer.Option(help="Tokens of a prefix that all prompts share.")] = 0
    policy: Annotated[list[str] | None, typer.Option(help="Try only this policy; may be repeated.")] = None
    seed: Annotated[int, typer.Option(help="Of the requests: which lengths come, when, and in which order.")] = 7
    speed: Annotated[float, typer.Option(help="How many times faster than real time the servers run.", min=0.05)] = 1.0


@option.takes(RehearsalArguments)
def rehearse(asked: RehearsalArguments, as_json: option.AsJson = False) -> None:
    """Try every router policy on this machine, in front of twin servers; then kill, hang and overload servers.

    The limits are what the twin's servers can sustain under this traffic, within the file's SLO.

    Example: ridgeline service rehearse service.yaml --traffic sharegpt
    """
    service = service_file.load_service(asked.file)
    rehearsal.known_policies(service)  # says what is missing before anything takes time
    limits = admission.admission_of(service, asked.traffic)
    asked_s = asked.rate or _SHARE_OF_CAPACITY * limits.requests_s
    load = rehearsal.sustainable(
        rehearsal.RehearsedLoad(asked.traffic, asked_s, asked.seconds, asked.shared_prefix, asked.speed, asked.seed)
    )
    with tempfile.TemporaryDirectory(prefix="ridgeline-rehearsal-") as folder:
        tell = partial(print, file=sys.stderr, flush=True)
        done = rehearsal.rehearse(service, Path(folder), load, asked.policy or (), tell, limits)
    if as_json:
        answer = {"policy": done.choice.policy, "pairs": done.choice.as_json(), "limits": limits.as_json()}
        how = {"speed": asked.speed, "asked_requests_s": asked_s, "origin": "modelled"}
        print(json_text({"runs": [one.as_json() for one in done.runs], **answer, **how}))
        return
    print(_rehearsals_text(done, limits, asked_s, asked.speed))
    assert service.router is not None
    # what the router does with the limits under overload
    chosen = replace(service, router=service.router.model_copy(update={"most_running": limits.most_running}))
    print(routers.router_promise(chosen) or "the router keeps its limit, and answers with Retry-After")
    if not asked.policy:
        print(f"write into {asked.file}:\n{_router_text(service, done.choice, limits)}", end="")


def _router_text(service: Service, choice: PolicyChoice, limits: AdmissionLimits) -> str:
    """What a deployment file should say of its router: a policy that is shown to be better, and the limits."""
    assert service.router is not None
    told = {"policy": choice.policy if choice.changed else None, **limits.for_router(service.router.kind)}
    known = {key: value for key, value in told.items() if value is not None}
    return service_file.service_text({"router": known})


_HEAD = ("policy", "case", "goodput/s", "of", "ttft p95", "itl p95", "lost", "cut", "refused", "imbalance")


def _rehearsals_text(done: Rehearsed, limits: AdmissionLimits, asked_s: float, speed: float) -> str:
    """A table of the runs, one of the pairs with intervals, what was chosen and why, and which runs not to trust."""
    runs = done.runs
    lines = aligned([_HEAD, *(_row(one) for one in runs if one.case != rehearsal.PAIRED)], left=range(len(_HEAD)))
    lines += [*_pairs(done), *_verdict(done.choice)]
    lines.append(f"use {done.choice.policy}; most_running {limits.most_running}: {limits.reason}")
    lines += [said for one in runs if (said := _outcome_text(one))]
    sent_s = runs[0].offered_s
    if sent_s < 0.999 * asked_s:
        lines.append(
            f"this machine can sustain {sent_s:.3g} of {asked_s:.3g} requests/s: policies were compared at part load"
        )
    if speed != 1:
        lines.append(f"the servers ran {speed:g} times faster than real time; the figures are in the servers' time")
    lines += [f"{one.policy}, {one.case}: void: {one.void}" for one in runs if one.void]
    return "\n".join([*lines, "servers are the twin's; router, sockets and load generator are real"])


def _pairs(done: Rehearsed) -> list[str]:
    """Each policy of the pairs with the interval of its mean."""
    choice = done.choice
    if choice.goodput is None:
        return []
    rows = [(f"{choice.goodput.blocks} pairs of runs", "goodput/s", "ttft p95")]
    for policy in (choice.own, choice.other):
        runs = [one for one in done.runs if one.case == rehearsal.PAIRED and one.policy == policy and not one.void]
        first = [one.ttft_p95_ms for one in runs if one.ttft_p95_ms is not None]
        rows.append((policy, _mean([one.goodput_s for one in runs], ".2f"), f"{_mean(first, ',.0f')} ms"))
    return ["", *aligned(rows, left=(0, 1, 2))]


def _mean(values: Sequence[float], form: str) -> str:
    """The mean of the logs where there is one, as the comparison takes them, with the interval of the mean."""
    if len(values) < verdict.FEWEST_BLOCKS:
        return "-"
    logs = min(values) > 0
    seen = [math.log(value) for value in values] if logs else list(values)
    middle = fmean(seen)
    ends = student.interval(middle, stdev(seen) / math.sqrt(len(seen)), len(seen) - 1, rehearsal.LEVEL)
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


def _row(one: Rehearsal) -> tuple[str, ...]:
    """The reason why a run is void stands below the table."""
    if one.void:
        return (one.policy, one.case, "void", f"{one.offered_s:.2f}", *["-"] * (len(_HEAD) - 4))
    times = ["-" if ms is None else f"{ms:,.0f} ms" for ms in (one.ttft_p95_ms, one.itl_p95_ms)]
    counts = [str(n) for n in (one.lost, one.cut, one.refused)]
    return (
        one.policy, one.case, f"{one.goodput_s:.2f}", f"{one.offered_s:.2f}", *times, *counts, f"{one.imbalance:.2f}"
    )  # fmt: skip


def _outcome_text(one: Rehearsal) -> str:
    if one.void:
        return ""
    if one.case in (rehearsal.KILLED, rehearsal.HUNG) and one.recovery_s is not None:
        watched = ", with keep watching" if one.case == rehearsal.HUNG else ""
        fate = f"requests failed for {one.recovery_s:.1f} s" if one.lost or one.cut else "no request failed"
        return f"a server {one.case}{watched}: {fate}; {one.lost} lost before their first token, {one.cut} cut off"
    if one.case == rehearsal.OVERLOADED:
        return f"offered {one.offered_s:.3g} requests/s with these limits: {one.goodput_s:.3g} kept the SLO"
    return ""
