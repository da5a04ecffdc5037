"""How the layers of a config mix tokens: full, windowed, sparse or compressed attention, or a state of fixed size.

Families say it in different fields; each function reads one of them and returns nothing where the field is not there.
"""

from __future__ import annotations

from dataclasses import replace

from ridgeline.serving.model.fields import Fields, where
from ridgeline.serving.model.layer_parts import Attention, LinearAttention, Mixer

_FULL = ("full_attention", "attention", "global_attention", "deepseek_sparse_attention")
_WINDOWED = ("sliding_attention", "local_attention", "chunked_attention")


def read_mixers(fields: Fields, layers: int) -> tuple[Attention, tuple[Mixer, ...]]:
    """The attention that sees furthest, and every kind with its layers; no list where there is one kind only."""
    if fields.value("num_kv_shared_layers") and fields.value("layer_types") is None:
        raise fields.not_understood(
            "num_kv_shared_layers", "(layers that use another layer's cache) without layer_types"
        )
    readers = (_blocks, _block_configs, _compressed, _typed, _delta, _two_patterns, _chunked, _lightning, _windows)
    for read in readers:
        mixers = read(fields, layers)
        if mixers:
            kinds = [m for m in mixers if m.layers]
            whole = [m.kind for m in kinds if isinstance(m.kind, Attention)]
            if not whole:
                raise fields.refuse("layer_types", "names no layer with attention; we know no engine that serves that")
            widest = max(whole, key=lambda a: (a.keeps_everything, a.window, -a.compress))
            return widest, tuple(kinds) if len(kinds) > 1 or len(kinds[0].layers) < layers else ()
    return attention(fields), ()


