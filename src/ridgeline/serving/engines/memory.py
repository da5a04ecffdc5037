"""What fits on one GPU: weights, KV pool, and what the engine needs besides while it runs.

SGLang's rule: the KV pool takes what is free after the weights, less (1 - mem_fraction) of what was free before them.
That last part, the reserve, must hold everything else (see `reserve`). A pool that comes out empty is a start-up OOM; a
reserve that is too small is an OOM while running. The two ask for opposite moves of mem_fraction.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ridgeline.errors import InputError
from ridgeline.records.json_form import NOT_IN_JSON, JsonForm, also_in_json, each, in_json
from ridgeline.serving.engines.knobs import rank_share
from ridgeline.serving.engines.layout import Layout, rank_kv_bytes_per_token, rank_weight_bytes
from ridgeline.serving.engines.layout_rules import uses_deepep
from ridgeline.serving.engines.settings import DEFAULTS, Applied, EngineSettings, defaults_of, resolve
from ridgeline.serving.hardware.cluster import GIB, Gpu
from ridgeline.serving.model.model import Model

# What a GPU must hold beside weights and KV pool: request table, CUDA graphs, attention buffers, activations, logits.
#
# SGLang's own guess at all of it is in `fractions`; `reserve_needs` adds it up from model, layout and settings.

# One captured batch size costs this much for each layer: 0.20 GB for 36 sizes x 32 layers, 0.32 for 52 x 27 in logs.
_GRAPH_BYTES_PER_LAYER = 0.2e6


def prefill_graph_sizes(chunk: int) -> int:
    """How many token counts SGLang captures for prefill; the steps widen with size."""
    steps = ((4, 32, 4), (48, 256, 16), (288, 512, 32), (576, 1024, 64), (1280, 4096, 256), (4608, chunk, 512))
    return sum(len(range(first, min(last, chunk) + 1, step)) for first, last, step in steps)


def decode_graph_sizes(max_bs: int) -> int:
    """How many batch sizes SGLang captures for decode."""
    small = sum(1 for bs in (1, 2, 4, 8, 12) if bs <= max_bs)
    steps = ((16, 256, 8), (272, 511, 16), (512, max_bs, 32))
    return small + sum(len(range(first, min(last, max_bs) + 1, step)) for first, last, step in steps)


def _triton_bytes_per_request(model: Model, gpu: Gpu, layout: Layout) -> float:
    """Partial results of Triton's decode attention: float32, one row per head and split of the context.

    For MLA SGLang raises the splits from 8 to the power of two above the number of SMs, and a row is as wide as the
    latent: 8 MiB a request for DeepSeek-V2-Lite on an H200.
    """
    a = model.attention
    heads = -(-a.heads // layout.attn_tp)
    if not a.mla:
        return heads * 8 * a.head_dim * 4.0
    splits = max(8, min(_power_of_two(gpu.sms), _power_of_two(-(-model.context_tokens // 32))))
    return heads * splits * a.latent * 4.0


def _power_of_two(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()


def _reserve_needs(
    model: Model, gpu: Gpu, layout: Layout, applied: Applied, limit: int, batch: int, role: str = "both"
) -> dict[str, float]:
    """What must fit beside weights and KV pool at the worst moment, by name."""
    layers = max(len(s) for s in layout.stage_layers(model.layers))
    needs = {"request table": limit * model.context_tokens * 4.0}
    captured = decode_graph_sizes(applied.graph_max_bs) if applied.graph_max_bs and role != "prefill" else 0
    if applied.prefill_graph and role != "decode":
        captured += prefill_graph_sizes(applied.chunk_tokens // layout.pp)
    needs["cuda graphs"] = captured * layers * _GRAPH_BYTES_PER_LAYER
    activations = _activation_bytes(model, layout, batch if role == "decode" else applied.chunk_tokens // layout.pp)
    needs["attention workspace"] = 0.5 * GIB
    if applied.backend == "triton":
        per_request = _triton_bytes_per_request(model, gpu, layout)
        needs["attention workspace"] = min(applied.graph_max_bs, limit) * per_request
        if batch > applied.graph_max_bs and role != "prefill":
            # an eager step allocates its buffer while the one before it is still held
            needs["attention buffers beyond the graphs"] = 2 * batch * per_request
    eager = needs.get("attention buffers beyond the graphs", 0.0)
    # prefill and decode steps take turns: only the larger of the two is there at once
    needs["activations"] = max(0.0, activations - eager)
    needs["logits"] = _logit_bytes(model, batch)
    if layout.replica_gpus > 1:
        # NCCL's channel buffers appear with the first collective of each kind; rings over the network take most
        needs["communication"] = (2.0 if layout.tp_nodes > 1 else 0.5) * GIB
        if uses_deepep(layout):
            # DeepEP's send and receive buffers, registered once
            needs["communication"] += 1.0 * GIB
    # compiled kernels, cuBLAS workspaces and what the allocator cannot use for being in pieces
    needs["libraries and fragments"] = 1.0 * GIB + 0.02 * gpu.memory_bytes
    return needs


def _logit_bytes(model: Model, batch: int) -> float:
    return batch * model.vocab * 10.0  # gathered in 16 bits, then float32, then probabilities


def _activation_bytes(model: Model, layout: Layout, tokens: int) -> float:
    """Peak of one pass over `tokens` tokens of an engine: residual stream, the widest part of a layer, its output."""
    a, h = model.attention, model.hidden
    own = -(-tokens // layout.attn_dp)  # an attention group computes its own requests only
    qkv = a.heads * (a.head_dim + (a.nope_dim + a.v_dim if a.mla else 0)) + a.kv_values
    attention = own * qkv * 2.0 / layout.attn_tp
    dense = tokens * 3.0 * model.ffn_width * 2 / layout.tp
    mixture = 0.0
    all_to_all = uses_deepep(layout)
    if model.experts is not None:
        x = model.experts
        if all_to_all:
            # tokens travel to their experts: a rank holds what its own experts were sent
            mixture = tokens * x.per_token / layout.ep * (h + 3.0 * x.width) * 2
        else:
            mixture = tokens * x.per_token * (h + 3.0 * x.width / layout.tp) * 2
    # without all-to-all, attention groups gather everybody's tokens before the feed-forward part
    stream = 4.0 * h * 2 * (own if all_to_all else tokens)
    return stream + max(attention, dense, mixture)


FITS, STARTUP_OOM, RUNTIME_OOM = "fits", "startup-oom", "runtime-oom-risk"

# Read in logs: an H200 of 140.4 GiB has 139.13 free before the weights, an H100 of 79.65 has 78.43, 77.43 with NCCL.
_CONTEXT_BYTES = 1.25 * GIB
_COMMUNICATOR_BYTES = 1.0 * GIB
# A request of a chat: prompt and answer. Used where nobody says how long requests are.
REQUEST_TOKENS = 1024
# What people write where the engine's own fraction leaves them too little; the pools published for H100 imply it.
_USUAL_FRACTION = 0.88


def _gib(size_bytes: float) -> float:
    return round(size_bytes / GIB, 3)


@dataclass(frozen=True, slots=True)
class MemoryPlan(JsonForm):
    """One GPU of the fullest pipeline stage. All sizes are bytes."""

    free_bytes: float = field(metadata=in_json("free_gib", _gib))  # before the weights
    weight_bytes: float = field(metadata=in_json("weights_gib_per_rank", _gib))
    mem_fraction: float
    kept_share: float  # of that fraction, what the engine itself leaves of it
    engine_fraction: float = field(metadata=in_json("engine_mem_fraction"))  # what SGLang itself would have taken
    kv_bytes_per_token: float
    kv_tokens_per_rank: int
    needs: Mapping[str, float] = field(metadata=in_json("needs_gib", each(_gib)))  # what the reserve must hold, by name
    running_limit: int = field(metadata=NOT_IN_JSON)  # requests per attention-DP group
    groups: int = field(metadata=NOT_IN_JSON)  # attention-DP groups of the engine, each with a KV pool of its own
    profiled_bytes: float = field(metadata=NOT_IN_JSON)  # activations, and logits of a full batch
    backend: str = field(metadata=in_json("attention_backend"))
    verdict: str
    margin_bytes: float = field(metadata=in_json("margin_gib", _gib))  # what is left over; below zero, what is missing
    reason: str

    @property
    def fits(self) -> bool:
        return self.verdict == FITS

    @property
    @also_in_json("kv_gib_per_rank", _gib)
    def kv_bytes(self) -> float:
        return self.kv_tokens_per_rank * self.kv_bytes_per_token

    @property
    @also_in_json("reserve_gib", _gib)
    def reserve_bytes(self) -> float:
        return (1.0 - self.mem_fraction * self.kept_share) * self.free_bytes

    @property
    @also_in_json()
    def kv_tokens(self) -> int:
        """Of the whole engine."""
        return self.kv_tokens_per_rank * self.groups

    @property
    @also_in_json()
    def max_running_requests(self) -> int:
        """Of the whole engine."""
        return self.running_limit * self.groups

    @also_in_json()
    def largest_batch(self, request_tokens: float = REQUEST_TOKENS) -> int:
        """Requests of this length the whole engine can hold at once."""
        return self.groups * min(self.running_limit, int(self.kv_tokens_per_rank / request_tokens))


def plan_memory(
    model: Model, gpu: Gpu, layout: Layout, settings: EngineSettings = DEFAULTS, role: str = "both"
) -> MemoryPlan:
    """What one engine of this layout does with its GPUs' memory. `role`: both, prefill or decode.

    Where nobody names a fraction it is the one this release of the engine would take, however little that leaves.
    """
    if settings.mem_fraction is not None and not 0.0 < settings.mem_fraction < 1.0:
        raise InputError(f"mem fraction {settings.mem_fraction:g} is not between 0 and 1; 0.80 to 0.92 is usual")
    own = defaults_of(settings.engine).mem_fraction(model, gpu, layout, settings, role)
    fraction = own if settings.mem_fraction is None else settings.mem_fraction
    applied = resolve(settings, model, gpu, layout, pool_tokens=1)
    free = free_bytes(gpu, layout)
    share = defaults_of(settings.engine).kept_share(model, applied.backend)
    weights, tokens, room = _pool(model, layout, free, fraction * share, drafting=settings.draft_tokens > 1)
    limit = _running_limit(settings, model, layout, tokens)
    running = limit if settings.max_running_requests else min(limit, max(1, tokens // REQUEST_TOKENS))
    batch = -(-running // layout.pp)  # every pipeline stage works on a micro-batch of its own
    needs = _reserve_needs(model, gpu, layout, applied, limit, batch, role)
    reserve = (1.0 - fraction * share) * free
    verdict, margin, reason = _judge(gpu, weights, free, room, reserve, sum(needs.values()))
    named = settings.attention_backend is not None or role == "prefill"
    if verdict == FITS and not named and _mostly_eager_in_triton(model, gpu, layout, applied, batch, reserve):
        fallback = replace(applied, backend="triton")
        asked = _reserve_needs(model, gpu, layout, fallback, limit, batch, role)
        if sum(asked.values()) > reserve:
            # verdict, needs and name all speak of the back end that breaks
            applied, needs = fallback, asked
            verdict, margin = RUNTIME_OOM, reserve - sum(needs.values())
            reason = _triton_reason(model, gpu, layout, batch, reserve)
    return MemoryPlan(
        free_bytes=free,
        weight_bytes=weights,
        mem_fraction=fraction,
        kept_share=share,
        engine_fraction=own,
        kv_bytes_per_token=rank_kv_bytes_per_token(model, layout),
        kv_tokens_per_rank=tokens,
        needs=needs,
        running_limit=limit,
        groups=layout.attn_dp,
        profiled_bytes=needs["activations"] + _logit_bytes(model, rank_share(applied.running_limit, layout.attn_dp)),
        backend=applied.backend,
        verdict=verdict,
        margin_bytes=margin,
        reason=reason,
    )


def roomiest_plan(
    model: Model, gpu: Gpu, layout: Layout, settings: EngineSettings = DEFAULTS, role: str = "both"
) -> MemoryPlan:
    """For those who write the fraction out: at least 0.88, less where running needs more, never below the engine's own.

    A fraction that `settings` names is kept.
    """
    plan = plan_memory(model, gpu, layout, settings, role)
    if settings.mem_fraction is not None or plan.engine_fraction >= _USUAL_FRACTION:
        return plan
    roomy = plan_memory(model, gpu, layout, replace(settings, mem_fraction=_USUAL_FRACTION), role)
    if roomy.verdict != RUNTIME_OOM:
        return roomy
    enough = math.floor(1000 * (1.0 - sum(roomy.needs.values()) / roomy.free_bytes)) / 1000
    return plan_memory(model, gpu, layout, replace(settings, mem_fraction=max(plan.engine_fraction, enough)), role)


def free_bytes(gpu: Gpu, layout: Layout) -> float:
    """What a rank finds free before it loads weights: the driver's figure less CUDA's context and communicators."""
    communicators = (layout.replica_gpus > 1) + (layout.attn_dp > 1)
    return gpu.memory_bytes - _CONTEXT_BYTES - communicators * _COMMUNICATOR_BYTES


def _stage_weight_bytes(model: Model, layout: Layout, stage: int) -> float:
    """Weights of one rank, with the copies an engine makes: absorbed MLA keeps kv_b_proj a second time in 16 bits."""
    a = model.attention
    absorbed = len(layout.stage_layers(model.layers)[stage]) * a.heads * a.latent * (a.nope_dim + a.v_dim) * 2.0
    return rank_weight_bytes(model, layout, stage) + absorbed / layout.attn_tp


def _pool(
    model: Model, layout: Layout, free: float, fraction: float, *, drafting: bool = False
) -> tuple[float, int, float]:
    """Weights of the fullest stage, KV tokens of the tightest one (all stages keep as many), bytes left there."""
    weights = [_stage_weight_bytes(model, layout, s) for s in range(layout.pp)]
    per_token = [rank_kv_bytes_per_token(model, layout, s) for s in range(layout.pp)]
    if drafting:
        # the draft head is one more layer, with weights and a KV cache of its own
        layers = [len(s) for s in layout.stage_layers(model.layers)]
        weights = [w * (1 + 1 / n) for w, n in zip(weights, layers, strict=True)]
        per_token = [k * (1 + 1 / n) for k, n in zip(per_token, layers, strict=True)]
    room = [free * fraction - w for w in weights]
    tokens = min(int(r // k) for r, k in zip(room, per_token, strict=True))
    return max(weights), max(0, tokens), min(room)


def _running_limit(settings: EngineSettings, model: Model, layout: Layout, tokens: int) -> int:
    if settings.max_running_requests is not None:
        asked = rank_share(settings.max_running_requests, layout.attn_dp)
    else:
        asked = int(min(max(tokens / model.context_tokens * 512, 2048), 4096))
    return max(1, min(asked, tokens // 2))


def _judge(gpu: Gpu, weights: float, free: float, room: float, reserve: float, need: float) -> tuple[str, float, str]:
    name = gpu.name.upper()
    if weights >= free:
        reason = f"weights need {weights / GIB:.1f} GiB a GPU, an {name} has {free / GIB:.1f} free"
        return STARTUP_OOM, free - weights, reason
    if room <= 0:
        reason = (
            f"weights need {weights / GIB:.1f} GiB a GPU and the fraction leaves {(weights + room) / GIB:.1f} for them "
            "and the KV pool: no room for a single token"
        )
        return STARTUP_OOM, room, reason
    if need > reserve:
        reason = (
            f"running needs {need / GIB:.1f} GiB beside weights and KV pool, the fraction leaves {reserve / GIB:.1f}"
        )
        return RUNTIME_OOM, reserve - need, reason
    return FITS, reserve - need, f"{(reserve - need) / GIB:.1f} GiB to spare while running"


def _mostly_eager_in_triton(
    model: Model, gpu: Gpu, layout: Layout, applied: Applied, batch: int, reserve: float
) -> bool:
    """Nobody named the attention back end, and Triton is the one SGLang falls back to.

    It is held against a plan only where it would start, and where the running limit lies so far beyond the captured
    batches that most steps would be eager: that is how a server starts well and dies under its first load.
    """
    # every report of a model over several GPUs used FA3 or FlashMLA: only a gross mismatch is held against those
    far = 4 if layout.replica_gpus == 1 else 8
    captured = applied.graph_max_bs * _triton_bytes_per_request(model, gpu, layout)
    return 0 < captured < reserve and batch >= far * applied.graph_max_bs


def _triton_reason(model: Model, gpu: Gpu, layout: Layout, batch: int, reserve: float) -> str:
    step = batch * _triton_bytes_per_request(model, gpu, layout)
    return (
        f"with Triton attention, which SGLang falls back to where no back end is named, a step of {batch:,} requests "
        f"asks for {step / GIB:.1f} GiB of buffers, twice, the fraction leaves {reserve / GIB:.1f} for everything; "
        "another attention back end needs none of it"
    )
