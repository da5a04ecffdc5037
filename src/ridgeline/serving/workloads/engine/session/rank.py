"""What a launcher starts on each node of several: `python -m` this module, with FOLDER/SCRIPT.

Rank 0 is the engine that is measured. The others serve it and cannot end by themselves: those of SGLang wait until
their schedulers die, ignore SIGTERM, and leave with an error code. So rank 0 writes down how it ended, and the
others are ended when it has, or when the session says so. Their own end is a failure only while rank 0 needs them.

Nodes must reach each other. A name such as the first node's own is often 127.0.1.1 there, and a node with several
networks has several addresses. The kernel knows which one leads to another node: that of the socket it would send from.
No packet is sent to ask it.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import struct
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from ridgeline.records.launch import own_rank
from ridgeline.records.run import OWN_LOG
from ridgeline.serving.workloads.engine.session import process as node
from ridgeline.serving.workloads.engine.session.held_gpus import held_gpus
from ridgeline.serving.workloads.engine.session.process import EngineFailed

_HOSTS = "RIDGELINE_HOSTS"  # the job's nodes, as its batch system names them
_ADDRESS_OF = 0x8915  # SIOCGIFADDR
_ELSEWHERE = "192.0.2.1"  # an address that nobody has: the way there is the default route


def head_address(interface: str, hosts: Iterable[str]) -> str:
    """The address by which other nodes reach this one: of the interface the site names, else on the way to them."""
    if interface:
        return _address_of(interface)
    own = socket.gethostname().partition(".")[0]
    ways = [way for host in hosts if host.partition(".")[0] != own and (way := _address_towards(host))]
    found = next((way for way in (*ways, _address_towards(own), _address_towards(_ELSEWHERE)) if not _loops(way)), "")
    return found or socket.gethostname()


def node_variables(head: str, interface: str, host_variable: str) -> dict[str, str]:
    """Network variables for an engine on this node, beyond what the study or the site says already.

    Gloo takes the interface of the host's own name, which may lead nowhere. NCCL looks for the fastest by itself, so it
    gets only what the site names.
    """
    address = _address_of(interface) if interface else _address_towards(head)
    if not address or (_loops(address) and not interface):
        return {}
    name = interface or _interface_of(address)
    variables = {host_variable: address, "GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": interface}
    return {variable: value for variable, value in variables.items() if value and variable not in os.environ}


def _address_towards(host: str) -> str:
    """Our own address on the way to `host`; empty where its name or the way is not known."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, 9))
            return str(probe.getsockname()[0])
    except OSError:
        return ""


def _address_of(interface: str) -> str:
    """Its IPv4 address. OSError says that there is no such interface, or that it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("256s", interface.encode()[:15])
        try:
            return socket.inet_ntoa(fcntl.ioctl(probe.fileno(), _ADDRESS_OF, request)[20:24])
        except OSError as error:
            names = ", ".join(name for _, name in socket.if_nameindex())
            raise OSError(
                f"interface {interface} has no address on {socket.gethostname()} ({error.strerror}); the site's "
                f"`interface` must be one of: {names}"
            ) from error


def _interface_of(address: str) -> str:
    for _, name in socket.if_nameindex():
        try:
            if _address_of(name) == address:
                return name
        except OSError:
            continue
    return ""


def _loops(address: str) -> bool:
    return not address or address.startswith("127.")


def hosts_of_job(environment: Mapping[str, str]) -> list[str]:
    return environment.get(_HOSTS, "").split()


RANKS = "ranks.json"  # what the session tells all ranks of one start
POLL_S = 0.5
_LINGER_S = 10.0  # for the other ranks to end by themselves, once rank 0 has
_OTHERS_GRACE_S = 5.0


def main(arguments: list[str]) -> int:
    script = Path(arguments[0])
    folder, rank = script.parent, own_rank(os.environ)
    ranks = json.loads((folder / RANKS).read_text())
    env = node_variables(ranks["head"], ranks["interface"], ranks["host_variable"])
    sys.stdout.write(f"ridgeline: rank {rank} {' '.join(f'{name}={value}' for name, value in env.items())}\n")
    sys.stdout.flush()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    marks = RankMarks(folder, str(ranks["start"]))
    try:
        with held_gpus(ranks["gpu_limits"]):
            return _run(f"sh {script.name}", folder, env, marks, rank)
    except EngineFailed as failed:
        sys.stdout.write(failed.cause.marked_line(OWN_LOG) + "\n")
        marks.write("ended" if rank == 0 else f"failed-{rank}", failed.exit_code)
        return failed.exit_code


def _run(command: str, folder: Path, env: Mapping[str, str], marks: RankMarks, rank: int) -> int:
    engine = node.EngineProcess(command, folder, None, env)
    try:
        return _first(engine, marks) if rank == 0 else _other(engine, marks, rank)
    finally:
        engine.stop(node.GRACE_S if rank == 0 else _OTHERS_GRACE_S)


def _first(engine: node.EngineProcess, marks: RankMarks) -> int:
    while (code := engine.wait(POLL_S)) is None:
        if marks.stopping:
            engine.stop()
    marks.write("ended", code)
    return 128 - code if code < 0 else code


def _other(engine: node.EngineProcess, marks: RankMarks, rank: int) -> int:
    while (code := engine.wait(POLL_S)) is None:
        if marks.stopping:
            return 0
        if marks.ended is not None:
            engine.wait(_LINGER_S)
            return 0
    if marks.ended is None and not marks.stopping:
        marks.write(f"failed-{rank}", code)
    return 0


class RankMarks:
    """Small files of one start, by which the ranks and the session tell each other how it goes. Each start has its own
    names: a file system may show another node an old file for a while."""

    def __init__(self, folder: Path, start: str) -> None:
        self._folder, self._start = folder, start

    def write(self, what: str, code: int = 0) -> None:
        path = self._path(what)
        partial = path.with_name(f"{path.name}.partial")
        partial.write_text(f"{code}\n")
        partial.replace(path)

    @property
    def ended(self) -> int | None:
        """How rank 0 ended."""
        return self._code("ended")

    @property
    def stopping(self) -> bool:
        return self._code("stop") is not None

    @property
    def failed(self) -> int | None:
        """How the first of the other ranks that ended before rank 0 did so."""
        found = sorted(self._folder.glob(f"rank-{self._start}-failed-*[0-9]"))
        return _read(found[0]) if found else None

    def remove(self) -> None:
        for path in self._folder.glob(f"rank-{self._start}-*"):
            path.unlink(missing_ok=True)

    def _path(self, what: str) -> Path:
        return self._folder / f"rank-{self._start}-{what}"

    def _code(self, what: str) -> int | None:
        next(self._folder.iterdir(), None)  # makes a network file system look again
        return _read(self._path(what))


def _read(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
