"""Whole campaigns that build: what a missing compiler costs, and builds as jobs of a real Slurm."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ridgeline.campaign.kinds.search import SearchQuestion
from ridgeline.campaign.preview import rehearse
from ridgeline.campaign.verify import verify_folder
from tests.command_line import ridgeline
from tests.slurm_cluster import SlurmCluster

STUDY = r"""
version: 1
name: building
workload:
  kind: command
  run: ./kernel; echo "rate {opt}"
  metrics:
    rate: {regex: 'rate -O(\d)', unit: u/s}
space:
  compiler: [gcc, icx-not-here]
  opt: [-O0, -O1, -O2, -O3]
goal: {maximize: rate}
baseline: {compiler: gcc, opt: -O0}
budget: {trials: 6}
search: {sampler: SAMPLER, sentinel_every: 0}
confirm: {top: 0}
job: {limit: 60}
builds:
  make: "{compiler} {opt} kernel.c -o kernel"
  keep: kernel
"""


def tune(folder: Path, study: str) -> list[dict[str, Any]]:
    """The journal of the campaign that a user gets from this study."""
    (folder / "study.yaml").write_text(study)
    (folder / "kernel.c").write_text("int main(void){return 0;}\n")
    done = ridgeline("tune", "study.yaml", "--out", "out", cwd=folder)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return [json.loads(line) for line in (folder / "out/journal.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("sampler", ["grid", "random", "guided"])
def test_a_missing_compiler_costs_one_trial_of_all(tmp_path: Path, sampler: str) -> None:
    events = tune(tmp_path, STUDY.replace("SAMPLER", sampler))
    asked = [e["settings"] for e in events if e["event"] == "trial" and e["stage"] == "search"]
    assert sum(settings["compiler"] == "icx-not-here" for settings in asked) <= 1
    assert {settings["opt"] for settings in asked if settings["compiler"] == "gcc"} >= {"-O1", "-O2", "-O3"}
    ends = [e["outcome"]["kind"] for e in events if e["event"] == "ended"]
    assert ends.count("site-fault") <= 1, "a compiler that is not there is not there a moment later either"
    assert verify_folder(tmp_path / "out").mismatches == []


def test_the_script_of_a_trial_loads_the_modules_of_its_knobs(tmp_path: Path) -> None:
    study = STUDY.replace("SAMPLER", "grid").replace(
        "compiler: [gcc, icx-not-here]", "compiler: [gcc]\n  release: [12, 13]"
    )
    study = study.replace("job: {limit: 60}", "job: {limit: 60, modules: ['gcc/{release}']}")
    (tmp_path / "study.yaml").write_text(study.replace("baseline: {compiler: gcc,", "baseline: {release: 13,"))
    (tmp_path / "kernel.c").write_text("int main(void){return 0;}\n")
    (first,) = rehearse(tmp_path / "study.yaml", SearchQuestion(), 1, tmp_path / "dry")
    assert "module load gcc/13 ||" in first.script


MODULE = """#!/bin/sh
echo "$2 on $SLURMD_NODENAME" >> {log}
case $2 in *99) exit 1;; esac
"""
ON_SLURM = (
    STUDY.replace("SAMPLER", "grid")
    .replace("compiler: [gcc, icx-not-here]", "release: [12, 13, 99]")
    .replace("baseline: {compiler: gcc,", "baseline: {release: 12,")
    .replace("job: {limit: 60}", "job: {limit: 60, modules: ['gcc/{release}']}")
    .replace("{compiler} {opt}", "gcc {opt} -march=native")
    .replace("keep: kernel", "keep: kernel\n  where: site")
    .replace("budget:", "presets: [{release: 99, opt: -O1}]\nbudget:")
    .replace("space:", "site: {batch: slurm, queue: debug, jobs_at_once: 4, poll_s: 0.3, name: here}\nspace:")
)


@pytest.mark.slurm
def test_builds_run_as_jobs_of_the_site_with_modules_that_follow_a_knob(
    slurm: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, module = tmp_path / "log", tmp_path / "bin" / "module"
    module.parent.mkdir()
    module.write_text(MODULE.format(log=log))
    module.chmod(0o755)
    monkeypatch.setenv("PATH", f"{module.parent}{os.pathsep}{os.environ['PATH']}")
    events = tune(tmp_path, ON_SLURM)
    builds = [e for e in events if e["event"] == "build"]
    good = [e for e in builds if e["outcome"]["kind"] == "ok"]
    assert len(good) >= 4
    assert all(e["files"] == 5 for e in good), "the product and how it was made; nothing of the batch system"
    missing = [e for e in builds if e["outcome"]["kind"] == "site-fault"]
    assert {json.dumps(e.get("missing")) for e in missing} == {'{"release": 99}'}
    loaded = log.read_text().splitlines()
    assert all(" on n" in line for line in loaded), "on compute nodes, never here"
    # builds of what was started together were under way together
    order = [e["event"] for e in events if e["event"] in ("run", "build")]
    assert "run run" in " ".join(order)
