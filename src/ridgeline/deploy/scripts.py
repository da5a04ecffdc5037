"""start.sh of each member: plain, and the same on this machine, under Slurm and under PBS.

A member's folder is on a disk that all nodes see. Its first node writes its address there, and whoever needs it (its
other nodes, the router) waits for the file. So no script must know beforehand where the batch system puts anybody.
"""

from __future__ import annotations

from shlex import quote

from ridgeline.deploy.members import Member, variable
from ridgeline.deploy.servers import SERVERS
from ridgeline.deploy.service import Service
from ridgeline.records.launch import launch

ADDRESS_FILE = "address"
START_FILE = "start.sh"
WAIT_S = 1800  # for somebody else's address
# the number of this process among the nodes of a server, as Slurm, Open MPI and MPICH say it
_RANK = "${SLURM_PROCID:-${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-0}}}"


def start_script(service: Service, member: Member) -> str:
    """The text of `start.sh`. It lies in the member's folder, beside those of the others."""
    lines = [
        "#!/bin/sh",
        f"# {service.name}: {member.name}. `sh {START_FILE}` starts it by hand, on each of its nodes.",
        'here=$(cd "$(dirname "$0")" && pwd) || exit 74',
        *_need_model(service, member),
        f"address={_address(service)}",
    ]
    if member.resources.nodes > 1:
        lines += [f"rank={_RANK}", 'if [ "$rank" = 0 ]; then']
        lines += [f"  {line}" for line in _write_address()]
        lines += ["fi", *_wait_for("head", f"$here/{ADDRESS_FILE}")]
    else:
        lines += _write_address()
    for name in member.after:
        lines += _wait_for(variable(name), f"$here/../{name}/{ADDRESS_FILE}")
    lines += [f"export {name}={quote(value)}" for name, value in member.env]
    lines += [] if member.is_router else _check_release(service)
    if member.follower_words:
        lines.append(f'[ "$rank" = 0 ] || exec {member.line} {" ".join(member.follower_words)}')
    return "\n".join([*lines, f"exec {member.line}", ""])


def member_command(service: Service, member: Member, folder: str) -> str:
    """What a job of this member runs: its start script, on all of its nodes."""
    script = f"sh {quote(f'{folder}/{START_FILE}')}"
    if member.resources.nodes == 1:
        return f"exec {script}"
    # a server that has lost a rank waits for it for ever: then rather end all of it
    return f"export SLURM_KILL_BAD_EXIT=1; {launch(service.site, member.resources, script)}"


def _address(service: Service) -> str:
    if service.host:
        return quote(service.host)
    if service.on_this_machine:
        return "127.0.0.1"
    # the address that other nodes reach: the name alone is a loopback address on many hosts
    return "$(hostname -I 2>/dev/null | tr ' ' '\\n' | grep -v '^127[.]' | head -n 1)"


def _check_release(service: Service) -> list[str]:
    """Flags move between releases: a server of another one than the file names would be something else.

    One that is installed nowhere, as a checkout, is taken as it is.
    """
    wanted, packages = service.planned_release, SERVERS[service.engine].packages
    if not wanted or not packages:
        return []
    ask = (
        "import importlib.metadata as m, sys; have = {d.name: d.version for d in m.distributions()}; "
        "print(next((have[n] for n in sys.argv[1:] if n in have), ''))"
    )
    told = f"{service.engine} $release is installed, and the deployment file is for {wanted}"
    return [
        f"release=$({quote(service.python)} -c {quote(ask)} {' '.join(packages)}) || exit 78",
        f'case "$release" in "" | {wanted} | {wanted}.* | {wanted}+*) ;; *)',
        f'  echo "{told}; name that release there and plan again, or install {wanted}" >&2; exit 78 ;;',
        "esac",
    ]


def _need_model(service: Service, member: Member) -> list[str]:
    """A node that does not see the model says so itself; an engine would look for it on the network."""
    if member.is_router or service.engine == "twin" or not service.model.startswith("/"):
        return []
    model = quote(service.model)
    return [f'[ -e {model} ] || {{ echo "$(hostname): "{model}" is not there" >&2; exit 66; }}']


def _write_address() -> list[str]:
    path = f"$here/{ADDRESS_FILE}"
    return [f'printf "%s\\n" "$address" > "{path}.partial" && mv -f "{path}.partial" "{path}" || exit 74']


def _wait_for(name: str, path: str) -> list[str]:
    return [
        f'waited=0; until [ -s "{path}" ]; do',
        f'  [ $waited -lt {WAIT_S} ] || {{ echo "{path} did not appear in {WAIT_S} s" >&2; exit 75; }}',
        "  sleep 1; waited=$((waited + 1))",
        "done",
        f'{name}=$(cat "{path}")',
    ]
