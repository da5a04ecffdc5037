"""What one rank computes in a pass over the model: products, experts, attention, and how many kernels that is."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import NormalDist
from typing import NamedTuple

from ridgeline.serving.engines.behaviour import COLLAPSED, NORMAL, UNIFORM, popularity
from ridgeline.serving.engines.layout import Layout, matrix_shards
from ridgeline.serving.engines.settings import Applied, defaults_of
from ridgeline.serving.hardware.cluster import Gpu
from ridgeline.serving.model.layer_parts import Attention, Experts, LinearAttention
from ridgeline.serving.model.model import BYTES_PER_WEIGHT, KV_BYTES, Matrix, Model
from ridgeline.serving.twin.calibration import Factors
from ridgeline.serving.twin.priors import (
    FFN_SMALL,
    FP8_CACHE,
    FP8_CACHE_BLACKWELL,
    INDEX_OPS,
    INDEX_SMALL,
    LAYER_OPS,
    MIXING_SMALL,
    MLA_OPS,
    MLA_SMALL,
    MOE_OPS,
    MOE_SMALL,
    ONE_CALL_MOE_OPS,
    POPULARITY_SPREAD,
    QUANTISE_OPS,
    QUANTISE_SMALL,
    SHARED_NORM_SMALL,
    SMALL_OP_S,
    SMALL_TILE,
    SMALL_TILE_COUNT,
    STATE_OPS,
    STATE_SMALL,
    SWITCH_SMALL,
    TUNED_BLOCKS,
    VERIFY_TOKEN_S,
    VERIFY_WIDTH,
)
from ridgeline.serving.twin.rates import ExpertRate, kernels_of


class Term(NamedTuple):
    """One part of a step: seconds, and what would have to be faster for it to shrink."""

    name: str
    seconds: float
    bound: str  # compute, memory, network, latency, host


class Busy(NamedTuple):
    """Shares of a pass in which tensor cores and memory of one GPU are at work, and of its rows those of prompts.

    `clock` is the part of its highest clock that it runs at, `reading` that of its memory's speed.
    """

    tensor: float
    memory: float
    prompts: float
    clock: float = 1.0
    reading: float = 1.0


@dataclass(frozen=True, slots=True)
class Product:
    """All matrices of one kind on one rank, whole model: time for each row, to read the weights once, and floors."""

    name: str
    rows: str  # rank: tokens of one attention-DP rank; all: of every rank; logits: rows that need logits
    row_s: float
    weights_s: float
    floor_s: float

    def term(self, rows: float) -> Term:
        compute_s = self.row_s * rows
        seconds = self.floor_s + (compute_s**4 + self.weights_s**4) ** 0.25
        return Term(self.name, seconds, "compute" if compute_s > self.weights_s else "memory")


def products(model: Model, layout: Layout, gpu: Gpu, applied: Applied, factors: Factors) -> tuple[Product, ...]:
    """Every dense product of a pass."""
    known = kernels_of(gpu, applied.kernel_set)
    found: dict[tuple[str, str, str], tuple[float, float, float]] = {}
    for m in model.matrices:
        if m.part not in _KINDS:
            continue
        name, rows = _KINDS[m.part]
        shards = matrix_shards(m, layout, model)
        if rows == "all" and shards < layout.tp:
            rows = "rank"  # a whole copy on every attention-DP rank, which feeds it its own tokens
        flops, nbytes, floors = found.get((name, m.dtype, rows), (0.0, 0.0, 0.0))
        size = m.rows * m.cols * m.copies / shards
        floors += _launched(m, model) * len(m.layers) * known.gemm(_run_in(m, model)).floor_s
        found[name, m.dtype, rows] = (flops + 2 * size, nbytes + size * BYTES_PER_WEIGHT[m.dtype], floors)
    if model.tied_embeddings:
        size, base = model.hidden * model.vocab / layout.tp, model.base_dtype
        found["LM head", base, "logits"] = (2 * size, size * BYTES_PER_WEIGHT[base], known.gemm(base).floor_s)
    return tuple(
        Product(
            name,
            rows,
            flops / (gpu.flops_of(dtype) * known.gemm(dtype).peak * factors.compute),
            nbytes / (gpu.bandwidth_bytes_s * known.gemm(dtype).memory * factors.memory),
            floors * gpu.cycle,
        )
        for (name, dtype, rows), (flops, nbytes, floors) in found.items()
    )


def _launched(matrix: Matrix, model: Model) -> int:
    """Kernels of one such product in one layer."""
    if matrix.part == "shared_experts" and model.attention.mla:
        return 0  # DeepSeek's shared expert is computed as one more routed one
    return _LAUNCHED.get(matrix.name, 1)


def _run_in(matrix: Matrix, model: Model) -> str:
    """The dtype of its kernel: the halves of an absorbed kv_b_proj are multiplied in 16 bits."""
    return model.base_dtype if matrix.name == "kv_b_proj" else matrix.dtype


_KINDS = {
    "attention": ("attention projections", "rank"),
    "dense_ffn": ("dense FFN", "all"),
    "shared_experts": ("shared experts", "all"),
    "router": ("router", "rank"),
    "lm_head": ("LM head", "logits"),
}
# Products that engines launch together with another one, or apart for each half of a matrix (absorbed MLA).
_LAUNCHED = {"kv_proj": 0, "kv_a_proj": 0, "kv_b_proj": 2, "state_in_proj": 2}


def routed_experts(model: Model, layout: Layout) -> tuple[float, float]:
    """FLOPs per token and weight bytes of the routed experts on one rank."""
    mine = [m for m in model.matrices if m.part == "experts"]
    return sum(m.flops_per_token for m in mine) / layout.tp, sum(m.nbytes for m in mine) / layout.tp


def decode_attention(
    model: Model, layout: Layout, gpu: Gpu, applied: Applied, factors: Factors
) -> tuple[tuple[tuple[float, float], ...], str]:
    """(tokens of a request it ends at, seconds per cached token), nearest end first, whole model; what bounds them."""
    rate = kernels_of(gpu, applied.kernel_set).decode(applied.backend, mla=model.attention.mla)
    memory_bytes_s = gpu.bandwidth_bytes_s * factors.memory * factors.attention
    if model.kv_dtype == "fp8":
        shares = FP8_CACHE_BLACKWELL if gpu.generation == "blackwell" else FP8_CACHE
        memory_bytes_s *= shares.get(applied.backend, 1.0)
    flops_s = gpu.flops_of("bf16") * factors.attention
    head_s = heads_on_rank(model, layout) * _head_token_s(model, applied) / gpu.sms
    found: dict[float, float] = {}
    compute_bound_s = all_s = 0.0
    for reach, layers in model.reaches(layout.attn_tp):
        memory_s = (reach.kv_values * KV_BYTES[model.kv_dtype] + reach.index_bytes) / memory_bytes_s
        compute_s = reach.decode_flops * applied.draft_tokens / flops_s
        each_s = rate.overlapped(compute_s, memory_s)
        if head_s and reach.kv_values:
            each_s = max(each_s, head_s)
        slower = layers * each_s / (layout.attn_dp * layout.pp)
        found[reach.cap] = found.get(reach.cap, 0.0) + slower
        computing = compute_s / rate.peak > memory_s / rate.memory
        all_s, compute_bound_s = all_s + slower, compute_bound_s + (slower if computing else 0.0)
    return tuple(sorted(found.items())), "compute" if compute_bound_s > all_s / 2 else "memory"


def _head_token_s(model: Model, applied: Applied) -> float:
    """What one head of one request takes for a cached token where a kernel for prompts verifies drafts; else 0."""
    if not verifies_by_head(applied):
        return 0.0
    a = model.attention
    return VERIFY_TOKEN_S * (a.latent + a.rope_dim if a.mla else a.head_dim) / VERIFY_WIDTH


def verifies_by_head(applied: Applied) -> bool:
    return bool(applied.drafting) and applied.backend in defaults_of(applied.engine).verifies_by_head


def heads_on_rank(model: Model, layout: Layout) -> float:
    return model.attention.heads / layout.attn_tp


def prefill_attention(
    model: Model, layout: Layout, gpu: Gpu, applied: Applied, factors: Factors
) -> tuple[tuple[float, float], ...]:
    """(how far back a query may look, seconds per query-key pair) on one attention group, whole model."""
    rate = kernels_of(gpu, applied.kernel_set).prefill(applied.backend, mla=model.attention.mla)
    flops_s = gpu.flops_of("bf16") * rate.peak * factors.attention
    found: dict[float, float] = {}
    for reach, layers in model.reaches(layout.attn_tp):
        found[reach.cap] = found.get(reach.cap, 0.0) + layers * reach.prefill_flops / flops_s
    return tuple(sorted(found.items()))


def state_costs(model: Model, layout: Layout, gpu: Gpu, applied: Applied, factors: Factors) -> tuple[float, float]:
    """Seconds that states take for each request of a decode step, and for each token of a prompt, on one rank."""
    flops = sum(kind.token_flops * n for kind, n in model.states) / layout.attn_tp
    moved = 2 * model.state_bytes_per_request / layout.attn_tp
    decode, prefill = (kernels_of(gpu, applied.kernel_set).states(phase) for phase in ("decode", "prefill"))
    decode_s = moved / (gpu.bandwidth_bytes_s * decode.memory * factors.memory)
    return decode_s, flops / (gpu.flops_of("bf16") * prefill.peak * factors.compute)


def floors_s(model: Model, gpu: Gpu, applied: Applied, *, decode: bool) -> float:
    """What a pass takes however little it computes, besides products and collectives: one rank, whole model."""
    known = kernels_of(gpu, applied.kernel_set)
    mla = model.attention.mla
    attention = known.decode(applied.backend, mla=mla) if decode else known.prefill(applied.backend, mla=mla)
    states = known.states("decode" if decode else "prefill")
    seconds = _small_kernels(model) * SMALL_OP_S
    for mixer in model.all_mixers:
        seconds += len(mixer.layers) * (states if isinstance(mixer.kind, LinearAttention) else attention).floor_s
    if model.experts is not None:
        seconds += len(model.moe_layers) * known.experts(model.weights_dtype).rate.floor_s
        if applied.experts in (UNIFORM, NORMAL):  # which only the engine's own switch brings about
            seconds += len(model.moe_layers) * SWITCH_SMALL * SMALL_OP_S
    return seconds * gpu.cycle


def _small_kernels(model: Model) -> int:
    """Kernels that only move a few rows."""
    count = (model.half_layers - model.mixing_layers) * FFN_SMALL + len(model.moe_layers) * MOE_SMALL
    if _block_scaled(model):
        count += model.half_layers * QUANTISE_SMALL // 2
    for mixer in model.all_mixers:
        kind, more = mixer.kind, MIXING_SMALL
        if isinstance(kind, LinearAttention):
            more += STATE_SMALL
        else:
            more += (MLA_SMALL if kind.mla else 0) + (INDEX_SMALL if kind.top_k else 0)
            more += SHARED_NORM_SMALL if kind.norm_over_heads else 0
        count += len(mixer.layers) * more
    return count


def kernels(model: Model, layout: Layout, gpu: Gpu) -> int:
    """Kernels that the host launches in a pass without a graph; a collective is one more of them."""
    per_half = (LAYER_OPS + (2 if layout.tp > 1 else 0) + (QUANTISE_OPS if _block_scaled(model) else 0)) / 2
    mixing = 0
    for mixer in model.all_mixers:
        kind = mixer.kind
        more = STATE_OPS if isinstance(kind, LinearAttention) else (MLA_OPS if kind.mla else 0)
        if isinstance(kind, Attention) and kind.top_k:
            more += INDEX_OPS
        mixing += len(mixer.layers) * more
    one_call = gpu.generation == "blackwell" and (model.attention.mla or model.weights_dtype in ("fp4", "mxfp4"))
    return (
        round(model.half_layers * per_half)
        + mixing
        + len(model.moe_layers) * (ONE_CALL_MOE_OPS if one_call else MOE_OPS)
    )


def _block_scaled(model: Model) -> bool:
    return model.dtype in ("fp8", "fp4") or model.weights_dtype in ("fp8", "fp4")


def reduction_set(model: Model, gpu: Gpu, applied: Applied) -> str:
    """Whose all-reduce runs: on Blackwell SGLang joins DeepSeek's with the norm after it, as fast as its newest."""
    fused = model.attention.mla and gpu.generation == "blackwell" and defaults_of(applied.engine).deepseek_kernels
    return "" if fused else applied.kernel_set


