"""Read a Hugging Face config.json into a `Model`: Llama, Qwen, Gemma, DeepSeek, GLM, gpt-oss, Nemotron and the like."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError, did_you_mean
from ridgeline.serving.model.fields import MEASURE_IT, UNGATED_KINDS, Fields, in_usual_names, tied_unless_said, where
from ridgeline.serving.model.fields import PRESETS as PRESETS
from ridgeline.serving.model.fields import preset_names as preset_names
from ridgeline.serving.model.layer_parts import Experts, LinearAttention
from ridgeline.serving.model.model import Model
from ridgeline.serving.model.token_mixing import block_pattern, read_mixers

# Which weights of a checkpoint are in which dtype, from the quantization_config of its config.json.

_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "half": "fp16"}
# what `quantization_config.quant_method` means for the bytes of a weight
_QUANT_METHODS = {
    "fp8": "fp8", "awq": "int4", "gptq": "int4", "bitsandbytes": "int8", "modelopt": "fp8", "modelopt_fp4": "fp4",
    "mxfp4": "mxfp4", "compressed-tensors": "int4", "fbgemm_fp8": "fp8", "auto-round": "int4",
}  # fmt: skip
_ALGORITHMS = {"FP8": "fp8", "MXFP8": "fp8", "NVFP4": "fp4", "W4A16_NVFP4": "fp4", "MXFP4": "mxfp4", "INT4_AWQ": "int4"}
# A pattern of modules left alone ends in the name of a part, whatever wild cards follow; or names its products.
_ATTENTION = re.compile(r"attn([.*]*|\.o_proj)$")
_SHARED = re.compile(r"shared_experts?[.*]*$")
_DENSE = re.compile(r"(\.mlp[.*]*$|mlp\\?\..*_proj)")
_LAYER = re.compile(r"layers\.(\d+)\.")


@dataclass(frozen=True, slots=True)
class _WeightDtypes:
    """Of embeddings and norms, of dense and shared feed-forward parts, of attention, of experts, and of the cache."""

    base: str
    dense: str
    attention: str
    experts: str
    kv: str


def _read_dtypes(fields: Fields) -> _WeightDtypes:
    said = str(fields.value("torch_dtype") or fields.value("dtype") or "bfloat16").removeprefix("torch.")
    base = _DTYPES.get(said, "bf16")
    # weights published in float32 are served in 16 bits by every engine we know
    base = "bf16" if base == "fp32" else base
    quant = fields.value("quantization_config")
    experts = {"fp4": "mxfp4", "fp8": "fp8"}.get(fields.text("expert_dtype"), "")
    if not isinstance(quant, dict):
        return _WeightDtypes(base, base, base, experts or base, base)
    main = _main(quant, fields.source)
    apart = _layer_by_layer(quant)
    left_alone = quant.get("ignore") or quant.get("exclude_modules") or quant.get("modules_to_not_convert") or []
    kept = [str(pattern) for pattern in left_alone]
    # FP8 checkpoints that name what NVFP4 leaves alone keep it in FP8
    beside = "fp8" if quant.get("quant_method") == "fp8" and main == "fp4" else base

    layers = fields.value("num_hidden_layers")
    ends = {0, layers - 1} if isinstance(layers, int) else set()

    def left(pattern: re.Pattern[str]) -> bool:
        """Meta's FP8 names the first and the last layer, whose weights are few."""
        named = {found and int(found[1]) for found in map(_LAYER.search, filter(pattern.search, kept))}
        return bool(named - ends)

    def of(part: str, pattern: re.Pattern[str]) -> str:
        return apart.get(part) or (beside if left(pattern) else main)

    dense = of("dense", _SHARED)
    if dense == main and left(_DENSE):
        dense = beside
    kv = "fp8" if _kv_in_8_bits(quant) else base
    return _WeightDtypes(base, dense, of("attention", _ATTENTION), apart.get("experts") or experts or main, kv)


