"""The exact commands of a scheme: one server per engine and node, and the router in front of them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ridgeline.ports import BOOTSTRAP_PORT, RENDEZVOUS_PORT, ROUTER_PORT, SGLANG_PORT, spacing
from ridgeline.records.expression import Value
from ridgeline.serving.engine.deepep import deepep_mode, uses_deepep
from ridgeline.serving.engine.knobs.engine_flags import engine_flags
from ridgeline.serving.engine.knobs.meaning import values_of
from ridgeline.serving.engine.knobs.releases import release_text
from ridgeline.serving.planner import vllm
from ridgeline.serving.planner.candidates import Unit
from ridgeline.serving.planner.pairing import Pair
from ridgeline.serving.planner.scheme import Scheme

# DeepEP's low-latency kernels take this many tokens a rank unless told otherwise.
DEEPEP_RANK_TOKENS = 128
DEEPEP_LIMIT = "SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK"


@dataclass(frozen=True, slots=True)
class Command:
    """One line to run on one node."""

    what: str  # engine 0, prefill 1, router
    node: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        env = [f"{name}={shlex.quote(value)}" for name, value in self.env.items()]
        return " ".join([*env, *map(shlex.quote, self.argv)])

    def as_json(self) -> dict[str, object]:
        return {"what": self.what, "node": self.node, "command": str(self)}


def commands_for(
    scheme: Scheme, model_path: str, nodes: Sequence[str] = (), quantization: str | None = None
) -> list[Command]:
    """Every server of the scheme in the order to start them, then the router. Unnamed nodes are node0, node1, ..."""
    derives = any(unit.layout.attn_dp > 1 for unit, _ in groups_of(scheme))
    step = spacing(scheme.question.settings.engine, attention_dp=derives)
    place = _Places(scheme.question.cluster.node.gpus, nodes, step)
    commands: list[Command] = []
    fronts: list[tuple[str, str, int]] = []
    for unit, count in groups_of(scheme):
        for number in range(count):
            where = place.take(unit.gpus)
            servers = _engine(unit, number, where, model_path, quantization)
            commands += servers
            fronts.append((unit.role, where.nodes[0], where.port))
    module = vllm.ROUTER if scheme.question.settings.engine == "vllm" else "sglang_router.launch_router"
    return [*commands, *_router(fronts, place, module)]


def groups_of(scheme: Scheme) -> list[tuple[Unit, int]]:
    if isinstance(scheme.shape, Pair):
        p, d = scheme.shape.prefill_groups, scheme.shape.decode_groups
        return [(scheme.shape.prefill, scheme.copies * p), (scheme.shape.decode, scheme.copies * d)]
    return [(scheme.shape, scheme.copies)]


@dataclass(frozen=True, slots=True)
class _Place:
    nodes: tuple[str, ...]
    first_gpu: int
    port: int


class _Places:
    """Hands out nodes in order; engines smaller than a node share one, each with a port of its own."""

    def __init__(self, gpus_per_node: int, names: Sequence[str], port_step: int) -> None:
        self.size, self.names, self.port_step = gpus_per_node, names, port_step
        self.node, self.gpu = 0, 0

    def take(self, gpus: int) -> _Place:
        if self.gpu and self.gpu + gpus > self.size:
            self.node, self.gpu = self.node + 1, 0
        count = max(1, -(-gpus // self.size))
        names = tuple(self.name(self.node + n) for n in range(count))
        place = _Place(names, self.gpu, SGLANG_PORT + self.gpu * self.port_step)
        self.gpu += gpus
        if self.gpu >= self.size:
            self.node, self.gpu = self.node + count, 0
        return place

    def name(self, number: int) -> str:
        return self.names[number] if number < len(self.names) else f"node{number}"


def _vllm_engine(unit: Unit, number: int, where: _Place, model_path: str, quantization: str | None) -> list[Command]:
    argv = ["python3", "-m", vllm.MODULE, "--model", model_path, *unit_arguments(unit)]
    argv += ["--quantization", quantization] if quantization else []
    argv += ["--host", "0.0.0.0", "--port", str(where.port)]  # noqa: S104  the router reaches it from another node
    env: dict[str, str] = {}
    if unit.gpus < unit.question.cluster.node.gpus:  # vLLM has no flag for it
        env = {"CUDA_VISIBLE_DEVICES": ",".join(str(where.first_gpu + n) for n in range(unit.gpus))}
    return [Command(f"engine {number}", where.nodes[0], tuple(argv), env)]


def _engine(unit: Unit, number: int, where: _Place, model_path: str, quantization: str | None) -> list[Command]:
    if unit.settings.engine == "vllm":
        return _vllm_engine(unit, number, where, model_path, quantization)
    common = ["python3", "-m", "sglang.launch_server", "--model-path", model_path, *unit_arguments(unit)]
    if quantization:
        common += ["--quantization", quantization]
    common += ["--host", "0.0.0.0", "--port", str(where.port)]  # noqa: S104  the router reaches it from another node
    if where.first_gpu:
        common += ["--base-gpu-id", str(where.first_gpu)]
    if unit.role == "prefill" and where.port != SGLANG_PORT:
        common += ["--disaggregation-bootstrap-port", str(_bootstrap_port(where.port))]
    name = f"{'engine' if unit.role == 'both' else unit.role} {number}"
    env = unit_env(unit)
    if len(where.nodes) == 1:
        return [Command(name, where.nodes[0], tuple(common), env)]
    step = spacing("sglang-rendezvous", attention_dp=unit.layout.attn_dp > 1)
    address = f"{where.nodes[0]}:{RENDEZVOUS_PORT + number * step}"
    return [
        Command(
            name,
            node,
            (*common, "--nnodes", str(len(where.nodes)), "--node-rank", str(rank), "--dist-init-addr", address),
            env,
        )
        for rank, node in enumerate(where.nodes)
    ]


def _bootstrap_port(port: int) -> int:
    """Prefill servers that share a node must not share the port at which decode servers find them."""
    return BOOTSTRAP_PORT + port - SGLANG_PORT


def unit_env(unit: Unit) -> dict[str, str]:
    """What must be in the environment of its servers."""
    rank_batch = -(-unit.cap // (unit.layout.attn_dp * unit.layout.pp))
    if unit.role != "prefill" and uses_deepep(unit.layout) and rank_batch > DEEPEP_RANK_TOKENS:
        return {DEEPEP_LIMIT: str(rank_batch)}
    return {}


def unit_values(unit: Unit) -> dict[str, Value]:
    """Layout, memory and scheduling of one engine under our names, every value written out; not its role."""
    if unit.settings.engine == "vllm":
        return vllm.vllm_values(unit)
    return {**values_of(unit.layout, unit.settings), **deepep_values(unit)}


def deepep_values(unit: Unit) -> dict[str, Value]:
    """How tokens travel to their experts, where they do."""
    if not uses_deepep(unit.layout):
        return {}
    mode = deepep_mode(unit.role, unit.settings.version)
    return {"moe_a2a_backend": "deepep", "deepep_mode": mode, "moe_dense_tp_size": 1}


def unit_arguments(unit: Unit) -> list[str]:
    """The same in the flags of its release, with its role."""
    values = unit_values(unit)
    if unit.role != "both":
        values["disaggregation_mode"] = unit.role
    return engine_flags(unit.settings.engine).arguments(values, unit.settings.version)


def written_for(scheme: Scheme) -> str:
    """`SGLang 0.5.23`: the release whose flags the commands have."""
    settings = scheme.question.settings
    return release_text(settings.engine, settings.version)


def _router(fronts: Sequence[tuple[str, str, int]], place: _Places, module: str) -> list[Command]:
    if len(fronts) == 1:
        return []
    # both default to all interfaces; the router belongs on one of them
    argv = ["python3", "-m", module, "--host", place.name(0), "--port", str(ROUTER_PORT)]
    argv += ["--prometheus-host", place.name(0)]
    workers = [f"http://{node}:{port}" for role, node, port in fronts if role == "both"]
    if workers:
        argv += ["--worker-urls", *workers, "--policy", "round_robin"]
    else:
        argv.append("--pd-disaggregation")
        for role, node, port in fronts:
            url = f"http://{node}:{port}"
            argv += ["--prefill", url, str(_bootstrap_port(port))] if role == "prefill" else ["--decode", url]
    return [Command("router", place.name(0), tuple(argv))]
