"""Every batch system of the catalog keeps the promises of ridgeline.testing.contracts.executors."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from ridgeline import catalog
from ridgeline.executors.batch import BatchExecutor
from ridgeline.executors.slurm import COLUMNS
from ridgeline.records.site import Site
from ridgeline.testing.contracts import held_to
from ridgeline.testing.contracts.executors import DialectContract

ROOT = Path(__file__).resolve().parents[2]


def batch_systems() -> set[str]:
    made = {name: catalog.part("executors", name)(Site(batch=name)) for name in catalog.TABLE["executors"]}
    return {name for name, executor in made.items() if isinstance(executor, BatchExecutor)}


def test_every_batch_system_of_the_catalog_is_held_to_these_promises() -> None:
    assert batch_systems() <= held_to(DialectContract)


def test_code_that_all_batch_systems_share_names_none_of_them() -> None:
    known = re.compile("|".join([*batch_systems(), "sbatch", "qsub", "squeue", "qstat"]), re.IGNORECASE)
    executors = (ROOT / "src/ridgeline/executors").glob("*.py")
    shared = [*(path for path in executors if path.stem not in batch_systems()), ROOT / "src/ridgeline/cli/site.py"]
    assert not [f"{path.name}: {found[0]}" for path in shared if (found := known.search(path.read_text()))]


SQUEUE = {
    "JobID": "7",
    "State": "FAILED",
    "exit_code": "1792",
    "StartTime": "1794715130",
    "EndTime": "1794715140",
    "Name": "0001-a-1f",
    "NodeList": "n[1-2]",
    "Reason": "NonZeroExitCode",
    "RestartCnt": "0",
}


class TestSlurm(DialectContract):
    name = "slurm"

    def answers(self) -> Sequence[str]:
        return (
            "".join(SQUEUE[name].ljust(width) for name, width in COLUMNS.items()) + "\n",
            "3|FAILED|7:0|1794717822|1794717822|n1|seven-80537baa|/tmp/s/seven\n"
            "41|CANCELLED by 1000|0:0|1794715130|1794715140|n[1-2]|a-1f|/s/a|b\n",
            "JobId=9 UserId=root(0) Name=wrap JobState=FAILED Partition=debug NodeList=n2 WorkDir=/tmp ExitCode=0:9 \n",
            "sbatch: error: Batch job submission failed: Invalid partition name specified\n",
        )


class TestPbs(DialectContract):
    name = "pbs"

    def answers(self) -> Sequence[str]:
        return (
            "Job Id: 4.vm\n    Job_Name = j\n    job_state = F\n    exec_host = vm/0+vm\n\t2/0\n"
            "    resources_used.cput = 00:00:01\n    Exit_status = 271\n    substate = 91\n",
            "=>> PBS: job killed: walltime 10 exceeded limit 3\n",
            (ROOT / "tests/samples/batch/gadi.txt").read_text(),
        )
