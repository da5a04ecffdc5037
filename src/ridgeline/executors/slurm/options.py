"""What a site file may say to Slurm under `options`."""

from __future__ import annotations

from ridgeline.executors.options import BatchOptions


class SlurmOptions(BatchOptions):
    """Options of `batch: slurm`."""

    whose = "slurm"
