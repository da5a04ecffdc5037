"""ridgeline service check|render|up|status|drain|undrain|restart|down FILE"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ridgeline.cli.text.table import json_text
from ridgeline.errors import InputError

if TYPE_CHECKING:
    from ridgeline.serving.service.keep.scaler import RoleScaleState
    from ridgeline.serving.service.members import Member
    from ridgeline.serving.service.operate import MemberState, Operator
    from ridgeline.serving.service.service import Service


_File = Annotated[Path, typer.Argument(help="The deployment file.")]
_Folder = Annotated[Path | None, typer.Option(help="The service's own folder; default: beside the file.")]
_ServerName = Annotated[str, typer.Argument(help="A server, such as server-0; `ridgeline service status` lists them.")]
_Ready = Annotated[float, typer.Option(help="Seconds that servers may take to get ready.", min=1)]


def check(
    file: _File,
    for_: Annotated[str, typer.Option("--for", help="local, slurm, pbs or kubernetes; default: the site's.")] = "",
) -> None:
    """Validate a deployment file and print what it would run.

    Every command line, and what the batch system is asked for. Nothing is started.

    Example: ridgeline service check service.yaml
    """
    from ridgeline.serving.service.check import check_service, requests_of
    from ridgeline.serving.service.members import members_of

    service, notes = check_service(file, for_)
    members = members_of(service)
    print(service_summary(service, members, requests_of(service, members), notes))


def render(
    file: _File,
    out: Annotated[Path | None, typer.Option(help="The folder to write to; default: FILE.scripts.")] = None,
    for_: Annotated[
        str, typer.Option("--for", help="local, slurm, pbs, kubernetes or systemd; default: the site's.")
    ] = "",
) -> None:
    """Write the scripts or manifests that start it, to read or run by hand.

    Example: ridgeline service render service.yaml --for slurm --out scripts
    """
    from ridgeline.serving.service.file import load_service
    from ridgeline.serving.service.render import render as write

    for path in write(load_service(file), out or file.parent / f"{file.stem}.scripts", for_, file):
        print(path)


def up(file: _File, folder: _Folder = None, timeout: _Ready = 1800.0) -> None:
    """Start the servers, then the router; send a real request through it.

    What already runs is left alone, so it can be repeated after any failure; what the file says is accepted for the
    rest. Prints the address for users.

    Example: ridgeline service up service.yaml
    """
    from ridgeline.serving.service.check import check_service

    service, _ = check_service(file)
    print(operator_of(file, folder, service).up(timeout))


def status(
    file: _File,
    folder: _Folder = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Show the state of servers and router, and edits not yet applied.

    Example: ridgeline service status service.yaml
    """
    from ridgeline.serving.service.keep.scaler import scale_states
    from ridgeline.serving.service.scripts import URL_FILE

    operator = operator_of(file, folder)
    states, scale = operator.status(), scale_states(operator, time.time())
    edited, keys = operator.edited()
    if as_json:
        url = operator.folder.url(operator.front)
        scaled = {"scale": [asdict(state) for state in scale]} if scale else {}
        members = [asdict(state) for state in states]
        told = {"service": operator.service.name, "url": url, "members": members}
        print(json_text({**told, "edited": {"members": edited, "keys": keys}, **scaled}))
    else:
        print(_status_text(states))
        if edited or keys:
            print(_edited_text(file, edited, keys))
        if scale:
            print(_scale_text(scale))
        print(_front_text(operator.folder.url(operator.front), operator.folder.root / URL_FILE))


def drain(file: _File, member: _ServerName, folder: _Folder = None) -> None:
    """Take a server out of the router; it finishes the requests it has.

    Example: ridgeline service drain service.yaml server-1
    """
    from ridgeline.serving.service.rolling import drain as take_out
    from ridgeline.serving.service.rolling import refuse_last

    operator = operator_of(file, folder)
    with operator.commanding():
        refuse_last(operator, operator.member(member))
        take_out(operator, operator.member(member))


def undrain(file: _File, member: _ServerName, folder: _Folder = None) -> None:
    """Put a drained server back into the router.

    Example: ridgeline service undrain service.yaml server-1
    """
    from ridgeline.serving.service.rolling import undrain as put_back

    operator = operator_of(file, folder)
    with operator.commanding():
        put_back(operator, operator.member(member))


