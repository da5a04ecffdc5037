"""An engine of a plan in vLLM's words, and what such words mean to us.

Planned for vLLM are engines of one node that do both phases. `gpu_memory_utilization` is a share of the whole GPU and
holds activations too, which vLLM measures when it starts; SGLang's fraction, in which we reckon, holds weights and KV.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from ridgeline.engines.memory import MemoryPlan
from ridgeline.hardware.cluster import Gpu
from ridgeline.planner.candidates import Unit
from ridgeline.records.expression import Value, is_number

MODULE = "vllm.entrypoints.openai.api_server"
ROUTER = "vllm_router.launch_router"
# what vLLM takes out of its share besides weights and KV
TAKEN_OUT = ("activations", "logits")


def vllm_values(unit: Unit) -> dict[str, Value]:
    """Layout, memory and scheduling, every value written out."""
    layout, settings = unit.layout, unit.settings
    values: dict[str, Value] = {"tp": layout.tp}
    if layout.pp > 1:
        values["pp"] = layout.pp
    if layout.ep > 1:
        values["enable_expert_parallel"] = True
    values["max_running_requests"] = unit.cap
    values["max_num_batched_tokens"] = unit.chunk_flag
    values["gpu_memory_utilization"] = utilization(unit.memory, unit.question.cluster.gpu)
    if settings.cuda_graph_max_bs is not None:
        values["cuda_graph_max_bs"] = settings.cuda_graph_max_bs
    return values


def utilization(memory: MemoryPlan, gpu: Gpu) -> float:
    """The share of a GPU within which vLLM finds this plan's KV pool, in whole thousandths."""
    used = memory.mem_fraction * memory.free_bytes + gpu.memory_bytes - memory.free_bytes + _taken_out(memory)
    return math.floor(1000 * used / gpu.memory_bytes) / 1000


def meant(values: Mapping[str, Value], memory: MemoryPlan, gpu: Gpu) -> dict[str, Value]:
    """Read from a command line: with the fraction and chunk that the twin takes for vLLM's own two."""
    found = dict(values)
    share, tokens = found.get("gpu_memory_utilization"), found.get("max_num_batched_tokens")
    if is_number(share):
        kept = float(share) * gpu.memory_bytes - (gpu.memory_bytes - memory.free_bytes) - _taken_out(memory)
        found["mem_fraction_static"] = max(1e-3, kept / memory.free_bytes)
    if tokens is not None:
        found["chunked_prefill_size"] = tokens
    return found


def _taken_out(memory: MemoryPlan) -> float:
    return sum(memory.needs.get(name, 0.0) for name in TAKEN_OUT)