def attention(fields: Fields, prefix: str = "") -> Attention:
    """The heads of one kind of layer. `prefix` is what the family writes before the fields of its other kind."""
    heads = fields.positive(f"{prefix}num_attention_heads", fields.positive("num_attention_heads"))
    gated = bool(fields.value("attn_output_gate")) or bool(fields.value("attention_output_gate"))
    if fields.text("model_type").startswith("qwen3_next"):
        gated = True
    if fields.value("kv_lora_rank"):
        return _sparse(fields, _latent(fields, heads))
    kv_heads = fields.positive(f"{prefix}num_key_value_heads", fields.positive("num_key_value_heads", default=heads))
    if heads % kv_heads:
        raise fields.refuse("num_key_value_heads", f"{kv_heads} does not divide num_attention_heads {heads}")
    usual = max(1, fields.positive("hidden_size") // heads)
    named = fields.first(f"{prefix}head_dim", "head_dim", "attention_head_dim")
    head_dim = fields.positive(named) if named else usual
    v_dim = fields.count(f"{prefix}v_head_dim") or fields.count("v_head_dim")
    # Qwen2 always has a bias on q, k and v and says so nowhere in its config
    bias = bool(fields.value("attention_bias", fields.text("model_type").startswith("qwen2")))
    over_heads = fields.value("qk_norm_type") == "per_layer"
    plain = Attention(heads, kv_heads, head_dim, bias, v_dim=v_dim, gated=gated, norm_over_heads=over_heads)
    # Step-3 compresses its queries
    return _sparse(fields, replace(plain, q_latent=fields.count("share_q_dim")))


def _latent(fields: Fields, heads: int) -> Attention:
    fields.need("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    # GLM-5.3-Flash has no rotary part at all
    nope, rope = fields.positive("qk_nope_head_dim"), fields.count("qk_rope_head_dim")
    for name in ("head_dim", "qk_head_dim", "num_key_value_heads"):
        fields.value(name)  # said twice; the latent's own widths decide
    return Attention(
        heads=heads,
        kv_heads=1,
        head_dim=nope + rope,
        latent=fields.positive("kv_lora_rank"),
        q_latent=fields.positive("q_lora_rank") if fields.value("q_lora_rank") else 0,
        rope_dim=rope,
        nope_dim=nope,
        v_dim=fields.positive("v_head_dim"),
        gated=bool(fields.value("mla_use_output_gate")),
    )


def _sparse(fields: Fields, dense: Attention) -> Attention:
    """An indexer that picks what a query attends to (DeepSeek's and GLM's), token by token."""
    if not fields.value("index_topk"):
        return dense
    kinds = fields.value("indexer_types") or []
    share = kinds.count("full") / len(kinds) if kinds else 1.0
    return replace(
        dense,
        top_k=fields.positive("index_topk"),
        index_heads=fields.positive("index_n_heads"),
        index_dim=fields.positive("index_head_dim"),
        index_share=share,
    )


def _blocks(fields: Fields, layers: int) -> tuple[Mixer, ...]:
    """Nemotron-H: every block is a Mamba layer (M), attention (*), or a feed-forward part of its own."""
    pattern = block_pattern(fields, layers)
    if pattern is None:
        return ()
    return (Mixer(attention(fields), where(pattern, "*")), Mixer(_mamba(fields), where(pattern, "M")))


_BLOCK_LETTERS = {"mamba": "M", "attention": "*", "moe": "E", "mlp": "-"}


def block_pattern(fields: Fields, layers: int) -> list[str] | None:
    """One letter for each block: M, *, E (experts) or - (dense)."""
    listed = fields.value("layers_block_type")
    if listed is None:
        text = fields.value("hybrid_override_pattern")
        if text is None:
            return None
        pattern = list(str(text))
    else:
        pattern = [_BLOCK_LETTERS.get(str(kind), str(kind)) for kind in listed]
    if len(pattern) != layers or set(pattern) - set("M*E-"):
        raise fields.refuse(
            "hybrid_override_pattern", f"needs one of M * E - for each of {layers} layers; it has {len(pattern)}"
        )
    return pattern


def _mamba(fields: Fields) -> LinearAttention:
    heads, width = fields.positive("mamba_num_heads"), fields.positive("mamba_head_dim")
    state, groups = fields.positive("ssm_state_size"), fields.positive("n_groups", 1)
    inner, shared = heads * width, 2 * groups * state
    return LinearAttention(
        kind="mamba2",
        heads=heads,
        key_dim=state,
        value_dim=width,
        inputs=2 * inner + shared + heads,
        channels=inner + shared,
        kernel=fields.positive("conv_kernel", 4),
        state_bytes_each=4.0 if fields.value("mamba_ssm_cache_dtype", "float32") == "float32" else 2.0,
    )


def _block_configs(fields: Fields, layers: int) -> tuple[Mixer, ...]:
    """Nemotron-NAS: attention left out of some layers."""
    blocks = fields.per_layer("block_configs", layers)
    if blocks is None:
        return ()
    kept = {n: b["attention"] for n, b in enumerate(blocks) if not b["attention"].get("no_op")}
    for block in kept.values():
        if block.get("replace_with_linear") or block.get("window_length"):
            raise fields.not_understood("block_configs", "(something else than attention in a layer)")
    heads = fields.positive("num_attention_heads")
    found: dict[int, list[int]] = {}
    for n, block in kept.items():
        found.setdefault(heads // int(block["n_heads_in_group"]), []).append(n)
    head_dim = fields.positive("hidden_size") // heads
    fields.value("num_key_value_heads")
    return tuple(Mixer(Attention(heads, kv, head_dim), tuple(mine)) for kv, mine in found.items())


def _compressed(fields: Fields, layers: int) -> tuple[Mixer, ...]:
    """DeepSeek-V4: one key-value head, one entry for 4 tokens behind an indexer or for 128, and a window beside it."""
    ratios = fields.per_layer("compress_ratios", layers)
    if ratios is None:
        return ()
    plain = Attention(
        heads=fields.positive("num_attention_heads"),
        kv_heads=fields.positive("num_key_value_heads"),
        head_dim=fields.positive("head_dim"),
        q_latent=fields.positive("q_lora_rank"),
        rope_dim=fields.positive("qk_rope_head_dim"),
        one_kv=True,
        window=fields.positive("sliding_window"),
        o_latent=fields.positive("o_lora_rank"),
        o_groups=fields.positive("o_groups"),
    )
    found = []
    for ratio in sorted(set(ratios)):
        kind = plain if ratio == 0 else replace(plain, compress=ratio)
        # the long entries are few enough to be read all
        kind = _sparse(fields, kind) if 0 < ratio < 16 else kind
        found.append(Mixer(kind, where(ratios, ratio)))
    return tuple(found)


def _typed(fields: Fields, layers: int) -> tuple[Mixer, ...]:
    """layer_types, or the interval that older configs give instead."""
    kinds = fields.per_layer("layer_types", layers)
    every = fields.count("full_attention_interval")
    if kinds is None and every and fields.value("linear_num_value_heads"):
        kinds = ["linear_attention" if (n + 1) % every else "full_attention" for n in range(layers)]
    if kinds is None:
        return ()
    unknown = sorted({str(k) for k in kinds} - {*_FULL, *_WINDOWED, "linear_attention"})
    if unknown:
        raise fields.not_understood("layer_types", repr(unknown[0]))
    windowed, linear = where(kinds, *_WINDOWED), where(kinds, "linear_attention")
    found = _with_borrowers(_global(fields), where(kinds, *_FULL), fields, layers)
    if windowed:
        found += _with_borrowers(replace(_local(fields), window=_window(fields)), windowed, fields, layers)
    if linear:
        kimi = fields.value("linear_attn_config")
        found.append(Mixer(_kimi_delta(fields, kimi) if isinstance(kimi, dict) else _gated_delta(fields), linear))
    return tuple(found)


def _with_borrowers(kind: Attention, mine: tuple[int, ...], fields: Fields, layers: int) -> list[Mixer]:
    """Gemma-4's last layers read the cache of the last layer of their kind that has one."""
    first = layers - fields.count("num_kv_shared_layers")
    borrowers = tuple(n for n in mine if n >= first)
    owners = Mixer(kind, tuple(n for n in mine if n < first))
    return [owners, Mixer(replace(kind, borrowed=True), borrowers)] if borrowers else [owners]


def _delta(fields: Fields, layers: int) -> tuple[Mixer, ...]:
    """Kimi-Linear and K3: layers with a delta net, counted from 1, between layers of latent attention."""
    kimi = fields.value("linear_attn_config")
    if not isinstance(kimi, dict):
        return ()
    inner = Fields(kimi, f"{fields.source}: linear_attn_config")
    listed = inner.value("kda_layers")
    if not isinstance(listed, list) or not all(isinstance(n, int) and 1 <= n <= layers for n in listed):
        raise inner.refuse("kda_layers", f"is not a list of layers from 1 to {layers}")
    linear = tuple(sorted(n - 1 for n in listed))
    whole = tuple(n for n in range(layers) if n not in set(linear))
    return (Mixer(attention(fields), whole), Mixer(_kimi_delta(fields, kimi), linear))


def _kimi_delta(fields: Fields, said: dict[str, object]) -> LinearAttention:
    """Queries, keys and values of the same heads, a decay for each channel, and a gate of the output."""
    inner = Fields(said, f"{fields.source}: linear_attn_config")
    heads, width = inner.positive("num_heads"), inner.positive("head_dim")
    whole_gate = bool(inner.value("use_full_rank_gate"))
    wide = heads * width
    return LinearAttention(
        kind="kimi-delta",
        heads=heads,
        key_dim=width,
        value_dim=width,
        inputs=(4 if whole_gate else 3) * wide + (1 if whole_gate else 2) * width + heads,
        channels=3 * wide,
        kernel=inner.positive("short_conv_kernel_size", 4),
        narrow_gates=1 if whole_gate else 2,
    )


def _global(fields: Fields) -> Attention:
    """Gemma-4's full layers have heads of their own, and one projection for keys and values."""
    usual = attention(fields)
    width, heads = fields.count("global_head_dim"), fields.count("num_global_key_value_heads")
    return replace(
        usual,
        head_dim=width or usual.head_dim,
        kv_heads=heads or usual.kv_heads,
        one_kv_proj=bool(fields.value("attention_k_eq_v")),
    )


def _local(fields: Fields) -> Attention:
    """Step-3.5's windowed layers have heads of their own."""
    usual, other = attention(fields), fields.value("attention_other_setting")
    if not isinstance(other, dict):
        return usual
    inner = Fields(other, f"{fields.source}: attention_other_setting")
    return replace(
        usual,
        heads=inner.positive("num_attention_heads", usual.heads),
        kv_heads=inner.positive("num_attention_groups", usual.kv_heads),
        head_dim=inner.positive("head_dim", usual.head_dim),
    )


def _window(fields: Fields) -> int:
    name = fields.first("sliding_window", "attention_chunk_size", "sliding_window_size")
    if name is None:
        raise fields.refuse("sliding_window", "is missing, and some layers attend to a window")
    return fields.positive(name)


def _gated_delta(fields: Fields) -> LinearAttention:
    values, keys = fields.positive("linear_num_value_heads"), fields.positive("linear_num_key_heads")
    key_dim, value_dim = fields.positive("linear_key_head_dim"), fields.positive("linear_value_head_dim")
    mixed = 2 * keys * key_dim + values * value_dim
    return LinearAttention(
        kind="gated-delta",
        heads=values,
        key_dim=key_dim,
        value_dim=value_dim,
        inputs=mixed + values * value_dim + 2 * values,
        channels=mixed,
        kernel=fields.positive("linear_conv_kernel_dim", 4),
        state_bytes_each=4.0 if fields.value("mamba_ssm_dtype", "float32") == "float32" else 2.0,
    )


def _two_patterns(fields: Fields, layers: int) -> tuple[Mixer, ...]:
    """MiMo-V2: 1 marks layers with a window and key-value heads of their own."""
    pattern = fields.per_layer("hybrid_layer_pattern", layers)
    if pattern is None:
        return ()
    local = replace(attention(fields, "swa_"), window=_window(fields))
    return (Mixer(attention(fields), where(pattern, 0)), Mixer(local, where(pattern, 1)))


def _chunked(fields: Fields, layers: int) -> tuple[Mixer, ...]:
    """Llama-4: layers with rotary positions attend inside chunks; each fourth has none and sees everything.

    A query sees half a chunk on average and a whole one at most; the cache need keep no more than a chunk.
    """
    if not fields.text("model_type").startswith("llama4") or not fields.value("attention_chunk_size"):
        return ()
    rotary = fields.per_layer("no_rope_layers", layers)
    if not rotary:
        rotary = [int((n + 1) % fields.positive("no_rope_layer_interval", 4) != 0) for n in range(layers)]
    whole = attention(fields)
    local = replace(whole, window=fields.positive("attention_chunk_size"))
    return (Mixer(whole, where(rotary, 0)), Mixer(local, where(rotary, 1)))


def _lightning(fields: Fields, layers: int) -> tuple[Mixer, ...]:
    """MiniMax: 1 is softmax attention, 0 lightning attention with a gate."""
    pattern = fields.per_layer("attn_type_list", layers)
    if pattern is None or 0 not in pattern:
        return ()
    whole = attention(fields)
    wide = whole.heads * whole.head_dim
    linear = LinearAttention("lightning", whole.heads, whole.head_dim, whole.head_dim, 4 * wide, 0, 1)
    return (Mixer(whole, where(pattern, 1)), Mixer(linear, where(pattern, 0)))


def _windows(fields: Fields, layers: int) -> tuple[Mixer, ...]:
    """sliding_window alone: all layers, the upper ones (Qwen2), or all but each n-th (Gemma)."""
    size = fields.value("sliding_window")
    off = fields.value("use_sliding_window") is False
    from_layer = fields.count("max_window_layers") if fields.value("use_sliding_window") else 0
    kind = fields.text("model_type")
    pattern = fields.count("sliding_window_pattern", {"gemma2": 2, "gemma3_text": 6, "gemma3": 6}.get(kind, 0))
    if not size or off or not isinstance(size, int) or size >= fields.positive("max_position_embeddings", default=4096):
        return _block_sparse(fields, layers)
    whole = attention(fields)
    local = tuple(n for n in range(layers) if n >= from_layer and (not pattern or (n + 1) % pattern))
    others = tuple(n for n in range(layers) if n not in set(local))
    return (Mixer(whole, others), Mixer(replace(whole, window=fields.positive("sliding_window")), local))


def _block_sparse(fields: Fields, layers: int) -> tuple[Mixer, ...]:
    """MiniMax-M3: an indexer of a few heads picks whole blocks of the past."""
    sparse = fields.value("sparse_attention_config")
    if not isinstance(sparse, dict) or not sparse.get("use_sparse_attention"):
        return ()
    inner = Fields(sparse, f"{fields.source}: sparse_attention_config")
    pattern = inner.per_layer("sparse_attention_freq", layers) or [1] * layers
    whole = attention(fields)
    picked = replace(
        whole,
        top_k=inner.positive("sparse_topk_blocks") * inner.positive("sparse_block_size"),
        index_heads=inner.positive("sparse_num_index_heads"),
        index_dim=inner.positive("sparse_index_dim"),
    )
    return (Mixer(whole, where(pattern, 0)), Mixer(picked, where(pattern, 1)))
