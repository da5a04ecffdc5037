"""Whole campaigns on a real Slurm, driven as a user does: failures, refused settings, a killed controller."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ridgeline.study.grant import create, read_grant
from ridgeline.study.state_files import state_file
from tests.slurm_cluster import SlurmCluster

pytestmark = pytest.mark.slurm

SITE = """
batch: slurm
queue: debug
jobs_at_once: 4
poll_s: 0.3
"""
STUDY = r"""
version: 1
name: on-slurm
workload:
  kind: command
  run: |
    case {n} in
      3) exit 9 ;;
      4) sleep 60 ;;
      *) sleep {nap} ;;
    esac
    echo "rate $((100 - {n})) u/s"
  metrics:
    rate: {regex: 'rate\s+([0-9.]+)', unit: u/s}
site: cluster.yaml
space:
  n: {from: 1, to: 6}
  ranks: {values: [1, 64]}
  nap: [0.5]
rules:
  - refuse: ranks == 64 and n != 1
    because: one hopeless request is enough
goal: {maximize: rate}
baseline: {n: 6, ranks: 1, nap: 0.5}
budget: {trials: 7}
search: {sampler: grid, sentinel_every: 0}
confirm: {top: 1, blocks: 3}
job: {ranks_per_node: ranks, limit: 2s}
"""


def ridgeline(folder: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "ridgeline", *words],
        cwd=folder,
        env=dict(os.environ),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def write_study(folder: Path) -> None:
    (folder / "study.yaml").write_text(STUDY)
    (folder / "cluster.yaml").write_text(SITE)


def journal(folder: Path) -> list[dict[str, Any]]:
    file = folder / "studies/on-slurm/journal.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def kinds(folder: Path) -> Counter[str]:
    return Counter(event["outcome"]["kind"] for event in journal(folder) if event["event"] == "ended")


def jobs_of(slurm: SlurmCluster, folder: Path) -> int:
    """How many jobs Slurm was ever handed for this study."""
    return slurm.run("scontrol", "-o", "show", "job").stdout.count(f"WorkDir={folder}/")


def assert_nothing_lost_or_twice(slurm: SlurmCluster, folder: Path) -> None:
    events = journal(folder)
    runs = [event["run"] for event in events if event["event"] == "run"]
    ended = [event["run"] for event in events if event["event"] == "ended"]
    assert sorted(runs) == sorted(ended)
    refused = sum(state_file(path, "refused") is not None for path in (folder / "studies/on-slurm/runs").iterdir())
    assert jobs_of(slurm, folder) == len(runs) - refused


def wait_for_runs(folder: Path, count: int) -> None:
    give_up = time.monotonic() + 60
    while sum(event["event"] == "submitted" for event in journal(folder)) < count:
        assert time.monotonic() < give_up, "the campaign does not get on"
        time.sleep(0.05)


def test_a_campaign_sorts_its_failures_and_confirms_the_best(slurm: SlurmCluster, tmp_path: Path) -> None:
    write_study(tmp_path)
    done = ridgeline(tmp_path, "tune", "study.yaml")
    text, _ = done.communicate(timeout=600)
    assert done.returncode == 0, text
    assert "100 - 1" in text
    found = kinds(tmp_path)
    assert (found["crash"], found["timeout"], found["rejected"]) == (1, 1, 1)
    rejected = next(e for e in journal(tmp_path) if e["event"] == "ended" and e["outcome"]["kind"] == "rejected")
    assert "PartitionConfig" in rejected["outcome"]["reason"]
    assert_nothing_lost_or_twice(slurm, tmp_path)


def test_a_killed_controller_is_followed_by_one_that_loses_and_repeats_nothing(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    write_study(tmp_path)
    first = ridgeline(tmp_path, "tune", "study.yaml")
    wait_for_runs(tmp_path, 5)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    before = kinds(tmp_path)
    second = ridgeline(tmp_path, "resume", "studies/on-slurm")
    text, _ = second.communicate(timeout=600)
    assert second.returncode == 0, text
    assert all(kinds(tmp_path)[kind] >= count for kind, count in before.items())
    assert_nothing_lost_or_twice(slurm, tmp_path)


def test_slurmctld_may_restart_in_mid_campaign(slurm: SlurmCluster, tmp_path: Path) -> None:
    write_study(tmp_path)
    running = ridgeline(tmp_path, "tune", "study.yaml")
    wait_for_runs(tmp_path, 4)
    slurm.stop_controller()
    time.sleep(1)
    slurm.start_controller()
    text, _ = running.communicate(timeout=600)
    assert running.returncode == 0, text
    assert kinds(tmp_path)["site-fault"] == 0
    assert_nothing_lost_or_twice(slurm, tmp_path)


def test_a_grant_is_settled_with_what_slurm_charged(slurm: SlurmCluster, tmp_path: Path) -> None:
    """`limit` of a job is reserved; what it took, in Slurm's own records, is spent."""
    write_study(tmp_path)
    text = STUDY.replace("budget: {trials: 7}", "budget: {trials: 2, grant: grant.jsonl}").replace(
        "limit: 2s", "limit: 6m"
    )
    text = text.replace("3) exit 9 ;;", "").replace("4) sleep 60 ;;", "").replace("[1, 64]", "[1]")
    (tmp_path / "study.yaml").write_text(text.replace("confirm: {top: 1, blocks: 3}", "confirm: {top: 0}"))
    create(tmp_path / "grant.jsonl", 0.15)  # one job at a time: each may take 0.1
    tuned = ridgeline(tmp_path, "tune", "study.yaml")
    said, _ = tuned.communicate(timeout=600)
    assert tuned.returncode == 1, f"nothing was to be confirmed: {said}"
    paid = read_grant(tmp_path / "grant.jsonl")
    assert paid.reserved == 0
    charged = {event["ticket"]: event["seconds"] for event in journal(tmp_path) if event["event"] == "charged"}
    at_the_end = [event["ending"] for event in journal(tmp_path) if event["event"] == "ended"]
    seconds = sum(charged.values()) + sum(ending.get("charged", 0.0) for ending in at_the_end)
    assert len(paid.runs) == len(at_the_end)
    assert {run.source for run in paid.runs.values()} == {"batch system"}
    assert paid.spent * 3600 == pytest.approx(seconds)
