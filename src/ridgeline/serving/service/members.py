"""The processes of a service: one for each server, as the home of its engine starts it, and the router last.

`$address`, `$head` and `$rank` are known to the start script on the node (`scripts.py`).
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ridgeline.records.launch import OnNode
from ridgeline.records.run import Resources
from ridgeline.serving.engines.base import ServerLaunch, ServingEngine, Span
from ridgeline.serving.ports import LAST_PORT, RENDEZVOUS_PORT
from ridgeline.serving.service.quoting import shell_line, with_key
from ridgeline.serving.service.routers import metrics_port, router_argv
from ridgeline.serving.service.service import ROLES, Service, ServiceUnit, server_of

_ADDRESS, _HEAD, _RANK = OnNode("$address"), OnNode("$head"), OnNode("$rank")
# what changes the twin's timing; it has these options, and no other knob of an engine
TWIN_OPTIONS = {
    "tp": "--tp",
    "pp": "--pp",
    "dp": "--dp",
    "ep": "--ep",
    "attn_dp": "--attn-dp",
    "mem_fraction_static": "--mem-fraction",
    "max_running_requests": "--max-running-requests",
    "max_queued_requests": "--max-queued-requests",
    "cuda_graph_max_bs": "--cuda-graph-max-bs",
    "chunked_prefill_size": "--chunked-prefill-size",
    "attention_backend": "--attention-backend",
}


@dataclass(frozen=True, slots=True)
class ServerPlace:
    """Where one server listens. `bootstrap_port` is that of a prefill server; `number` its place among all."""

    port: int
    bootstrap_port: int
    first_gpu: int
    number: int
    visible_gpus: str = ""  # 2,3: of a machine that it shares; empty where all it sees is its own


def server_argv(service: Service, unit: ServiceUnit, at: ServerPlace) -> list[str]:
    """All words of the command line."""
    engine = server_of(service.engine)
    if service.engine == "twin":
        argv = _twin(service, unit, at)
    else:
        step = engine.rendezvous_spacing if _talks_through_ports(engine, unit) else 1
        argv = engine.server_argv(
            ServerLaunch(
                service.python,
                service.model,
                engine.flags.arguments(unit.settings, service.release),
                _ADDRESS,
                at.port,
                unit.role,
                at.bootstrap_port,
                at.number,
                at.first_gpu,
                at.visible_gpus,
                service.served_name,
                Span(unit.nodes, _HEAD, str(RENDEZVOUS_PORT + at.number * step), _RANK),
            )
        )
    argv = [*argv, *unit.arguments]
    return argv if engine.key_variable else with_key(argv, service.api_key_env)


def _talks_through_ports(engine: ServingEngine, unit: ServiceUnit) -> bool:
    return engine.talks_through_ports(engine.flags.canonical(unit.settings))


def port_step(engine: str, units: Iterable[ServiceUnit]) -> int:
    """How far apart the servers of a service listen: they may come to share a node."""
    server = server_of(engine)
    many = any(unit.nodes == 1 and _talks_through_ports(server, unit) for unit in units)
    return server.port_spacing if many else 1


def derived_ports(service: Service, unit: ServiceUnit, port: int) -> tuple[int, ...]:
    """Ports that a server binds beside the one it is given."""
    engine = server_of(service.engine)
    if unit.nodes > 1 or not _talks_through_ports(engine, unit):
        return ()
    return tuple(port + offset for offset in engine.port_offsets[1:] if port + offset <= LAST_PORT)


def _twin(service: Service, unit: ServiceUnit, at: ServerPlace) -> list[str]:
    argv = [service.python, "-m", "ridgeline", "twin", "serve", "--model", service.model, "--role", unit.role]
    argv += ["--host", _ADDRESS, "--port", str(at.port)]
    argv += ["--served-model-name", service.served_name] if service.served_name else []
    if unit.role == "prefill":
        argv += ["--bootstrap-port", str(at.bootstrap_port)]
    argv += ["--gpu", service.gpu]
    for name, value in server_of(service.engine).flags.canonical(unit.settings).items():
        if (option := TWIN_OPTIONS.get(name)) is not None:
            argv += [option, str(value)]
    return argv


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


def members_of(service: Service, second: Collection[str] = (), node_gpus: int | None = None) -> list[Member]:
    """In the order to start them. The servers named in `second` have the names and ports of their second slots: a
    server and the one that takes its place run at the same time, perhaps on one node.

    With `node_gpus` they are dealt out over nodes of so many GPUs, without a batch system; else to this machine, or to
    nobody.
    """
    servers: list[Member] = []
    key, engine = service.api_key_env, server_of(service.engine)
    own_key = [(engine.key_variable, OnNode(f"${key}"))] if engine.key_variable and key else []
    free, rows = _first_gpus(service.units, node_gpus), itertools.count()
    numbers = {role: itertools.count() for role in ROLES}
    for unit in service.units:
        for _ in range(unit.replicas):
            node, gpu = next(free)
            first_row, name = next(rows), server_name(unit.role, next(numbers[unit.role]))
            row = first_row + (_second_row(service) if name in second else 0)
            at = _place(service, unit, row, gpu)
            name += SECOND if name in second else ""
            argv = tuple(server_argv(service, unit, at))
            resources = Resources(nodes=unit.nodes, cores=unit.cores, gpus=unit.gpus, memory_bytes=unit.memory_bytes)
            if not servers:
                resources = _leaving_room(service, resources)
            bootstrap = (at.bootstrap_port,) if unit.role == "prefill" else ()
            more = (*bootstrap, *derived_ports(service, unit, at.port))
            env = (*own_key, *unit.env.items())
            follow = engine.follower_argv if unit.nodes > 1 else ()
            servers.append(Member(name, unit.role, at.port, argv, resources, env, (), more, follow, node))
    return [*servers, *router_of(service, servers)]


def every_member(service: Service) -> dict[str, Member]:
    """By its name, each that there may ever be, servers in both of their slots."""
    first = members_of(service)
    second = members_of(service, {member.name for member in first})
    return {member.name: member for member in (*second, *first)}


def _first_gpus(units: Iterable[ServiceUnit], size: int | None) -> Iterator[tuple[int, int]]:
    """First node and GPU of each server, in order; one that does not fit on the rest of a node begins the next one."""
    node = gpu = 0
    for unit in units:
        for _ in range(unit.replicas):
            if size is not None and gpu and (unit.nodes > 1 or gpu + unit.gpus > size):
                node, gpu = node + 1, 0
            yield node, gpu
            gpu += unit.gpus
            if size is not None and (unit.nodes > 1 or gpu >= size):
                node, gpu = node + unit.nodes, 0


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
    count, step = sum(unit.replicas for unit in service.units), port_step(service.engine, service.units)
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
