"""What a server of a role is told, each value with the reason that a plan has for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ridgeline.engines.deepep import uses_deepep
from ridgeline.hardware.cluster import GIB
from ridgeline.planner.candidates import Unit
from ridgeline.planner.commands import unit_env, unit_values
from ridgeline.records.expression import Value
from ridgeline.twin.server.serve import BOOTSTRAP_VARIABLE

# SGLang waits five minutes unless told, longer than clients do; prompts that wait only for KV room need a few seconds.
BOOTSTRAP_S = 10


@dataclass(frozen=True, slots=True)
class RoleSetting:
    """`why` is empty where the value says it all; without a value it is left for people to fill in."""

    name: str
    value: Value | None
    why: str = ""


def role_settings(unit: Unit) -> list[RoleSetting]:
    """Every value of the server's command line, in the order to write them."""
    found = [RoleSetting(name, value, _why(unit, name, value)) for name, value in unit_values(unit).items()]
    return [*found, *_redundancy(unit), *_transfer(unit)]


def role_variables(unit: Unit) -> list[RoleSetting]:
    """What its environment holds."""
    found = [RoleSetting(name, value) for name, value in unit_env(unit).items()]
    if unit.role == "prefill":
        why = "seconds a prompt waits for a decode server that died; the router then tries another one"
        found.append(RoleSetting(BOOTSTRAP_VARIABLE, str(BOOTSTRAP_S), why))
    return found


def _why(unit: Unit, name: str, value: Value) -> str:
    reason = {
        "tp": _layout,
        "max_running_requests": _running,
        "mem_fraction_static": _memory,
        "cuda_graph_max_bs": _graphs,
        "chunked_prefill_size": _chunk,
        "max_num_batched_tokens": _budget,
        "gpu_memory_utilization": _memory,
        "moe_a2a_backend": _exchange,
        "deepep_mode": _mode,
    }.get(name)
    return "" if reason is None else reason(unit, value)


def _layout(unit: Unit, value: Value) -> str:
    return f"{unit.gpus} GPU{'s' if unit.gpus > 1 else ''} in the layout that was simulated"


def _running(unit: Unit, value: Value) -> str:
    ranks = unit.layout.attn_dp
    limit = "" if unit.role == "prefill" else ", as the limits and its KV pool allow"
    if ranks == 1:
        return f"requests at once{limit}"
    return f"SGLang divides it by attention DP {ranks}: {unit.cap // ranks} a rank{limit}"


def _memory(unit: Unit, value: Value) -> str:
    return f"leaves {unit.memory.margin_bytes / GIB:.1f} GiB of a GPU free while running: the margin to out of memory"


def _graphs(unit: Unit, value: Value) -> str:
    if value:
        return "the largest batch of a rank: without a graph a decode step waits for the host"
    if unit.role == "prefill":
        return "prompts differ too much in length to be captured; the memory goes to KV"
    return "DeepEP's normal mode cannot be captured in graphs"


def _chunk(unit: Unit, value: Value) -> str:
    ranks = unit.layout.attn_dp
    each = f", {unit.chunk_flag // ranks:,} a rank" if ranks > 1 else ""
    if unit.role == "prefill":
        return f"prompt tokens of a step{each}; nobody's next token waits for a large one"
    if unit.role == "decode":
        return "no prompt is computed here; SGLang sets memory aside by it"
    return f"prompt tokens of a step{each}; the next tokens of running requests wait for it"


def _budget(unit: Unit, value: Value) -> str:
    return "tokens of a step, decoded and of prompts: running requests wait for it"


def _exchange(unit: Unit, value: Value) -> str:
    return "each rank has requests of its own: tokens travel to their experts"


def _mode(unit: Unit, value: Value) -> str:
    return {
        "normal": "batches of prompts are larger than low_latency can dispatch",
        "low_latency": "small batches in CUDA graphs, which normal does not allow",
    }.get(str(value), "normal for prompts, low_latency for decode steps")


def _redundancy(unit: Unit) -> Iterator[RoleSetting]:
    experts, ranks = unit.question.model.experts, unit.layout.ep
    if experts is None or not uses_deepep(unit.layout) or experts.count % ranks == 0:
        return
    copies = -experts.count % ranks
    why = f"{experts.count} experts do not divide among {ranks} ranks: copies fill the gap"
    yield RoleSetting("ep_num_redundant_experts", copies, why)


def _transfer(unit: Unit) -> Iterator[RoleSetting]:
    if unit.role == "both":
        return
    cluster = unit.question.cluster
    if cluster.nodes == 1:
        yield RoleSetting("disaggregation_transfer_backend", "nixl", "prefill and decode share a node: KV stays on it")
        return
    yield RoleSetting(
        "disaggregation_transfer_backend", "mooncake", f"KV goes from node to node by RDMA over {cluster.fabric.name}"
    )
    yield RoleSetting(
        "disaggregation_ib_device",
        None,
        "from `ridgeline preflight --json > node.json` on a node, and `preflight: node.json` in this file",
    )
