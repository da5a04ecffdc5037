"""A program that falls silent is shown with its last line before the silence, whatever followed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ridgeline.diagnose.readers.failures import PROGRAM_FAILURES
from ridgeline.executors import batch_script
from ridgeline.executors.local import LocalExecutor
from ridgeline.executors.slurm import Slurm
from ridgeline.records.measurement import Reading
from ridgeline.records.outcome import Kind
from ridgeline.records.run import Cause, Ending, Job
from ridgeline.records.site import Site
from tests.campaign.harness import judged, study

# as srun, mpirun and a Python program do, it talks about the signal that ends it
PROGRAM = """
echo 'a warning from the start' >&2
sleep 0.2; echo 'step 7 of 9' > engine.log
trap 'echo "slurmstepd: error: *** STEP 1.0 CANCELLED ***" >&2; echo "told to end" >> engine.log; exit 1' TERM
sleep 60 & wait
"""


def on_this_machine(job: Job) -> Ending:
    executor = LocalExecutor(Site())
    ticket = executor.submit(job)
    while not (found := executor.poll([ticket])):
        executor.wait(1)
    return found[ticket]


def in_a_batch_job(job: Job) -> Ending:
    (job.folder / "run.sh").write_text(batch_script.render(job, Site(batch="slurm"), Slurm()))
    inside = {**os.environ, "SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "n1"}
    subprocess.run(["sh", "run.sh"], cwd=job.folder, env=inside, check=False, timeout=600)
    cause, reason = batch_script.stopped(job.folder) or (Cause.EXITED, "")
    return Ending(cause, 1, reason=reason)


@pytest.mark.parametrize("run", [on_this_machine, in_a_batch_job])
def test_evidence_of_a_hang_is_the_last_line_before_the_silence(tmp_path: Path, run: Callable[[Job], Ending]) -> None:
    (tmp_path / "run").mkdir()
    ending = run(Job("hang", tmp_path / "run", PROGRAM, limit_s=50, silence_limit_s=1.5))
    assert "told to end" in (tmp_path / "run" / "engine.log").read_text()
    logs = ("stderr", "engine.log")
    found = judged(ending, Reading(), tmp_path / "run", PROGRAM_FAILURES, logs, asked=study(tmp_path))
    assert found.kind is Kind.HANG
    assert str(found.evidence) == "engine.log:1: step 7 of 9"
