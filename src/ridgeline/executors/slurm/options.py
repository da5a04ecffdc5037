"""What a site file may say to Slurm under `options`."""

from __future__ import annotations

from pydantic import Field

from ridgeline.executors.options import BatchOptions


class SlurmOptions(BatchOptions):
    """Options of `batch: slurm`."""

    whose = "slurm"
    rank_errors: bool = Field(
        default=False,
        description="Each rank that `srun` starts writes its stderr to a file of its own, put together at the end: "
        "srun may drop what a rank wrote just before it died. Stderr is then not there to be read while the job runs.",
    )
