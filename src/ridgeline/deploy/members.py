"""The processes of a service: one for each server, and the router last."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ridgeline.deploy.routers import Backend, metrics_port, router_words
from ridgeline.deploy.servers import SERVERS, ServerPlace, derived_ports, port_step, server_words
from ridgeline.deploy.service import Service, ServiceUnit
from ridgeline.records.run import Resources

ROUTER = "router"
SECOND = "-b"  # ends the names of servers that took the place of others


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

    @property
    def is_router(self) -> bool:
        return self.role == ROUTER

    @property
    def ports(self) -> tuple[int, ...]:
        return (self.port, *self.more_ports)

    @property
    def line(self) -> str:
        return " ".join(map(shell_word, self.words))


def first_slot(name: str) -> str:
    """What a server is called before it was replaced for the first time."""
    return name.removesuffix(SECOND)


def members_of(service: Service, second: Collection[str] = ()) -> list[Member]:
    """In the order to start them. The servers named in `second` have the names and ports of their second slots.

    A server and the one that takes its place run at the same time, perhaps on one node.
    """
    servers: list[Member] = []
    backends: list[Backend] = []
    for unit in service.units:
        for number in range(unit.replicas):
            name = f"{'server' if unit.role == 'both' else unit.role}-{number}"
            at = _place(service, unit, servers, moved=name in second)
            name += SECOND if name in second else ""
            words = tuple(server_words(service, unit, at))
            resources = Resources(nodes=unit.nodes, gpus=unit.gpus)
            bootstrap = (at.bootstrap_port,) if unit.role == "prefill" else ()
            more = (*bootstrap, *derived_ports(service, unit, at.port))
            env = tuple(unit.env.items())
            follow = SERVERS[service.engine].follower_words if unit.nodes > 1 else ()
            servers.append(Member(name, unit.role, at.port, words, resources, env, (), more, follow))
            backends.append(Backend(unit.role, f"http://${variable(name)}:{at.port}", at.bootstrap_port))
    return [*servers, *_router(service, servers, backends)]


def _place(service: Service, unit: ServiceUnit, before: Sequence[Member], moved: bool) -> ServerPlace:
    """Ports of their own for all, as two servers may come to share a node; GPUs are dealt out on this machine only."""
    number = len(before) + (_second_row(service) if moved else 0)
    gpu = sum(member.resources.gpus for member in before) if service.on_this_machine else 0
    visible = ",".join(map(str, range(gpu, gpu + unit.gpus))) if service.on_this_machine else ""
    return ServerPlace(
        service.first_port + number * port_step(service.engine, service.units),
        service.first_bootstrap_port + number,
        gpu,
        number,
        visible,
    )


def _second_row(service: Service) -> int:
    """How many places further second slots begin: past all servers, and past the router where its ports lie there."""
    count, step = sum(unit.replicas for unit in service.units), port_step(service.engine, service.units)
    taken = {service.router.port, metrics_port(service.router)} if service.router is not None else set()
    row = count
    while any(service.first_port + n * step in taken for n in range(row, row + count)):
        row += 1
    return row


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
