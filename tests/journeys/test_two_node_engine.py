"""A whole campaign of an engine over two nodes each, on the four nodes of a real Slurm.

The stand-in behaves as SGLang's offline benchmark does: rank 1 blocks, and ends with an error when rank 0 has finished.
It takes half a minute: every run starts both ranks of an engine through sbatch and srun.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import command_line
from tests.slurm_cluster import SlurmCluster
from tests.workloads.engine.studies import STANDIN

pytestmark = pytest.mark.slurm

STUDY = f"""
version: 1
name: two-nodes
workload:
  kind: sglang-offline
  model: llama-8b
  load_format: dummy
  engine: {sys.executable}
  version: 0.5.15
  env: {{PYTHONPATH: "{STANDIN}"}}
  traffic: {{input_tokens: 12, output_tokens: 20, requests: 12}}
space:
  tp: [2]
  max_running_requests: [64, 256]
baseline: {{tp: 2, max_running_requests: 256}}
goal: {{maximize: total_tok_s}}
guards: [successful_requests == 12]
budget: {{trials: 1}}
stages: {{baseline: {{repeats: 1}}}}
confirm: {{top: 1, blocks: 3}}
job: {{nodes: 2, limit: 5m, silence: 2m}}
site: {{batch: slurm, queue: debug, nodes: 2, gpus_per_node: 1, launcher: srun, jobs_at_once: 2, poll_s: 0.3}}
"""


def ridgeline(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
    return command_line.ridgeline(*words, cwd=folder, env=env)


@pytest.mark.usefixtures("slurm")
def test_a_campaign_over_two_nodes_each_finds_the_best_setting(slurm: SlurmCluster, tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(STUDY)
    checked = ridgeline(tmp_path, "check", "study.yaml")
    assert "2 nodes, started by srun, meet where the first is reached from the others" in checked.stdout, checked.stderr
    done = ridgeline(tmp_path, "tune", "study.yaml")
    events = [json.loads(line) for line in (tmp_path / "studies/two-nodes/journal.jsonl").read_text().splitlines()]
    ended = [event for event in events if event["event"] == "ended"]
    assert {event["outcome"]["kind"] for event in ended} == {"ok"}, done.stdout + done.stderr
    assert all(len(event["ending"]["nodes"]) == 2 for event in ended)
    verdict = next(event["verdict"] for event in events if event["event"] == "verdict")
    assert "max_running_requests" in json.dumps(verdict)
    run = tmp_path / "studies/two-nodes/runs"
    for folder in run.iterdir():
        log = (folder / "engine.log").read_text()
        assert "ridgeline: rank 0" in log
        assert "ridgeline: rank 1" in log
    best = ridgeline(tmp_path, "best", "studies/two-nodes")
    assert "64" in best.stdout, best.stdout + best.stderr
