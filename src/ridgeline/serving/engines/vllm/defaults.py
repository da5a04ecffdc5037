"""What vLLM chooses where nobody says, by release, and what its share of a GPU's memory means to us.

`gpu_memory_utilization` is a share of the whole GPU and holds what a step needs besides, which vLLM measures when it
starts, with a full chunk and then with the logits of max_num_seqs requests (0.10, gpu_model_runner.profile_run);
SGLang's fraction, which we use, holds weights and KV.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from ridgeline.records.expression import Value, is_number
from ridgeline.serving.engines.layout import Layout
from ridgeline.serving.engines.memory import MemoryPlan
from ridgeline.serving.engines.settings import EngineDefaults, EngineSettings
from ridgeline.serving.hardware.cluster import GIB, Gpu
from ridgeline.serving.model.model import Model

# gpu_memory_utilization where nobody names it; activations are taken out of it (vllm/config/cache.py)
_FRACTIONS = {(0, 20): 0.92, (0, 0): 0.9}
# Asynchronous scheduling is on by default since 0.14; before, every step waited for the host.
_OVERLAP_SINCE = (0, 14)
# scheduler_reserve_full_isl, in EngineArgs since 0.19 and on by default
_WHOLE_PROMPTS_SINCE = (0, 19)
# The first release that lets merged matrices pass whose parts are no whole FP8 blocks; 0.12 did not, 0.17 does.
_MERGED_BLOCKS_SINCE = (0, 13)
# Top-p and top-k by PyTorch's sort: FlashInfer's kernel is off since vllm PR 26859, one in Triton came with PR 33538.
_SORTS_SINCE, _SORTS_BEFORE = (0, 11), (0, 16)
# Experts in FP8 blocks by DeepGEMM's contiguous kernel, on a buffer that has room for every copy and fills up each
# expert to whole tiles; what no token fills is computed as the first expert's (deep_gemm_utils.py), since 0.13 skipped.
_FILLS_SINCE, _FILLS_BEFORE, _FILLED_ROWS = (0, 10), (0, 13), 128
_GRAPHS = 512  # tokens of a rank's step that its graphs reach


class VllmDefaults(EngineDefaults):
    current = (0, 32)
    oldest = (0, 8)  # the V1 scheduler came on by default
    least_page = 16
    finds_sent_back = pulls_kv = graphs_by_tokens = workers_launch = True
    host_tier_by_ratio = False

    def chunk(self, settings: EngineSettings, gpu: Gpu, layout: Layout) -> int:
        """max_num_batched_tokens of its server: 8,192 on GPUs of 70 GiB and more, 2,048 on others and on A100."""
        return 8192 if _is_large(gpu) else 2048

    def running(self, settings: EngineSettings, model: Model, gpu: Gpu, layout: Layout, pool_tokens: int) -> int:
        return (1024 if _is_large(gpu) else 256) * layout.attn_dp

    def mixes(self, settings: EngineSettings, layout: Layout) -> bool:
        return True

    def graph_max_bs(self, settings: EngineSettings, gpu: Gpu, layout: Layout) -> int:
        return _GRAPHS

    def prefill_graph(self, settings: EngineSettings, model: Model) -> bool:
        return True  # in pieces, between which attention is launched

    def overlaps(self, settings: EngineSettings) -> bool:
        return settings.version >= _OVERLAP_SINCE if settings.overlap is None else settings.overlap

    def admits_whole_prompts(self, settings: EngineSettings) -> bool:
        return settings.version >= _WHOLE_PROMPTS_SINCE

    def merged_blocks_whole(self, settings: EngineSettings) -> bool:
        return settings.version < _MERGED_BLOCKS_SINCE

    def sorts_logits(self, settings: EngineSettings) -> bool:
        return _SORTS_SINCE <= settings.version < _SORTS_BEFORE

    def expert_rows(self, settings: EngineSettings, model: Model) -> int:
        blocks = model.experts is not None and model.weights_dtype == "fp8" and model.weight_block > 0
        return _FILLED_ROWS if blocks and _FILLS_SINCE <= settings.version < _FILLS_BEFORE else 0

    def kernel_set(self, settings: EngineSettings) -> str:
        return "vllm"

    def host_rank_bytes(self, settings: EngineSettings, layout: Layout) -> float:
        return settings.host_tier_size * GIB / (layout.tp * layout.pp)  # it is of all ranks

    def mem_fraction(self, model: Model, gpu: Gpu, layout: Layout, settings: EngineSettings, role: str) -> float:
        return usual_fraction(settings.version)


def usual_fraction(version: tuple[int, ...]) -> float:
    """gpu_memory_utilization of a release where nobody names it."""
    return next(share for since, share in _FRACTIONS.items() if version >= since)


def _is_large(gpu: Gpu) -> bool:
    return gpu.memory_bytes >= 70 * GIB and gpu.generation != "ampere"


def utilization(memory: MemoryPlan, gpu: Gpu) -> float:
    """The share of a GPU within which vLLM finds this plan's KV pool, in whole thousandths."""
    used = memory.mem_fraction * memory.free_bytes + gpu.memory_bytes - memory.free_bytes + memory.profiled_bytes
    return math.floor(1000 * used / gpu.memory_bytes) / 1000


def meant(values: Mapping[str, Value], memory: MemoryPlan, gpu: Gpu) -> dict[str, Value]:
    """Read from a command line: with the fraction and chunk that the twin takes for vLLM's own two."""
    found = dict(values)
    share, tokens = found.get("gpu_memory_utilization"), found.get("max_num_batched_tokens")
    if is_number(share):
        kept = float(share) * gpu.memory_bytes - (gpu.memory_bytes - memory.free_bytes) - memory.profiled_bytes
        found["mem_fraction_static"] = max(1e-3, kept / memory.free_bytes)
    if tokens is not None:
        found["chunked_prefill_size"] = tokens
    return found
