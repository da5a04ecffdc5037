"""ridgeline rehearse FILE --traffic T"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ridgeline.cli.serving import options as option
from ridgeline.cli.text.json import json_text

if TYPE_CHECKING:
    from ridgeline.service.admission import AdmissionLimits
    from ridgeline.service.rehearse.rehearsal import PolicyChoice, Rehearsed
    from ridgeline.service.rehearse.traffic import RehearsedLoad
    from ridgeline.service.service import Service

_SHARE_OF_CAPACITY = 0.8


def rehearse(
    file: Annotated[Path, typer.Argument(help="The deployment file.")],
    traffic: option.TrafficText = "sharegpt",
    rate: Annotated[
        float | None, typer.Option(help="Requests per second; default: 0.8 of what the servers can sustain.")
    ] = None,
    seconds: Annotated[
        float,
        typer.Option(help="How long a run with a fault lasts; runs that compare policies take half as long.", min=1),
    ] = 8.0,
    shared_prefix: Annotated[int, typer.Option(help="Tokens of a prefix that all prompts share.")] = 0,
    policy: Annotated[list[str] | None, typer.Option(help="Try only this policy; may be repeated.")] = None,
    speed: Annotated[float, typer.Option(help="How many times faster than real time the servers run.", min=0.05)] = 1.0,
    write: Annotated[
        bool, typer.Option(help="Write a policy that is shown to be better, and the limits, into the file.")
    ] = True,
    scale: Annotated[
        bool, typer.Option("--scale", help="Rehearse the file's `scale` block instead, in virtual time.")
    ] = False,
    minutes: Annotated[
        float | None, typer.Option(help="--scale: how long; default: an hour, or all of a trace.", min=0.1)
    ] = None,
    double_at: Annotated[
        float | None, typer.Option(help="--scale: minutes after which every request comes twice.", min=0)
    ] = None,
    server_start: Annotated[float, typer.Option(help="--scale: seconds that a server takes to start.", min=0)] = 120.0,
    begins: Annotated[
        str, typer.Option(help="--scale: when the traffic begins, for the schedule, such as '2026-11-16 07:30'.")
    ] = "",
    as_json: option.AsJson = False,
) -> None:
    """Try every router policy on this machine, in front of twin servers; then kill, hang and overload servers.

    The limits are what the twin's servers can sustain under this traffic, within the file's SLO.

    With --scale the servers are simulated from beginning to end, so that an hour takes seconds: when `keep` would add
    and remove servers, why, and what that costs and keeps beside numbers of servers that stay.

    Example: ridgeline rehearse service.yaml --traffic sharegpt
    """
    from ridgeline.service.admission import admission_of, with_server_limits
    from ridgeline.service.file import load_service
    from ridgeline.service.rehearse.rehearsal import rehearse as run

    if scale:
        _scale(load_service(file), traffic, rate, minutes, double_at, server_start, begins, as_json)
        return
    from ridgeline.service.rehearse.stage import known_policies

    known_policies(service := load_service(file))  # says what is missing before anything takes time
    limits = admission_of(service, traffic)
    asked_s = rate or _SHARE_OF_CAPACITY * limits.requests_s
    load = _bearable(traffic, asked_s, seconds, shared_prefix, speed)
    with tempfile.TemporaryDirectory(prefix="ridgeline-rehearsal-") as folder:
        done = run(with_server_limits(service, limits), Path(folder), load, policy or (), _tell, limits)
    if write and not policy:
        _write(file, service, done.choice, limits)
    _say(done, limits, service, _AskedLoad(asked_s, speed), as_json)


def _scale(
    service: Service,
    traffic: str,
    rate_s: float | None,
    minutes: float | None,
    double_at_min: float | None,
    start_s: float,
    begins: str,
    as_json: bool,
) -> None:
    from datetime import datetime

    from ridgeline.cli.text.rehearsal import scaling_text
    from ridgeline.errors import InputError
    from ridgeline.service.rehearse.scaling import ScaledTraffic, rehearse_scaling

    try:
        began = datetime.fromisoformat(begins) if begins else datetime.now()
    except ValueError:
        raise InputError(f"--begins {begins!r} is not a time; write such as '2026-11-16 07:30'") from None
    recorded = Path(traffic).exists()
    seconds = 60 * minutes if minutes is not None else None if recorded else 3600.0
    sent = ScaledTraffic(traffic, rate_s, seconds, None if double_at_min is None else 60 * double_at_min)
    done = rehearse_scaling(service, sent, start_s, began, _tell)
    print(json_text(done.as_json()) if as_json else scaling_text(done, start_s))


@dataclass(frozen=True, slots=True)
class _AskedLoad:
    rate_s: float
    speed: float


def _say(done: Rehearsed, limits: AdmissionLimits, service: Service, asked: _AskedLoad, as_json: bool) -> None:
    from ridgeline.cli.text.rehearsal import limits_text, rehearsals_text
    from ridgeline.service.admission import with_server_limits

    if as_json:
        answer: dict[str, object] = {"policy": done.choice.policy, "pairs": done.choice.as_json()}
        answer |= {"limits": limits.as_json(), "servers": limits.for_servers(service)}
        answer |= {"speed": asked.speed, "asked_requests_s": asked.rate_s, "origin": "modelled"}
        print(json_text({"runs": [one.as_json() for one in done.runs], **answer}))
    else:
        print(rehearsals_text(done, limits, asked.rate_s, asked.speed))
        print(limits_text(with_server_limits(service, limits), limits))


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _bearable(traffic: str, rate_s: float, seconds: float, shared_prefix: int, speed: float) -> RehearsedLoad:
    from ridgeline.service.rehearse.traffic import RehearsedLoad, bearable

    return bearable(RehearsedLoad(traffic, rate_s, seconds, shared_prefix, speed))


def _write(file: Path, service: Service, choice: PolicyChoice, limits: AdmissionLimits) -> None:
    from ridgeline.files import write_whole
    from ridgeline.service.file import with_router

    assert service.router is not None
    told = limits.for_router(service.router.kind)
    if choice.changed:
        told = {"policy": choice.policy, **told}
    edited = with_router(file, told, {"admission": limits.as_json()}, limits.for_servers(service))
    write_whole(file, edited.text)
    if edited.lost:
        _tell(f"{file}: rewritten without its comments ({edited.lost})")