def expert_rate(model: Model, gpu: Gpu, applied: Applied) -> ExpertRate:
    rate = kernels_of(gpu, applied.kernel_set).experts(model.weights_dtype)
    deepseek = model.attention.mla and model.experts is not None and model.experts.count == SMALL_TILE_COUNT
    tuned = deepseek and defaults_of(applied.engine).deepseek_kernels
    if tuned and model.weights_dtype == "fp8" and gpu.generation == "hopper":
        return replace(rate, tile=SMALL_TILE)
    return rate


def tuned_blocks(model: Model, layout: Layout, gpu: Gpu, applied: Applied) -> bool:
    """Whether the kernels of experts in FP8 blocks have tiles tuned for their shape, as far as SGLang's are known."""
    experts, shipped = model.experts, TUNED_BLOCKS.get(gpu.name)
    own = defaults_of(applied.engine)
    if experts is None or shipped is None or not model.weight_block or not own.deepseek_kernels:
        return True
    if own.deepep and layout.ep > 1 and layout.attn_dp > 1:  # DeepGEMM computes what DeepEP brings
        return True
    count, width = experts.count // layout.ep, experts.width * layout.ep // layout.tp
    return bool({(count, width), (count + 1, width)} & shipped)


# Which experts a pass asks for: some more often than others, and ranks that hold them never equally.
#
# A router that was trained prefers some experts. Popularity is taken to be log-normal; then a small batch touches fewer
# of them than even routing would, and the growth of a step with its batch is as flat as measured.

