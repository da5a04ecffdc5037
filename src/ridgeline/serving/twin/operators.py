"""What one rank computes in a pass over the model: products, experts, attention, and how many kernels that is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ridgeline.serving.engine.layout import Layout, matrix_shards
from ridgeline.serving.engine.settings import Applied
from ridgeline.serving.hardware.cluster import Gpu
from ridgeline.serving.model.layer_parts import Attention, LinearAttention, Reach
from ridgeline.serving.model.model import BYTES_PER_WEIGHT, KV_BYTES, Model
from ridgeline.serving.twin.factors import Factors
from ridgeline.serving.twin.priors import (
    DECODE_COMPUTE,
    DECODE_MEMORY,
    DENSE_COMPUTE,
    DENSE_MEMORY,
    EXPERT_COMPUTE,
    INDEX_OPS,
    LAYER_OPS,
    MLA_OPS,
    MOE_OPS,
    PREFILL_COMPUTE,
    QUANTISE_OPS,
    STATE_COMPUTE,
    STATE_MEMORY,
    STATE_OPS,
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
    reached = EXPERT_COMPUTE[model.weights_dtype]
    if layout.ep > 1:
        reached = WHOLE_EXPERT_COMPUTE.get(model.weights_dtype, reached)
    columns = model.experts.width * layout.ep / layout.tp
    wide = WIDE_EXPERT_COMPUTE.get(model.weights_dtype, 0.0) * columns / (columns + WIDE_EXPERT_HALF)
    return max(reached, wide)


def decode_attention(
    model: Model, layout: Layout, gpu: Gpu, applied: Applied, factors: Factors
) -> tuple[tuple[tuple[float, float], ...], str]:
    """(tokens of a request it ends at, seconds per cached token), nearest end first, whole model; what bounds them."""
    share = DECODE_MEMORY[applied.backend][1 if model.attention.mla else 0]
    memory_bytes_s = gpu.bandwidth_bytes_s * factors.memory * share * factors.attention
    flops_s = gpu.flops_of("bf16") * min(DECODE_COMPUTE, share) * factors.attention
    found: dict[float, float] = {}
    compute_bound_s = all_s = 0.0
    for reach, layers in _reaches(model, layout):
        memory_s = (reach.kv_values * KV_BYTES[model.kv_dtype] + reach.index_bytes) / memory_bytes_s
        compute_s = reach.decode_flops * applied.draft_tokens / flops_s
        slower = layers * max(memory_s, compute_s) / (layout.attn_dp * layout.pp)
        found[reach.cap] = found.get(reach.cap, 0.0) + slower
        all_s, compute_bound_s = all_s + slower, compute_bound_s + (slower if compute_s > memory_s else 0.0)
    return tuple(sorted(found.items())), "compute" if compute_bound_s > all_s / 2 else "memory"


def _reaches(model: Model, layout: Layout) -> list[tuple[Reach, int]]:
    kinds = [(m.kind, len(m.layers)) for m in model.all_mixers]
    return [(reach, n) for kind, n in kinds if isinstance(kind, Attention) for reach in kind.reaches(layout.attn_tp)]


def prefill_attention(
    model: Model, layout: Layout, gpu: Gpu, applied: Applied, factors: Factors
) -> tuple[tuple[float, float], ...]:
    """(how far back a query may look, seconds per query-key pair) on one attention group, whole model."""
    flops_s = gpu.flops_of("bf16") * PREFILL_COMPUTE[applied.backend] * factors.attention
    found: dict[float, float] = {}
    for reach, layers in _reaches(model, layout):
        found[reach.cap] = found.get(reach.cap, 0.0) + layers * reach.prefill_flops / flops_s
    return tuple(sorted(found.items()))


def state_costs(model: Model, layout: Layout, gpu: Gpu, factors: Factors) -> tuple[float, float]:
    """Seconds that states take for each request of a decode step, and for each token of a prompt, on one rank."""
    kinds = [(m.kind, len(m.layers)) for m in model.all_mixers]
    flops = sum(kind.token_flops * n for kind, n in kinds if isinstance(kind, LinearAttention)) / layout.attn_tp
    moved = 2 * model.state_bytes_per_request / layout.attn_tp
    decode_s = moved / (gpu.bandwidth_bytes_s * STATE_MEMORY * factors.memory)
    return decode_s, flops / (gpu.flops_of("bf16") * STATE_COMPUTE * factors.compute)


def kernels(model: Model, layout: Layout) -> int:
    """Kernels of one pass; a collective is one more of them."""
    per_half = (LAYER_OPS + (2 if layout.tp > 1 else 0) + (QUANTISE_OPS if block_scaled(model) else 0)) / 2
    mixing = 0
    for mixer in model.all_mixers:
        kind = mixer.kind
        more = STATE_OPS if isinstance(kind, LinearAttention) else (MLA_OPS if kind.mla else 0)
        if isinstance(kind, Attention) and kind.top_k:
            more += INDEX_OPS
        mixing += len(mixer.layers) * more
    return round(model.half_layers * per_half) + mixing + len(model.moe_layers) * MOE_OPS


def block_scaled(model: Model) -> bool:
    return model.dtype in ("fp8", "fp4") or model.weights_dtype in ("fp8", "fp4")
