"""NWChem behind batch systems: example 03 on a real Slurm; the twelve-water study as PBS would be given it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from ridgeline.records.template import render
from ridgeline.study.study_file import read_study_file
from tests.journeys.test_nwchem import EXAMPLES, SHORT, copied, ended, measured, needs_nwchem, ridgeline
from tests.slurm_cluster import SlurmCluster


@pytest.mark.slurm
@pytest.mark.nwchem
@pytest.mark.timeout(900)
@needs_nwchem[-1]
@pytest.mark.slow
def test_example_03_on_slurm(slurm: SlurmCluster, tmp_path: Path) -> None:
    quick = (
        "{blas: openblas-serial, armci_use_win_allocate: 0, integrals: semidirect, memsize_mb: 100, filesize_mb: 0, "
    )
    quick += "nodes: 1, ranks_per_node: 1, memory_stack_mb: 100, memory_global_mb: 100, grid: fine}"
    across = quick.replace("nodes: 1", "nodes: 2")
    study = copied(
        "03-nwchem-slurm",
        tmp_path / "study",
        *SHORT,
        (r"trials: 3", "trials: 2"),
        (r"ranks_per_node: 2\n", "ranks_per_node: 1\n"),
        (r"goal:", f"presets: [{quick}, {across}]\nstages: {{baseline: {{repeats: 1}}}}\ngoal:"),
    )
    done = ridgeline("tune", study, "--out", "out", "--json", cwd=tmp_path)
    # on a busy machine either preset may look better than the baseline, or neither
    kind = json.loads(done.stdout)["verdict"]["kind"]
    assert kind in ("confirmed", "no-difference", "unconfirmed", "keep-baseline"), done.stderr
    assert done.returncode == (0 if kind == "confirmed" else 1), done.stderr
    for point, event in ended(tmp_path / "out"):
        assert event["outcome"]["kind"] == "ok", event["outcome"]
        assert len(event["ending"]["nodes"]) == point["nodes"]
        assert measured(event)["nproc"] == point["nodes"] * point["ranks_per_node"]


def test_the_twelve_water_study_is_shown_not_run(tmp_path: Path) -> None:
    study = EXAMPLES / "07-nwchem-12-water-pbs" / "study.yaml"
    done = ridgeline("tune", study, "--dry-run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    first, second, third = re.split(r"^# trial \d \(\w+\): ", done.stdout, flags=re.MULTILINE)[1:]
    assert "# build: export ARMCI_NETWORK=MPI-TS BLASOPT=-lopenblas" in first
    assert "# build: export ARMCI_NETWORK=MPI-PR BLASOPT=-lopenblas" in second
    assert "export FC=ifx CC=icx OMPI_FC=ifx OMPI_CC=icx" in third
    assert 'make -j 16 FOPTIMIZE="-O2" COPTIMIZE="-O2"' in third
    assert "memory_stack_mb 9000  memory_heap_mb 400  memory_global_mb 18500" in third
    for script in (first, second, third):
        assert "#PBS -l select=4:ncpus=40:mpiprocs=40" in script
        assert "-np 160 --map-by" in script
        assert "--bind-to core --report-bindings sh rank.sh" in script
        assert re.search(r"NWCHEM_BASIS_LIBRARY=../../builds/\w{16}/src/basis/libraries/", script)
    # 20 of the budget, and what two jobs in flight may take beyond it: a build of two hours, a quarter on four nodes
    assert "at most 26.0 node-hours" in third
    assert not list(tmp_path.iterdir()), "a dry run leaves nothing behind"
    assert shutil.which("qsub") is None or "qsub" not in done.stderr


MAKEFILE_H = "FOPTIMIZE = -O1\nCOPTIMIZE = -O1\nFFLAGS = -m64 $(FOPTIMIZE)\nCFLAGS = $(COPTIMIZE)\n"
TREE = {
    "src/GNUmakefile": "all:\n\t$(MAKE) -C nwdft\nnwchem_config 64_to_32:\n\t@true\n",
    "src/config/makefile.h": MAKEFILE_H,
    "src/nwdft/GNUmakefile": "include ../config/makefile.h\nall:\n\t$(FC) -c $(FFLAGS) a.F\n\t$(CC) -c $(CFLAGS) a.c\n",
}


def test_compiler_and_flags_of_the_twelve_water_study_reach_the_compiler(tmp_path: Path) -> None:
    """NWChem's makefiles assign FOPTIMIZE themselves and compile with $(FC): here such a tree, and the real make."""
    for name, text in TREE.items():
        (tmp_path / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tree" / name).write_text(text)
    subprocess.run(["tar", "czf", "source.tar.gz", "tree"], cwd=tmp_path, check=True)
    compilers = tmp_path / "bin"
    compilers.mkdir()
    for name in ("gfortran", "gcc", "ifx", "icx"):
        (compilers / name).write_text(f'#!/bin/sh\necho {name} "$@" >> {tmp_path}/log\n')
        (compilers / name).chmod(0o755)
    builds = read_study_file(EXAMPLES / "07-nwchem-12-water-pbs" / "study.yaml").study.builds
    assert builds is not None
    chosen = {
        "compiler": "icx",
        "fortran": "ifx",
        "flags": "-O3 -xHost",
        "linked_blas": "mkl_rt",
        "armci_network": "ARMCI",
    }
    commands = "\n".join(["set -e", *(render(line, chosen) for line in builds.make)])
    env = {**os.environ, "PATH": f"{compilers}:{os.environ['PATH']}", "NWCHEM_SOURCE": str(tmp_path / "source.tar.gz")}
    (tmp_path / "build").mkdir()
    subprocess.run(["sh", "-c", commands], cwd=tmp_path / "build", env=env, check=True, capture_output=True)
    assert (tmp_path / "log").read_text() == "ifx -c -m64 -O3 -xHost a.F\nicx -c -O3 -xHost a.c\n"
