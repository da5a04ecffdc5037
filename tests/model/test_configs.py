"""Families of config.json: every kind of layer is counted by a formula of its own, or its field is refused by name."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from ridgeline.errors import InputError
from ridgeline.serving.model.config import load_model, model_from_config, model_from_text
from ridgeline.serving.model.model import Model

PLAIN = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 8,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 100,
    "max_position_embeddings": 4096,
}  # fmt: skip
HEADS = 2 * (64 * 4 * 16) + 2 * (64 * 2 * 16)  # q and o, k and v
FFN = 3 * 64 * 128
LINEAR = {
    "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
}  # fmt: skip


def read(**fields: Any) -> Model:
    return model_from_config({**PLAIN, **fields}, name="x", source="x.json")


def weights(model: Model) -> int:
    """Everything but the tables of the vocabulary, norms and biases."""
    return sum(m.params for m in model.matrices if m.part not in ("embedding", "lm_head", "norm"))


def test_windowed_layers_keep_a_window_and_the_others_everything() -> None:
    model = read(layer_types=["sliding_attention", "full_attention"] * 4, sliding_window=128)
    token = 2 * 2 * 16 * 2
    assert model.kv_bytes_per_token == 4 * token
    assert model.window_kv == ((128, 4 * token),)
    assert model.cache_bytes(1000) == 1000 * 4 * token + 128 * 4 * token
    assert model.cache_bytes(100) == 100 * 8 * token
    assert weights(model) == 8 * (HEADS + FFN)


@pytest.mark.parametrize(
    ("fields", "windowed"),
    [
        ({"model_type": "mistral", "sliding_window": 512}, 8),
        ({"model_type": "qwen2", "sliding_window": 512, "use_sliding_window": False}, 0),
        ({"model_type": "qwen2", "sliding_window": 512, "use_sliding_window": True, "max_window_layers": 6}, 2),
        ({"model_type": "gemma3_text", "sliding_window": 512, "sliding_window_pattern": 4}, 6),
        ({"model_type": "mistral", "sliding_window": 4096}, 0),  # as wide as the context
    ],
)
def test_a_window_is_read_however_the_family_says_it(fields: dict[str, Any], windowed: int) -> None:
    model = read(**fields)
    assert sum(len(m.layers) for m in model.all_mixers if m.kind.window) == windowed


def test_linear_layers_keep_a_state_and_no_cache() -> None:
    model = read(model_type="qwen3_5_text", full_attention_interval=4, **LINEAR)
    assert model.kv_bytes_per_token == 2 * (2 * 2 * 16) * 2
    channels = 2 * 2 * 8 + 4 * 16
    assert model.state_bytes_per_request == 6 * (4 * 8 * 16 * 4 + channels * 3 * 2)
    inputs = channels + 4 * 16 + 2 * 4
    assert weights(model) == 2 * HEADS + 6 * (64 * inputs + 4 * 16 * 64) + 8 * FFN


def test_a_gate_doubles_the_queries() -> None:
    assert weights(read(attn_output_gate=True)) - weights(read()) == 8 * 64 * 4 * 16


def test_mamba_hybrids_have_one_part_in_each_block() -> None:
    model = read(
        model_type="nemotron_h", hybrid_override_pattern="M-M*E-ME", mamba_num_heads=4, mamba_head_dim=8,
        ssm_state_size=16, n_groups=2, conv_kernel=4, mlp_hidden_act="relu2", n_routed_experts=4, num_experts_per_tok=2,
        moe_intermediate_size=32, n_shared_experts=1, moe_shared_expert_intermediate_size=48, moe_latent_size=16,
    )  # fmt: skip
    mamba = 64 * (2 * 32 + 2 * 2 * 16 + 4) + 32 * 64
    experts = 4 * 2 * 16 * 32 + 2 * 64 * 48 + 64 * 4 + 2 * 64 * 16
    assert weights(model) == 3 * mamba + HEADS + 2 * 2 * 64 * 128 + 2 * experts
    assert model.kv_bytes_per_token == 2 * 2 * 16 * 2
    assert model.state_bytes_per_request == 3 * (4 * 8 * 16 * 4 + (32 + 64) * 3 * 2)
    assert model.half_layers == 8


def test_sparse_attention_keeps_an_indexer_and_reads_what_it_picks() -> None:
    latent = {"kv_lora_rank": 32, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8, "q_lora_rank": 16}
    dense = read(model_type="deepseek_v32", **latent)
    sparse = read(model_type="deepseek_v32", index_topk=256, index_n_heads=2, index_head_dim=8, **latent)
    assert sparse.kv_bytes_per_token == dense.kv_bytes_per_token + 8 * (8 + 4)
    assert weights(sparse) - weights(dense) == 8 * (16 * 2 * 8 + 64 * (8 + 2))
    # twice the context costs the scan of the indexer alone
    more = sparse.decode_flops(2000) - sparse.decode_flops(1000)
    assert more == 8 * 1000 * 2 * 2 * 8
    assert dense.decode_flops(2000) - dense.decode_flops(1000) > 10 * more


def test_shared_indexers_are_counted_once() -> None:
    fields = {"index_topk": 256, "index_n_heads": 2, "index_head_dim": 8}
    whole, shared = read(**fields), read(indexer_types=["full", "shared"] * 4, **fields)
    assert weights(shared) == weights(whole) - 4 * (64 * 2 * 8 + 64 * (8 + 2))


def test_compressed_attention_keeps_an_entry_for_several_tokens_and_a_window() -> None:
    model = read(
        model_type="deepseek_v4", compress_ratios=[0, 4, 128, 4, 0, 4, 128, 4, 0], num_key_value_heads=1, head_dim=32,
        q_lora_rank=16, o_lora_rank=8, o_groups=2, qk_rope_head_dim=8, sliding_window=128, index_topk=64,
        index_n_heads=2, index_head_dim=8,
    )  # fmt: skip
    assert model.kv_bytes_per_token == pytest.approx(4 * (32 * 2 + 12) / 4 + 2 * 32 * 2 / 128)
    assert model.window_kv == ((128, 8 * 32 * 2),)


def test_chunked_attention_sees_everything_in_each_fourth_layer() -> None:
    model = read(
        model_type="llama4_text", attention_chunk_size=1024, num_local_experts=4, num_experts_per_tok=1,
        interleave_moe_layer_step=2, intermediate_size_mlp=256,
    )  # fmt: skip
    assert model.kv_bytes_per_token == 2 * (2 * 2 * 16 * 2)
    assert model.window_kv[0][0] == 1024
    assert model.moe_layers == (1, 3, 5, 7)
    # every mixture has a shared expert as wide as the others
    assert weights(model) == 8 * HEADS + 4 * 3 * 64 * 256 + 4 * (5 * FFN + 64 * 4)


def test_two_kinds_of_heads() -> None:
    model = read(
        model_type="mimo_v2_flash", hybrid_layer_pattern=[0, 1] * 4, sliding_window=128, swa_num_key_value_heads=4,
        v_head_dim=8, swa_v_head_dim=8,
    )  # fmt: skip
    assert model.kv_bytes_per_token == 4 * 2 * (16 + 8) * 2
    assert model.window_kv == ((128, 4 * 4 * (16 + 8) * 2),)


def test_full_layers_with_heads_of_their_own() -> None:
    model = read(
        model_type="gemma4_text", layer_types=["sliding_attention"] * 7 + ["full_attention"], sliding_window=128,
        global_head_dim=32, num_global_key_value_heads=1, attention_k_eq_v=True,
    )  # fmt: skip
    assert model.kv_bytes_per_token == 2 * 32 * 2
    full = 2 * 64 * 4 * 32 + 64 * 32  # keys and values are one projection
    assert weights(model) == 7 * HEADS + full + 8 * FFN
    assert model.tied_embeddings


def test_layers_of_different_widths_and_without_attention() -> None:
    head = {"n_heads_in_group": 2, "no_op": False}
    none = {"n_heads_in_group": None, "no_op": True}
    blocks = [{"attention": head, "ffn": {"ffn_mult": 12.0}}, {"attention": none, "ffn": {"ffn_mult": 24.0}}] * 4
    model = read(model_type="nemotron-nas", block_configs=blocks, num_key_value_heads=None, intermediate_size=None)
    assert model.mixing_layers == 4
    assert weights(model) == 4 * HEADS + 4 * 3 * 64 * 512 + 4 * 3 * 64 * 1024


def test_a_checkpoint_says_which_parts_are_quantised() -> None:
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2}
    open_weights = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
    model = read(**experts, quantization_config=open_weights)
    assert (model.weights_dtype, model.attention_dtype) == ("mxfp4", "bf16")
    group = {"weights": {"num_bits": 4, "type": "int"}}
    packed = {
        "quant_method": "compressed-tensors", "config_groups": {"group_0": group},
        "ignore": ["re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*"],
    }  # fmt: skip
    model = read(**experts, n_shared_experts=1, quantization_config=packed)
    assert (model.dtype, model.weights_dtype, model.attention_dtype) == ("bf16", "int4", "")
    last = PLAIN["num_hidden_layers"] - 1
    ends = [f"model.layers.{n}.mlp.{name}_proj" for n in (0, last) for name in ("gate", "up", "down")]
    heads = [f"model.layers.{n}.self_attn.{name}_proj" for n in range(last + 1) for name in "qkvo"]
    model = read(quantization_config={"quant_method": "fbgemm_fp8", "modules_to_not_convert": ends + heads})
    assert (model.dtype, model.attention_dtype) == ("fp8", "bf16")
    # a hybrid names those few of its layers that have a part at all
    few = [f"model.layers.{n}.self_attn" for n in range(3, last, 4)]
    model = read(quantization_config={"quant_method": "fp8", "modules_to_not_convert": few})
    assert (model.dtype, model.attention_dtype) == ("fp8", "bf16")
    mixed = {
        "quant_method": "modelopt", "quant_algo": "MIXED_PRECISION",
        "quantized_layers": {
            "model.layers.0.self_attn.q_proj": {"quant_algo": "FP8"},
            "model.layers.0.mlp.experts": {"quant_algo": "NVFP4"},
            "model.layers.0.mlp.shared_expert.up_proj": {"quant_algo": "FP8"},
        },
        "kv_cache_scheme": {"num_bits": 8, "type": "float"},
    }  # fmt: skip
    model = read(**experts, quantization_config=mixed)
    assert (model.weights_dtype, model.dtype, model.attention_dtype, model.kv_dtype) == ("fp4", "fp8", "", "fp8")


def test_a_side_file_of_dtypes_is_read(tmp_path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(PLAIN))
    assert load_model(str(tmp_path)).dtype == "bf16"
    side = {"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(side))
    model = load_model(str(tmp_path))
    assert (model.dtype, model.kv_dtype) == ("fp4", "fp8")


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"layer_types": ["hyena"] * 8}, "hyena"),
        ({"layer_types": ["full_attention"] * 7}, "layer_types"),
        ({"hybrid_override_pattern": "MMXMMMMM"}, "hybrid_override_pattern"),
        ({"linear_attn_config": {"kda_layers": [1]}}, "linear_attn_config"),
        ({"linear_attn_config": {"kda_layers": [0, 1], "num_heads": 4, "head_dim": 16}}, "kda_layers"),
        ({"altup_num_inputs": 4}, "altup_num_inputs"),
        ({"num_kv_shared_layers": 4}, "num_kv_shared_layers"),
        ({"layer_types": ["sliding_attention"] * 8}, "sliding_window"),
        ({"quantization_config": {"quant_method": "modelopt", "quant_algo": "FP3"}}, "FP3"),
        ({"quantization_config": {"quant_method": "compressed-tensors",
                                  "config_groups": {"g": {"weights": {"num_bits": 3, "type": "int"}}}}}, "3 bits"),
    ],
)  # fmt: skip
def test_what_is_not_understood_is_refused_by_its_field(fields: dict[str, Any], word: str) -> None:
    with pytest.raises(InputError, match=word):
        read(**fields)


def test_what_is_left_out_is_named() -> None:
    model = read(
        num_nextn_predict_layers=1, hyper_loops=3, rope_theta=1e6, torch_dtype="bfloat16", bos_token_id=1,
        original_max_position_embeddings=4096, vision_config={"hidden_size": 8},
    )  # fmt: skip
    said = " ".join(model.notes)
    assert "multi-token-prediction" in said
    assert "hyper_loops" in said
    assert "vision_config" in said
    assert "rope_theta" not in said
    assert "original_max_position_embeddings" not in said
    assert read().notes == ()


def test_draft_layers_and_blocks_are_kept_for_who_asks() -> None:
    model = read(mtp_num_hidden_layers=2, quantization_config={"quant_method": "fp8", "weight_block_size": [64, 128]})
    assert (model.draft_layers, model.weight_block) == (2, 64)
    assert model.with_dtype("bf16").weight_block == 0, "blocks are the checkpoint's, not of other weights"
    assert (read().draft_layers, read().weight_block) == (0, 0)
    assert read(model_type="qwen3_next").draft_layers == 1, "its checkpoints have one, which its config does not say"
    assert read(model_type="mimo_v2_flash").draft_layers == 3, "the same"


def test_residual_streams_are_a_note() -> None:
    model = read(hc_mult=4, attn_res_block_size=12)
    assert weights(model) == weights(read())
    assert [note.partition(":")[0] for note in model.notes] == ["hc_mult 4", "attn_res_block_size 12"]


def test_wider_feed_forward_parts_go_with_a_borrowed_cache() -> None:
    layers = {"layer_types": ["sliding_attention", "full_attention"] * 4, "sliding_window": 128}
    model = read(**layers, num_kv_shared_layers=4, use_double_wide_mlp=True)
    queries = 2 * (64 * 4 * 16)
    assert weights(model) == 4 * (HEADS + FFN) + 4 * (queries + 2 * FFN)
    assert model.kv_bytes_per_token == 2 * (2 * 2 * 16 * 2)


def test_a_vision_tower_takes_memory_and_no_part_in_the_counts() -> None:
    tower = {"depth": 2, "hidden_size": 8, "intermediate_size": 16}
    model = read(vision_config=tower)
    assert model.vision_params == 2 * (4 * 8 * 8 + 2 * 8 * 16)
    assert model.params == read().params
    assert model.weight_bytes == read().weight_bytes + 2 * model.vision_params


def test_a_hub_name_is_its_preset() -> None:
    assert load_model("deepseek-ai/DeepSeek-V3.2") == load_model("deepseek-v3.2")
    assert load_model("meta-llama/Llama-3.1-8B-Instruct") == load_model("llama-8b")
    by_blocks = replace(load_model("qwen3-30b-a3b").with_dtype("fp8"), weight_block=128)
    assert load_model("Qwen/Qwen3-30B-A3B-FP8") == by_blocks
    assert load_model("zai-org/GLM-4.5-Air-FP8") == load_model("glm-4.5-air").with_dtype("fp8")
    assert load_model("nvidia/DeepSeek-R1-NVFP4") == load_model("deepseek-r1").with_dtype("fp4")
    assert load_model("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16") == load_model("nemotron-3-nano")
    assert load_model("moonshotai/Kimi-K2.7-Code").name == "kimi-k2.5"
    assert load_model("RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8") == load_model("llama-8b").with_dtype("fp8")
    assert load_model("deepseek-ai/DeepSeek-R1-0528") == load_model("deepseek-r1"), "its own weights are FP8 already"
    with pytest.raises(InputError, match="did you mean qwen3-30b-a3b"):
        load_model("Qwen/Qwen3-30B-A3B-Instruct-2507")  # its context is another
    with pytest.raises(InputError, match="nobody/nothing"):
        load_model("nobody/nothing")


def test_fp4_leaves_the_attention_of_a_mixture_alone() -> None:
    model = load_model("deepseek-r1").with_dtype("fp4")
    assert (model.weights_dtype, model.attention_dtype) == ("fp4", "bf16")
    assert load_model("llama-70b").with_dtype("fp4").attention_dtype == ""
    assert load_model("gpt-oss-120b").with_dtype("mxfp4") == load_model("gpt-oss-120b")


@pytest.mark.parametrize("text", ["", "[]", '{"hidden_size": ', "null"])
def test_what_was_recorded_of_a_model_may_be_anything(text: str) -> None:
    with pytest.raises(InputError, match=r"/gone: what was recorded of it is no config\.json"):
        model_from_text(text, "/gone")
