"""A compute node needs nothing of ours: jobs of `command` and of NWChem run with a shell and its usual tools alone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ridgeline.campaign.kinds.search import SearchQuestion
from ridgeline.campaign.preview import rehearse

# coreutils, and what POSIX asks of every system beside them
TOOLS = (
    *("sh", "cat", "cp", "cut", "date", "dirname", "echo", "env", "expr", "head", "id", "ln", "ls", "mkdir", "mktemp"),
    *("mv", "nproc", "od", "printf", "pwd", "readlink", "rm", "rmdir", "sleep", "sort", "stat", "tail", "tee", "test"),
    *("timeout", "touch", "tr", "true", "uname", "wc", "find", "grep", "sed", "kill"),
)
SITE = "batch: slurm\nlauncher: srun\nscratch: SCRATCH\n"
SRUN = '#!/bin/sh\nwhile case $1 in -*) ;; *) false ;; esac; do shift; done\nexec "$@"\n'
TAIL = "site: cluster.yaml\ngoal: {minimize: wall_s}\njob: {limit: 60s, silence: 30s}\n"
COMMAND = """
version: 1
name: bare
workload: {kind: command, run: "./program {block}", files: [program]}
space: {block: [32, 64]}
baseline: {block: 64}
"""
NWCHEM = """
version: 1
name: bare
workload: {kind: nwchem, theory: scf, basis: sto-3g, molecule: water.xyz, reference_energy: -75, program: PROGRAM}
space: {ranks_per_node: [1]}
baseline: {ranks_per_node: 1}
"""


@pytest.mark.parametrize(("study", "printed"), [(COMMAND, "64"), (NWCHEM, "nwchem.nw")], ids=["command", "nwchem"])
def test_a_job_runs_on_a_node_without_python(tmp_path: Path, study: str, printed: str) -> None:
    program = tmp_path / "program"
    program.write_text('#!/bin/sh\necho "program got $1 in $RIDGELINE_SCRATCH"\n')
    program.chmod(0o755)
    (tmp_path / "water.xyz").write_text("3\n\nO 0 0 0\nH 0 0 1\nH 0 1 0\n")
    (tmp_path / "cluster.yaml").write_text(SITE.replace("SCRATCH", str(tmp_path / "scratch")))
    (tmp_path / "study.yaml").write_text(study.replace("PROGRAM", str(program)) + TAIL)
    (first,) = rehearse(tmp_path / "study.yaml", SearchQuestion(), 1, tmp_path / "out")
    (run,) = (tmp_path / "out/runs").iterdir()
    (run / "run.sh").write_text(first.script)
    for file in run.iterdir():
        if file.is_file() and not file.is_symlink():
            text = file.read_text()
            assert sys.executable not in text, file
            assert "python" not in text.lower(), file
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in TOOLS:
        found = shutil.which(name)
        if found is not None:  # some are a part of the shell
            (tools / name).symlink_to(found)
    (tools / "srun").write_text(SRUN)
    (tools / "srun").chmod(0o755)
    slurm = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1", "SLURM_SUBMIT_DIR": str(run)}
    done = subprocess.run(
        [str(tools / "sh"), str(run / "run.sh")],
        env={"PATH": str(tools), "HOME": os.environ.get("HOME", "/"), **slurm},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    stderr = (run / "stderr").read_text()
    assert (done.returncode, stderr, done.stderr) == (0, "", "")
    assert f"program got {printed} in {tmp_path}/scratch/ridgeline-7" in (run / "stdout").read_text()
    assert "exit_code=0" in (run / "exit").read_text()
    assert list((tmp_path / "scratch").iterdir()) == [], "scratch goes with the job"
