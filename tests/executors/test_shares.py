"""A job with GPUs takes its share of the node's cores and memory; where nobody said how much that is, it is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from ridgeline.executors.pbs import Pbs
from ridgeline.executors.slurm import Slurm
from ridgeline.records.run import Job, Resources
from ridgeline.records.site import Site

KNOWN = Site(batch="slurm", nodes=2, gpus_per_node=8, cores_per_node=96, memory_bytes_per_node=800 * 2**30)
UNKNOWN = Site(batch="slurm", nodes=2, gpus_per_node=8)


def asked(dialect: Slurm | Pbs, site: Site, **resources: int) -> str:
    job = Job("j", Path("/x"), "true", resources=Resources(**resources))
    return "\n".join(dialect.directives(job, site))


@pytest.mark.parametrize(
    ("resources", "cores", "memory_mb"),
    [
        ({"gpus": 8}, 96, 819200),
        ({"gpus": 1}, 12, 102400),
        ({"gpus": 1, "cores": 24}, 24, 204800),
        ({"gpus": 2, "cores": 4}, 4, 204800),
        ({"nodes": 2, "gpus": 8}, 96, 819200),
        ({}, 96, 819200),
    ],
)
def test_the_share_of_the_node_follows_its_gpus(resources: dict[str, int], cores: int, memory_mb: int) -> None:
    slurm, pbs = asked(Slurm(), KNOWN, **resources), asked(Pbs(), KNOWN, **resources)
    assert f"--cpus-per-task={cores}\n" in slurm + "\n"
    whole = "cores" not in resources and resources.get("gpus", 8) == 8
    assert ("--mem=0" if whole else f"--mem={memory_mb}M") in slurm
    assert ("--exclusive" in slurm) is whole
    assert ("exclhost" in pbs) is whole
    assert f"ncpus={cores}:" in pbs
    assert f":mem={memory_mb}mb" in pbs
    assert not Slurm().doubts(Resources(**resources), KNOWN)
    assert not Pbs().doubts(Resources(**resources), KNOWN)


def test_all_gpus_of_a_node_are_the_whole_node() -> None:
    slurm = asked(Slurm(), UNKNOWN, nodes=2, gpus=8)
    assert "#SBATCH --exclusive" in slurm
    assert "#SBATCH --mem=0" in slurm
    assert not Slurm().doubts(Resources(nodes=2, gpus=8), UNKNOWN)
    assert "place=scatter:exclhost" in asked(Pbs(), UNKNOWN, nodes=2, gpus=8)


def test_a_share_that_nobody_knows_is_a_doubt() -> None:
    one = Resources(gpus=1)
    assert "--exclusive" not in asked(Slurm(), UNKNOWN, gpus=1)
    assert "cores_per_node or memory_per_node" in Slurm().doubts(one, UNKNOWN)[0]
    # PBS gives exactly what is asked for, on a whole node too
    assert "cores_per_node or memory_per_node" in Pbs().doubts(Resources(nodes=2, gpus=8), UNKNOWN)[0]
    assert Slurm().doubts(Resources(), Site()) == Pbs().doubts(Resources(), Site()) == []
