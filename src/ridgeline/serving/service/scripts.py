"""start.sh of each member: plain, and the same on this machine, under Slurm and under PBS.

A member's folder is on a disk that all nodes see. Its first node writes its address there, and whoever needs it (its
other nodes, the router) waits for the file. So no script must know beforehand where the batch system puts anybody.
Where users reach the service is in the file `url` of the service's folder, written by whoever listens there.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ridgeline.records.launch import contained, launch
from ridgeline.records.secrets import reference_lines
from ridgeline.serving.service.members import ROUTER, Member, variable
from ridgeline.serving.service.quoting import in_comment, in_shell, shell_line
from ridgeline.serving.service.service import Service, server_of

ADDRESS_FILE, URL_FILE = "address", "url"
START_FILE = "start.sh"
_WAIT_S = 1800  # for somebody else's address
# the number of this process among the nodes of a server, as Slurm, Open MPI and MPICH say it
_RANK = "${SLURM_PROCID:-${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-0}}}"
# Which start this is: all nodes of a job know its id. The address of an earlier start may still lie there, and a node
# may be quicker than the first one.
_OWN_ADDRESS = f"job=${{SLURM_JOB_ID:-${{PBS_JOBID:-}}}}; own=$here/{ADDRESS_FILE}${{job:+.$job}}"
# not `ip`: not every node has it, and every node has the engine's Python
_ADDRESS_OF = (
    "import fcntl, socket, struct, sys; name, known = sys.argv[1], [name for _, name in socket.if_nameindex()]; "
    "name in known or sys.exit(f'{socket.gethostname()}: there is no interface {name}; the interface of the site must "
    "be one of: {chr(44).join(known)}'); probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); "
    "print(socket.inet_ntoa(fcntl.ioctl(probe, 0x8915, struct.pack('256s', name.encode()[:15]))[20:24]))"
)


def start_script(service: Service, member: Member) -> str:
    """The text of `start.sh`. It lies in the member's folder, beside those of the others."""
    several = member.resources.nodes > 1
    lines = [
        "#!/bin/sh",
        f"# {in_comment(service.name)}: {member.name}. `sh {START_FILE}` starts it by hand, on each of its nodes.",
        'here=$(cd "$(dirname "$0")" && pwd) || exit 74',
    ]
    if several:
        lines += [f"rank={_RANK}", _OWN_ADDRESS]
        lines += ['if [ "$rank" = 0 ]; then', f"  {_forget(service, member)}", "fi"]
    else:
        lines.append(_forget(service, member))
    lines += _need_model(service, member)
    lines += [line for name in _secrets(service, member) for line in reference_lines(name)]
    lines += [f"address={_address(service, member)}"]
    if several:
        lines += ['if [ "$rank" = 0 ]; then', *(f"  {line}" for line in _write_address(service, member))]
        lines.append(f'  [ -z "$job" ] || {_put("$address", "$own")}')
        lines += ["fi", *_wait_for("head", "$own")]
    else:
        lines += _write_address(service, member)
    for name in member.after:
        lines += _wait_for(variable(name), f"$here/../{name}/{ADDRESS_FILE}")
    lines += _network(service, member)
    lines += [f"export {name}={in_shell(value)}" for name, value in member.env]
    lines += [] if member.is_router else _check_release(service)
    if member.follower_argv:
        lines.append(f'[ "$rank" = 0 ] || exec {member.line} {shell_line(member.follower_argv)}')
    return "\n".join([*lines, f"exec {member.line}", ""])


def member_command(service: Service, member: Member, folder: str) -> str:
    """What a job of this member runs: its start script, on all of its nodes."""
    script = f"sh {in_shell(f'{folder}/{START_FILE}')}"
    site = service.site
    if site.container:  # all members' folders are there, for their addresses
        site = replace(site, container_mounts=(*site.container_mounts, in_shell(str(Path(folder).parents[1]))))
    if member.resources.nodes == 1:
        return f"exec {contained(site, member.resources, script)}"
    # A server that has lost a rank waits for it for ever: then rather end all of it. From Slurm 22.05 on `srun` does
    # not ask for the CPUs that `sbatch` was given, and would bind an engine with all its threads to one of them.
    whole = "SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-${SLURM_CPUS_ON_NODE:-1}} SLURM_CPU_BIND=none"
    return f"export SLURM_KILL_BAD_EXIT=1 {whole}; {launch(site, member.resources, script)}"


