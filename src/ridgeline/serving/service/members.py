"""The processes of a service: one for each server, and the router last."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from ridgeline.records.launch import OnNode
from ridgeline.records.run import Resources
from ridgeline.serving.service.quoting import shell_line
from ridgeline.serving.service.routers import metrics_port, router_argv
from ridgeline.serving.service.servers import ServerPlace, derived_ports, port_step, server_argv, server_of
from ridgeline.serving.service.service import ROLES, Service, ServiceUnit

ROUTER = "router"
SECOND = "-b"  # ends the names of servers that took the place of others


@dataclass(frozen=True, slots=True)
class Member:
    """One server, or the router."""

    name: str
    role: str  # both, prefill, decode or router
    port: int
    argv: tuple[str, ...]
    resources: Resources
    env: tuple[tuple[str, str], ...] = ()
    after: tuple[str, ...] = ()  # members whose addresses it needs
    more_ports: tuple[int, ...] = ()  # that it listens on beside its own
    follower_argv: tuple[str, ...] = ()  # more words where it is not the first of the member's nodes
    node: int = 0  # its first one, of those that `members_of` deals out

    @property
    def is_router(self) -> bool:
        return self.role == ROUTER

    @property
    def ports(self) -> tuple[int, ...]:
        return (self.port, *self.more_ports)

    @property
    def line(self) -> str:
        return shell_line(self.argv)


def server_name(role: str, number: int) -> str:
    return f"{'server' if role == 'both' else role}-{number}"


def first_slot(name: str) -> str:
    """What a server is called before it was replaced for the first time."""
    return name.removesuffix(SECOND)


def members_of(
    service: Service,
    second: Collection[str] = (),
    node_gpus: int | None = None,
    scaled: Mapping[str, Collection[int]] | None = None,
) -> list[Member]:
    """In the order to start them. The servers named in `second` have the names and ports of their second slots: a
    server and the one that takes its place run at the same time, perhaps on one node.

    `scaled` are the numbers of the servers of a role, where they are not the first `replicas`. Each number has ports
    and GPUs of its own, whoever else runs.

    With `node_gpus` they are dealt out over nodes of so many GPUs, without a batch system; else to this machine, or to
    nobody.
    """
    servers: list[Member] = []
    free, rows = _FreeGpus(node_gpus), itertools.count()
    numbers = {role: itertools.count() for role in ROLES}
    for unit in service.units:
        active = (scaled or {}).get(unit.role, range(unit.replicas))
        for number in range(service.slots(unit)):
            node, gpu = free.take(unit)
            first_row, name = next(rows), server_name(unit.role, next(numbers[unit.role]))
            if number not in active:
                continue
            row = first_row + (_second_row(service) if name in second else 0)
            at = _place(service, unit, row, gpu)
            name += SECOND if name in second else ""
            argv = tuple(server_argv(service, unit, at))
            resources = Resources(nodes=unit.nodes, cores=unit.cores, gpus=unit.gpus, memory_bytes=unit.memory_bytes)
            if not servers:
                resources = _leaving_room(service, resources)
            bootstrap = (at.bootstrap_port,) if unit.role == "prefill" else ()
            more = (*bootstrap, *derived_ports(service, unit, at.port))
            env = (*_key_variable(service), *unit.env.items())
            follow = server_of(service.engine).follower_argv if unit.nodes > 1 else ()
            servers.append(Member(name, unit.role, at.port, argv, resources, env, (), more, follow, node))
    return [*servers, *router_of(service, servers)]


def every_member(service: Service) -> dict[str, Member]:
    """By its name, each that there may ever be, servers in both of their slots."""
    rules = service.scale.roles if service.scale is not None else {}
    every: dict[str, range] = {unit.role: range(service.slots(unit)) for unit in service.units if unit.role in rules}
    first = members_of(service, scaled=every)
    second = members_of(service, {member.name for member in first}, scaled=every)
    return {member.name: member for member in (*second, *first)}


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


def _second_row(service: Service) -> int:
    """How many places further second slots begin: past all servers, and past the router where its ports lie there."""
    count, step = sum(service.slots(unit) for unit in service.units), port_step(service.engine, service.units)
    taken = {service.router.port, metrics_port(service.router)} if service.router is not None else set()
    row = count
    while any(service.first_port + n * step in taken for n in range(row, row + count)):
        row += 1
    return row


def router_of(service: Service, servers: Sequence[Member]) -> list[Member]:
    """The router of a service before these servers; none where it has none."""
    if service.router is None:
        return []
    urls = [OnNode(f"http://${variable(server.name)}:{server.port}") for server in servers]
    ports = [server.more_ports[0] if server.role == "prefill" else 0 for server in servers]
    backends = [(server.role, url, port) for server, url, port in zip(servers, urls, ports, strict=True)]
    argv = tuple(router_argv(service, backends))
    after, more = tuple(server.name for server in servers), (metrics_port(service.router),)
    resources = _router_resources(service)
    return [Member(ROUTER, ROUTER, service.router.port, argv, resources, after=after, more_ports=more)]


# On a cluster the router is a small job of its own: it outlives restarts of any server, and may move. The first server
# leaves that little of its share of a node, for the servers may fill all nodes that there are.
ROUTER_CORES, ROUTER_MEMORY_BYTES = 4, 8 * 2**30  # of its job, at most: it forwards, and keeps a tree of prefixes


def room_for_router(service: Service) -> bool:
    """Whether a small job of the router's finds a place beside the servers, however few the nodes are."""
    site, first = service.site, service.units[0]
    if site.options.get("exclusive"):
        return False
    if first.cores is not None or (site.cores_per_node and site.memory_bytes_per_node):
        return True
    # without sizes a job gets little, unless it takes all GPUs of a node and so the whole of it
    return not site.cores_per_node and not 0 < site.gpus_per_node <= first.gpus


def _leaving_room(service: Service, wanted: Resources) -> Resources:
    """What the first server asks for where a router must fit beside it."""
    site = service.site
    if service.router is None or service.on_this_machine or site.options.get("exclusive"):
        return wanted
    if wanted.cores is not None or site.cores_per_node is None:
        return wanted
    router = _router_resources(service)
    share = min(1.0, wanted.gpus / site.gpus_per_node) if wanted.gpus and site.gpus_per_node else 1.0
    cores = max(1, int(site.cores_per_node * share) - (router.cores or 0))
    memory = wanted.memory_bytes
    if memory is None and site.memory_bytes_per_node is not None:
        memory = int(site.memory_bytes_per_node * share) - (router.memory_bytes or 0)
    return replace(wanted, cores=cores, memory_bytes=memory)


def _router_resources(service: Service) -> Resources:
    choice, site = service.router, service.site
    assert choice is not None
    if service.on_this_machine:
        return Resources()
    cores = choice.cores or max(1, min(ROUTER_CORES, (site.cores_per_node or 8 * ROUTER_CORES) // 8))
    memory = choice.memory_bytes
    if memory is None and site.memory_bytes_per_node is not None:
        memory = min(ROUTER_MEMORY_BYTES, site.memory_bytes_per_node // 8)
    return Resources(cores=cores, memory_bytes=memory)


def variable(name: str) -> str:
    """The shell variable that holds a member's address."""
    return "at_" + name.replace("-", "_")


def _key_variable(service: Service) -> list[tuple[str, str]]:
    name = server_of(service.engine).key_variable
    return [(name, OnNode(f"${service.api_key_env}"))] if name and service.api_key_env else []
