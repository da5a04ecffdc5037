"""Plans for vLLM end in its own words: commands of a release, a study and a deployment file."""

import shlex
from pathlib import Path

import pytest
import yaml

from ridgeline.campaign.check import check_study
from ridgeline.serving.engines.flags import engine_flags
from ridgeline.serving.engines.vllm.defaults import meant, utilization
from ridgeline.serving.planner.commands import LintPoint, lint_commands
from ridgeline.serving.planner.planner import Plan, answer_plan
from ridgeline.serving.service.from_results import printed, service_of, write_plan
from ridgeline.serving.verbs.plan import plan_text

LIMITS = ["ttft_p95_ms=2000", "itl_p95_ms=50"]


@pytest.fixture(scope="module")
def planned() -> Plan:
    return answer_plan("qwen3-32b", "h100", 2, 2, "fixed:400:60", slos=LIMITS, engine="vllm:0.17.0")


def test_commands_are_vllms_and_name_the_release(planned: Plan) -> None:
    text = plan_text(planned)
    assert "for vLLM 0.17.0:" in text
    assert "sglang" not in text.partition("for vLLM")[2]
    assert "not planned for vLLM" in text
    for choice in planned.choices:
        assert printed(choice).lint.ok, printed(choice).lint.problems
        assert choice.as_json()["written_for"] == "vLLM 0.17.0"
        servers = [c for c in printed(choice).commands if c.what != "router"]
        for command in servers:
            flags = engine_flags("vllm").from_arguments(command.argv)
            assert flags["tp"] == choice.option.layout.tp
            assert flags["max_running_requests"] == choice.option.scheme.main.cap
            assert 0.5 < flags["gpu_memory_utilization"] < 1


def test_engines_stay_within_a_node_and_do_both_phases(planned: Plan) -> None:
    for choice in planned.choices:
        layout = choice.option.layout
        assert not layout.disaggregated
        assert layout.attn_dp == 1
        assert layout.tp * layout.pp <= 2


def test_copies_on_one_node_get_gpus_of_their_own() -> None:
    found = answer_plan("llama-8b", "h100", 1, 2, "fixed:200:20", engine="vllm", concurrency=16, requests=64)
    choice = next(c for c in found.choices if str(c.option.layout) == "tp 1 dp 2")
    *servers, router = printed(choice).commands
    assert [c.env["CUDA_VISIBLE_DEVICES"] for c in servers] == ["0", "1"]
    assert "-m smg launch" in str(router), "it lists a vLLM's model by its name"


def test_a_share_of_the_gpu_and_a_fraction_of_what_is_free_are_the_same_memory(planned: Plan) -> None:
    unit = planned.choices[0].option.scheme.main
    gpu = planned.question.cluster.gpu
    share = utilization(unit.memory, gpu)
    assert share > unit.memory.mem_fraction  # it holds activations too
    again = meant({"gpu_memory_utilization": share}, unit.memory, gpu)["mem_fraction_static"]
    assert again == pytest.approx(unit.memory.mem_fraction, abs=0.002)


def test_too_small_a_share_is_found_in_the_printed_line(planned: Plan) -> None:
    choice = planned.choices[0]
    commands = printed(choice).commands
    lines = [str(c).replace("--gpu-memory-utilization", "--gpu-memory-utilization 0.2 --x") for c in commands]
    report = lint_commands(lines, planned.question, LintPoint(8, 400, 460))
    assert not report.ok
    few = [str(c).replace("--max-num-seqs", "--max-num-seqs 1 --x") for c in commands]
    problems = lint_commands(few, planned.question, LintPoint(80, 400, 460)).problems
    assert any("raise --max-num-seqs" in p for p in problems)


def test_the_study_is_accepted_and_asks_vllms_scheduler(planned: Plan, tmp_path: Path) -> None:
    write_plan(planned, tmp_path)
    path = next(tmp_path.glob("01-*")) / "study.yaml"
    study = yaml.safe_load(path.read_text())
    arguments = shlex.split(study["workload"]["run"])
    assert arguments[arguments.index("--engine") + 1] == "vllm:0.17.0"
    assert "max_num_seqs" in study["space"]
    checked = check_study(path)
    assert checked.refusal(checked.study.baseline) is None


def test_the_deployment_file_is_of_the_same_engine_and_release(planned: Plan) -> None:
    service = service_of(planned.choices[0].option, "/models/x")
    assert (service["engine"]["kind"], service["engine"]["release"]) == ("vllm", "0.17.0")
    assert "max_num_batched_tokens" in service["units"][0]["settings"]
    if "router" in service:
        assert service["router"]["kind"] == "smg"
