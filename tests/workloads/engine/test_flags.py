"""Settings become the flags of the release that runs them; names that moved are translated."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline import catalog
from ridgeline.serving.engines.releases import NEWEST, Flag, parse_version, read_flags
from ridgeline.serving.engines.sglang.engine import SGLANG
from ridgeline.serving.engines.vllm.engine import VLLM
from tests.workloads.engine.studies import study

OLD, GRAPHS, NOW = (0, 4, 8), (0, 5, 15), (0, 5, 23)

# every flag of the field notes' table, with a value it takes
NOTED = {
    "tp": 8, "pp": 2, "dp": 2, "attn_dp": 8, "ep": 8, "enable_dp_lm_head": True, "moe_dense_tp_size": 1,
    "moe_a2a_backend": "deepep", "deepep_mode": "auto", "enable_eplb": True, "ep_num_redundant_experts": 32,
    "ep_dispatch_algorithm": "dynamic", "mem_fraction_static": 0.8, "max_running_requests": 1024,
    "max_total_tokens": 100000, "chunked_prefill_size": 8192, "max_prefill_tokens": 16384, "page_size": 64,
    "schedule_policy": "lpm", "schedule_conservativeness": 0.8, "attention_backend": "fa3",
    "prefill_attention_backend": "fa3", "decode_attention_backend": "flashmla", "moe_runner_backend": "triton",
    "grammar_backend": "xgrammar", "speculative_algorithm": "EAGLE", "speculative_num_steps": 3,
    "speculative_eagle_topk": 4, "speculative_num_draft_tokens": 8, "disaggregation_mode": "decode",
    "disaggregation_ib_device": "mlx5_0", "disaggregation_transfer_backend": "nixl",
    "disaggregation_bootstrap_port": 8998, "cuda_graph_max_bs": 512, "disable_cuda_graph": True,
}  # fmt: skip


@pytest.mark.parametrize("name", NOTED)
@pytest.mark.parametrize("version", [(0, 5, 12), GRAPHS, NOW, NEWEST])
def test_every_noted_flag_is_written_in_words_its_release_knows(name: str, version: tuple[int, ...]) -> None:
    words = SGLANG.flags.arguments({name: NOTED[name]}, version)
    flags = [word for word in words if word.startswith("--")]
    known = read_flags("sglang")
    assert flags
    for flag in flags:
        assert known[flag[2:].replace("-", "_")].there(version), f"{flag} is not a flag of {version}"


@pytest.mark.parametrize(
    ("values", "version", "expected"),
    [
        ({"cuda_graph_max_bs": 512}, (0, 5, 12), "--cuda-graph-max-bs 512"),
        ({"cuda_graph_max_bs": 512}, GRAPHS, "--cuda-graph-max-bs-decode 512"),
        ({"cuda_graph_max_bs_decode": 512}, OLD, "--cuda-graph-max-bs 512"),
        ({"attn_dp": 8}, GRAPHS, "--enable-dp-attention --dp-size 8"),
        ({"attn_dp": 8}, NOW, "--attn-dp-size 8"),
        ({"attn_dp": 1}, NOW, ""),
        ({"disable_cuda_graph": True}, OLD, "--disable-cuda-graph"),
        (
            {"disable_cuda_graph": True},
            NOW,
            "--cuda-graph-backend-decode disabled --cuda-graph-backend-prefill disabled",
        ),
        ({"disable_cuda_graph": False}, NOW, ""),
        ({"moe_a2a_backend": "deepep"}, OLD, "--enable-deepep-moe"),
        ({"moe_a2a_backend": "deepep"}, NOW, "--moe-a2a-backend deepep"),
        ({"moe_a2a_backend": "mooncake"}, NOW, "--moe-a2a-backend mooncake"),
        ({"ep": 8}, OLD, "--enable-ep-moe --ep-size 8"),
        ({"ep": 1}, OLD, ""),
        ({"ep": 8}, NOW, "--ep-size 8"),
        ({"mem_fraction_static": "default"}, NOW, ""),
        ({"disable_radix_cache": True}, NOW, "--disable-radix-cache"),
        ({"cuda_graph_bs": "1,2,4"}, OLD, "--cuda-graph-bs 1 2 4"),
    ],
)
def test_flags_that_moved(values: dict, version: tuple[int, ...], expected: str) -> None:
    assert " ".join(SGLANG.flags.arguments(values, version)) == expected


def test_what_the_engine_echoes_is_named_as_its_release_names_it() -> None:
    asked = {"attn_dp": 8, "cuda_graph_max_bs": 256, "tp": 8, "page_size": "default"}
    assert SGLANG.flags.echo(asked, GRAPHS) == {
        "enable_dp_attention": True,
        "dp_size": 8,
        "cuda_graph_max_bs_decode": 256,
        "tp_size": 8,
    }
    assert SGLANG.flags.echo(asked, NOW)["attn_dp_size"] == 8


def test_vllm_says_no_to_what_is_switched_off() -> None:
    asked = {"enable_prefix_caching": False, "enforce_eager": True, "tp": 2, "max_num_seqs": 8}
    words = VLLM.flags.arguments(asked, NEWEST)
    assert words == [
        "--no-enable-prefix-caching",
        "--enforce-eager",
        "--tensor-parallel-size",
        "2",
        "--max-num-seqs",
        "8",
    ]


@given(st.from_regex(r"\d{1,2}\.\d{1,2}\.\d{1,3}(\.post\d|rc\d|\+cu12)?", fullmatch=True))
def test_releases_are_read_and_ordered(text: str) -> None:
    version = parse_version(text)
    assert version[:3] == tuple(int(n) for n in re.findall(r"\d+", text)[:3])
    assert version < NEWEST


def test_the_tables_hold_together() -> None:
    for name in ("sglang", "vllm"):
        for flag in read_flags(name).values():
            assert flag.kind in ("value", "switch", "toggle", "list")
            assert flag.since < flag.gone
    assert len(read_flags("sglang")) > 500


def test_a_flag_lives_from_its_first_release_to_the_one_that_drops_it() -> None:
    flag = Flag("x", "value", (0, 5, 2), (0, 5, 14))
    there = [v for v in ((0, 5, 1), (0, 5, 2), (0, 5, 13), (0, 5, 13, 1), (0, 5, 14), NEWEST) if flag.there(v)]
    assert there == [(0, 5, 2), (0, 5, 13), (0, 5, 13, 1)]


@pytest.mark.parametrize(
    ("quantization", "fits"),
    # 397 billion weights on four GPUs of 192 GB: not in 16 bits; in 4 they do, and what a checkpoint may have in it is
    # not known here
    [(None, False), ("modelopt_fp4", True), ("mxfp4", True), ("compressed-tensors", True), ("fp8", True)],
)
def test_weights_that_a_flag_says_are_smaller_are_not_refused(
    tmp_path: Path, quantization: str | None, fits: bool
) -> None:
    flags = {"quantization": quantization} if quantization else {}
    of = study(tmp_path, "sglang-serve", {"tp": [4]}, model="qwen3.5-397b-a17b", gpu="b200", version="0.5.23",
               flags=flags)  # fmt: skip
    refused = catalog.part("workloads", "sglang-serve")(of).refusal(of.baseline)
    assert (refused is None) == fits and (fits or "weights need" in str(refused)), refused


def test_rules_of_gpus_are_not_those_of_processors(tmp_path: Path) -> None:
    """SGLang's guide to servers without GPUs: `--device cpu --tp 6`, a rank for each of six NUMA nodes."""
    for device, refused in (("cpu", False), ("cuda", True)):
        of = study(tmp_path, "sglang-serve", {"tp": [6]}, model="deepseek-r1", version="0.5.23",
                   flags={"device": device})  # fmt: skip
        assert (catalog.part("workloads", "sglang-serve")(of).refusal(of.baseline) is not None) == refused


def test_flags_of_vllms_front_are_those_of_all_releases() -> None:
    """Since 0.10 its parser makes them of a class's fields; they went nowhere."""
    for name in ("enable_auto_tool_choice", "tool_call_parser", "chat_template", "enable_prompt_tokens_details"):
        assert not any(VLLM.flags.missing(name, release) for release in ((0, 8, 5), (0, 10, 0), (0, 33, 0), NEWEST))
    assert "it was removed in 0.19.0" in VLLM.flags.missing("disable_frontend_multiprocessing", (0, 33, 0))


@pytest.mark.parametrize(("backend", "starts"), [("flashinfer", False), ("triton", True), ("trtllm_mha", True)])
def test_sinks_of_a_model_want_kernels_that_know_them(tmp_path: Path, backend: str, starts: bool) -> None:
    of = study(tmp_path, "sglang-serve", {"tp": [1]}, model="gpt-oss-20b", version="0.5.23",
               flags={"attention_backend": backend})  # fmt: skip
    refused = catalog.part("workloads", "sglang-serve")(of).refusal(of.baseline)
    assert (refused is None) == starts and (starts or "knows no attention sinks" in str(refused))
