"""What a job needs from a batch system: time, cores, memory. Numbers for a dialect to put into its own directives."""

from __future__ import annotations

import math

from ridgeline.executors.options import BatchOptions, option
from ridgeline.records.run import Job
from ridgeline.records.site import Site


def walltime_minutes(job: Job, site: Site) -> int:
    """The batch system's limit: a backstop above the job's own, which run.sh keeps. Whole minutes suit them all."""
    slack_s = float(option(site, BatchOptions, "walltime_slack_s"))
    return max(1, math.ceil((job.limit_s + slack_s) / 60))


def core_count(job: Job, site: Site) -> int | None:
    """Cores a node; without a wish the whole node where the site file says its size, so that no neighbour disturbs."""
    return job.resources.cores if job.resources.cores is not None else site.cores_per_node


def memory_bytes(job: Job, site: Site) -> int | None:
    """Memory a node; without a wish the share that belongs to the cores, where the site file says what a node has."""
    cores = core_count(job, site)
    if job.resources.memory_bytes is not None or not (site.memory_bytes_per_node and site.cores_per_node and cores):
        return job.resources.memory_bytes
    return site.memory_bytes_per_node * min(cores, site.cores_per_node) // site.cores_per_node
