"""What the caller's shell or cluster has set reaches no test: jobs and batch commands would inherit it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SET = {
    "OMP_NUM_THREADS": "4",
    "MKL_NUM_THREADS": "4",
    "SLURM_JOB_ID": "12",
    "SBATCH_PARTITION": "debug",
    "PBS_JOBID": "12",
    "LC_ALL": "de_DE.UTF-8",
    "LANG": "de_DE.UTF-8",
    "COLUMNS": "40",
    "NO_COLOR": "1",
    "CUDA_VISIBLE_DEVICES": "",
}


def test_what_a_cluster_sets_for_its_users_reaches_no_test() -> None:
    told = "import os, tests.conftest; print(*(name for name in os.environ), os.environ['LANG'])"
    done = subprocess.run(
        [sys.executable, "-c", told], cwd=ROOT, env={**os.environ, **SET}, capture_output=True, text=True, check=True
    )
    *names, language = done.stdout.split()
    assert not {*names} & ({*SET} - {"LANG"})
    assert language == "C.UTF-8"
