"""`ridgeline site`: tries a site with real jobs and says who must do what."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests import command_line
from tests.slurm_cluster import SlurmCluster


def ridgeline(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return command_line.ridgeline("site", *words, cwd=folder)


def test_the_local_site_is_ready_and_leaves_nothing_behind(tmp_path: Path) -> None:
    done = ridgeline(tmp_path, "check", "local", "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 0
    assert [step["name"] for step in found["steps"]] == ["programs", "submit", "run", "cancel"]
    assert list(tmp_path.iterdir()) == []


def test_list_names_the_shipped_sites(tmp_path: Path) -> None:
    assert {"slurm", "pbs"} <= {
        site["name"] for site in json.loads(ridgeline(tmp_path, "list", "--json").stdout)["sites"]
    }


def test_a_site_without_its_programs_says_where_to_run(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text("batch: pbs\n")
    done = ridgeline(tmp_path, "check", "s.yaml")
    assert done.returncode == 3
    assert "login node" in done.stdout


def test_pbs(tmp_path: Path, pbs_standin: Path) -> None:
    (tmp_path / "s.yaml").write_text("batch: pbs\nqueue: workq\npoll_s: 0.3\n")
    done = ridgeline(tmp_path, "check", "s.yaml")
    assert done.returncode == 0, done.stdout
    (tmp_path / "s.yaml").write_text("batch: pbs\nqueue: nosuch\n")
    assert "qstat -Q" in ridgeline(tmp_path, "check", "s.yaml").stdout


@pytest.mark.slurm
def test_slurm(tmp_path: Path, slurm: SlurmCluster) -> None:
    (tmp_path / "s.yaml").write_text(f"batch: slurm\nnodes: 2\nlauncher: srun\nscratch: {tmp_path}/x\npoll_s: 0.3\n")
    done = ridgeline(tmp_path, "check", "s.yaml")
    assert done.returncode == 0, done.stdout
    assert "4 ranks of 4" in done.stdout
    (tmp_path / "s.yaml").write_text("batch: slurm\nlauncher: srun\nmodules: [nosuch]\npoll_s: 0.3\n")
    done = ridgeline(tmp_path, "check", "s.yaml")
    assert done.returncode == 3
    assert "module" in done.stdout
    assert "what the jobs wrote is in" in done.stderr
