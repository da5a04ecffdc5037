"""The feed-forward half of a config's layers: which are dense, how wide, and what experts the others hold."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ridgeline.model.fields import Fields, where
from ridgeline.model.layer_parts import Experts
from ridgeline.model.token_mixing import block_pattern

_PER_TOKEN = ("num_experts_per_tok", "experts_per_token", "num_experts_per_token", "top_k_experts", "moe_topk")
UNGATED = ("relu2", "relu", "gelu_new", "gelu_fast")


@dataclass(frozen=True, slots=True)
class FeedForward:
    experts: Experts | None
    dense_layers: tuple[int, ...]
    moe_layers: tuple[int, ...] | None  # None: all the others
    width: int
    widths: tuple[tuple[int, tuple[int, ...]], ...] = ()
    gated: bool = True


def read_feed_forward(fields: Fields, layers: int) -> FeedForward:
    gated = fields.text("mlp_hidden_act") not in UNGATED and fields.text("hidden_act") not in UNGATED
    blocks = fields.per_layer("block_configs", layers)
    if blocks is not None:
        return _varied(fields, blocks)
    pattern = block_pattern(fields, layers)
    experts = _experts(fields)
    if pattern is not None:
        dense, mixed = where(pattern, "-"), where(pattern, "E")
    else:
        dense, mixed = _dense_layers(fields, experts, layers), None
    return FeedForward(experts, dense, mixed, _dense_width(fields) if dense else 0, gated=gated)


def _dense_width(fields: Fields) -> int:
    # Llama-4 and MiniMax-M3 call the experts' width intermediate_size and name the dense one apart
    name = fields.first("intermediate_size_mlp", "dense_intermediate_size") or "intermediate_size"
    fields.need(name)
    return fields.positive(name)


def _varied(fields: Fields, blocks: list[dict[str, dict[str, float]]]) -> FeedForward:
    """Nemotron-NAS: every layer has a width of its own, or no feed-forward part."""
    hidden = fields.positive("hidden_size")
    found: dict[int, list[int]] = {}
    for n, block in enumerate(blocks):
        ffn = block["ffn"]
        if ffn.get("replace_with_linear"):
            raise fields.refuse("block_configs", f"replaces the feed-forward part of layer {n}; that is not understood")
        if not ffn.get("no_op"):
            # two thirds of the multiple, rounded up to 256
            width = -(-int(2 * float(ffn["ffn_mult"]) * hidden / 3) // 256) * 256
            found.setdefault(width, []).append(n)
    widths = tuple((width, tuple(mine)) for width, mine in sorted(found.items()))
    return FeedForward(None, tuple(sorted(n for _, mine in widths for n in mine)), (), max(found), widths)


def _experts(fields: Fields) -> Experts | None:
    key = fields.first("n_routed_experts", "num_local_experts", "num_experts")
    if key is None or fields.value("enable_moe_block") is False:
        return None
    asked = fields.first(*_PER_TOKEN)
    if asked is None:
        fields.need("num_experts_per_tok")
    per_token = fields.positive(asked or "num_experts_per_tok")
    # Mixtral's experts are as wide as its intermediate_size; the others name their own width
    width_key = fields.first("moe_intermediate_size", "expert_intermediate_size") or "intermediate_size"
    fields.need(width_key)
    count, width = fields.positive(key), fields.positive(width_key)
    if per_token > count:
        raise fields.refuse(asked or "num_experts_per_tok", f"{per_token} is more than {key} {count}")
    latent = fields.first("moe_latent_size", "routed_expert_hidden_size")
    found = Experts(count, per_token, width, latent=fields.positive(latent) if latent else 0)
    shared, shared_width = _shared(fields, width)
    return replace(found, shared=shared, shared_width=shared_width)


def _shared(fields: Fields, width: int) -> tuple[int, int]:
    """How many experts every token meets, and how wide they are together."""
    if fields.text("model_type").startswith("llama4"):
        return 1, width
    if fields.value("enable_moe_block"):
        # Gemma-4 adds a dense part to every mixture, which is what others call a shared expert
        return 1, fields.positive("intermediate_size")
    counted = fields.first("n_shared_experts", "num_shared_experts")
    shared = fields.count(counted) if counted else 0
    named = fields.first(
        "shared_expert_intermediate_size", "moe_shared_expert_intermediate_size", "share_expert_dim",
        "shared_intermediate_size",
    )  # fmt: skip
    shared_width = fields.count(named) if named else shared * width
    return shared or (1 if shared_width else 0), shared_width


def _dense_layers(fields: Fields, experts: Experts | None, layers: int) -> tuple[int, ...]:
    """Layers whose feed-forward part is not a mixture, by whichever field the family says it with."""
    first = fields.count("first_k_dense_replace")
    fields.value("intermediate_size_mlp")
    if experts is None:
        return tuple(range(layers))
    if fields.value("enable_moe_block"):
        return ()
    kinds = fields.value("mlp_layer_types")
    if kinds is not None:
        return where(fields.per_layer("mlp_layer_types", layers) or [], "dense")
    if isinstance(fields.value("moe_layer_freq"), list):
        return where(fields.per_layer("moe_layer_freq", layers) or [], 0)
    return _counted_dense(fields, layers, first)


def _counted_dense(fields: Fields, layers: int, first: int) -> tuple[int, ...]:
    step = fields.count("decoder_sparse_step") or fields.count("interleave_moe_layer_step")
    every = fields.count("moe_layer_freq", 1)
    named = fields.value("mlp_only_layers") or []
    if not isinstance(named, list):
        raise fields.refuse("mlp_only_layers", f"is {named!r}; it must be a list of layer numbers")

    def is_dense(n: int) -> bool:
        if n < first or n in named:
            return True
        return (n + 1) % step != 0 if step else n % every != 0

    return tuple(n for n in range(layers) if is_dense(n))