def address_files(service: Service, member: str, folder: Path) -> list[Path]:
    """Where a member whose folder this is says where it listens."""
    return [folder / ADDRESS_FILE, *([folder.parent.parent / URL_FILE] if _is_front(service, member) else [])]


def _is_front(service: Service, member: str) -> bool:
    return member == ROUTER or service.router is None


def _forget(service: Service, member: Member) -> str:
    """An earlier start's address: nobody shall poll for this one there."""
    url = f' "$here/../../{URL_FILE}"' if _is_front(service, member.name) else ""
    return f'rm -f "$here/{ADDRESS_FILE}" "$here/{ADDRESS_FILE}".*{url}'


def _secrets(service: Service, member: Member) -> tuple[str, ...]:
    """Tokens are for those that load a model; the key is for all."""
    if member.is_router or not server_of(service.engine).loads_model:
        return (service.api_key_env,) if service.api_key_env else ()
    return service.secret_variables


def _address(service: Service, member: Member) -> str:
    if service.host:
        return in_shell(service.host)
    if service.on_this_machine:
        return "127.0.0.1"
    if service.site.interface:
        python = service.router.python if member.is_router and service.router is not None else service.python
        return f"$({shell_line([python, '-c', _ADDRESS_OF, service.site.interface])}) || exit 78"
    # the address that other nodes reach: the name alone is a loopback address on many hosts
    return "$(hostname -I 2>/dev/null | tr ' ' '\\n' | grep -v '^127[.]' | head -n 1)"


def _network(service: Service, member: Member) -> list[str]:
    """The interface that the site names, for those who meet others; what the environment says already stays."""
    interface, host = service.site.interface, server_of(service.engine).host_variable
    if not interface or service.on_this_machine or member.is_router:
        return []
    if member.resources.nodes == 1 and member.role == "both":
        return []
    names = {"GLOO_SOCKET_IFNAME": in_shell(interface), "NCCL_SOCKET_IFNAME": in_shell(interface)}
    names |= {host: '"$address"'} if host else {}
    return [f'[ -n "${{{name}:-}}" ] || export {name}={value}' for name, value in names.items()]


def _check_release(service: Service) -> list[str]:
    """Flags move between releases: a server of another one than the file names would be something else.

    One that is installed nowhere, as a checkout, is taken as it is.
    """
    wanted, packages = service.planned_release, server_of(service.engine).packages
    if not wanted or not packages:
        return []
    ask = (
        "import importlib.metadata as m, sys; have = {d.name: d.version for d in m.distributions()}; "
        "print(next((have[n] for n in sys.argv[1:] if n in have), ''))"
    )
    meant = in_shell(wanted)
    mismatch = in_shell(
        f"is installed, and the deployment file is for {wanted}; name that release there and plan again, or install "
        f"{wanted}"
    )
    return [
        f"release=$({shell_line([service.python, '-c', ask, *packages])}) || exit 78",
        f'case "$release" in "" | {meant} | {meant}.* | {meant}+*) ;; *)',
        f'  printf "%s %s %s\\n" {service.engine} "$release" {mismatch} >&2; exit 78 ;;',
        "esac",
    ]


def _need_model(service: Service, member: Member) -> list[str]:
    """A node that does not see the model says so itself; an engine would poll for it on the network."""
    if member.is_router or not server_of(service.engine).loads_model or not service.model.startswith("/"):
        return []
    model = in_shell(service.model)
    return [f'[ -e {model} ] || {{ printf "%s: %s is not there\\n" "$(hostname)" {model} >&2; exit 66; }}']


def _write_address(service: Service, member: Member) -> list[str]:
    front = (
        [_put(f"http://$address:{member.port}", f"$here/../../{URL_FILE}")] if _is_front(service, member.name) else []
    )
    return [_put("$address", f"$here/{ADDRESS_FILE}"), *front]


def _put(text: str, path: str) -> str:
    """In one step: somebody may be about to read it."""
    return f'{{ printf "%s\\n" "{text}" > "{path}.partial" && mv -f "{path}.partial" "{path}"; }} || exit 74'


def _wait_for(name: str, path: str) -> list[str]:
    return [
        f'waited=0; until [ -s "{path}" ]; do',
        f'  [ $waited -lt {_WAIT_S} ] || {{ echo "{path} did not appear in {_WAIT_S} s" >&2; exit 75; }}',
        "  sleep 1; waited=$((waited + 1))",
        "done",
        f'{name}=$(cat "{path}")',
    ]
