"""ridgeline deploy check|render|up|status|drain|undrain|restart|down FILE"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ridgeline.cli.text.json import json_text
from ridgeline.errors import InputError

if TYPE_CHECKING:
    from ridgeline.service.operate import Operator
    from ridgeline.service.service import Service


def deploy(
    action: Annotated[str, typer.Argument(help="check, render, up, status, drain, undrain, restart or down.")],
    file: Annotated[Path, typer.Argument(help="The deployment file.")],
    member: Annotated[str, typer.Argument(help="For drain, undrain and restart: one of them, such as server-0.")] = "",
    out: Annotated[Path | None, typer.Option(help="render: the folder to write to.")] = None,
    for_: Annotated[
        str, typer.Option("--for", help="render, check: local, slurm, pbs, kubernetes; render also: systemd.")
    ] = "",
    folder: Annotated[Path | None, typer.Option(help="The service's own folder; default: beside the file.")] = None,
    timeout: Annotated[float, typer.Option(help="Seconds that servers may take to get ready.", min=1)] = 1800.0,
    rolling: Annotated[bool, typer.Option(help="restart: all servers, one after the other.")] = False,
    canary: Annotated[
        float,
        typer.Option(
            help="restart --rolling: compare the first with the others for so many seconds, then go on or back.", min=0
        ),
    ] = 0.0,
    force: Annotated[bool, typer.Option(help="restart: at once, without waiting for requests that it has.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """From a deployment file to a running service, and back.

    `up` starts the servers, then the router, and sends a real request through it; what runs already is left alone, so
    it may be called again after any failure. `down` ends all of it and nothing else.

    Example: ridgeline deploy up service.yaml
    """
    from ridgeline.service.check import check_service
    from ridgeline.service.file import load_service
    from ridgeline.service.operate import Operator

    if action not in ACTIONS:
        raise InputError(f"{action!r} is not something deploy does; use {', '.join(ACTIONS)}")
    service, notes = (
        check_service(file, for_ if action == "check" else "")
        if action in ("check", "up")
        else (load_service(file), [])
    )
    if action == "check":
        _check(service, notes)
    elif action == "render":
        _render(service, out or file.parent / f"{file.stem}.scripts", for_, file)
    else:
        operator = Operator(
            service, folder or file.parent / f"{file.stem}.service", lambda line: print(line, flush=True)
        )
        if canary:
            _restart_with_canary(operator, action, rolling, timeout, canary)
        else:
            ACTIONS[action](operator, member, timeout, rolling, force, as_json)


def _check(service: Service, notes: Sequence[str]) -> None:
    from ridgeline.cli.text.deploy import service_summary
    from ridgeline.service.check import requests_of
    from ridgeline.service.members import members_of

    members = members_of(service)
    print(service_summary(service, members, requests_of(service, members), notes))


def _render(service: Service, out: Path, target: str, file: Path) -> None:
    from ridgeline.service.render import render

    for path in render(service, out, target, file):
        print(path)


def _up(operator: Operator, member: str, timeout_s: float, rolling: bool, force: bool, as_json: bool) -> None:
    url = operator.up(timeout_s)
    print(url)


def _status(operator: Operator, member: str, timeout_s: float, rolling: bool, force: bool, as_json: bool) -> None:
    from ridgeline.cli.text.deploy import front_text, scale_text, status_text
    from ridgeline.service.keep.scaler import scale_states
    from ridgeline.service.scripts import URL_FILE

    states, scale = operator.status(), scale_states(operator, time.time())
    if as_json:
        url = operator.folder.url(operator.front)
        scaled = {"scale": [state.as_json() for state in scale]} if scale else {}
        members = [state.as_json() for state in states]
        print(json_text({"service": operator.service.name, "url": url, "members": members, **scaled}))
    else:
        print(status_text(states))
        if scale:
            print(scale_text(scale))
        print(front_text(operator.folder.url(operator.front), operator.folder.root / URL_FILE))


def _drain(operator: Operator, member: str, timeout_s: float, rolling: bool, force: bool, as_json: bool) -> None:
    from ridgeline.service.rolling import drain, refuse_last

    if not member:
        raise InputError("name the server to drain, such as server-0; `ridgeline deploy status` lists them")
    with operator.commanding():
        refuse_last(operator, operator.member(member))
        drain(operator, operator.member(member))


def _undrain(operator: Operator, member: str, timeout_s: float, rolling: bool, force: bool, as_json: bool) -> None:
    from ridgeline.service.rolling import undrain

    if not member:
        raise InputError("name the server to put back, such as server-0; `ridgeline deploy status` lists them")
    with operator.commanding():
        undrain(operator, operator.member(member))


def _restart(operator: Operator, member: str, timeout_s: float, rolling: bool, force: bool, as_json: bool) -> None:
    from ridgeline.service.rolling import restart

    if not member and not rolling:
        raise InputError("name the server to restart, or restart all of them one after the other with --rolling")
    with operator.commanding():
        restart(operator, [operator.member(member)] if member else operator.servers, timeout_s, force)


def _restart_with_canary(operator: Operator, action: str, rolling: bool, timeout_s: float, watch_s: float) -> None:
    from ridgeline.service.canary import canary_restart

    if action != "restart" or not rolling:
        raise InputError("--canary goes with `restart --rolling`: the first server is compared with the others")
    with operator.commanding():
        canary_restart(operator, operator.servers, timeout_s, watch_s)


def _down(operator: Operator, member: str, timeout_s: float, rolling: bool, force: bool, as_json: bool) -> None:
    operator.down()


ACTIONS: dict[str, Callable[..., None]] = {
    "check": _check,
    "render": _render,
    "up": _up,
    "status": _status,
    "drain": _drain,
    "undrain": _undrain,
    "restart": _restart,
    "down": _down,
}