def _main(quant: Mapping[str, Any], source: str) -> str:
    method = str(quant.get("quant_method") or ("modelopt" if quant.get("quant_algo") else ""))
    if method not in _QUANT_METHODS:
        raise InputError(
            f"{source}: quantization_config.quant_method {method!r} is not known ({', '.join(_QUANT_METHODS)}); "
            "remove it and give the weight dtype with --dtype"
        )
    if quant.get("load_in_4bit"):
        return "int4"
    bits = quant.get("bits") or quant.get("w_bit")
    if method in ("gptq", "awq", "bitsandbytes", "auto-round") and bits is not None:
        if str(bits) not in ("4", "8"):
            raise InputError(
                f"{source}: quantization_config says weights of {bits!r} bits; only 4 and 8 are known: remove it and "
                "give the weight dtype with --dtype"
            )
        return f"int{bits}"
    algorithm = str(quant.get("moe_quant_algo") or quant.get("quant_algo") or "")
    if algorithm in _ALGORITHMS:
        return _ALGORITHMS[algorithm]
    if algorithm and algorithm != "MIXED_PRECISION":
        raise InputError(
            f"{source}: quantization_config.quant_algo {algorithm!r} is not known ({', '.join(_ALGORITHMS)}); "
            "remove it and give the weight dtype with --dtype"
        )
    group = _first_group(quant)
    if group is None:
        return _QUANT_METHODS[method]
    bits, kind = group.get("num_bits"), group.get("type")
    dtype = {"8 float": "fp8", "8 int": "int8", "4 int": "int4", "4 float": "fp4"}.get(f"{bits} {kind}")
    if dtype is None:
        raise InputError(
            f"{source}: quantization_config says weights of {bits!r} bits, type {kind!r}; that is not understood: "
            "remove it and give the weight dtype with --dtype"
        )
    return "mxfp4" if dtype == "fp4" and group.get("group_size") == 32 else dtype


def _first_group(quant: Mapping[str, Any]) -> Mapping[str, Any] | None:
    groups = quant.get("config_groups")
    if not isinstance(groups, dict):
        return None
    found = [g["weights"] for g in groups.values() if isinstance(g, dict) and isinstance(g.get("weights"), dict)]
    return min(found, key=lambda w: w.get("num_bits") or 99) if found else None


def _layer_by_layer(quant: Mapping[str, Any]) -> dict[str, str]:
    """Mixed checkpoints name the algorithm of every module: the commonest one of each part."""
    modules = quant.get("quantized_layers")
    votes: Counter[tuple[str, str]] = Counter()
    for name, how in modules.items() if isinstance(modules, dict) else ():
        if dtype := _ALGORITHMS.get(str(how.get("quant_algo"))):
            votes[_part(name), dtype] += 1
    return dict(sorted(votes, key=lambda vote: votes[vote]))  # of two that say something of a part the later one stays


def _part(module: str) -> str:
    if "attn" in module:
        return "attention"
    return "experts" if "experts" in module and "shared" not in module else "dense"


def _kv_in_8_bits(quant: Mapping[str, Any]) -> bool:
    scheme = quant.get("kv_cache_scheme") or quant.get("kv_cache_quant_algo")
    return scheme.get("num_bits") == 8 if isinstance(scheme, dict) else str(scheme).upper() == "FP8"


def _weight_block(fields: Fields) -> int:
    """The side of the square of weights that share a scale."""
    quant = fields.value("quantization_config")
    if not isinstance(quant, dict):
        return 0
    said = quant.get("weight_block_size") or (_first_group(quant) or {}).get("block_structure")
    return said[0] if isinstance(said, list) and said and isinstance(said[0], int) else 0


_PER_TOKEN = ("num_experts_per_tok", "experts_per_token", "num_experts_per_token", "top_k_experts", "moe_topk")
_SOME_EXPERTS = re.compile(r"(.*_)?(num|n)_(.*_)?experts?")
_UNGATED = ("relu2", "relu", "gelu_new", "gelu_fast")


@dataclass(frozen=True, slots=True)
class _FeedForward:
    experts: Experts | None
    dense_layers: tuple[int, ...]
    moe_layers: tuple[int, ...] | None  # None: all the others
    width: int
    widths: tuple[tuple[int, tuple[int, ...]], ...] = ()
    gated: bool = True


