"""Parameter counts, FLOPs and bytes, each against a formula or a published number that the code does not share."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.errors import InputError
from ridgeline.serving.model.config import load_model, model_from_config, preset_names
from ridgeline.serving.model.layer_parts import LinearAttention
from ridgeline.serving.model.model import BYTES_PER_WEIGHT, Experts

PUBLISHED = {
    "deepseek-r1": (671.0e9, 37.5e9),
    "deepseek-v3": (671.0e9, 37.5e9),
    "deepseek-v2-lite": (15.7e9, 2.66e9),
    "llama-8b": (8.03e9, 8.03e9),
    "llama-70b": (70.55e9, 70.55e9),
    "mixtral-8x7b": (46.7e9, 12.9e9),
    "qwen2.5-7b": (7.62e9, 7.62e9),
    "qwen3-32b": (32.8e9, 32.8e9),
    "qwen3-235b-a22b": (235.1e9, 22.2e9),
    # cards and names that round; the counts themselves are checked by hand in test_configs.py
    "deepseek-v3.2": (671.9e9, 37.5e9),
    "kimi-k2": (1026e9, 32.9e9),
    "kimi-k2.5": (1026e9, 32.9e9),
    "glm-4.5": (353e9, 32.9e9),
    "glm-5": (744e9, 40.8e9),
    "qwen3-30b-a3b": (30.5e9, 3.35e9),
    "qwen3-next-80b-a3b": (79.7e9, 3.56e9),
    "qwen3.5-397b-a17b": (396.3e9, 17.35e9),
    "gpt-oss-20b": (20.9e9, 3.61e9),
    "gpt-oss-120b": (116.8e9, 5.13e9),
    "minimax-m2.5": (228.7e9, 10.4e9),
    "llama-405b": (405.9e9, 405.9e9),
    "llama-4-scout": (107.8e9, 17.2e9),
    # what the cards round: 284B-A13B, 1.6T-A49B, 106B-A12B, 744B-A40B, 428B-A23B (the last two without the LM head)
    "deepseek-v4-flash": (284.3e9, 13.2e9),
    "deepseek-v4-pro": (1573e9, 48.8e9),
    "glm-4.5-air": (106.9e9, 12.8e9),
    "glm-5.2": (743.4e9, 40.3e9),
    "minimax-m3": (426.2e9, 24.7e9),
    "kimi-k3": (2.78e12, 104e9),
    "qwen3.6-27b": (26.9e9, 26.9e9),
    "qwen3.6-35b-a3b": (34.7e9, 3.46e9),
    "qwen3.8-2.4t-a95b": (2.42e12, 95e9),
    "nemotron-3-nano-30b-a3b": (31.6e9, 3.2e9),
    "nemotron-3-super-120b-a12b": (120.6e9, 12.2e9),
    "nemotron-3-ultra-550b-a55b": (550e9, 55e9),
    # Gemma's cards count the towers too, and of the small Gemma-4 call "effective" what is no per-layer table
    "gemma-3-4b": (3.88e9, 3.88e9),
    "gemma-3-12b": (11.77e9, 11.77e9),
    "gemma-3-27b": (27.0e9, 27.0e9),
    "gemma-4-e2b": (4.65e9, 2.3e9),
    "gemma-4-e4b": (7.46e9, 4.64e9),
    "gemma-4-12b": (11.9e9, 11.9e9),
    "gemma-4-26b-a4b": (25.2e9, 3.8e9),
    "gemma-4-31b": (30.7e9, 30.7e9),
}


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_counts_as_many_parameters_as_published(name: str) -> None:
    total, active = PUBLISHED[name]
    model = load_model(name)
    assert model.params == pytest.approx(total, rel=0.005)
    assert model.active_params == pytest.approx(active, rel=0.01)


def test_every_preset_is_checked_above() -> None:
    assert set(preset_names()) == set(PUBLISHED)


def test_kv_bytes_per_token() -> None:
    assert load_model("deepseek-r1").kv_bytes_per_token == 70_272
    assert load_model("llama-8b").kv_bytes_per_token == 2 * 32 * 8 * 128 * 2
    assert load_model("deepseek-v2-lite").kv_bytes_per_token == 27 * 576 * 2
    assert load_model("llama-8b").with_dtype(kv_dtype="fp8").kv_bytes_per_token == 2 * 32 * 8 * 128


@pytest.mark.parametrize(
    ("name", "token", "windows"),
    [
        # 24 latent layers of 512 + 64, the others keep a state; 23 layers of 4 KV heads
        ("kimi-k3", 24 * 576 * 2, {}),
        ("qwen3.8-2.4t-a95b", 23 * 2 * 4 * 256 * 2, {}),
        ("nemotron-3-super-120b-a12b", 8 * 2 * 2 * 128 * 2, {}),
        # an indexer's keys, in FP8 with a scale, in the 21 layers of GLM-5.2 that have one of their own
        ("glm-5.2", 78 * 576 * 2 + 21 * 132, {}),
        # one layer in six sees everything; of the small Gemma-4 the last layers read what others cached
        ("gemma-3-27b", 10 * 2 * 16 * 128 * 2, {1024: 52 * 2 * 16 * 128 * 2}),
        ("gemma-4-12b", 8 * 2 * 1 * 512 * 2, {1024: 40 * 2 * 8 * 256 * 2}),
        ("gemma-4-e2b", 3 * 2 * 512 * 2, {512: 12 * 2 * 256 * 2}),
        ("gemma-4-e4b", 4 * 2 * 2 * 512 * 2, {512: 20 * 2 * 2 * 256 * 2}),
    ],
)
def test_kv_bytes_by_kind_of_layer(name: str, token: float, windows: dict[int, float]) -> None:
    model = load_model(name)
    assert model.kv_bytes_per_token == pytest.approx(token)
    assert dict(model.window_kv) == pytest.approx(windows)


def test_a_layer_without_a_cache_of_its_own_reads_another_ones() -> None:
    model = load_model("gemma-4-e2b")
    full = sum(n for kind, n in model.attentions if not kind.window)
    own = sum(n for kind, n in model.attentions if not kind.window and not kind.borrowed)
    assert (full, own) == (7, 3)
    far, near = 100_000, 10_000
    read = (model.decode_bytes(1, far) - model.decode_bytes(1, near)) / (far - near)
    assert read == pytest.approx(full / own * model.kv_bytes_per_token)


def test_a_table_for_each_layer_takes_memory_and_is_looked_up_only() -> None:
    model = load_model("gemma-4-e2b")
    table = 262_144 * 35 * 256
    assert next(m for m in model.matrices if m.name == "embed_per_layer").params == table
    assert model.weight_bytes - model.weight_bytes_read(1) == pytest.approx(2 * table + 2 * model.vision_params)


def test_a_delta_net_of_kimi_by_hand() -> None:
    """Kimi-K3's layers: queries, keys, values and gate of 96 x 128, a decay through 128 numbers, a step a head."""
    hidden, wide = 7168, 96 * 128
    by_hand = hidden * (4 * wide + 128 + 96) + 128 * wide + wide * hidden
    ((kind, layers),) = load_model("kimi-k3").states
    mine = [m for m in load_model("kimi-k3").matrices if m.name.startswith("state_") and m.part == "attention"]
    assert layers == 69
    assert sum(m.params for m in mine) == layers * by_hand
    assert kind.state_bytes == 96 * 128 * 128 * 4 + 3 * wide * 3 * 2


