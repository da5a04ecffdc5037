"""What a GPU must hold beside weights and KV pool: request table, CUDA graphs, attention buffers, activations, logits.

SGLang's own guess at all of it is in `fractions`; `reserve_needs` adds it up from model, layout and settings.
"""

from __future__ import annotations

from ridgeline.engines.deepep import uses_deepep
from ridgeline.engines.layout import Layout
from ridgeline.engines.settings import Applied
from ridgeline.hardware.cluster import GIB, Gpu
from ridgeline.model.model import Model

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


def triton_bytes_per_request(model: Model, gpu: Gpu, layout: Layout) -> float:
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


def reserve_needs(
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
        per_request = triton_bytes_per_request(model, gpu, layout)
        needs["attention workspace"] = min(applied.graph_max_bs, limit) * per_request
        if batch > applied.graph_max_bs and role != "prefill":
            # an eager step allocates its buffer while the one before it is still held
            needs["attention buffers beyond the graphs"] = 2 * batch * per_request
    eager = needs.get("attention buffers beyond the graphs", 0.0)
    # prefill and decode steps take turns: only the larger of the two is there at once
    needs["activations"] = max(0.0, activations - eager)
    # gathered in 16 bits, then float32, then probabilities
    needs["logits"] = batch * model.vocab * 10.0
    if layout.replica_gpus > 1:
        # NCCL's channel buffers appear with the first collective of each kind; rings over the network take most
        needs["communication"] = (2.0 if layout.tp_nodes > 1 else 0.5) * GIB
        if uses_deepep(layout):
            # DeepEP's send and receive buffers, registered once
            needs["communication"] += 1.0 * GIB
    # compiled kernels, cuBLAS workspaces and what the allocator cannot use for being in pieces
    needs["libraries and fragments"] = 1.0 * GIB + 0.02 * gpu.memory_bytes
    return needs


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