def _read_feed_forward(fields: Fields, layers: int) -> _FeedForward:
    gated = not {fields.text("mlp_hidden_act"), fields.text("hidden_act")} & set(_UNGATED)
    if fields.text("model_type").lower() in UNGATED_KINDS:
        gated = fields.text("mlp_type") == "gated"
    blocks = fields.per_layer("block_configs", layers)
    if blocks is not None:
        return _varied(fields, blocks)
    pattern = block_pattern(fields, layers)
    experts = _experts(fields)
    if pattern is not None:
        dense, mixed = where(pattern, "-"), where(pattern, "E")
    else:
        dense, mixed = _dense_layers(fields, experts, layers), None
    width = _dense_width(fields) if dense else 0
    if width and fields.value("use_double_wide_mlp"):
        return _twice_as_wide(fields, dense, width, layers)
    return _FeedForward(experts, dense, mixed, width, gated=gated)


def _twice_as_wide(fields: Fields, dense: tuple[int, ...], width: int, layers: int) -> _FeedForward:
    """Gemma-4's small models: layers that read another layer's cache have the wider feed-forward part."""
    first = layers - fields.count("num_kv_shared_layers")
    widths = ((width, tuple(n for n in dense if n < first)), (2 * width, tuple(n for n in dense if n >= first)))
    return _FeedForward(None, dense, None, 2 * width, widths)


def _dense_width(fields: Fields) -> int:
    # Llama-4 and MiniMax-M3 call the experts' width intermediate_size and name the dense one apart
    name = fields.first("intermediate_size_mlp", "dense_intermediate_size") or "intermediate_size"
    fields.need(name)
    return fields.positive(name)