def test_weight_bytes_by_part_add_up_and_follow_the_dtype() -> None:
    model = load_model("deepseek-r1")
    assert sum(model.weight_bytes_by_part().values()) == pytest.approx(model.weight_bytes)
    embeddings = 2 * 129_280 * 7168
    # FP8 weights with one float32 per 128 x 128 block; embeddings and LM head in 16 bits
    assert model.weight_bytes == pytest.approx(671.03e9 * (1 + 1 / 4096) + embeddings, rel=0.002)
    assert model.with_dtype("bf16").weight_bytes == pytest.approx(2 * model.params)


def test_decode_flops_of_llama_by_hand() -> None:
    hidden, width, layers, kv, vocab, context = 4096, 14_336, 32, 1024, 128_256, 1000
    projections = 2 * hidden * hidden + 2 * hidden * kv  # q and o, then k and v
    by_hand = layers * (2 * (projections + 3 * hidden * width) + 4 * hidden * context) + 2 * hidden * vocab
    assert load_model("llama-8b").decode_flops(context) == pytest.approx(by_hand)


def test_flops_are_twice_the_active_parameters_plus_attention() -> None:
    for name in PUBLISHED:
        model = load_model(name)
        # a tied table is a product all the same: it is the LM head
        embedding = model.vocab * model.hidden if model.embedding_used and not model.tied_embeddings else 0
        states = 6 * sum(
            m.kind.heads * m.kind.key_dim * m.kind.value_dim * len(m.layers)
            for m in model.all_mixers
            if isinstance(m.kind, LinearAttention)
        )
        norms = sum(m.params for m in model.matrices if m.part == "norm")
        products = 2 * (model.active_params - embedding - norms)
        assert model.linear_flops_per_token - states + model.lm_head_flops == products


