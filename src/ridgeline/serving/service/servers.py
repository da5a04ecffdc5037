"""The command line and ports of each server of a service, as the home of its engine says them.

`$address`, `$head` and `$rank` are known to the start script on the node (`scripts.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ridgeline.records.launch import OnNode
from ridgeline.serving.engines.base import ServerLaunch, ServingEngine, Span, engine_named
from ridgeline.serving.engines.sglang.engine import Sglang
from ridgeline.serving.ports import LAST_PORT, RENDEZVOUS_PORT
from ridgeline.serving.service.keys import with_key
from ridgeline.serving.service.service import Service, ServiceUnit

_ADDRESS, _HEAD, _RANK = OnNode("$address"), OnNode("$head"), OnNode("$rank")
FULL_KV_SHARE = 0.9  # of a server's KV pool: beyond it requests are thrown out and computed again
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


class _TwinEngine(Sglang):
    """`twin serve` as an engine of a service: SGLang's API, pages and knobs, and none of its processes."""

    packages = ()
    module = "ridgeline"
    device_knob = ""
    image = ""
    host_variable = ""
    derived_ports = ()
    rendezvous_ports = ()
    port_spacing = rendezvous_spacing = 1
    works_on_cpus = False
    loads_model = False


_TWIN = _TwinEngine()


def server_of(engine: str) -> ServingEngine:
    """The home of what a deployment file calls its engine."""
    return _TWIN if engine == "twin" else engine_named(engine)


def server_argv(service: Service, unit: ServiceUnit, at: ServerPlace) -> list[str]:
    """All words of the command line."""
    engine = server_of(service.engine)
    if service.engine == "twin":
        argv = _twin(service, unit, at)
    else:
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
                _span(engine, unit, at),
            )
        )
    argv = [*argv, *unit.arguments]
    return argv if engine.key_variable else with_key(argv, service.api_key_env)


def _span(engine: ServingEngine, unit: ServiceUnit, at: ServerPlace) -> Span:
    step = engine.rendezvous_spacing if _talks_through_ports(engine, unit) else 1
    return Span(unit.nodes, _HEAD, str(RENDEZVOUS_PORT + at.number * step), _RANK)


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
    for name, value in _TWIN.flags.canonical(unit.settings).items():
        if (option := TWIN_OPTIONS.get(name)) is not None:
            argv += [option, str(value)]
    return argv