def restart(
    file: _File,
    member: Annotated[str, typer.Argument(help="A server, such as server-0; with --rolling: none.")] = "",
    rolling: Annotated[bool, typer.Option("--rolling", help="All servers, one after the other.")] = False,
    canary: Annotated[
        float,
        typer.Option(
            help="With --rolling: compare the first with the others for this many seconds, then continue or roll back.",
            min=0,
        ),
    ] = 0.0,
    force: Annotated[bool, typer.Option("--force", help="Don't wait for the requests that it has.")] = False,
    folder: _Folder = None,
    timeout: _Ready = 1800.0,
) -> None:
    """Restart one server, or all in turn, as the file has them now.

    They are accepted by that, each server's when it is started; with --canary when the first has passed.

    Example: ridgeline service restart service.yaml --rolling
    """
    from ridgeline.serving.service.rolling import canary_restart
    from ridgeline.serving.service.rolling import restart as start_again

    operator = operator_of(file, folder, needs_file=True)
    if canary and not rolling:
        raise InputError("--canary goes with `restart --rolling`: the first server is compared with the others")
    if not member and not rolling:
        raise InputError("name the server to restart, or restart all of them one after the other with --rolling")
    with operator.commanding():
        if canary:
            canary_restart(operator, operator.servers, timeout, canary)
        else:
            chosen = [operator.member(member)] if member else [m for m in operator.proposed() if not m.is_router]
            start_again(operator, chosen, timeout, force)


def down(file: _File, folder: _Folder = None) -> None:
    """Stop the router and all servers of this service, and nothing else.

    Example: ridgeline service down service.yaml
    """
    from ridgeline.serving.service.accepted import DamagedAcceptedError, set_aside
    from ridgeline.serving.service.file import load_service

    try:
        operator = operator_of(file, folder)
    except DamagedAcceptedError as error:
        print(f"note: {error}; set aside as {set_aside(error.path)}", file=sys.stderr)
        operator = operator_of(file, folder, load_service(file))
    operator.down()


def operator_of(file: Path, folder: Path | None, service: Service | None = None, needs_file: bool = False) -> Operator:
    """A file that cannot be read, as one that is being edited, is in the way only of who would apply it."""
    from ridgeline.errors import StudyError
    from ridgeline.serving.service.accepted import ACCEPTED_FILE
    from ridgeline.serving.service.file import load_service
    from ridgeline.serving.service.operate import Operator

    root = folder or file.parent / f"{file.stem}.service"
    if service is None:
        try:
            service = load_service(file)
        except StudyError as error:
            if needs_file or not (root / ACCEPTED_FILE).exists():
                raise
            print(f"note: what was accepted is used, as {file} cannot be: {error}", file=sys.stderr)
    return Operator(service, root, lambda line: print(line, flush=True))


def service_summary(
    service: Service, members: Sequence[Member], requests: Mapping[str, str] | None = None, notes: Sequence[str] = ()
) -> str:
    """The service in a few lines, then every command line, what a batch system is asked for, and what to know."""
    from ridgeline.serving.engines.knobs.releases import release_text
    from ridgeline.serving.service.keys import without_key
    from ridgeline.serving.service.quoting import shell_line
    from ridgeline.serving.service.routers import ROUTERS, router_promise

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


def _front_text(url: str, file: Path) -> str:
    """Where users reach it now, and where they find it after it has moved."""
    return f"users: {url} (always in {file})" if url else f"users: not reachable now; the address will be in {file}"


def _edited_text(file: Path, members: Sequence[str], keys: Sequence[str]) -> str:
    """What the file says by now and nobody has applied."""
    named = f"{', '.join(keys)} of {file}" if keys else f"{file}"
    if not members:
        return f"edited, not applied: {named}; every member runs as it would be started. `service up {file}` applies it"
    servers = [name for name in members if name != "router"]
    ways = [f"`service restart {file} --rolling`"] if servers else []
    ways += [f"`service restart {file} router`"] if "router" in members else []
    who = ", ".join(members)
    return f"edited, not applied: {named}; {who} would be started with other settings. {' and '.join(ways)} applies it"


def _scale_text(states: Sequence[RoleScaleState]) -> str:
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


def _status_text(states: Sequence[MemberState]) -> str:
    rows: list[tuple[str, ...]] = [("member", "state", "running", "tokens", "address")]
    for state in states:
        counts = ["" if n is None else f"{n:,}" for n in (state.running, state.tokens)]
        text = f"{state.url} ({state.detail})" if state.url and state.detail else state.url or state.detail
        rows.append((state.name, state.state, *counts, text))
    widths = [max(len(row[n]) for row in rows) for n in range(4)]
    return "\n".join("  ".join([*(row[n].ljust(widths[n]) for n in range(4)), row[4]]).rstrip() for row in rows)
