"""The processes of a service: one for each server, and the router last."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from ridgeline.deploy.routers import Backend, metrics_port, router_words
from ridgeline.deploy.servers import SERVERS, ServerPlace, derived_ports, port_step, server_words
from ridgeline.deploy.service import Service, ServiceUnit
from ridgeline.records.run import Resources

ROUTER = "router"


@dataclass(frozen=True, slots=True)
class Member:
    """One server, or the router. `words` may hold the shell variables of the start script."""

    name: str
    role: str  # both, prefill, decode or router
    port: int
    words: tuple[str, ...]
    resources: Resources
    env: tuple[tuple[str, str], ...] = ()
    after: tuple[str, ...] = ()  # members whose addresses it needs
    more_ports: tuple[int, ...] = ()  # that it listens on beside its own
    follower_words: tuple[str, ...] = ()  # more words where it is not the first of the member's nodes
    node: int = 0  # its first one, of those that `members_of` deals out

    @property
    def is_router(self) -> bool:
        return self.role == ROUTER

    @property
    def ports(self) -> tuple[int, ...]:
        return (self.port, *self.more_ports)

    @property
    def line(self) -> str:
        return " ".join(map(shell_word, self.words))


def members_of(service: Service, node_gpus: int | None = None) -> list[Member]:
    """In the order to start them. With `node_gpus` they are dealt out over nodes of so many GPUs, without a batch
    system; else to this machine, or to nobody."""
    servers: list[Member] = []
    backends: list[Backend] = []
    free = _FreeGpus(node_gpus)
    for unit in service.units:
        for number in range(unit.replicas):
            node, gpu = free.take(unit)
            at = _place(service, unit, len(servers), gpu)
            name = f"{'server' if unit.role == 'both' else unit.role}-{number}"
            words = tuple(server_words(service, unit, at))
            resources = Resources(nodes=unit.nodes, gpus=unit.gpus)
            bootstrap = (at.bootstrap_port,) if unit.role == "prefill" else ()
            more = (*bootstrap, *derived_ports(service, unit, at.port))
            env = tuple(unit.env.items())
            follow = SERVERS[service.engine].follower_words if unit.nodes > 1 else ()
            servers.append(Member(name, unit.role, at.port, words, resources, env, (), more, follow, node))
            backends.append(Backend(unit.role, f"http://${variable(name)}:{at.port}", at.bootstrap_port))
    return [*servers, *_router(service, servers, backends)]


class _FreeGpus:
    """Hands out GPUs in order; a server that does not fit on the rest of a node begins the next one."""

    def __init__(self, node_gpus: int | None) -> None:
        self._size = node_gpus
        self._node = self._gpu = 0

    def take(self, unit: ServiceUnit) -> tuple[int, int]:
        size = self._size
        if size is not None and self._gpu and (unit.nodes > 1 or self._gpu + unit.gpus > size):
            self._node, self._gpu = self._node + 1, 0
        found = self._node, self._gpu
        self._gpu += unit.gpus
        if size is not None and (unit.nodes > 1 or self._gpu >= size):
            self._node, self._gpu = self._node + unit.nodes, 0
        return found


def _place(service: Service, unit: ServiceUnit, number: int, gpu: int) -> ServerPlace:
    """Ports of their own for all, as two servers may come to share a node; GPUs are dealt out on this machine only."""
    gpu = gpu if service.on_this_machine else 0
    visible = ",".join(map(str, range(gpu, gpu + unit.gpus))) if service.on_this_machine else ""
    return ServerPlace(
        service.first_port + number * port_step(service.engine, service.units),
        service.first_bootstrap_port + number,
        gpu,
        number,
        visible,
    )


def _router(service: Service, servers: Sequence[Member], backends: Sequence[Backend]) -> list[Member]:
    if service.router is None:
        return []
    words = tuple(router_words(service, backends))
    after, more = tuple(server.name for server in servers), (metrics_port(service.router),)
    return [Member(ROUTER, ROUTER, service.router.port, words, Resources(), after=after, more_ports=more)]


def variable(name: str) -> str:
    """The shell variable that holds a member's address."""
    return "at_" + name.replace("-", "_")


def shell_word(word: str) -> str:
    """Quoted, except that our variables are for the node to fill in."""
    if "$" not in word:
        return shlex.quote(word)
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"').replace("`", "\\`") + '"'
