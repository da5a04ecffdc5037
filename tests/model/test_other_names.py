"""Configs in the words of other families: counted as published, or refused by field with what to do instead."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ridgeline.errors import InputError
from ridgeline.serving.model.config import load_model, model_from_config
from ridgeline.serving.model.model import Model

# each as it is published, less what changes no size
GEMMA_3 = {
    "architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "mm_tokens_per_image": 256,
    "text_config": {
        "head_dim": 128, "hidden_size": 5376, "intermediate_size": 21504, "model_type": "gemma3_text",
        "num_attention_heads": 32, "num_hidden_layers": 62, "num_key_value_heads": 16, "query_pre_attn_scalar": 168,
        "sliding_window": 1024, "sliding_window_pattern": 6,
    },
}  # fmt: skip
GEMMA_3_SMALL = {
    "model_type": "gemma3",
    "text_config": {
        "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34,
        "sliding_window": 1024,
    },
}  # fmt: skip
STEP_3 = {
    "model_type": "step3_vl",
    "text_config": {
        "hidden_size": 7168, "intermediate_size": 18432, "num_attention_heads": 64, "num_attention_groups": 1,
        "num_hidden_layers": 61, "max_seq_len": 65536, "vocab_size": 128815, "moe_intermediate_size": 5120,
        "moe_num_experts": 48, "moe_top_k": 3, "share_expert_dim": 5120, "share_q_dim": 2048, "head_dim": 256,
        "norm_expert_weight": False, "moe_layers_enum": ",".join(map(str, range(4, 60))), "model_type": "step3_text",
    },
}  # fmt: skip
STEP_3_5 = {
    "model_type": "step3p5", "hidden_size": 4096, "intermediate_size": 11264, "num_hidden_layers": 45,
    "num_attention_heads": 64, "num_attention_groups": 8, "head_dim": 128, "max_position_embeddings": 262144,
    "vocab_size": 128896, "moe_num_experts": 288, "moe_top_k": 8, "moe_intermediate_size": 1280,
    "share_expert_dim": 1280, "moe_layers_enum": ",".join(map(str, range(3, 45))), "sliding_window": 512,
    "layer_types": ["sliding_attention" if n % 4 else "full_attention" for n in range(45)],
    "attention_other_setting": {
        "attention_type": "sliding_attention", "num_attention_heads": 96, "num_attention_groups": 8, "head_dim": 128,
    },
}  # fmt: skip
QWEN = {
    "model_type": "qwen", "hidden_size": 4096, "intermediate_size": 22016, "kv_channels": 128, "num_hidden_layers": 32,
    "num_attention_heads": 32, "seq_length": 8192, "tie_word_embeddings": False, "vocab_size": 151936,
}  # fmt: skip
MINICPM = {
    "model_type": "minicpm3", "hidden_size": 2560, "intermediate_size": 6400, "num_hidden_layers": 62,
    "num_attention_heads": 40, "num_key_value_heads": 40, "q_lora_rank": 768, "kv_lora_rank": 256,
    "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64, "vocab_size": 73448,
}  # fmt: skip
LLAVA = {
    "model_type": "llava",
    "text_config": {"model_type": "llama", "max_position_embeddings": 4096, "vocab_size": 32064},
}  # fmt: skip
FALCON = {
    "alibi": False, "architectures": ["FalconForCausalLM"], "bias": False, "hidden_size": 8192, "model_type": "falcon",
    "new_decoder_architecture": True, "num_attention_heads": 128, "num_hidden_layers": 60, "num_kv_heads": 8,
    "parallel_attn": True, "vocab_size": 65024,
}  # fmt: skip
FALCON_SMALL = {
    **FALCON, "hidden_size": 4544, "multi_query": True, "new_decoder_architecture": False, "num_attention_heads": 71,
    "num_hidden_layers": 32, "num_kv_heads": 71,
}  # fmt: skip
GLM_4 = {
    "model_type": "chatglm", "architectures": ["ChatGLMModel"], "add_bias_linear": False, "add_qkv_bias": True,
    "ffn_hidden_size": 13696, "hidden_size": 4096, "kv_channels": 128, "multi_query_attention": True,
    "multi_query_group_num": 2, "num_attention_heads": 32, "num_layers": 40, "padded_vocab_size": 151552,
    "post_layer_norm": True, "rmsnorm": True, "seq_length": 131072, "tie_word_embeddings": False,
}  # fmt: skip
COMMAND_R = {
    "architectures": ["CohereForCausalLM"], "hidden_act": "silu", "hidden_size": 8192, "intermediate_size": 22528,
    "logit_scale": 0.0625, "max_position_embeddings": 8192, "model_max_length": 131072, "model_type": "cohere",
    "num_attention_heads": 64, "num_hidden_layers": 40, "num_key_value_heads": 64, "vocab_size": 256000,
}  # fmt: skip
ERNIE = {
    "architectures": ["Ernie4_5_MoeForCausalLM"], "hidden_act": "silu", "hidden_size": 2560, "intermediate_size": 12288,
    "max_position_embeddings": 131072, "model_type": "ernie4_5_moe", "num_attention_heads": 20,
    "num_key_value_heads": 4, "num_hidden_layers": 28, "vocab_size": 103424, "tie_word_embeddings": True,
    "moe_num_experts": 64, "moe_num_shared_experts": 2, "moe_layer_start_index": 1, "moe_layer_end_index": 27,
    "moe_layer_interval": 1, "moe_capacity": [64, 64, 64], "moe_gate": "topk", "moe_intermediate_size": 1536,
    "moe_k": 6, "moe_use_aux_free": True,
}  # fmt: skip
HUNYUAN = {
    "architectures": ["HunYuanMoEV1ForCausalLM"], "attention_head_dim": 128, "hidden_act": "silu", "hidden_size": 4096,
    "intermediate_size": 3072, "max_position_embeddings": 32768, "model_type": "hunyuan_v1_moe",
    "moe_intermediate_size": [3072] * 32, "moe_topk": [8] * 32, "num_attention_heads": 32, "num_experts": 64,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "num_shared_expert": [1] * 32, "tie_word_embeddings": True,
    "use_cla": False, "cla_share_factor": 2, "use_mixed_mlp_moe": True, "use_qk_norm": True, "vocab_size": 128167,
}  # fmt: skip
HUNYUAN_DENSE = {
    "architectures": ["HunYuanDenseV1ForCausalLM"], "head_dim": 128, "hidden_size": 4096, "intermediate_size": 14336,
    "max_position_embeddings": 32768, "model_type": "hunyuan_v1_dense", "num_attention_heads": 32, "num_experts": 1,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "tie_word_embeddings": True, "vocab_size": 128167,
}  # fmt: skip
STARCODER = {
    "hidden_act": "gelu_pytorch_tanh", "hidden_size": 6144, "intermediate_size": 24576, "mlp_type": "default",
    "max_position_embeddings": 16384, "model_type": "starcoder2", "num_attention_heads": 48, "num_hidden_layers": 40,
    "num_key_value_heads": 4, "vocab_size": 49152,
}  # fmt: skip
MAVERICK = {
    "model_type": "llama4",
    "text_config": {
        "attention_chunk_size": 8192, "head_dim": 128, "hidden_size": 5120, "interleave_moe_layer_step": 2,
        "intermediate_size": 8192, "intermediate_size_mlp": 16384, "max_position_embeddings": 1048576,
        "model_type": "llama4_text", "moe_layers": list(range(1, 48, 2)), "no_rope_layers": [1, 1, 1, 0] * 12,
        "num_attention_heads": 40, "num_experts_per_tok": 1, "num_hidden_layers": 48, "num_key_value_heads": 8,
        "num_local_experts": 128, "vocab_size": 202048,
    },
}  # fmt: skip


def read(config: dict[str, Any]) -> Model:
    return model_from_config(config, name="x", source="x.json")


@pytest.mark.parametrize(
    ("config", "total", "active", "kv"),
    [
        (GEMMA_3, 27.0e9, 27.0e9, 10 * 2 * 16 * 128 * 2),
        (GEMMA_3_SMALL, 3.88e9, 3.88e9, 5 * 2 * 4 * 256 * 2),
        (STEP_3, 316e9, 38e9, 61 * 2 * 256 * 2),
        (STEP_3_5, 196.8e9, 11.44e9, 12 * 2 * 8 * 128 * 2),
        (QWEN, 7.72e9, 7.72e9, 32 * 2 * 32 * 128 * 2),
        (MINICPM, 4.07e9, 4.07e9, 62 * (256 + 32) * 2),
        (LLAVA, 6.74e9, 6.74e9, 32 * 2 * 32 * 128 * 2),
        # cards say 41.8e9 and 7.22e9: files hold the table twice, engines load it once
        (FALCON, 41.3e9, 41.3e9, 60 * 2 * 8 * 64 * 2),
        (FALCON_SMALL, 6.92e9, 6.92e9, 32 * 2 * 64 * 2),
        (GLM_4, 9.40e9, 9.40e9, 40 * 2 * 2 * 128 * 2),
        (COMMAND_R, 34.98e9, 34.98e9, 40 * 2 * 64 * 128 * 2),
        (ERNIE, 21.8e9, 3.35e9, 28 * 2 * 4 * 128 * 2),
        (HUNYUAN, 80.4e9, 12.75e9, 32 * 2 * 8 * 128 * 2),
        (HUNYUAN_DENSE, 7.50e9, 7.50e9, 32 * 2 * 8 * 128 * 2),
        (STARCODER, 15.96e9, 15.96e9, 40 * 2 * 4 * 128 * 2),
        (MAVERICK, 400.7e9, 17.2e9, 12 * 2 * 8 * 128 * 2),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else "",
)
def test_families_are_counted_as_published(config: dict[str, Any], total: float, active: float, kv: float) -> None:
    model = read(config)
    assert model.params == pytest.approx(total, rel=0.005)
    assert model.active_params == pytest.approx(active, rel=0.01)
    assert model.kv_bytes_per_token == kv
    assert not any("not understood" in note for note in model.notes)


def test_the_context_is_what_engines_serve() -> None:
    assert read(COMMAND_R).context_tokens == 131_072
    assert read(GLM_4).context_tokens == 131_072
    assert read(FALCON).context_tokens == 2048
    assert read(GEMMA_3).context_tokens == 131_072


def test_layers_after_the_last_mixture_are_dense() -> None:
    assert read({**ERNIE, "moe_layer_end_index": 20}).moe_layers == tuple(range(1, 21))
    assert read({**ERNIE, "moe_layer_end_index": -1}).moe_layers == tuple(range(1, 28))
    assert read({**ERNIE, "moe_layer_interval": 2}).moe_layers == tuple(range(1, 28, 2))


def test_a_language_half_may_lie_two_levels_down() -> None:
    inner = {"thinker_config": {"model_type": "thinker", "text_config": GEMMA_3["text_config"]}}
    assert read({"model_type": "omni", **inner}).params == read(GEMMA_3).params


def test_vision_towers_with_silu_have_a_gate() -> None:
    tower = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2}
    plain, gated = (read({**GLM_4, "vision_config": {**tower, "hidden_act": act}}) for act in ("gelu", "silu"))
    assert gated.vision_params - plain.vision_params == 2 * 8 * 16


@pytest.mark.parametrize(
    ("quant", "dtype"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False}, "int4"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": False, "load_in_8bit": True}, "int8"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, "int4"),
        ({"quant_method": "gptq", "bits": 8}, "int8"),
        ({"quant_method": "awq", "bits": 4, "modules_to_not_convert": None}, "int4"),
        ({"quant_method": "auto-round", "bits": 4}, "int4"),
        ({"quant_method": "fbgemm_fp8", "modules_to_not_convert": ["model.layers.0.self_attn.q_proj"]}, "fp8"),
    ],
)
def test_the_bits_of_a_checkpoint(quant: dict[str, Any], dtype: str) -> None:
    assert read({**GLM_4, "quantization_config": quant}).weights_dtype == dtype


def test_older_checkpoints_call_their_dtypes_otherwise() -> None:
    group = {"weights": {"num_bits": 8, "type": "int"}}
    older = {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}, "ignore": ["lm_head"]}
    assert read({**GLM_4, "compression_config": older}).dtype == "int8"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"dispatch_num_experts": 64}, "dispatch_num_experts (a mixture of experts under a name of its own)"),
        ({"use_cla": True}, "use_cla (layers that use another layer's cache) is not understood"),
        ({"model_type": "jamba"}, "model_type jamba is not a decoder-only transformer"),
        ({"model_type": "recurrent_gemma"}, "model_type recurrent_gemma is not"),
        ({"model_type": "xlm-roberta"}, "model_type xlm-roberta is not"),
        ({"model_type": "t5gemma", "is_encoder_decoder": True}, "model_type t5gemma is not"),
        ({"model_type": "new_hybrid", "mamba_d_state": 16}, "mamba_d_state (layers that keep a state)"),
        ({"parallel_attn_mlp_res": True}, "parallel_attn_mlp_res (a dense part beside the experts)"),
        ({"cross_attention_layers": [3, 8]}, "cross_attention_layers (layers that attend to a picture"),
        ({"layer_types": ["hyena"] * 40}, "layer_types 'hyena' is not understood"),
    ],
)
def test_a_refusal_says_what_can_be_done_instead(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as error:
        read({**GLM_4, **fields})
    assert words in str(error.value)
    assert str(error.value).endswith("; measure a server that runs it instead (`ridgeline bench --help`)")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"num_layers": "40"}, "is '40'; it must be a whole number above zero: write 40 without quotes"),
        ({"padded_vocab_size": None}, "vocab_size missing; "),
        ({"quantization_config": {"quant_method": "gptq", "bits": 3}}, "weights of 3 bits; only 4 and 8 are known: "),
    ],
)
def test_wrong_fields_are_named_with_a_remedy(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as error:
        read({**GLM_4, **fields})
    assert words in str(error.value)
    assert len(str(error.value)) < 260, "no list of everything there is"


def test_a_list_that_differs_from_layer_to_layer_is_refused() -> None:
    with pytest.raises(InputError, match="whole number"):
        read({**HUNYUAN, "moe_intermediate_size": [3072] * 31 + [1024]})


@pytest.mark.parametrize("given", ["", "adapter_config.json"])
def test_an_adapter_is_told_from_a_model(tmp_path: Path, given: str) -> None:
    adapter = {"peft_type": "LORA", "base_model_name_or_path": "meta-llama/Llama-3.1-8B-Instruct", "r": 16}
    (tmp_path / "adapter_config.json").write_text(json.dumps(adapter))
    with pytest.raises(InputError, match=r"an adapter \(LORA\) of meta-llama/.*; give meta-llama/Llama"):
        load_model(str(tmp_path / given))


def test_an_empty_file_is_called_empty(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("\n")
    with pytest.raises(InputError, match="the file is empty; get"):
        load_model(str(tmp_path))
