"""Layouts: what they are called, how layers, weights and KV cache are shared out, and which are refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.errors import InputError
from ridgeline.serving.engines.layout import (
    Layout,
    group_layout,
    matrix_shards,
    parse_layout,
    rank_kv_bytes_per_token,
    rank_weight_bytes,
)
from ridgeline.serving.engines.layout_rules import disaggregated_layouts, layout_problems, require_legal, sort_layouts
from ridgeline.serving.engines.settings import EngineSettings, default_backend
from ridgeline.serving.hardware.cluster import load_gpu
from ridgeline.serving.model.config import load_model, model_from_config
from ridgeline.serving.model.model import BYTES_PER_WEIGHT

R1, LLAMA, MIXTRAL = load_model("deepseek-r1"), load_model("llama-8b"), load_model("mixtral-8x7b")
powers = st.sampled_from([1, 2, 4, 8, 16])


@given(st.integers(1, 100), st.integers(1, 16))
def test_every_layer_has_one_stage(layers: int, pp: int) -> None:
    stages = Layout(pp=pp).stage_layers(layers)
    assert [n for stage in stages for n in stage] == list(range(layers))
    assert max(map(len, stages)) - min(map(len, stages)) <= 1


@given(st.sampled_from([R1, LLAMA, MIXTRAL]), powers, st.sampled_from([1, 2, 3, 4]), st.sampled_from([1, 2, 4]))
def test_weights_are_conserved_over_ranks(model, tp: int, pp: int, attn_dp: int) -> None:
    """All ranks together hold each weight once, plus the copies that the split says every rank keeps."""
    if tp % attn_dp:
        return
    layout = Layout(tp=tp, pp=pp, attn_dp=attn_dp)
    held = sum(rank_weight_bytes(model, layout, stage) * tp for stage in range(pp))
    copies = sum(m.nbytes * (tp / matrix_shards(m, layout, model)) for m in model.matrices)
    assert held == pytest.approx(copies)
    assert held >= model.weight_bytes * (1 - 1e-9)


@given(powers, powers)
def test_more_ranks_never_hold_more_each(tp: int, more: int) -> None:
    for model in (R1, LLAMA):
        assert rank_weight_bytes(model, Layout(tp=tp * more)) <= rank_weight_bytes(model, Layout(tp=tp))
        few, many = Layout(tp=tp), Layout(tp=tp * more)
        assert rank_kv_bytes_per_token(model, many) <= rank_kv_bytes_per_token(model, few)


def test_mla_keeps_its_cache_on_every_rank_and_gqa_splits_heads() -> None:
    assert rank_kv_bytes_per_token(R1, Layout(tp=16)) == 70_272
    assert rank_kv_bytes_per_token(R1, Layout(tp=8, pp=2)) == 31 * 576 * 2
    assert rank_kv_bytes_per_token(LLAMA, Layout(tp=4)) == LLAMA.kv_bytes_per_token / 4
    # eight KV heads on sixteen ranks: copied, not cut
    assert rank_kv_bytes_per_token(LLAMA, Layout(tp=16)) == LLAMA.kv_bytes_per_token / 8


def test_weights_of_r1_on_sixteen_ranks_by_hand() -> None:
    attention_split = 61 * (1536 * 24_576 + 512 * 32_768 + 16_384 * 7168)
    attention_whole = 61 * 7168 * (1536 + 576)
    experts = 58 * 257 * 3 * 7168 * 2048 + 3 * 3 * 7168 * 18_432
    fp8 = (attention_split + experts) / 16 + attention_whole
    bf16 = 2 * 2 * 129_280 * 7168 / 16 + 2 * (58 * 7168 * 256)
    norms = 2 * (61 * (2 * 7168 + 1536 + 512) + 7168)
    by_hand = fp8 * BYTES_PER_WEIGHT["fp8"] + bf16 + norms
    assert rank_weight_bytes(R1, Layout(tp=16)) == pytest.approx(by_hand)


@pytest.mark.parametrize(
    ("text", "prefill", "decode", "nodes"),
    [
        ("P4D6", (1, 4), (1, 6), 10),
        ("P3x3D4", (3, 3), (1, 4), 13),
        ("p2d2", (1, 2), (1, 2), 4),
        ("P1x2D2x1", (1, 2), (2, 1), 4),
    ],
)
def test_prefill_and_decode_groups(text, prefill, decode, nodes) -> None:
    layout = parse_layout(text, R1)
    assert layout.disaggregated
    assert layout.nodes == nodes
    assert layout.gpus == nodes * 8
    assert (layout.prefill.dp, layout.prefill.replica_nodes) == prefill
    assert (layout.decode.dp, layout.decode.replica_nodes) == decode
    assert parse_layout(str(layout), R1) == layout


def test_groups_follow_the_model() -> None:
    assert group_layout(R1, "3x3") == Layout(tp=24, attn_dp=24, ep=24, dp=3, nodes=9)
    assert group_layout(LLAMA, "2x2") == Layout(tp=8, pp=2, dp=2, nodes=4)


@pytest.mark.parametrize("text", ["P4", "D4P6", "P0D1", "PxD", "", "P1D1D1"])
def test_nonsense_groups_are_refused(text) -> None:
    with pytest.raises(InputError):
        parse_layout(text, R1)


def test_names() -> None:
    assert str(Layout(tp=8, pp=2, attn_dp=2)) == "tp 8 pp 2 attn-dp 2"
    assert str(parse_layout("P3x3D4", R1)) == "P3x3D4"


@pytest.mark.parametrize(
    ("layout", "settings", "words"),
    [
        (Layout(tp=16, nodes=1), EngineSettings(), "2 nodes"),
        (Layout(tp=8, nodes=2), EngineSettings(), "idle"),
        (Layout(tp=3, gpus_per_node=3), EngineSettings(), "128 attention heads"),
        (Layout(tp=8, attn_dp=16), EngineSettings(), "attention DP 16"),
        (Layout(tp=8, attn_dp=8), EngineSettings(max_running_requests=4), "at least 8"),
        (Layout(tp=32, nodes=4), EngineSettings(), "blocks of 128"),
        (Layout(tp=8, ep=16), EngineSettings(), "ep 16"),
        (Layout(tp=8, pp=2, nodes=2), EngineSettings(version=(0, 4, 10)), "newer engine"),
        (Layout(tp=8), EngineSettings(attention_backend="trtllm_mla"), "Blackwell"),
        (Layout(tp=8), EngineSettings(version=(0, 5, 3), attention_backend="triton", page_size=16), "page size 16"),
        (Layout(tp=8, pp=2, nodes=2), EngineSettings(accept_length=2, draft_tokens=4), "pipeline"),
        (Layout(tp=8, attn_dp=8), EngineSettings(version=(0, 5, 5), accept_length=2, draft_tokens=4), "attention DP"),
        (Layout(tp=12, gpus_per_node=8, nodes=2), EngineSettings(), "whole nodes"),
    ],
)
def test_rules_that_were_paid_for(layout, settings, words) -> None:
    problems = layout_problems(R1, layout, load_gpu("h100"), settings)
    assert any(words in str(p) for p in problems), [str(p) for p in problems]
    with pytest.raises(InputError, match="not possible"):
        require_legal(R1, layout, load_gpu("h100"), settings)


def test_a_line_of_releases_is_judged_as_its_newest() -> None:
    for version in ((0, 5), (0, 5, 6)):  # (0, 5) is what a study without `version` means
        settings = EngineSettings(version=version, accept_length=2, draft_tokens=4)
        assert not layout_problems(R1, Layout(tp=8, attn_dp=8), load_gpu("h200"), settings)


def test_three_prefill_nodes_in_one_group_failed_in_0_4_8() -> None:
    old, new = EngineSettings(version=(0, 4, 8)), EngineSettings()
    layout = parse_layout("P3D4", R1)
    assert any(p.rule == "prefill-group" for p in layout_problems(R1, layout, load_gpu("h800"), old))
    assert not layout_problems(R1, layout, load_gpu("h800"), new)
    assert not layout_problems(R1, parse_layout("P3x3D4", R1), load_gpu("h800"), old)


def test_back_ends_of_one_maker_are_refused_on_the_others_gpus() -> None:
    amd, nvidia = load_gpu("mi355x"), load_gpu("h200")
    for backend, gpu, remedy in (("fa3", amd, "use aiter or triton"), ("flashinfer", amd, "use aiter or triton"),
                                 ("trtllm_mla", amd, "use aiter or triton"), ("aiter", nvidia, "use fa3")):  # fmt: skip
        found = layout_problems(R1, Layout(tp=8), gpu, EngineSettings(attention_backend=backend))
        assert [p.rule for p in found] == ["backend"], backend
        assert remedy in found[0].remedy
    for backend in ("aiter", "triton", None):
        assert not layout_problems(R1, Layout(tp=8), amd, EngineSettings(attention_backend=backend))


def test_the_back_end_that_sglang_takes_on_amd() -> None:
    amd = load_gpu("mi300x")
    assert default_backend(LLAMA, amd, Layout(tp=8)) == "aiter"
    # of latent attention it has kernels for 16 and 128 heads a rank
    assert [default_backend(R1, amd, Layout(tp=tp)) for tp in (1, 8, 4)] == ["aiter", "aiter", "triton"]


def test_more_rules() -> None:
    a100, h100 = load_gpu("a100"), load_gpu("h100")
    assert any(p.rule == "dtype" for p in layout_problems(R1, Layout(tp=8), a100))
    assert any(
        p.rule == "backend" for p in layout_problems(LLAMA, Layout(tp=8), a100, EngineSettings(attention_backend="fa3"))
    )
    assert any(p.rule == "experts" for p in layout_problems(LLAMA, Layout(tp=8, ep=8), h100))
    assert any(p.rule == "stages" for p in layout_problems(LLAMA, Layout(pp=40, nodes=5), h100))
    qwen = load_model("qwen2.5-7b")
    assert any(p.rule == "heads" and "use tp 4" in p.remedy for p in layout_problems(qwen, Layout(tp=8), h100))


@pytest.mark.parametrize(("name", "nodes"), [("deepseek-r1", 2), ("llama-70b", 1), ("mixtral-8x7b", 1)])
def test_listed_layouts_use_all_gpus_and_break_no_rule(name, nodes) -> None:
    model, gpu = load_model(name), load_gpu("h200")
    layouts, _ = sort_layouts(model, gpu, nodes, 8)
    assert len(layouts) == len(set(layouts)) > 3
    for layout in layouts:
        assert layout.gpus == nodes * 8
        assert not layout_problems(model, layout, gpu)


def test_the_layouts_of_the_reports_are_legal() -> None:
    layouts, _ = sort_layouts(R1, load_gpu("h200"), 2, 8)
    assert Layout(tp=16, nodes=2) in layouts
    assert Layout(tp=8, pp=2, attn_dp=2, nodes=2) in layouts
    assert Layout(tp=4, pp=2, attn_dp=4) in sort_layouts(R1, load_gpu("h200"), 1, 8)[0]


def test_attention_dp_said_twice_makes_no_copies() -> None:
    assert Layout(tp=8, pp=2, dp=2, attn_dp=2, nodes=2) == Layout(tp=8, pp=2, attn_dp=2, nodes=2)
    assert Layout(tp=4, pp=2, dp=4, attn_dp=4) == Layout(tp=4, pp=2, attn_dp=4)
    # where there is room for copies they are meant
    assert Layout(tp=8, dp=2, attn_dp=2, nodes=2).dp == 2


def test_splits_of_nodes_into_prefill_and_decode() -> None:
    names = {str(layout) for layout in disaggregated_layouts(R1, load_gpu("h800"), 13, 8)}
    assert {"P4D9", "P3x3D4", "P4x1D9", "P12D1"} <= names
    assert all(layout.gpus == 104 for layout in disaggregated_layouts(R1, load_gpu("h800"), 13, 8))
    assert disaggregated_layouts(R1, load_gpu("h800"), 1, 8) == []
    old = {str(x) for x in disaggregated_layouts(R1, load_gpu("h800"), 7, 8, EngineSettings(version=(0, 4, 8)))}
    assert "P3D4" not in old


def test_sizes_below_one_are_refused() -> None:
    with pytest.raises(InputError, match="tp is 0"):
        Layout(tp=0)
    with pytest.raises(InputError, match="both or neither"):
        Layout(prefill=Layout())


BLOCKS = {"quant_method": "fp8", "weight_block_size": [128, 128]}
GLM_AIR = {
    "model_type": "glm4_moe", "hidden_size": 4096, "num_hidden_layers": 4, "num_attention_heads": 96,
    "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 10944, "moe_intermediate_size": 1408,
    "n_routed_experts": 128, "num_experts_per_tok": 8, "n_shared_experts": 1, "first_k_dense_replace": 1,
    "vocab_size": 151552,
}  # fmt: skip


def _blocks(config: dict[str, object], layout: Layout, **settings: object) -> list[str]:
    model = model_from_config({**config, "quantization_config": BLOCKS}, name="m", source="test")
    found = layout_problems(model, layout, settings=EngineSettings(**settings))  # type: ignore[arg-type]
    return [str(p) for p in found if p.rule in ("fp8-blocks", "expert-width")]


def test_fp8_blocks_must_divide_every_matrix_of_a_rank() -> None:
    """SGLang: Weight output_partition_size = 10944 is not divisible by weight quantization block_n = 128."""
    assert "10944" in _blocks(GLM_AIR, Layout())[0], "two matrices in one are looked at even where nothing is cut"
    assert _blocks(GLM_AIR, Layout(), engine="vllm", version=(0, 33)) == []
    even = {**GLM_AIR, "intermediate_size": 11264}
    assert _blocks(even, Layout()) == [] == _blocks(even, Layout(tp=8, ep=8))
    assert "experts 1408 wide" in _blocks(even, Layout(tp=2))[0]
    dense = {name: value for name, value in even.items() if "expert" not in name and "first_k" not in name}
    dense |= {"model_type": "llama", "intermediate_size": 11264}
    assert _blocks(dense, Layout(tp=8)) == []
    said = _blocks({**dense, "intermediate_size": 9216}, Layout(tp=16, nodes=2))
    assert "9216 wide cannot be cut for tp 16 in FP8 blocks of 128; use tp 8" in said[0]
    assert (
        "9216"
        in _blocks({**dense, "intermediate_size": 9216}, Layout(tp=16, nodes=2), engine="vllm", version=(0, 33))[0]
    )


def test_fp8_of_another_kind_has_no_blocks() -> None:
    model = model_from_config({**GLM_AIR, "quantization_config": BLOCKS}, name="m", source="test")
    assert model.weight_block == 128
    assert model.with_dtype("bf16").weight_block == 0
    scaled = model_from_config({**GLM_AIR, "quantization_config": {"quant_method": "fp8"}}, name="m", source="test")
    assert scaled.weight_block == 0
