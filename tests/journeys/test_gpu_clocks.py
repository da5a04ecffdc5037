"""From the question which clock makes a token for the fewest joules to a server that runs at it."""

from __future__ import annotations

from pathlib import Path

from tests import command_line

STUDY = """\
version: 1
name: clocks
question: Which clock makes a token for the fewest joules?
workload:
  kind: twin
  model: llama-8b
  gpu: h200
  concurrency: 16
  traffic: {dataset: "uniform:200-400:40-60", requests: 64, seed: 1}
space:
  gpu_clock: [default, 1200]
goal: {minimize: joules_per_output_token}
baseline: {gpu_clock: default}
budget: {trials: 1}
job: {gpus: 1, limit: 10m}
stages:
  baseline: {repeats: 1}
  confirm: {top: 1, blocks: 3, repeats: 1}
site: {batch: simulated, nodes: 1, gpus_per_node: 1}
"""
LOCKED = "nvidia-smi --lock-gpu-clocks=1200,1200"


def test_the_clock_that_was_found_goes_along_to_where_it_is_served(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(STUDY)
    done = command_line.ridgeline("tune", tmp_path / "study.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert " --lock-gpu-clocks=1200,1200\n" in done.stdout
    best = command_line.ridgeline("best", tmp_path / "studies" / "clocks", "--deploy", tmp_path / "served.yaml")
    assert best.returncode == 0, best.stderr
    file = (tmp_path / "served.yaml").read_text()
    assert f"on each node, as root, before its servers: {LOCKED}" in file
    assert "gpu: h200@1200MHz" in file
    assert "gpu_clock" not in file, "which no server takes as a flag"
