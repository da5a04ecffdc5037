"""ridgeline service check|render|up|status|drain|undrain|restart|down FILE"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ridgeline.cli.text.table import aligned, json_text
from ridgeline.errors import InputError, StudyError
from ridgeline.serving.engines import releases
from ridgeline.serving.service import check as service_check
from ridgeline.serving.service import file as service_file
from ridgeline.serving.service import folder as service_folder
from ridgeline.serving.service import members as service_members
from ridgeline.serving.service import operate, quoting, routers, scripts, steps
from ridgeline.serving.service import render as service_render

if TYPE_CHECKING:
    from ridgeline.serving.service.members import Member
    from ridgeline.serving.service.operate import MemberState
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
    service, notes = service_check.check_service(file, for_)
    members = service_members.members_of(service)
    print(service_summary(service, members, service_check.requests_of(service, members), notes))


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
    for path in service_render.render(
        service_file.load_service(file), out or file.parent / f"{file.stem}.scripts", for_, file
    ):
        print(path)


def up(file: _File, folder: _Folder = None, timeout: _Ready = 1800.0) -> None:
    """Start the servers, then the router; send a real request through it.

    What already runs is left alone, so it can be repeated after any failure; what the file says is accepted for the
    rest. Prints the address for users.

    Example: ridgeline service up service.yaml
    """
    service, _ = service_check.check_service(file)
    print(operator_of(file, folder, service).up(timeout))


def status(
    file: _File,
    folder: _Folder = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Show the state of servers and router, and edits not yet applied.

    Example: ridgeline service status service.yaml
    """
    operator = operator_of(file, folder)
    states = operator.status()
    edited, keys = operator.edited()
    if as_json:
        url = operator.folder.url(operator.front)
        members = [asdict(state) for state in states]
        told = {"service": operator.service.name, "url": url, "members": members}
        print(json_text({**told, "edited": {"members": edited, "keys": keys}}))
    else:
        print(_status_text(states))
        if edited or keys:
            print(_edited_text(file, edited, keys))
        url, where = operator.folder.url(operator.front), operator.folder.root / scripts.URL_FILE
        # where users reach it now, and where they find it after it has moved
        print(
            f"users: {url} (always in {where})" if url else f"users: not reachable now; the address will be in {where}"
        )


def drain(file: _File, member: _ServerName, folder: _Folder = None) -> None:
    """Take a server out of the router; it finishes the requests it has.

    Example: ridgeline service drain service.yaml server-1
    """
    operator = operator_of(file, folder)
    with operator.commanding():
        steps.refuse_last(operator, operator.member(member))
        steps.drain(operator, operator.member(member))


def undrain(file: _File, member: _ServerName, folder: _Folder = None) -> None:
    """Put a drained server back into the router.

    Example: ridgeline service undrain service.yaml server-1
    """
    operator = operator_of(file, folder)
    with operator.commanding():
        steps.undrain(operator, operator.member(member))


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
    operator = operator_of(file, folder, needs_file=True)
    if canary and not rolling:
        raise InputError("--canary goes with `restart --rolling`: the first server is compared with the others")
    if not member and not rolling:
        raise InputError("name the server to restart, or restart all of them one after the other with --rolling")
    with operator.commanding():
        if canary:
            steps.canary_restart(operator, operator.servers, timeout, canary)
        else:
            chosen = [operator.member(member)] if member else [m for m in operator.proposed() if not m.is_router]
            steps.restart(operator, chosen, timeout, force)


def down(file: _File, folder: _Folder = None) -> None:
    """Stop the router and all servers of this service, and nothing else.

    Example: ridgeline service down service.yaml
    """
    try:
        operator = operator_of(file, folder)
    except service_folder.DamagedAcceptedError as error:
        print(f"note: {error}; set aside as {service_folder.set_aside(error.path)}", file=sys.stderr)
        operator = operator_of(file, folder, service_file.load_service(file))
    operator.down()


def operator_of(
    file: Path, folder: Path | None, service: Service | None = None, needs_file: bool = False
) -> operate.Operator:
    """A file that cannot be read, as one that is being edited, is in the way only of who would apply it."""
    root = folder or file.parent / f"{file.stem}.service"
    if service is None:
        try:
            service = service_file.load_service(file)
        except StudyError as error:
            if needs_file or not (root / service_folder.ACCEPTED_FILE).exists():
                raise
            print(f"note: what was accepted is used, as {file} cannot be: {error}", file=sys.stderr)
    return operate.Operator(service, root, lambda line: print(line, flush=True))


def service_summary(
    service: Service, members: Sequence[Member], requests: Mapping[str, str] | None = None, notes: Sequence[str] = ()
) -> str:
    """The service in a few lines, then every command line, what a batch system is asked for, and what to know."""
    engine = "the twin" if service.engine == "twin" else releases.release_text(service.engine, service.release)
    lines = [f"{service.name}: {service.model} on {engine}, site {service.site.name}"]
    for member in members:
        lines += [
            f"  {member.name:<12} port {member.port}",
            f"    {quoting.shell_line(quoting.without_key(member.argv))}",
        ]
        if asked := (requests or {}).get(member.name):
            lines.append(f"    asks {service.site.batch} for {asked}")
    if service.router is not None and not routers.ROUTERS[service.router.kind].checks_keys:
        lines.append(
            f"{service.router.kind} changes its servers for anyone who can reach it, without a key: "
            "let only trusted users reach it"
        )
    if service.api_key_env:
        lines.append(f"each takes the API key from {service.api_key_env} itself; it is on no command line")
    if promise := routers.router_promise(service):
        lines.append(promise)
    lines += [f"note: {note}" for note in notes]
    return "\n".join(lines)


def _edited_text(file: Path, members: Sequence[str], keys: Sequence[str]) -> str:
    """What the file says by now and nobody has applied."""
    named = f"{', '.join(keys)} of {file}" if keys else f"{file}"
    if not members:
        return f"edited, not applied: {named}; every member runs as it would be started. `service up {file}` applies it"
    ways = [f"`service restart {file} --rolling`"] if set(members) - {"router"} else []
    ways += [f"`service restart {file} router`"] if "router" in members else []
    who = ", ".join(members)
    return f"edited, not applied: {named}; {who} would be started with other settings. {' and '.join(ways)} applies it"


def _status_text(states: Sequence[MemberState]) -> str:
    rows: list[tuple[str, ...]] = [("member", "state", "running", "tokens", "address")]
    for state in states:
        counts = ["" if n is None else f"{n:,}" for n in (state.running, state.tokens)]
        text = f"{state.url} ({state.detail})" if state.url and state.detail else state.url or state.detail
        rows.append((state.name, state.state, *counts, text))
    return "\n".join(aligned(rows, left=(0, 1, 4)))
