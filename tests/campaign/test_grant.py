"""Campaigns that are paid from a shared grant: they stop before it is overdrawn, and settle what a kill left open."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ridgeline.study.grant import create, read_grant, top_up
from ridgeline.study.history import read_history
from tests.command_line import ridgeline

STUDY = """
version: 1
name: paid
workload: {{kind: command, run: "{wait}echo score {{x}}", metrics: {{score: {{regex: 'score (.*)'}}}}}}
space: {{x: [1, 2]}}
baseline: {{x: 1}}
goal: {{maximize: score}}
budget: {{trials: 1, grant: ../grant.jsonl}}
job: {{limit: 36m}}
stages: {{baseline: {{repeats: 1}}, search: {{sampler: grid, sentinel_every: 0}}, confirm: {{top: 0}}}}
"""


def written(folder: Path, wait: str = "") -> Path:
    (folder / "mine").mkdir()
    path = folder / "mine" / "study.yaml"
    path.write_text(STUDY.format(wait=wait))
    return path


def test_a_campaign_stops_before_it_overdraws_and_goes_on_when_there_is_more(tmp_path: Path) -> None:
    study, grant = written(tmp_path), tmp_path / "grant.jsonl"
    missing = ridgeline("tune", str(study), cwd=tmp_path)
    assert missing.returncode == 2
    assert "study.yaml:8: budget.grant:" in missing.stderr
    assert "ridgeline site grant create" in missing.stderr
    create(grant, 0.5)  # a run may take 0.6
    stopped = ridgeline("tune", str(study), "--out", "out", cwd=tmp_path)
    assert stopped.returncode == 3, stopped.stderr
    assert "has 0.5 of 0.5 node-hours left" in stopped.stderr
    assert "a run may take 0.6" in stopped.stderr
    top_up(grant, 1.0)
    done = ridgeline("resume", "out", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "the study asks for no confirmation" in done.stderr
    paid = read_grant(grant)
    assert paid.reserved == 0
    assert 0 < paid.spent < 0.5
    assert {run.study for run in paid.runs.values()} == {str(tmp_path / "out")}
    shown = ridgeline("site", "grant", "show", str(grant), cwd=tmp_path)
    assert "0 of 2 settled runs as the batch system charged it" in shown.stdout


def test_what_a_killed_campaign_had_reserved_is_settled_when_it_is_resumed(tmp_path: Path) -> None:
    study, grant = written(tmp_path, wait="sleep 2; "), tmp_path / "grant.jsonl"
    create(grant, 10.0)
    command = [sys.executable, "-m", "ridgeline", "tune", str(study), "--out", "out"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as started:
        until = time.monotonic() + 600
        while not read_grant(grant).reserved and time.monotonic() < until:
            time.sleep(0.1)
        os.kill(started.pid, signal.SIGKILL)
    assert read_grant(grant).reserved == 0.6
    done = ridgeline("resume", "out", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "the study asks for no confirmation" in done.stderr
    paid = read_grant(grant)
    assert paid.reserved == 0
    assert 0 < paid.spent < 0.1


def test_builds_on_the_site_are_paid_from_it_too(tmp_path: Path) -> None:
    study, grant = written(tmp_path), tmp_path / "grant.jsonl"
    builds = '{where: site, make: "sleep 0.3; echo {x} > made", keep: [made], limit: 12m}'
    study.write_text(f"{study.read_text()}builds: {builds}\n")
    create(grant, 0.1)  # a build may take 0.2
    stopped = ridgeline("tune", str(study), "--out", "out", cwd=tmp_path)
    assert stopped.returncode == 3, stopped.stderr
    assert "a build may take 0.2" in stopped.stderr
    assert "shorten `builds: limit`" in stopped.stderr
    assert not read_grant(grant).runs
    top_up(grant, 0.15)
    stopped = ridgeline("resume", "out", cwd=tmp_path)
    assert stopped.returncode == 3, stopped.stderr
    assert "a run may take 0.6" in stopped.stderr, "it was built"
    paid = read_grant(grant)
    (built,) = paid.runs.values()
    assert isinstance(built.run, str) and built.run.startswith("build ")
    assert paid.reserved == 0 and 0.3 / 3600 <= paid.spent < 0.1
    top_up(grant, 1.0)
    done = ridgeline("resume", "out", cwd=tmp_path)
    assert done.returncode in (0, 1), done.stderr  # nothing is confirmed here
    paid, history = read_grant(grant), read_history(tmp_path / "out")
    assert [type(run.run) for run in paid.runs.values()].count(str) == 2 == len(history.build_s)
    assert paid.reserved == 0
    assert paid.spent == pytest.approx(history.node_hours)
    assert sum(history.build_s.values()) / 3600 < history.node_hours


def test_a_build_waits_for_what_a_run_gives_back(tmp_path: Path) -> None:
    """Two slots: while the first run holds its reservation there is no room for the second build."""
    study, grant = written(tmp_path, wait="sleep 1; "), tmp_path / "grant.jsonl"
    text = study.read_text().replace("{trials: 1,", "{trials: 2,").replace("x: [1, 2]", "x: [1, 2, 3]")
    builds = '{where: site, make: "echo {x} > made", keep: [made], limit: 36m}'
    study.write_text(f"{text}builds: {builds}\nsite: {{batch: local, jobs_at_once: 2}}\n")
    create(grant, 0.7)
    done = ridgeline("tune", str(study), "--out", "out", cwd=tmp_path)
    assert done.returncode in (0, 1), done.stderr  # nothing is confirmed here
    paid = read_grant(grant)
    assert paid.reserved == 0 and len(paid.runs) == 6
