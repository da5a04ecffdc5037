"""Deployment files that `plan` and `best` write are read back by `deploy`, and mean what was answered."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from ridgeline.deploy.file import load_service, service_text
from ridgeline.deploy.from_plan import service_of
from ridgeline.deploy.members import members_of
from ridgeline.serving.planner.pairing import Pair
from ridgeline.serving.planner.planner import answer_plan

DEMO = Path(__file__).parents[2] / "examples" / "04-deepseek-r1-16-gpus" / "study.yaml"


def ridgeline(*words: object, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "ridgeline", *map(str, words)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def test_a_plan_becomes_servers_with_the_settings_that_were_simulated(tmp_path: Path) -> None:
    file = tmp_path / "service.yaml"
    words = ["--model", "deepseek-r1", "--gpu", "h200", "--nodes", "2", "--slo", "ttft_p95_ms=4000", "--top", "1"]
    said = ridgeline("plan", *words, "--deploy", file)
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


def test_an_answer_becomes_a_server_with_its_settings(tmp_path: Path) -> None:
    ridgeline("tune", DEMO, "--out", tmp_path / "demo", "--trials", 8)
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