def _varied(fields: Fields, blocks: list[dict[str, dict[str, float]]]) -> _FeedForward:
    """Nemotron-NAS: every layer has a width of its own, or no feed-forward part."""
    hidden = fields.positive("hidden_size")
    found: dict[int, list[int]] = {}
    for n, block in enumerate(blocks):
        ffn = block["ffn"]
        if ffn.get("replace_with_linear"):
            raise fields.not_understood("block_configs", f"(something else than a feed-forward part in layer {n})")
        if not ffn.get("no_op"):
            # two thirds of the multiple, rounded up to 256
            width = -(-int(2 * float(ffn["ffn_mult"]) * hidden / 3) // 256) * 256
            found.setdefault(width, []).append(n)
    widths = tuple((width, tuple(mine)) for width, mine in sorted(found.items()))
    return _FeedForward(None, tuple(sorted(n for _, mine in widths for n in mine)), (), max(found), widths)


def _experts(fields: Fields) -> Experts | None:
    key = fields.first("n_routed_experts", "num_local_experts", "num_experts")
    if key is None:
        _refuse_other_experts(fields)
    if key is None or fields.value("enable_moe_block") is False or fields.value(key) == 1:
        return None  # Hunyuan's dense models say one expert
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
    return replace(found, shared=shared, shared_width=shared_width, biased=_routes_by_bias(fields))


def _routes_by_bias(fields: Fields) -> bool:
    said = fields.text("topk_method") == "noaux_tc" or bool(fields.value("use_routing_bias"))
    return said or fields.text("model_type") in _BIASED_ROUTERS


def _refuse_other_experts(fields: Fields) -> None:
    """Experts under a name that nobody reads: a mixture counted as a dense model is several times too small."""
    for name, value in fields.unread().items():
        if _SOME_EXPERTS.fullmatch(name) and (isinstance(value, list) or (isinstance(value, int) and value > 1)):
            raise fields.not_understood(name, "(a mixture of experts under a name of its own)")


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
    if isinstance(mixed := fields.value("moe_layers"), list):
        return tuple(n for n in range(layers) if n not in mixed)
    kinds = fields.value("mlp_layer_types")
    if kinds is not None:
        return where(fields.per_layer("mlp_layer_types", layers) or [], "dense")
    if isinstance(fields.value("moe_layer_freq"), list):
        return where(fields.per_layer("moe_layer_freq", layers) or [], 0)
    return _counted_dense(fields, layers, first)


def _counted_dense(fields: Fields, layers: int, first: int) -> tuple[int, ...]:
    step = fields.count("decoder_sparse_step") or fields.count("interleave_moe_layer_step")
    every = fields.count("moe_layer_freq", 1)
    last = fields.value("moe_layer_end_index", -1)
    named = fields.value("mlp_only_layers") or []
    if not isinstance(named, list):
        raise fields.refuse("mlp_only_layers", f"is {named!r}; it must be a list of layer numbers")

    def is_dense(n: int) -> bool:
        if n < first or n in named or 0 <= last < n:
            return True
        return (n + 1) % step != 0 if step else n % every != 0

    return tuple(n for n in range(layers) if is_dense(n))


# Fields that change neither size nor speed: names, tokens, training, initial values, positions, activations.
_HARMLESS = re.compile(
    r"architectures|model_type|auto_map|_name_or_path|transformers_version|torch_dtype|dtype|use_cache|name_or_path|version"
    r"|.*_token_id|.*_token_ids|.*_token_index|.*token_id.*|.*dropout.*|.*_eps|.*epsilon|initializer.*|.*_coef|.*aux_loss.*"
    r"|.*rope.*|.*rotary.*|.*_theta.*|.*scaling.*|pretraining_tp|seq_aux|scoring_func|norm_topk_prob|n_group|topk_group|topk_method"
    r"|hidden_act.*|mlp_hidden_act|mamba_hidden_act|swiglu.*|activation_.*|.*softcapping.*|norm_.*|.*_norm_type|use_gemma_norm"
    r"|output_.*|return_.*|is_.*|id2label|label2id|problem_type|task_.*|tokenizer.*|.*beams?|.*beam_.*|.*penalty|.*_length"
    r"|do_sample|early_stopping|temperature|top_k|top_p|typical_p|.*_tokens|tie_encoder_decoder|torchscript|use_bfloat16|tf_.*"
    r"|pruned_heads|finetuning_task|prefix|cross_attention.*|add_cross_attention|chunk_size.*|bad_words.*|remove_invalid_values"
    r"|.*residual.*|time_step.*|rescale_.*|num_logits_to_keep|use_mamba_kernels|expand|use_conv_bias|use_bias|mlp_bias"
    r"|mamba_proj_bias|ep_size|moe_router.*|router_.*|use_routing_bias|use_moe_router_bias|.*_placeholder|ignore_index"
    r"|max_window_layers|original_max_position_embeddings|use_sliding_window|sliding_window_size|attention_chunk_size"
    r"|.*layernorm_.*|attention_value_scale"
    r"|for_llm_compressor|use_mrope|use_grouped_topk|num_expert_group|moe_renormalize|.*ngram_size|suppress_tokens|num_return_.*"
    r"|use_unified_vision_chunk|unsloth.*|qk_layernorm|use_qk_norm|partial_rotary_factor|no_rope_.*|attn_temperature.*|floor_scale|attn_scale"
    r"|interleave_.*|attn_temperature_tuning|query_pre_attn_scalar|initial_context_length|moe_shared_expert_overlap|index_.*_pattern"
    r"|index_topk_freq|index_skip_topk_offset|index_share.*|num_hash_layers|hc_eps|hc_sinkhorn_iters|vocab_size_per_layer_input"
    r"|use_bidirectional_attention|image_.*|img_.*|vision_.*|multimodal_projector_.*|projector_.*|num_reward_heads|process_image_mode"
    r"|text_config|llm_config|mtp_use_.*|default_theta|boi_.*|eoi_.*|boa_.*|eoa_.*|clip_.*|model_max_length|sep_token.*|head_dim"
    r"|num_key_value_heads|intermediate_size|attn_output_gate|attention_output_gate|qk_head_dim|layer_norm_epsilon|hidden_activation"
    r"|attention_multiplier|embedding_multiplier|logit_scale|cache_implementation|lm_head_bias|.*jitter_noise|full_attn_mod"
    r"|interpolate_factor|spatial_merge_size|mm_tokens_per_image|moe_capacity|moe_gate|moe_use_aux_free|use_rmsnorm|rmsnorm"
    r"|layer_switch|order_of_interleaved_layers|position_embedding.*|use_embedding_sharing|use_gated_activation|use_parallel_.*"
    r"|alibi|parallel_attn|multi_query.*|new_decoder_architecture|bias|attention_softmax_in_fp32|attn_implementation"
    r"|post_layer_norm|attn_pdrop|embd_pdrop|resid_pdrop|_attn_implementation.*|anyres_.*|pool_type|org_vocab_size|(eod|pad|sep|.*_(end|start|init))_id"
    r"|dense_list|cla_share_factor|use_mixed_mlp_moe|num_layers|max_seq_len|norm_expert_weight|need_fp32_gate|att_impl_type|use_head_wise_attn_gate|mla_use_nope|latent_moe_use_norm|moe_layer_offset|moe_every_n_layer|yarn_only_types|use_moe"
    r"|moe_layer_freq|.*sink_bias|full_attention_interval|tie_word_embeddings|expert_intermediate_size|n_groups|q_lora_rank|topk_.*"
)
_FAMILIES = re.compile(
    r"llama|qwen|deepseek|glm|mistral|mixtral|gemma|gpt_?oss|minimax|kimi|nemotron|phi|internlm|mimo|granite|olmo|cohere|falcon|step3|ernie4_5|hunyuan"
)
_DRAFT = ("num_nextn_predict_layers", "num_mtp_modules", "mtp_num_hidden_layers", "mtp_num_layers")
_UNSAID_DRAFT = {"qwen3_next": 1, "mimo_v2_flash": 3}
_DRAFT_SHAPE = re.compile(r"mtp_.*|use_mtp|num_mtp_modules")
# What changes traffic between layers, and next to nothing of the weights.
_RESIDUALS = {
    "hc_mult": "the traffic of several residual streams",
    "attn_res_block_size": "attention over the residuals of earlier layers",
}


def _draft_layers(fields: Fields) -> int:
    """Some checkpoints bring layers of which their config.json says nothing (the model cards: `mtp`)."""
    named = fields.first(*_DRAFT)
    return fields.count(named) if named else _UNSAID_DRAFT.get(fields.text("model_type"), 0)


def _notes(fields: Fields, vision_params: int, drafts: int) -> tuple[str, ...]:
    found: list[str] = []
    if strange_kind := _unknown_kind(fields):
        found.append(f"architecture {strange_kind}: not one we know; sizes and times follow from its fields alone")
    if drafts:
        found.append(
            f"{drafts} multi-token-prediction layer{'s' if drafts != 1 else ''}: not counted; engines load them for "
            "speculative decoding only"
        )
    streams = {name: fields.value(name) for name in _RESIDUALS}
    found += [f"{name} {said}: {_RESIDUALS[name]} is not modelled" for name, said in streams.items() if said]
    if vision_params:
        found.append(f"vision tower: {vision_params / 1e9:.2f}e9 parameters more in memory; its time is not modelled")
    elif fields.value("vision_config"):
        found.append("vision_config: a vision tower that is neither counted nor modelled")
    if fields.value("audio_config"):
        found.append("audio_config: an audio tower that is neither counted nor modelled")
    strange = [name for name, value in fields.unread().items() if _says_something(name, value)]
    if strange:
        found.append(f"not understood and left out: {', '.join(sorted(strange))}")
    return tuple(found)


def _unknown_kind(fields: Fields) -> str:
    """The name of an architecture of no family whose configs were read; empty for the others."""
    listed = fields.value("architectures")
    kind = str(listed[0]) if isinstance(listed, list) and listed else ""
    named = f"{kind} {fields.value('model_type') or ''}".lower()
    return kind if kind and not _FAMILIES.search(named) else ""


def _says_something(name: str, value: Any) -> bool:
    if value in (None, False, 0, "", [], {}):
        return False
    return name not in _DRAFT and not _HARMLESS.fullmatch(name) and not _DRAFT_SHAPE.fullmatch(name)


def vision_params(fields: Fields) -> int:
    """Parameters of a vision tower of the usual kind: attention and a feed-forward part in each layer."""
    tower = fields.value("vision_config")
    if not isinstance(tower, dict):
        return 0

    def of(*names: str) -> int:
        return next((tower[n] for n in names if isinstance(tower.get(n), int)), 0)

    layers = of("depth", "num_hidden_layers", "vt_num_hidden_layers")
    hidden, width = of("hidden_size", "vt_hidden_size"), of("intermediate_size", "vt_intermediate_size")
    if not (layers and hidden and width):
        return 0
    merged = hidden * of("spatial_merge_size") ** 2
    mergers = 1 + len(tower.get("deepstack_visual_indexes") or ())
    outward = mergers * (merged * merged + merged * of("out_hidden_size")) if merged else 0
    # Pixtral and Qwen2.5 gate the feed-forward part with SiLU, the others have GELU and no gate
    matrices = 3 if tower.get("hidden_act") == "silu" else 2
    return layers * (4 * hidden * hidden + matrices * hidden * width) + outward


# families whose feed-forward or attention is none of the kinds below; counting them as dense would be a quiet lie
_UNKNOWN_KINDS = {
    "mamba", "mamba2", "jamba", "rwkv", "bert", "t5", "falcon_mamba", "whisper", "bamba", "granitemoehybrid", "zamba2",
    "falcon_h1", "lfm2", "lfm2_moe", "recurrent_gemma", "plamo2", "xlstm", "electra", "clip",
}  # fmt: skip
# families whose cards leave the embedding table out of the parameters that a token uses
_UNUSED_EMBEDDING = {
    "gpt_oss", "glm4_moe", "qwen3_next", "deepseek_v32", "deepseek_v4", "deepseek_ref", "glm_moe_dsa", "minimax_m2",
    "minimax_m3", "minimax_m3_vl", "nemotron_h", "step3_text", "step3p5", "kimi_linear",
}  # fmt: skip
# families whose routers add a bias of each expert to its score, whatever their configs say of it
_BIASED_ROUTERS = {
    "deepseek_v3", "deepseek_v32", "deepseek_v4", "kimi_k2", "glm4_moe", "glm4_moe_lite", "glm_moe_dsa", "minimax_m2",
    "minimax_m3", "minimax_m3_vl", "nemotron_h", "step3p5",
}  # fmt: skip
_QK_NORM = ("qwen3", "gemma3", "gemma4")  # families that norm queries and keys and say so nowhere
_REFUSED_FIELDS = {
    "altup_num_inputs": "several residual streams, and layers that skip most of their weights",
    "use_cla": "layers that use another layer's cache",
    "parallel_attn_mlp_res": "a dense part beside the experts",
    "cross_attention_layers": "layers that attend to a picture instead of the text",
}


# Other names that tables of measurements use for a preset.
_ALSO = {
    "deepseek-v2-lite-16b": "deepseek-v2-lite",
    "deepseek-r1-671b": "deepseek-r1",
    "deepseek-v3-671b": "deepseek-v3",
    "llama-3.1-8b": "llama-8b",
    "llama-3.1-70b": "llama-70b",
    "llama-3.1-405b": "llama-405b",
    "llama-4-scout-17b-16e": "llama-4-scout",
    "kimi-k2-instruct": "kimi-k2",
    "nemotron-3-nano": "nemotron-3-nano-30b-a3b",
    "nemotron-3-super": "nemotron-3-super-120b-a12b",
    "nemotron-3-ultra": "nemotron-3-ultra-550b-a55b",
    "qwen3-next": "qwen3-next-80b-a3b",
}
# Other models of a preset's shape, and how that is known.
_SIZES = "no difference in what is counted here is known; give its config.json to be sure"
_CARD = "its model card says that they share one architecture"
_SHAPE_OF = {
    "llama-3.3-70b": ("llama-70b", _SIZES),
    "deepseek-v3.1": ("deepseek-v3", _SIZES),
    "glm-4.6": ("glm-4.5", _SIZES),
    "glm-5.1": ("glm-5", _SIZES),
    "glm-5.3": ("glm-5.2", _SIZES),
    "kimi-k2.6": ("kimi-k2.5", _SIZES),
    "kimi-k2.7": ("kimi-k2.5", _CARD),
    "kimi-k2.7-code": ("kimi-k2.5", _CARD),
    "minimax-m2": ("minimax-m2.5", _SIZES),
    "qwen3.5-27b": ("qwen3.6-27b", _SIZES),
    "qwen3.5-35b-a3b": ("qwen3.6-35b-a3b", _SIZES),
    "qwen3.8-27b": ("qwen3.6-27b", "its config.json repeats that one's"),
}


# What hubs add to a model's name without changing anything that is counted here. Dates are not among them but for
# DeepSeek's: a later Qwen3 of the same name has six times the context.
_SAME_MODEL = re.compile(r"-(instruct|chat|it|hf|bf16|0528|0324)$|^(meta|nvidia)-")
_DTYPE_NAMES = {"-fp8": "fp8", "-mxfp8": "fp8", "-nvfp4": "fp4", "-fp4": "fp4", "-mxfp4": "mxfp4"}
# Whose NAME-FP8 has one scale for 128 x 128 weights, by their config.json; of others we do not know.
_FP8_BLOCKS = re.compile(r"qwen/qwen3|zai-org/glm-5|sgl-project/deepseek-v4")


def _hub_model(name: str, known: Sequence[str]) -> Model | None:
    """The preset that a hub's ORG/NAME means: Llama-3.1-8B-Instruct is llama-8b, NAME-FP8 its weights in FP8."""
    shorter, dtype = name.rpartition("/")[2], None
    while shorter not in (*known, *_ALSO, *_SHAPE_OF):
        ending = next((e for e in _DTYPE_NAMES if shorter.endswith(e)), "")
        dtype, before = _DTYPE_NAMES.get(ending, dtype), shorter
        shorter = _SAME_MODEL.sub("", shorter.removesuffix(ending))
        if shorter == before:
            return None
    model = load_model(shorter).with_dtype(dtype)
    return replace(model, weight_block=128) if dtype == "fp8" and _FP8_BLOCKS.match(name) else model


def load_model(name_or_path: str) -> Model:
    """A preset by name, or any local config.json, or a folder that holds one.

    A preset's name is the preset, whatever lies in the working folder; a file of that name is ./NAME. Where no file is
    there, ORG/NAME of a hub is the preset of that name, with or without what hubs add to it (-Instruct, -FP8).
    """
    name = _ALSO.get(name_or_path.lower(), name_or_path.lower())
    known = preset_names()
    if name in _SHAPE_OF:
        preset, why = _SHAPE_OF[name]
        return replace(load_model(preset), assumed=(f"{name} has the shape of preset {preset}: {why}",))
    if name in known:
        return model_from_config(json.loads((PRESETS / f"{name}.json").read_text()), name=name, source=f"preset {name}")
    path = Path(name_or_path).expanduser()
    # os.path, because pathlib raises for names no file can have
    if os.path.isdir(path):  # noqa: PTH112
        adapter = path / "adapter_config.json"
        path = path / "config.json"
        path = adapter if adapter.is_file() and not path.exists() else path
    if path.suffix == ".json" or os.path.exists(path):  # noqa: PTH110
        model = model_from_config(_with_sidecar(path), name=_name_of(path), source=str(path))
        return replace(model, folder=str(path.resolve().parent) if _has_weights(path.parent) else "")
    if (known_model := _hub_model(name, known)) is not None:
        return known_model
    short = name.rpartition("/")[2]
    longer = [preset for preset in known if short and preset.startswith(short)]
    hint = f"did you mean {' or '.join(longer)}?" if longer else did_you_mean(short, known, likeness=0.5)
    raise InputError(
        f"model {name_or_path!r} is neither a preset nor a config.json on this machine; {hint}{' ' if hint else ''}"
        f"presets: {', '.join(known)}"
    )


def _has_weights(folder: Path) -> bool:
    return any(next(folder.glob(pattern), None) for pattern in ("*.safetensors", "pytorch_model*.bin"))


def config_text(name_or_path: str) -> str:
    """The config.json of a model that is no preset, in one line, with the dtypes that a file beside it says; empty
    where it cannot be read here."""
    path = Path(name_or_path).expanduser()
    try:
        if name_or_path.lower() in preset_names() or not path.exists():
            return ""
        return json.dumps(_with_sidecar(path / "config.json" if path.is_dir() else path))
    except (InputError, OSError):
        return ""


def model_from_text(text: str, path: str) -> Model:
    """From what `config_text` gave, wherever that file is now."""
    try:
        config = json.loads(text)
    except ValueError:
        config = None
    if not isinstance(config, dict):
        raise InputError(f"{path}: what was recorded of it is no config.json")
    file = Path(path) if path.endswith(".json") else Path(path) / "config.json"
    return model_from_config(config, name=_name_of(file), source=path)


def _with_sidecar(path: Path) -> Mapping[str, Any]:
    """A config, and what hf_quant_config.json beside it says: older ModelOpt checkpoints keep their dtypes there."""
    config = read_config(path)
    if "peft_type" in config:
        raise _an_adapter(path, config)
    beside = path.with_name(path.name.replace("config.json", "hf_quant_config.json"))
    if config.get("quantization_config") or beside == path or not beside.is_file():
        return config
    quant = read_config(beside).get("quantization")
    return (
        {**config, "quantization_config": {"quant_method": "modelopt", **quant}} if isinstance(quant, dict) else config
    )


def _an_adapter(path: Path, config: Mapping[str, Any]) -> InputError:
    base = config.get("base_model_name_or_path")
    of, instead = (f" of {base}", f"{base}, or its config.json") if base else ("", "the config.json of its base model")
    return InputError(f"{path}: an adapter ({config['peft_type']}){of}, not a model; give {instead}")


def _name_of(path: Path) -> str:
    return path.resolve().parent.name if path.name == "config.json" else path.stem


def read_config(path: Path) -> Mapping[str, Any]:
    try:
        text = path.read_text()
        if not text.strip():
            raise InputError(f"{path}: the file is empty; get the model's own config.json again")
        config = json.loads(text)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; give a preset name or the path of a config.json") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(f"{path}: not readable as JSON ({error}); give the model's own config.json") from None
    if not isinstance(config, dict):
        raise InputError(f"{path}: holds a {type(config).__name__}, not an object; give the model's own config.json")
    return config


def model_from_config(config: Mapping[str, Any], *, name: str, source: str) -> Model:
    """A model of this shape. What cannot be counted is refused by field; what is left out is in the model's notes."""
    fields = Fields(in_usual_names(config), source)
    _refuse_kinds(fields)
    listed = fields.value("layers_block_type")
    blocks = len(listed) if isinstance(listed, list) else None
    depth = () if blocks else ("num_hidden_layers",)
    fields.need("hidden_size", *depth, "num_attention_heads", "vocab_size")
    layers = fields.positive("num_hidden_layers", blocks)
    attention, mixers = read_mixers(fields, layers)
    if not any(isinstance(mixer.kind, LinearAttention) for mixer in mixers):
        _refuse_other_states(fields)
    ffn = _read_feed_forward(fields, layers)
    dtypes = _read_dtypes(fields)
    seen, drafts = vision_params(fields), _draft_layers(fields)
    model = Model(
        name=name,
        layers=layers,
        hidden=fields.positive("hidden_size"),
        vocab=fields.positive("vocab_size"),
        attention=attention,
        ffn_width=ffn.width,
        experts=ffn.experts,
        dense_layers=ffn.dense_layers,
        context_tokens=fields.positive("max_position_embeddings", default=4096),
        dtype=dtypes.dense,
        base_dtype=dtypes.base,
        kv_dtype=dtypes.kv,
        tied_embeddings=bool(fields.value("tie_word_embeddings", tied_unless_said(fields.text("model_type")))),
        qk_norm=fields.text("model_type").startswith(_QK_NORM) or bool(fields.value("use_qk_norm")),
        mixers=mixers,
        moe_layers_only=ffn.moe_layers,
        ffn_widths=ffn.widths,
        ffn_gated=ffn.gated,
        layer_input=fields.count("hidden_size_per_layer_input"),
        layer_input_vocab=fields.count("vocab_size_per_layer_input", fields.positive("vocab_size")),
        draft_layers=drafts,
        attention_dtype=dtypes.attention if dtypes.attention != dtypes.dense else "",
        expert_dtype=dtypes.experts if dtypes.experts != dtypes.dense and ffn.experts is not None else "",
        attention_sinks=fields.text("model_type") == "gpt_oss",
        weight_block=_weight_block(fields),
        vision_params=seen,
        embedding_used=fields.text("model_type") not in _UNUSED_EMBEDDING,
        own_code=bool(fields.value("auto_map")),
    )
    return replace(model, notes=_notes(fields, seen, drafts))


def _refuse_kinds(fields: Fields) -> None:
    kind = fields.text("model_type")
    if kind in _UNKNOWN_KINDS or "bert" in kind or fields.value("is_encoder_decoder"):
        raise fields.refuse(
            "model_type",
            f"{kind} is not a decoder-only transformer that we can count; we know the shapes of Llama, Qwen, Gemma, "
            f"Mixtral, DeepSeek, GLM, gpt-oss, MiniMax and Nemotron; {MEASURE_IT}",
        )
    for name, why in _REFUSED_FIELDS.items():
        if fields.value(name):
            raise fields.not_understood(name, f"({why})")


def _refuse_other_states(fields: Fields) -> None:
    """Layers that keep a state, in fields that nobody reads: counted as attention, they would need far more memory."""
    for name, value in fields.unread().items():
        if value and re.match(r"mamba_|ssm_|rwkv_|lru_", name):
            raise fields.not_understood(name, "(layers that keep a state)")