def test_mla_decode_pays_for_the_latent_and_prefill_for_the_heads() -> None:
    attention = load_model("deepseek-r1").attention
    assert attention.pair_flops(absorbed=True) == 2 * 128 * (576 + 512)
    assert attention.pair_flops(absorbed=False) == 2 * 128 * (192 + 128)


@given(st.integers(1, 10_000), st.integers(1, 256))
def test_touched_experts_grow_with_tokens_and_never_pass_the_count(tokens: int, per_token: int) -> None:
    experts = Experts(256, per_token, 2048)
    touched = experts.touched(tokens)
    assert min(per_token, 256) - 1e-9 <= touched <= 256 + 1e-9
    assert experts.touched(tokens + 1) >= touched - 1e-9
    assert touched <= tokens * per_token + 1e-6


def test_one_token_reads_the_active_weights_and_many_read_them_all() -> None:
    model = load_model("deepseek-r1")
    embedding = model.weight_bytes_by_part()["embedding"]
    assert model.weight_bytes_read(100_000) == pytest.approx(model.weight_bytes - embedding)
    assert model.weight_bytes_read(1) < 0.07 * model.weight_bytes


def test_reads_a_config_from_a_file_or_its_folder(tmp_path) -> None:
    config = {
        "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "vocab_size": 100, "torch_dtype": "float32", "tie_word_embeddings": True,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = load_model(str(tmp_path))
    assert model == load_model(str(tmp_path / "config.json"))
    assert model.params == 100 * 64 + 2 * (4 * 64 * 64 + 3 * 64 * 128 + 2 * 64) + 64
    assert model.attention.kv_heads == 4
    assert model.base_dtype == "bf16"


def test_a_multimodal_config_is_read_at_its_language_half() -> None:
    text = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "vocab_size": 8}
    assert model_from_config({"text_config": text}, name="x", source="x").layers == 1


SMALL = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 9}
WHOLE = {**SMALL, "intermediate_size": 8}


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({}, ("hidden_size", "num_hidden_layers", "give a preset")),
        (SMALL, ("intermediate_size",)),
        ({**WHOLE, "num_hidden_layers": -1}, ("num_hidden_layers",)),
        ({"model_type": "mamba"}, ("mamba", "decoder-only")),
        ({**WHOLE, "kv_lora_rank": 4}, ("qk_nope_head_dim", "v_head_dim")),
        ({**WHOLE, "quantization_config": {"quant_method": "wishful"}}, ("wishful", "--dtype")),
        ({**WHOLE, "num_local_experts": 4, "num_experts_per_tok": 5}, ("num_experts_per_tok",)),
        ({**WHOLE, "num_key_value_heads": 3}, ("num_key_value_heads",)),
    ],
)
def test_a_config_without_needed_fields_is_refused_by_name(tmp_path, config, words) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    with pytest.raises(InputError) as refusal:
        load_model(str(path))
    assert str(path) in str(refusal.value)
    for word in words:
        assert word in str(refusal.value)


def test_an_unknown_model_gets_a_suggestion() -> None:
    with pytest.raises(InputError, match="did you mean deepseek-r1"):
        load_model("deepseek-r2")


def test_a_family_without_its_size_is_answered_with_its_members() -> None:
    with pytest.raises(InputError, match="did you mean deepseek-v4-flash or deepseek-v4-pro"):
        load_model("deepseek-v4")


def test_a_shape_taken_from_another_model_says_so_and_why() -> None:
    for name in ("kimi-k2.7", "moonshotai/Kimi-K2.7-Code"):
        (said,) = load_model(name).assumed
        assert "has the shape of preset kimi-k2.5: its model card says" in said
    assert load_model("kimi-k2.5").assumed == load_model("llama-3.1-8b").assumed == ()


@pytest.mark.parametrize("text", ["{", "[1]", ""])
def test_a_file_that_is_no_config_is_refused(tmp_path, text) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"config\.json"):
        load_model(str(path))


@given(st.sampled_from(sorted(PUBLISHED)), st.sampled_from(sorted(BYTES_PER_WEIGHT)))
def test_smaller_dtypes_never_weigh_more(name: str, dtype: str) -> None:
    model = load_model(name)
    assert model.with_dtype(dtype).weight_bytes <= model.with_dtype("fp32").weight_bytes
    assert model.with_dtype(dtype).params == model.params


def test_a_file_named_like_a_preset_does_not_hide_it(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "llama-8b").mkdir()
    assert load_model("llama-8b").layers == 32
    with pytest.raises(InputError, match=r"llama-8b/config\.json: no such file"):
        load_model("./llama-8b")
