"""What a job needs from a batch system: time, cores, memory. Numbers for a dialect to put into its own directives."""

from __future__ import annotations

import math

from ridgeline.records.run import Job
from ridgeline.records.site import Site

SLACK_S = 60.0  # what the batch system's limit leaves for modules, setup and the books beyond the job's own limit


def walltime_minutes(job: Job, site: Site) -> int:
    """The batch system's limit: a backstop above the job's own, which run.sh keeps. Whole minutes suit them all."""
    slack_s = float(str(site.options.get("walltime_slack_s", SLACK_S)))
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
