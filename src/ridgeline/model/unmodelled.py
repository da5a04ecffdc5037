"""What a config says and no figure of ours contains, in words: nothing is dropped in silence."""

from __future__ import annotations

import re
from typing import Any

from ridgeline.model.fields import Fields

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
    r"|max_window_layers|use_sliding_window|sliding_window_size|attention_chunk_size|.*layernorm_.*|attention_value_scale"
    r"|for_llm_compressor|use_mrope|use_grouped_topk|num_expert_group|moe_renormalize|.*ngram_size|suppress_tokens|num_return_.*"
    r"|use_unified_vision_chunk|unsloth.*|qk_layernorm|use_qk_norm|partial_rotary_factor|no_rope_.*|attn_temperature.*|floor_scale|attn_scale"
    r"|interleave_.*|attn_temperature_tuning|query_pre_attn_scalar|initial_context_length|moe_shared_expert_overlap|index_.*_pattern"
    r"|index_topk_freq|index_skip_topk_offset|index_share.*|num_hash_layers|hc_eps|hc_sinkhorn_iters|vocab_size_per_layer_input"
    r"|use_bidirectional_attention|image_.*|img_.*|vision_.*|multimodal_projector_.*|projector_.*|num_reward_heads|process_image_mode"
    r"|text_config|llm_config|mtp_use_.*|default_theta|boi_.*|eoi_.*|boa_.*|eoa_.*|clip_.*|model_max_length|sep_token.*|head_dim"
    r"|num_key_value_heads|intermediate_size|attn_output_gate|attention_output_gate|qk_head_dim|layer_norm_epsilon|hidden_activation"
    r"|moe_layer_freq|.*sink_bias|full_attention_interval|tie_word_embeddings|expert_intermediate_size|n_groups|q_lora_rank|topk_.*"
)
_FAMILIES = re.compile(
    r"llama|qwen|deepseek|glm|mistral|mixtral|gemma|gpt_?oss|minimax|kimi|nemotron|phi|internlm|mimo|granite|olmo|cohere|falcon|step3"
)
_DRAFT = ("num_nextn_predict_layers", "num_mtp_modules", "mtp_num_hidden_layers", "mtp_num_layers")
_DRAFT_SHAPE = re.compile(r"mtp_.*|use_mtp|num_mtp_modules")


def notes(fields: Fields, vision_params: int) -> tuple[str, ...]:
    found: list[str] = []
    if strange_kind := _unknown_kind(fields):
        found.append(f"architecture {strange_kind}: not one we know; sizes and times follow from its fields alone")
    unread = fields.unread()
    drafts = next((unread[name] for name in _DRAFT if unread.get(name)), 0)
    if drafts:
        found.append(
            f"{drafts} multi-token-prediction layer{'s' if drafts != 1 else ''}: not counted; engines load them for "
            "speculative decoding only"
        )
    if fields.value("hc_mult"):
        found.append(f"hc_mult {fields.value('hc_mult')}: the traffic of several residual streams is not modelled")
    if vision_params:
        found.append(f"vision tower: {vision_params / 1e9:.2f}e9 parameters more in memory; its time is not modelled")
    elif fields.value("vision_config"):
        found.append("vision_config: a vision tower that is neither counted nor modelled")
    if fields.value("audio_config"):
        found.append("audio_config: an audio tower that is neither counted nor modelled")
    strange = [name for name, value in unread.items() if _says_something(name, value)]
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
    """Parameters of a vision tower of the usual kind: attention and an ungated feed-forward part in each layer."""
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
    return layers * (4 * hidden * hidden + 2 * hidden * width) + outward
