"""What a plan tells the servers of each role, and why: one test a reason."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from ridgeline.campaign.check import check_study
from ridgeline.serving.engines.layout import Layout
from ridgeline.serving.engines.settings import EngineSettings
from ridgeline.serving.hardware.cluster import make_cluster
from ridgeline.serving.model.config import load_model
from ridgeline.serving.planner.candidates import PlanQuestion, Unit, make_unit
from ridgeline.serving.planner.commands import DEEPEP_LIMIT
from ridgeline.serving.planner.operating_point import Option
from ridgeline.serving.planner.planner import Plan, answer_plan
from ridgeline.serving.planner.scheme import Pair
from ridgeline.serving.service.file import load_service
from ridgeline.serving.service.from_results import _planned_text, _role_settings, service_of
from ridgeline.serving.service.members import members_of
from ridgeline.serving.traffic.requests import Slo
from ridgeline.serving.twin.calibration import Calibration
from ridgeline.serving.verbs.serve_twin import serve_twin

WIDE = "tp 16 ep 16 attn-dp 16"


@cache
def planned() -> Plan:
    named = ["P1D1", WIDE]
    return answer_plan("deepseek-r1", "h200", 2, 8, "fixed:2000:200", slos=["ttft_p95_ms=4000"], named=named, top=1)


def split_option() -> Option:
    return next(c.option for c in planned().choices if isinstance(c.option.scheme.shape, Pair))


def unit_of(
    role: str,
    *,
    nodes: int = 2,
    tp: int = 16,
    ep: int = 16,
    attn_dp: int = 16,
    model: str = "deepseek-r1",
    settings: EngineSettings | None = None,
    cap: int | None = None,
) -> Unit:
    question = PlanQuestion(
        load_model(model), make_cluster("h200", nodes), 2000, 200, (Slo.parse("itl_p95_ms=60"),),
        settings or EngineSettings(), Calibration(),
    )  # fmt: skip
    layout = Layout(tp, 1, 1, ep, attn_dp, nodes=max(1, tp // 8), gpus_per_node=8)
    found = make_unit(question, layout, role, cap=cap)
    assert found is not None
    return found


def told(unit: Unit) -> dict[str, tuple[Any, str]]:
    return {setting.name: (setting.value, setting.why) for setting in _role_settings(unit)}


def test_running_limits_are_of_the_server_and_say_what_a_rank_gets() -> None:
    unit = unit_of("decode")
    value, why = told(unit)["max_running_requests"]
    assert value == unit.cap
    assert f"divides it by attention DP 16: {unit.cap // 16} a rank, as the limits" in why
    alone = told(unit_of("both", model="llama-8b", tp=1, ep=1, attn_dp=1))["max_running_requests"][1]
    assert "divides" not in alone


def test_a_limit_that_vllm_applies_to_each_rank_is_a_rank_s_share() -> None:
    """Each DP rank of vLLM is an engine core with its own scheduler, whose limit max_num_seqs is."""
    unit = unit_of("both", tp=8, ep=8, attn_dp=8, settings=EngineSettings(engine="vllm"), cap=512)
    value, why = told(unit)["max_running_requests"]
    assert value == unit.cap // 8
    assert why.startswith(f"requests at once of each of 8 attention-DP ranks, {unit.cap} together")
    assert "divides" not in why
    alone = unit_of("both", model="llama-8b", tp=1, ep=1, attn_dp=1, settings=EngineSettings(engine="vllm"), cap=64)
    assert told(alone)["max_running_requests"][0] == alone.cap


def test_the_memory_fraction_states_its_margin() -> None:
    unit = unit_of("decode")
    value, why = told(unit)["mem_fraction_static"]
    assert value == unit.settings.mem_fraction
    assert f"leaves {unit.memory.margin_bytes / 2**30:.1f} GiB of a GPU free" in why
    assert unit.memory.margin_bytes > 0


def test_graphs_are_for_decode_steps() -> None:
    value, why = told(unit_of("prefill"))["cuda_graph_max_bs"]
    assert (value, "prompts differ" in why) == (0, True)
    unit = unit_of("decode")
    value, why = told(unit)["cuda_graph_max_bs"]
    assert (value, "the largest batch of a rank" in why) == (max(8, unit.cap // 16), True)
    # 0.4.8 refuses DeepEP's auto with attention DP; normal, which is left, takes no graphs
    old = told(unit_of("both", settings=EngineSettings(version=(0, 4, 8))))
    assert (old["deepep_mode"][0], old["cuda_graph_max_bs"][0]) == ("normal", 0)
    assert "normal mode cannot be captured" in old["cuda_graph_max_bs"][1]


def test_chunks_say_who_waits_for_them() -> None:
    whys = {role: told(unit_of(role))["chunked_prefill_size"][1] for role in ("prefill", "decode", "both")}
    assert "no token waits for a large one" in whys["prefill"]
    assert "no prompt is computed here" in whys["decode"]
    assert "running requests wait for it" in whys["both"]
    unit = unit_of("prefill")
    assert f"{unit.chunk_flag // 16:,} a rank" in whys["prefill"]


@pytest.mark.parametrize(
    ("role", "mode", "why"),
    [
        ("prefill", "normal", "larger than low_latency"),
        ("decode", "low_latency", "CUDA graphs"),
        ("both", "auto", "for prompts"),
    ],
)
def test_deepep_has_the_mode_of_its_role(role: str, mode: str, why: str) -> None:
    found = told(unit_of(role))
    assert found["moe_a2a_backend"][0] == "deepep"
    assert "tokens travel" in found["moe_a2a_backend"][1]
    assert found["deepep_mode"][0] == mode
    assert why in found["deepep_mode"][1]
    assert "moe_a2a_backend" not in told(unit_of(role, ep=1, attn_dp=1))


def test_experts_that_do_not_divide_among_the_ranks_get_copies() -> None:
    assert "ep_num_redundant_experts" not in told(unit_of("decode"))
    value, why = told(unit_of("decode", nodes=3, tp=24, ep=24, attn_dp=24))["ep_num_redundant_experts"]
    assert (256 + value) % 24 == 0
    assert value == 8
    assert "256 experts do not divide among 24 ranks" in why


def test_kv_travels_by_rdma_between_nodes_and_stays_on_one() -> None:
    between = told(unit_of("prefill"))
    assert between["disaggregation_transfer_backend"] == ("mooncake", "KV goes from node to node by RDMA over ib-ndr")
    assert between["disaggregation_ib_device"][0] is None, "only the node knows its ports"
    assert "preflight" in between["disaggregation_ib_device"][1]
    within = told(unit_of("decode", nodes=1, model="llama-8b", tp=1, ep=1, attn_dp=1))
    assert within["disaggregation_transfer_backend"][0] == "nixl"
    assert "disaggregation_ib_device" not in within
    assert "disaggregation_transfer_backend" not in told(unit_of("both"))


def test_deepep_is_told_of_batches_beyond_its_own_limit() -> None:
    option = split_option()
    units = service_of(option, "/m")["units"]
    for (unit, _), written in zip(option.scheme.groups, units, strict=True):
        rank_batch = unit.cap // (unit.layout.attn_dp * unit.layout.pp)
        needs = unit.role == "decode" and unit.layout.ep > 1 and rank_batch > 128
        assert written.get("env", {}).get(DEEPEP_LIMIT) == (str(rank_batch) if needs else None)


def test_the_file_has_every_reason_beside_its_setting_and_reads_back(tmp_path: Path) -> None:
    option = split_option()
    file = tmp_path / "service.yaml"
    file.write_text(_planned_text(option, "/models/r1"))
    lines = file.read_text().splitlines()
    for unit, _ in option.scheme.groups:
        for setting in _role_settings(unit):
            if setting.why:
                assert any(setting.name in line and line.endswith(f"# {setting.why}") for line in lines), setting
    service = load_service(file)
    plain = service_of(option, "/models/r1")
    assert [dict(unit.settings) for unit in service.units] == [unit["settings"] for unit in plain["units"]]
    assert service.release == (0, 5, 23), "a release, not a line of them: an image has its name"
    assert "--disaggregation-transfer-backend mooncake" in members_of(service)[0].line


def test_a_planned_file_can_be_rehearsed_with_what_the_twin_takes(tmp_path: Path) -> None:
    file = tmp_path / "service.yaml"
    text = _planned_text(split_option(), "deepseek-r1")
    file.write_text(re.sub(r"kind: sglang,.*gpu", "kind: twin, gpu", text, count=1))
    known = {option for group in typer.main.get_command(twin_app()).params for option in group.opts}
    for member in members_of(load_service(file))[:-1]:
        written = {word for word in member.argv if word.startswith("--")}
        assert written <= known, written - known
        assert "--attn-dp" in written


def twin_app() -> typer.Typer:
    app = typer.Typer()
    app.command()(serve_twin)
    return app


def test_a_study_of_a_deepep_layout_sets_deepep(tmp_path: Path) -> None:
    choice = next(c for c in planned().choices if str(c.option.layout) == WIDE)
    assert "  moe_a2a_backend: [deepep]\n  deepep_mode: [auto]\n" in choice.study
    assert "moe_a2a_backend: deepep, deepep_mode: auto" in choice.study
    file = tmp_path / "study.yaml"
    file.write_text(choice.study)
    checked = check_study(file)
    assert checked.refusal(checked.study.baseline) is None
