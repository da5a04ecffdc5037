"""Ports: those that programs use by default, and which are free with all that follow from them.

A session on a node, a rehearsal and a deployment all ask here. An engine binds its port minutes after it was chosen, so
a choice is also claimed: nobody else who asks here on this machine is given it, or a port that follows from it, as long
as the process that asked lives.
"""

from __future__ import annotations

import random
import socket
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ridgeline.errors import SiteError

LAST_PORT = 65_535
# What we pick from: above registered services, below what Linux gives to outgoing connections (32,768 to 60,999)
FIRST_PICKED, LAST_PICKED = 20_000, 32_767
EPHEMERAL_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")

# Default ports of programs, and those that we choose where a person would.
SGLANG_PORT = 30_000
VLLM_PORT = 8_000
ROUTER_PORT = 8_000
BOOTSTRAP_PORT = 8_998
RENDEZVOUS_PORT = 20_000
SIDE_CHANNEL_PORT = 5_600
TORCH_PORT = 29_500


# What somebody else's program takes by default: we pick none of them.
USUAL = {
    SGLANG_PORT,  # sglang 0.5.15.post1, srt/server_args.py: port
    VLLM_PORT,  # vllm 0.32.0, entrypoints/launchers/cli_args.py: port
    BOOTSTRAP_PORT,  # sglang 0.5.15.post1: disaggregation_bootstrap_port
    RENDEZVOUS_PORT,  # servers over several nodes: SGLang's documentation, and our own default
    SIDE_CHANNEL_PORT,  # vllm 0.32.0: VLLM_NIXL_SIDE_CHANNEL_PORT
    9_256,  # vllm 0.32.0: data_parallel_supervisor_port
    29_000,  # sglang_router 0.3.2 and vLLM's: prometheus_port
    TORCH_PORT,  # torch.distributed; vllm 0.32.0: data_parallel_master_port
    29_501,  # vllm 0.32.0: master_port
    29_550,  # vllm 0.32.0: data_parallel_rpc_port
}


@dataclass(frozen=True, slots=True)
class DerivedPorts:
    """Ports that a program works out from the one it is given, as what is added to it; its engine's home has the rows.

    A refusal of a port above 65,535 comes before the first line about the model.
    """

    offsets: tuple[int, ...]
    what: str
    source: str


def offsets_of(derived: Iterable[DerivedPorts]) -> tuple[int, ...]:
    """Everything that is bound, or refused, because of one port, as what is added to it: 0 is the port itself."""
    return (0, *(offset for row in derived for offset in row.offsets))


def highest_port(offsets: Iterable[int]) -> int:
    """The highest port that a program can be given without deriving one that does not exist."""
    return LAST_PORT - max(offsets)


def claim(offsets: Sequence[int], program: str) -> int:
    """A port for this program, free with all that follow from it, and nobody else's until this process ends.

    SiteError where there is none.
    """
    return _claim(offsets, f"for {program}")


def claim_row(count: int) -> int:
    """The first of so many free neighbours, claimed in the same way."""
    return _claim(range(count), f"with {count} in a row")


def is_free(port: int, host: str = "") -> bool:
    """Whether nobody on this machine listens there. A connection that only lingers does not count."""
    return not why_not_free(port, host)


def why_not_free(port: int, host: str = "") -> str:
    """What the kernel says to whoever would listen there; empty where nothing stands against it."""
    with socket.socket() as sock:
        # as servers do
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, port))
            sock.listen(1)
        except (OSError, OverflowError) as error:
            return getattr(error, "strerror", None) or str(error)
    return ""


_CLAIMS: dict[int, socket.socket] = {}  # by port


def release() -> None:
    """Give back everything that this process has claimed."""
    for held in _CLAIMS.values():
        held.close()
    _CLAIMS.clear()


def _claim(offsets: Sequence[int], what: str) -> int:
    candidates = _candidates(max(offsets))
    tried = f"{candidates[0]} to {candidates[-1]}" if candidates else "none"
    rng = random.SystemRandom()
    while candidates:
        # anywhere: two that ask at once, in containers with the same process numbers, must not try the same ones
        at = rng.randrange(len(candidates))
        candidates[at], candidates[-1] = candidates[-1], candidates[at]
        first = candidates.pop()
        if _claimed([first + offset for offset in offsets]):
            return first
    raise SiteError(f"no free port {what} on this machine (tried {tried}); `ss -ltnp` shows who listens there")


def _candidates(reach: int) -> list[int]:
    """Outside what the kernel gives to outgoing connections; only where that is nearly everything, inside."""
    low, high = _ephemeral()
    possible = [port for port in range(FIRST_PICKED, LAST_PICKED + 1) if port + reach <= LAST_PORT]
    return [port for port in possible if not low <= port <= high] or possible


def _ephemeral() -> tuple[int, int]:
    try:
        low, high = EPHEMERAL_FILE.read_text().split()
        return int(low), int(high)
    except (OSError, ValueError):
        return LAST_PICKED + 1, 60_999


def _claimed(wanted: Iterable[int]) -> bool:
    taken: dict[int, socket.socket] = {}
    for port in wanted:
        if port in USUAL or port in _CLAIMS or not is_free(port) or (mark := _mark(port)) is None:
            for held in taken.values():
                held.close()
            return False
        taken[port] = mark
    _CLAIMS.update(taken)
    return True


def _mark(port: int) -> socket.socket | None:
    """A name in the machine's network namespace, which is also where ports live; the kernel frees it with the process.

    None where another process holds it.
    """
    if not sys.platform.startswith("linux"):
        return socket.socket()  # no abstract names there: the bind test has to do
    mark = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        mark.bind(f"\0ridgeline-port-{port}")
    except OSError:
        mark.close()
        return None
    return mark
