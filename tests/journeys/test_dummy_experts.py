"""A mixture of experts with dummy weights on a stand-in engine, from `check` to a deployment file."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.command_line import ridgeline
from tests.workloads.engine.studies import STANDIN

RESULTS = Path(__file__).parents[2] / "examples" / "05-sglang-h200" / "results"
SWITCH = "SGLANG_SIMULATE_UNIFORM_EXPERTS"
COLLAPSED = "collapsed routing"


def written(folder: Path, **env: str) -> Path:
    path = os.pathsep.join(filter(None, (str(STANDIN), os.environ.get("PYTHONPATH"))))
    study = {
        "version": 1,
        "name": "experts",
        "workload": {
            "kind": "sglang-offline",
            "model": "deepseek-v2-lite",
            "load_format": "dummy",
            "engine": sys.executable,
            "version": "0.5.15.post1",
            "env": {"PYTHONPATH": path, "XDG_CACHE_HOME": str(folder / "cache"), **env},
            "traffic": {"dataset": "fixed:8:4", "requests": 4},
            "warmup": 0,
        },
        "space": {"max_running_requests": [164, 64]},  # of the stand-in always 2 s and 1 s
        "baseline": {"max_running_requests": 164},
        "goal": {"maximize": "total_tok_s"},
        "budget": {"trials": 1},
        "confirm": {"top": 1, "blocks": 3},
    }
    file = folder / "study.yaml"
    file.write_text(yaml.safe_dump(study))
    return file


@pytest.mark.slow
def test_experts_of_dummy_weights(tmp_path: Path) -> None:
    study = written(tmp_path)
    checked = ridgeline("check", study)
    assert checked.returncode == 0 and COLLAPSED not in checked.stdout
    tuned = ridgeline("tune", study, cwd=tmp_path)
    folder = tmp_path / "studies" / "experts"
    assert folder.is_dir(), tuned.stderr
    assert COLLAPSED not in tuned.stdout

    # it arrived where the engine looks
    logs = [path.read_text() for path in sorted(folder.glob("runs/*/engine.log"))]
    assert len(logs) >= 2
    assert all(f"'{SWITCH}': '1'" in log for log in logs)
    sessions = [json.loads(path.read_text()) for path in sorted(folder.glob("runs/*/session.json"))]
    assert [session["weights"]["routing"] for session in sessions] == [{SWITCH: "1"}] * len(sessions)

    # the journal says so
    events = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
    (receipt,) = [event["receipt"] for event in events if event["event"] == "opened"]
    assert receipt["programs"]["weights"] == {"load_format": "dummy", "routing": {SWITCH: "1"}}

    # nobody is offered dummies to serve with, and whoever reads the answer reads the doubt
    best = ridgeline("best", folder, "--script", tmp_path / "run-best.sh", "--deploy", tmp_path / "service.yaml")
    assert "${WEIGHTS:?benchmark only" in best.stdout and "benchmark only: no real weights were measured" in best.stdout
    page = html.unescape(re.sub(r"<[^>]*>", "", (folder / "report.html").read_text()))
    assert "${WEIGHTS:?benchmark only" in page
    assert COLLAPSED not in best.stdout and COLLAPSED not in page.lower()
    used = page.partition("--max-running-requests 64")[0]  # what to use stands first; below are the scripts that ran
    for text in (best.stdout, (tmp_path / "run-best.sh").read_text(), used):
        assert "--load-format dummy" not in text and "model make" not in text and f"{SWITCH}=" not in text
    refused = subprocess.run(["sh", tmp_path / "run-best.sh"], capture_output=True, text=True, cwd=tmp_path)
    assert refused.returncode != 0 and "set it to the folder of real weights" in refused.stderr
    deployed = (tmp_path / "service.yaml").read_text()
    assert "# benchmark only" in deployed and yaml.safe_load(deployed)["model"] == "/path/to/real/weights"
    assert "load_format" not in deployed and SWITCH not in deployed
    assert ridgeline("study", "verify", folder).returncode == 0


@pytest.mark.parametrize(("version", "env"), [("0.5.12", {}), ("0.5.15", {SWITCH: "0"})])
def test_check_warns_of_collapsed_routing(tmp_path: Path, version: str, env: dict[str, str]) -> None:
    study = written(tmp_path, **env)
    study.write_text(study.read_text().replace("0.5.15.post1", version))
    assert f"warning {COLLAPSED}" in ridgeline("check", study).stdout
    (warning,) = json.loads(ridgeline("check", study, "--json").stdout)["warnings"]
    assert warning.startswith(COLLAPSED) and "too fast" in warning


def test_a_folder_that_ran_without_the_switch_says_so_wherever_its_answer_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "deepseek-v2-lite"
    shutil.copytree(RESULTS / "deepseek-v2-lite", folder)
    assert f"{COLLAPSED}: dummy weights" in ridgeline("best", folder).stdout
    assert ridgeline("report", folder, "--format", "md", "--out", tmp_path / "report.md").returncode == 0
    assert COLLAPSED in (tmp_path / "report.md").read_text().lower()
