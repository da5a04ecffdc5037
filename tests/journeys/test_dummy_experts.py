"""A mixture of experts with dummy weights on a stand-in engine, from `check` to a deployment file."""

from __future__ import annotations

import html
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.command_line import ridgeline
from tests.workloads.engine.studies import STANDIN

SWITCH = "SGLANG_SIMULATE_UNIFORM_EXPERTS"
COLLAPSED = "collapsed routing"


def written(folder: Path, env: dict[str, str]) -> Path:
    path = os.pathsep.join(filter(None, (str(STANDIN), os.environ.get("PYTHONPATH"))))
    study = {
        "version": 1,
        "name": "experts",
        "workload": {
            "kind": "sglang-serve",
            "model": "deepseek-v2-lite",
            "load_format": "dummy",
            "engine": sys.executable,
            "version": "0.5.15.post1",
            "env": {"PYTHONPATH": path, "XDG_CACHE_HOME": str(folder / "cache"), **env},
            "concurrency": 2,
            "traffic": {"dataset": "fixed:8:4", "requests": 4},
            "warmup": 0,
        },
        "space": {"max_running_requests": [64, 1]},
        "baseline": {"max_running_requests": 64},
        "goal": {"maximize": "total_tok_s"},
        "budget": {"trials": 1},
        "confirm": {"top": 1, "blocks": 3},
    }
    file = folder / "study.yaml"
    file.write_text(yaml.safe_dump(study))
    return file


@pytest.mark.slow
@pytest.mark.parametrize("spread", [True, False], ids=["as it comes", "as the study asks"])
def test_experts_of_dummy_weights(tmp_path: Path, spread: bool) -> None:
    study = written(tmp_path, {} if spread else {SWITCH: "0"})
    checked = ridgeline("check", study)
    assert checked.returncode == 0 and (COLLAPSED in checked.stdout) is not spread
    tuned = ridgeline("tune", study, cwd=tmp_path)
    folder = tmp_path / "studies" / "experts"
    assert folder.is_dir(), tuned.stderr
    assert (COLLAPSED in tuned.stdout) is not spread

    # it arrived where the engine looks
    logs = [path.read_text() for path in sorted(folder.glob("runs/*/engine.log"))]
    assert len(logs) >= 2
    assert {f"'{SWITCH}': '{int(spread)}'" in log for log in logs} == {True}
    sessions = [json.loads(path.read_text()) for path in sorted(folder.glob("runs/*/session.json"))]
    assert [session.get("weights", {}).get("routing") for session in sessions] == [
        {SWITCH: "1"} if spread else None
    ] * len(sessions)

    # the journal says so
    events = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
    (receipt,) = [event["receipt"] for event in events if event["event"] == "opened"]
    assert receipt["programs"]["weights"] == {"load_format": "dummy", "routing": {SWITCH: str(int(spread))}}

    # nobody is offered dummies to serve with, and whoever reads the answer reads the doubt
    best = ridgeline("best", folder, "--script", tmp_path / "run-best.sh", "--deploy", tmp_path / "service.yaml")
    assert "${WEIGHTS:?benchmark only" in best.stdout and "benchmark only: no real weights were measured" in best.stdout
    assert (COLLAPSED in best.stdout) is not spread
    page = html.unescape(re.sub(r"<[^>]*>", "", (folder / "report.html").read_text()))
    assert "${WEIGHTS:?benchmark only" in page and (COLLAPSED in page) is not spread
    used = page.partition("--max-running-requests 64")[0]  # what to use stands first; below are the scripts that ran
    for text in (best.stdout, (tmp_path / "run-best.sh").read_text(), used):
        assert "--load-format dummy" not in text and "make-model" not in text and f"{SWITCH}=" not in text
    refused = subprocess.run(["sh", tmp_path / "run-best.sh"], capture_output=True, text=True, cwd=tmp_path)
    assert refused.returncode != 0 and "set it to the folder of real weights" in refused.stderr
    deployed = (tmp_path / "service.yaml").read_text()
    assert "# benchmark only" in deployed and yaml.safe_load(deployed)["model"] == "/path/to/real/weights"
    assert "load_format" not in deployed and SWITCH not in deployed
    assert ridgeline("verify", folder).returncode == 0
