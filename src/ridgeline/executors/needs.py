"""What a job needs from a batch system: time, cores, memory. Numbers for a dialect to put into its own directives."""

from __future__ import annotations

import math

from ridgeline.executors.options import BatchOptions, option
from ridgeline.records.run import Job, Resources
from ridgeline.records.site import Site


def walltime_minutes(job: Job, site: Site) -> int:
    """The batch system's limit: a backstop above the job's own, which run.sh keeps. Whole minutes suit them all."""
    slack_s = float(option(site, BatchOptions, "walltime_slack_s"))
    return max(1, math.ceil((job.limit_s + (job.grace_s or 0.0) + slack_s) / 60))


def core_count(job: Job, site: Site) -> int | None:
    """Cores a node; without a wish the whole node where the site file says its size, so that no neighbour disturbs.

    A job with GPUs takes the share of the node's cores that belongs to them: the others' GPUs need the rest.
    """
    if job.resources.cores is not None or site.cores_per_node is None:
        return job.resources.cores
    return max(job.resources.ranks_per_node, math.floor(site.cores_per_node * gpu_share(job.resources, site)))


def memory_bytes(job: Job, site: Site) -> int | None:
    """Memory a node; without a wish the share that belongs to its cores or GPUs, where the site file says enough."""
    if job.resources.memory_bytes is not None or not site.memory_bytes_per_node:
        return job.resources.memory_bytes
    cores = core_count(job, site)
    by_cores = min(1.0, cores / site.cores_per_node) if cores and site.cores_per_node else None
    by_gpus = gpu_share(job.resources, site) if job.resources.gpus and site.gpus_per_node else None
    shares = [share for share in (by_cores, by_gpus) if share is not None]
    return math.floor(site.memory_bytes_per_node * max(shares)) if shares else None


def gpu_share(resources: Resources, site: Site) -> float:
    """The part of a node that belongs to the GPUs asked for; all of it for a job without any."""
    if not resources.gpus or not site.gpus_per_node:
        return 1.0
    return min(1.0, resources.gpus / site.gpus_per_node)


def takes_all_gpus(resources: Resources, site: Site) -> bool:
    """Whether nobody else could use a GPU of its nodes: then the whole node may as well be asked for."""
    return 0 < site.gpus_per_node <= resources.gpus


def takes_whole_nodes(resources: Resources, site: Site) -> bool:
    """Whether nobody else may run beside it: it wants no part of a node, and the site says what a whole one is.

    Asked for as a whole node and not as its cores: with hyper-threads the cores are half of its CPUs, and a neighbour
    would get the other half.
    """
    if resources.gpus:
        return takes_all_gpus(resources, site) and resources.cores is None
    return resources.cores is None and site.cores_per_node is not None


def unknown_sizes(site: Site) -> list[str]:
    """Keys of the site file without which a job with GPUs cannot ask for its share."""
    sizes = {"cores_per_node": site.cores_per_node, "memory_per_node": site.memory_bytes_per_node}
    return [name for name, size in {**sizes, "gpus_per_node": site.gpus_per_node}.items() if not size]
