"""What one rank computes in a pass over the model: products, experts, attention, and how many kernels that is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from ridgeline.serving.engine.layout import Layout, matrix_shards, rank_kv_bytes_per_token
from ridgeline.serving.engine.settings import Applied
from ridgeline.serving.hardware.cluster import Gpu
from ridgeline.serving.model.model import BYTES_PER_WEIGHT, Model
from ridgeline.serving.twin.factors import Factors
from ridgeline.serving.twin.priors import (
    DECODE_COMPUTE,
    DECODE_MEMORY,
    DENSE_COMPUTE,
    DENSE_MEMORY,
    EXPERT_COMPUTE,
    LAYER_OPS,
    MLA_OPS,
    MOE_OPS,
    PREFILL_COMPUTE,
    QUANTISE_OPS,
    WHOLE_EXPERT_COMPUTE,
    WIDE_EXPERT_COMPUTE,
    WIDE_EXPERT_HALF,
)


class Term(NamedTuple):
    """One part of a step: seconds, and what would have to be faster for it to shrink."""

    name: str
    seconds: float
    bound: str  # compute, memory, network, latency, host


@dataclass(frozen=True, slots=True)
class Product:
    """All matrices of one kind on one rank, whole model: time for each row, and to read the weights once."""

    name: str
    rows: str  # rank: tokens of one attention-DP rank; all: of every rank; logits: rows that need logits
    row_s: float
    weights_s: float

    def term(self, rows: float) -> Term:
        compute_s = self.row_s * rows
        if compute_s > self.weights_s:
            return Term(self.name, compute_s, "compute")
        return Term(self.name, self.weights_s, "memory")


def products(model: Model, layout: Layout, gpu: Gpu, factors: Factors) -> tuple[Product, ...]:
    """Every dense product of a pass."""
    found: dict[tuple[str, str, str], tuple[float, float]] = {}
    for m in model.matrices:
        if m.part not in _KINDS:
            continue
        name, rows = _KINDS[m.part]
        shards = matrix_shards(m, layout, model)
        if rows == "all" and shards < layout.tp:
            rows = "rank"  # a whole copy on every attention-DP rank, which feeds it its own tokens
        flops, nbytes = found.get((name, m.dtype, rows), (0.0, 0.0))
        size = m.rows * m.cols * m.copies / shards
        found[name, m.dtype, rows] = (flops + 2 * size, nbytes + size * BYTES_PER_WEIGHT[m.dtype])
    if model.tied_embeddings:
        size = model.hidden * model.vocab / layout.tp
        found["LM head", model.base_dtype, "logits"] = (2 * size, size * BYTES_PER_WEIGHT[model.base_dtype])
    bandwidth = gpu.bandwidth_bytes_s * factors.memory * DENSE_MEMORY
    return tuple(
        Product(name, rows, flops / (gpu.flops_of(dtype) * DENSE_COMPUTE[dtype] * factors.compute), nbytes / bandwidth)
        for (name, dtype, rows), (flops, nbytes) in found.items()
    )


_KINDS = {
    "attention": ("attention projections", "rank"),
    "dense_ffn": ("dense FFN", "all"),
    "shared_experts": ("shared experts", "all"),
    "router": ("router", "rank"),
    "lm_head": ("LM head", "logits"),
}


def routed_experts(model: Model, layout: Layout) -> tuple[float, float]:
    """FLOPs per token and weight bytes of the routed experts on one rank."""
    mine = [m for m in model.matrices if m.part == "experts"]
    return sum(m.flops_per_token for m in mine) / layout.tp, sum(m.nbytes for m in mine) / layout.tp


def expert_share(model: Model, layout: Layout) -> float:
    """Share of the peak that grouped products over this rank's experts, or slices of experts, reach."""
    assert model.experts is not None
    reached = EXPERT_COMPUTE[model.dtype]
    if layout.ep > 1:
        reached = WHOLE_EXPERT_COMPUTE.get(model.dtype, reached)
    columns = model.experts.width * layout.ep / layout.tp
    wide = WIDE_EXPERT_COMPUTE.get(model.dtype, 0.0) * columns / (columns + WIDE_EXPERT_HALF)
    return max(reached, wide)


def decode_attention(model: Model, layout: Layout, gpu: Gpu, applied: Applied, factors: Factors) -> tuple[float, str]:
    """Seconds per cached token, whole model, and what bounds them."""
    a = model.attention
    shared = DECODE_MEMORY[applied.backend][1 if a.mla else 0]
    held = rank_kv_bytes_per_token(model, replace(layout, pp=1))
    memory_s = held / (gpu.bandwidth_bytes_s * factors.memory * shared * factors.attention)
    flops = a.pair_flops(absorbed=True) * model.layers / layout.attn_tp * applied.draft_tokens
    compute_s = flops / (gpu.flops_of("bf16") * min(DECODE_COMPUTE, shared) * factors.attention)
    slower = max(memory_s, compute_s)
    return slower / (layout.attn_dp * layout.pp), "compute" if compute_s > memory_s else "memory"


def prefill_attention(model: Model, layout: Layout, gpu: Gpu, applied: Applied, factors: Factors) -> float:
    """Seconds per query-key pair on one attention group, whole model."""
    flops = model.attention.pair_flops(absorbed=False) * model.layers / layout.attn_tp
    return flops / (gpu.flops_of("bf16") * PREFILL_COMPUTE[applied.backend] * factors.attention)


def kernels(model: Model, layout: Layout) -> int:
    """Kernels of one pass; a collective is one more of them."""
    per_layer = LAYER_OPS + (MLA_OPS if model.attention.mla else 0) + (2 if layout.tp > 1 else 0)
    per_layer += QUANTISE_OPS if block_scaled(model) else 0
    return model.layers * per_layer + len(model.moe_layers) * MOE_OPS


def block_scaled(model: Model) -> bool:
    return model.dtype in ("fp8", "fp4")