_STEPS = 16


@lru_cache(maxsize=8192)  # a simulation asks for the same few batch sizes a hundred thousand times
def touched(experts: Experts, rows: float, routing: str = "") -> float:
    """Experts of one layer that at least one of `rows` tokens is sent to."""
    if routing == COLLAPSED:
        return float(experts.per_token)
    each = -math.log1p(-experts.per_token / experts.count) * rows if experts.per_token < experts.count else math.inf
    share = sum(1.0 - math.exp(-each * liked) for liked in _liked(routing, experts.count)) / _STEPS
    # one token alone asks for as many as it is sent to, whoever they are
    return max(experts.count * share, min(1.0, rows) * experts.per_token)


@lru_cache(maxsize=64)
def _liked(routing: str, count: int) -> tuple[float, ...]:
    return popularity(routing, _STEPS, count, POPULARITY_SPREAD)


def fullest_share(experts: Experts, asked: float, ranks: int) -> float:
    """Experts touched on the fullest of `ranks` expert ranks, over their mean.

    Few tokens fall on few experts, and some rank gets most of them; Blom's formula gives the largest of so many draws.
    """
    if ranks <= 1:
        return 1.0
    mean, most = asked / ranks, experts.count / ranks
    spread = math.sqrt(mean * max(0.0, 1.0 - mean / most))
    largest = NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25))
    return min(1.0 + largest * spread / mean, most / mean)


def fullest_load(experts: Experts, rows: float, ranks: int, routing: str = "") -> float:
    """Copies of tokens that the fullest of `ranks` expert ranks computes, over their mean.

    Some ranks hold more of the popular experts than others, and few tokens fall unevenly besides.
    """
    if ranks <= 1:
        return 1.0
    unequal = math.exp(POPULARITY_SPREAD**2) - 1.0  # the variance of a trained router's popularity
    if routing:
        unequal = sum(liked**2 for liked in _liked(routing, experts.count)) / _STEPS - 1.0
    liked = unequal * ranks / experts.count
    drawn = ranks / (rows * experts.per_token)
    largest = NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25))
    return min(1.0 + largest * math.sqrt((liked + drawn) * (1.0 - 1.0 / ranks)), float(ranks))
