"""What is pasted starts the engine that the run started: the same arguments, in the same environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ridgeline import catalog
from ridgeline.campaign.point_text import script_of
from ridgeline.executors import script
from ridgeline.records.expression import Expression
from ridgeline.records.site import Site
from ridgeline.records.study import Builds, JobLimits
from tests.workloads.engine.studies import study, trial

PROBE = """\
#!{python} -IS
import json, os, sys
names = {names!r}
print(json.dumps([sys.argv[1:], {{name: os.environ.get(name) for name in names}}]))
"""
VERSIONS = {"sglang": "0.5.3", "vllm": "0.11.0"}
VARIABLES = ("A_TEXT", "NCCL_ALGO", "NCCL_DEBUG", "OF_THE_SITE", "HOME")
# what the session finds out on a node
SESSION = {"RIDGELINE_MODEL": "models/llama-8b", "RIDGELINE_PORT": "30000", "RIDGELINE_RENDEZVOUS": "20000"}
anything = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=9)


def seen(command: list[str], folder: Path, **env: str) -> Any:
    clean = {"PATH": os.environ["PATH"], "HOME": "/nowhere", **env}
    return json.loads(
        subprocess.run(command, cwd=folder, env=clean, capture_output=True, check=True).stdout.splitlines()[-1]
    )


def run_and_pasted(
    folder: Path, kind: str, knobs: dict[str, list], nodes: int = 1, **options: object
) -> tuple[Any, Any]:
    """How the engine is started by engine.sh after run.sh has set the environment, and how by the pasted text."""
    folder.mkdir(parents=True, exist_ok=True)
    probe = folder / "my python"
    probe.write_text(PROBE.format(python=Path(sys.executable).resolve(), names=VARIABLES))
    probe.chmod(0o755)
    site = Site(env={"OF_THE_SITE": "it's", "A_TEXT": "overruled"}, setup=("export NCCL_DEBUG=WARN",), launcher="srun")
    # a version that is given is not asked for, which a probe could not answer
    asked = study(folder, kind, knobs, engine=str(probe), version=VERSIONS[kind.partition("-")[0]], **options)
    asked = replace(asked, site=site, job=JobLimits(nodes=Expression.parse(str(nodes))))
    workload = catalog.part("workloads", kind)(asked)
    assert list(workload.problems()) == []
    job = workload.prepare(trial(asked), folder / "run")
    head = subprocess.run("hostname -I | cut -d' ' -f1", shell=True, capture_output=True, text=True).stdout.strip()
    exported = script.exports(script.environment(job, site)) + script.setup(job, site)
    exported += script.exports({**SESSION, "RIDGELINE_HEAD": head})
    ran = seen(["sh", "-c", f"{exported}sh run/engine.sh"], folder)
    return ran, seen(["sh", "-c", workload.paste(trial(asked).settings)], folder)


@pytest.mark.parametrize("kind", ["sglang-serve", "vllm-serve"])
@given(text=anything, algorithm=st.sampled_from(["Tree", "Ring"]), nodes=st.sampled_from([1, 2]))
@settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_pasted_server_is_the_one_that_ran(tmp_path: Path, kind: str, text: str, algorithm: str, nodes: int) -> None:
    knobs = {"NCCL_ALGO": [algorithm], "text": [text], "max_running_requests": [512]}
    ran, pasted = run_and_pasted(tmp_path, kind, knobs, nodes, env={"A_TEXT": "{text}"})
    assert pasted == ran
    assert ran[1] == {
        "A_TEXT": text, "NCCL_ALGO": algorithm, "NCCL_DEBUG": "WARN", "OF_THE_SITE": "it's", "HOME": "/nowhere"
    }  # fmt: skip
    assert "512" in ran[0]


@pytest.mark.parametrize("kind", ["sglang-offline", "vllm-offline"])
def test_the_server_for_an_offline_answer_has_its_engine_arguments(tmp_path: Path, kind: str) -> None:
    ran, pasted = run_and_pasted(tmp_path, kind, {"max_running_requests": [512], "tp": [1], "A_TEXT": ["a b"]})
    assert pasted[1] == ran[1]
    theirs = ran[0][ran[0].index("512") - 1 :]
    assert theirs == pasted[0][-len(theirs) :]


def test_what_a_step_kept_is_asked_for_rather_than_left_out(tmp_path: Path) -> None:
    asked = study(tmp_path, "sglang-serve", {"tp": [1]}, prepare=["eplb"])
    text = catalog.part("workloads", "sglang-serve")(asked).paste(asked.baseline)
    done = subprocess.run(["sh", "-c", text], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "set it to the experts.pt that the step eplb kept" in done.stderr
    assert "--init-expert-location" in text


def test_a_build_goes_first(tmp_path: Path) -> None:
    asked = replace(study(tmp_path, "sglang-serve", {"tp": [1]}), builds=Builds(make=("make TP={tp}",), keep=("lib",)))
    assert catalog.part("workloads", "sglang-serve")(asked).paste(asked.baseline).startswith("make TP=1 &&\n")


@pytest.mark.parametrize("kind", ["sglang-serve", "vllm-serve"])
def test_the_script_of_a_server_starts_it_from_any_clean_shell(tmp_path: Path, kind: str) -> None:
    home = tmp_path / "my home"
    knobs = {"NCCL_ALGO": ["Tree"], "text": ["a b"], "max_running_requests": [512]}
    ran, _ = run_and_pasted(home, kind, knobs, env={"A_TEXT": "{text}"})
    asked = study(home, kind, knobs, engine=str(home / "my python"), version=VERSIONS[kind.partition("-")[0]])
    asked = replace(
        asked, workload=replace(asked.workload, options={**asked.workload.options, "env": {"A_TEXT": "{text}"}})
    )
    text = script_of(asked, home, trial(asked).point, "a title")
    weights = f"WEIGHTS={SESSION['RIDGELINE_MODEL']}"  # dummies are not offered: whoever serves names real ones
    done = subprocess.run(["env", "-i", weights, "sh", "-c", text], cwd=tmp_path, capture_output=True, check=True)
    found = done.stdout.splitlines()[-1]
    dummy = ran[0].index("--load-format")
    assert ran[0][dummy + 1] == "dummy"
    assert json.loads(found)[0] == ran[0][:dummy] + ran[0][dummy + 2 :]
    assert json.loads(found)[1]["A_TEXT"] == "a b"
