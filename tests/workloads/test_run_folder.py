"""What a run's job is called: whoever looks at the queue sees whose it is."""

from __future__ import annotations

from pathlib import Path

from ridgeline.executors.pbs import Pbs
from ridgeline.executors.slurm import Slurm
from ridgeline.records.run import Job, Resources
from ridgeline.records.study import Study
from ridgeline.study.study_file import read_study_file
from ridgeline.workloads.run_folder import job_in

STUDY = """
version: 1
name: NAME
workload: {kind: command, run: "./p {tp}", metrics: {r: {regex: "r (.*)"}}}
space: {tp: [4, 8]}
goal: {maximize: r}
baseline: {tp: 4}
"""


def job(folder: Path, name: str = "lj-melt") -> Job:
    return job_in(folder / "runs" / "0023-tp8", study(folder, name), Resources(), "./p")


def study(folder: Path, name: str) -> Study:
    (folder / "study.yaml").write_text(STUDY.replace("NAME", name))
    return read_study_file(folder / "study.yaml").study


def test_a_queue_shows_whose_job_it_is(tmp_path: Path) -> None:
    name = job(tmp_path).name
    assert Slurm().job_name(name, "0badcafe") == "lj-melt-0023-tp8-0badcafe"
    assert Pbs().job_name(name, "0badcafe") == "lj-mel-0badcafe"


def test_a_long_study_name_leaves_room_for_the_runs_number(tmp_path: Path) -> None:
    assert "-0023-tp8-" in Slurm().job_name(job(tmp_path, "x" * 100).name, "0badcafe")
