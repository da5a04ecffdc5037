"""Deployment files that `plan` and `best` write are read back by `deploy`, and mean what was answered."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path
from string import Template

import pytest

from ridgeline.serving.model.folder import write_model_folder
from ridgeline.serving.planner.planner import answer_plan
from ridgeline.serving.planner.scheme import Pair
from ridgeline.serving.service import from_results
from ridgeline.serving.service.file import load_service, service_text
from ridgeline.serving.service.from_results import service_of
from ridgeline.serving.service.members import members_of, variable
from ridgeline.study.study_file import read_study_file
from tests import command_line

DEMO = Path(__file__).parents[2] / "examples" / "04-deepseek-r1-16-gpus" / "study.yaml"


def ridgeline(*argv: object, code: int = 0) -> str:
    done = command_line.ridgeline(*argv)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def test_a_plan_becomes_servers_with_the_settings_that_were_simulated(tmp_path: Path) -> None:
    file = tmp_path / "service.yaml"
    argv = ["--model", "deepseek-r1", "--gpu", "h200", "--nodes", "2", "--slo", "ttft_p95_ms=4000", "--top", "1"]
    argv += ["--traffic", "fixed:313:194"]
    said = ridgeline("plan", *argv, "--deploy", file)
    service = load_service(file)
    assert service.engine == "sglang"
    assert service.slo == {"ttft_p95_ms": 4000.0}
    assert service.expected["origin"] == "modelled"
    assert service.expected["interval"]["ttft_p95_ms"][0] < service.expected["interval"]["ttft_p95_ms"][1]
    server = members_of(service)[0]
    for word in server.line.partition(" --host ")[0].split()[5:]:
        assert word in said, "the file's command has the flags that plan prints"


def test_groups_of_a_plan_become_split_roles_with_the_routers_limits(tmp_path: Path) -> None:
    answer = answer_plan("deepseek-r1", "h200", 2, 8, "fixed:2000:200", slos=["ttft_p95_ms=4000"], named=["P1D1"])
    option = next(c.option for c in answer.choices if isinstance(c.option.scheme.shape, Pair))
    file = tmp_path / "service.yaml"
    file.write_text(service_text(service_of(option, "/models/r1")))
    service = load_service(file)
    assert [unit.role for unit in service.units] == ["prefill", "decode"]
    decode = option.scheme.main
    assert service.router is not None
    assert service.router.most_running == decode.cap * service.units[1].replicas
    lines = {member.name: member.line for member in members_of(service)}
    assert "--disaggregation-mode decode" in lines["decode-0"]
    assert f"--max-running-requests {decode.cap}" in lines["decode-0"]


SMALL = ["--model", "llama-8b", "--gpu", "h100", "--gpus-per-node", "2", "--traffic", "fixed:200:50", "--top", "1"]


def test_the_next_command_that_a_plan_prints_runs_as_it_stands(tmp_path: Path) -> None:
    out, file = tmp_path / "two words", tmp_path / "two words.yaml"
    said = ridgeline("plan", *SMALL, "--concurrency", "8", "--out", out, "--deploy", file)
    check, deploy = re.findall(r"ridgeline ((?:service )?check .*)", said)
    assert "legal points" in ridgeline(*shlex.split(check))
    refused = ridgeline(*shlex.split(deploy), code=2)
    assert "is not on this machine" in refused
    advised = re.findall(r"`ridgeline (service check [^`]*)`", refused + file.read_text())
    assert len(advised) > 1
    for command in advised:
        assert Path(shlex.split(command)[2]).name == file.name, "as pasted into a shell"


def test_a_plan_names_the_folder_that_has_the_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tmp_path / "two words"
    write_model_folder("llama-8b", model)
    monkeypatch.chdir(tmp_path)
    asked = ["--model", "two words", *SMALL[2:], "--layout", "tp 1 dp 2", "--concurrency", "8"]
    assert "--model-path '/models/two words'" in ridgeline("plan", *asked)
    (model / "model-00001-of-00004.safetensors").touch()
    said = ridgeline("plan", *asked, "--deploy", "service.yaml")
    assert f"--model-path '{model}'" in said
    assert load_service(Path("service.yaml")).model == str(model)


def test_a_plan_says_that_a_model_brings_code_of_its_own(tmp_path: Path) -> None:
    write_model_folder("llama-8b", tmp_path)
    config, file = tmp_path / "config.json", tmp_path / "service.yaml"
    config.write_text(json.dumps({**json.loads(config.read_text()), "auto_map": {"AutoConfig": "configuration.Own"}}))
    asked = ["--model", tmp_path, *SMALL[2:], "--layout", "tp 1 dp 2", "--concurrency", "8", "--deploy", file]
    assert "where you trust it, add --trust-remote-code" in ridgeline("plan", *asked)
    head, rest = file.read_text().split("version: 1")
    assert "write trust_remote_code: true into settings" in head
    file.write_text(f"version: 1{rest}".replace("    pp: 1\n", "    pp: 1\n    trust_remote_code: true\n"))
    assert "--trust-remote-code" in members_of(load_service(file))[0].line


def test_printed_commands_are_those_of_the_written_file(tmp_path: Path) -> None:
    """Ports, policy, limits, flags: there is one place that knows them."""
    file = tmp_path / "service.yaml"
    said = ridgeline("plan", *SMALL, "--layout", "tp 1 dp 2", "--deploy", file, "--json")
    (first, *_) = json.loads(said)["plans"]
    members = members_of(load_service(file))
    assert [row["command"] for row in first["commands"]] == [
        Template(" ".join(member.argv)).substitute(
            {"address": "127.0.0.1", **{variable(other.name): "127.0.0.1" for other in members}}
        )
        for member in members
    ]
    assert len(members) == 3
    assert "--policy cache_aware" in first["commands"][-1]["command"]


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_dtypes_that_were_planned_are_those_that_are_served(tmp_path: Path, engine: str) -> None:
    file = tmp_path / "service.yaml"
    argv = [*SMALL, "--engine", engine, "--concurrency", "8", "--dtype", "fp8", "--kv-dtype", "fp8"]
    said = ridgeline("plan", *argv, "--deploy", file)
    server = members_of(load_service(file))[0]
    for flags in ("--quantization fp8", "--kv-cache-dtype fp8_e4m3"):
        assert flags in server.line
        assert flags in said


def test_a_model_that_ships_with_its_dtype_needs_no_flag() -> None:
    plain = answer_plan("deepseek-r1", "h200", 2, 8, "fixed:200:20", dtype="fp8", concurrency=8, top=1)
    assert plain.question.dtype_settings == {}


def test_weights_that_no_engine_quantises_itself_are_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "service.yaml"
    ridgeline("plan", *SMALL, "--concurrency", "8", "--dtype", "int4", "--deploy", file)
    assert "# planned with int4 weights: name a folder that holds them so" in file.read_text()
    assert "quantization" not in load_service(file).units[0].settings


def test_a_plan_that_breaks_its_limits_is_no_service(tmp_path: Path) -> None:
    file = tmp_path / "service.yaml"
    said = ridgeline("plan", *SMALL, "--slo", "ttft_p95_ms=0.01", "--rate", "5", "--deploy", file, code=1)
    assert "service.yaml: not written, as no layout on 1 x 2 H100 is good enough" in said
    assert "breaks ttft_p95_ms=0.01" in said
    assert "relax that limit" in said
    assert not file.exists()


def test_an_answer_becomes_a_server_with_its_settings(tmp_path: Path) -> None:
    shutil.copytree(DEMO.parent, tmp_path / "study")
    study = tmp_path / "study" / "study.yaml"
    study.write_text(study.read_text().replace("2000", "300"))  # requests
    ridgeline("tune", study, "--out", tmp_path / "demo", "--trials", 8)
    file = tmp_path / "service.yaml"
    said = ridgeline("best", tmp_path / "demo", "--deploy", file)
    service = load_service(file)
    (server,) = members_of(service)
    assert server.resources.nodes == 2
    assert "--nnodes 2" in server.line
    for flag in ("--tp-size", "--pp-size", "--max-running-requests", "--mem-fraction-static"):
        value = server.line.partition(f"{flag} ")[2].split()[0]
        assert f"{flag} {value}" in said
    assert service.expected["origin"] == "simulated"


def test_a_study_of_another_program_is_refused(tmp_path: Path) -> None:
    study = tmp_path / "study.yaml"
    study.write_text(
        "version: 1\nname: echo\n"
        "workload: {kind: command, run: 'echo value={t}', metrics: {value: {regex: 'value=(.*)'}}}\n"
        "space: {t: [1, 2, 3]}\nbaseline: {t: 1}\ngoal: {maximize: value}\nbudget: {trials: 2}\n"
    )
    ridgeline("tune", study, "--out", tmp_path / "out")
    assert "is not a server" in ridgeline("best", tmp_path / "out", "--deploy", tmp_path / "no.yaml", code=2)
    assert not (tmp_path / "no.yaml").exists()


def test_a_server_keeps_all_that_it_was_measured_with(tmp_path: Path) -> None:
    """The file may lie anywhere: what the study says from its own folder is said in full."""
    home = tmp_path / "a home"
    (home / "my model").mkdir(parents=True)
    (home / "my model" / "config.json").write_text('{"model_type": "llama"}')
    (home / "study.yaml").write_text(
        "version: 1\nname: small\n"
        "workload:\n  kind: vllm-serve\n  model: ./my model\n  load_format: safetensors\n"
        "  engine: ./venv\n  version: 0.12.0\n"
        "  env: {OMP_NUM_THREADS: '{threads}'}\n  concurrency: 4\n"
        "space: {max_num_seqs: [1, 8], NCCL_ALGO: [Ring, Tree]}\nderived: {threads: max_num_seqs * 2}\n"
        "baseline: {max_num_seqs: 1, NCCL_ALGO: Tree}\ngoal: {maximize: total_tok_s}\nbudget: {trials: 2}\n"
    )
    study = read_study_file(home / "study.yaml").study
    found = from_results.service_of_answer(study, study.space.settings(study.baseline), "")
    assert found["model"] == str(home / "my model")
    assert found["engine"] == {"kind": "vllm", "release": "0.12.0", "python": str(home / "venv" / "bin" / "python")}
    (unit,) = found["units"]
    assert unit["settings"] == {"load_format": "safetensors", "max_num_seqs": 1}
    assert unit["env"] == {"OMP_NUM_THREADS": "2", "NCCL_ALGO": "Tree"}
