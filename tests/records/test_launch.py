"""How ranks are started, by each launcher."""

from __future__ import annotations

import shlex
import shutil
import subprocess

import pytest

from ridgeline.records.launch import LAUNCHERS, Binding, launch, rank_text
from ridgeline.records.run import Resources
from ridgeline.records.site import Site


def words(launcher: str, resources: Resources, *args: object, **site: object) -> list[str]:
    return shlex.split(launch(Site(launcher=launcher, **site), resources, "prog in.nw", *args, as_root=False))  # type: ignore[arg-type]


def test_without_a_launcher_the_program_stands_alone() -> None:
    assert words("none", Resources()) == ["prog", "in.nw"]


@pytest.mark.parametrize("launcher", [name for name in LAUNCHERS if name not in ("none", "pbsdsh")])
def test_every_launcher_starts_all_ranks_of_all_nodes(launcher: str) -> None:
    text = " ".join(words(launcher, Resources(nodes=3, ranks_per_node=4)))
    assert "12" in text
    assert text.endswith("prog in.nw")


def test_pbsdsh_counts_by_itself_and_takes_options_before_the_program() -> None:
    assert words("pbsdsh", Resources(nodes=2), launcher_options="-v") == ["pbsdsh", "-v", "--", "prog", "in.nw"]


@pytest.mark.parametrize(
    ("env", "rank"),
    [
        ({}, "0"),
        ({"SLURM_PROCID": "3"}, "3"),
        ({"PBS_NODENUM": "2"}, "2"),
        # mpirun inside a Slurm job: the job's own variable says 0 to every process
        ({"OMPI_COMM_WORLD_RANK": "5", "SLURM_PROCID": "0"}, "5"),
        ({"PMI_RANK": "6", "SLURM_PROCID": "0"}, "6"),
    ],
)
def test_a_process_learns_its_rank_whoever_started_it(env: dict[str, str], rank: str) -> None:
    done = subprocess.run(["/bin/sh", "-c", f"echo {rank_text()}"], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == rank


def test_open_mpi_places_ranks_by_node_when_there_are_several() -> None:
    text = launch(Site(launcher="openmpi"), Resources(nodes=2, ranks_per_node=4), "p", as_root=True)
    assert "--allow-run-as-root" in text
    assert "-np 8 --map-by ppr:4:node" in text
    bound = Binding(map_by="node", bind_to="core", cores_per_rank=2, report=True)
    text = launch(Site(launcher="openmpi"), Resources(nodes=2, ranks_per_node=4), "p", bound, as_root=False)
    assert text.endswith("-np 8 --map-by node:PE=2 --bind-to core --report-bindings p")
    assert "root" not in text


def test_the_other_launchers_know_binding_too() -> None:
    bound = Binding(map_by="node", bind_to="core", cores_per_rank=2, report=True)
    mpich = launch(Site(launcher="mpich"), Resources(ranks_per_node=2), "p", bound)
    assert mpich.endswith("-np 2 -ppn 2 -map-by node -bind-to core:2 p")
    srun = launch(Site(launcher="srun", launcher_options="--mpi=pmi2"), Resources(ranks_per_node=2), "p", bound)
    assert srun == (
        "srun --nodes=1 --ntasks=2 --cpus-per-task=2 --cpu-bind=verbose,cores --distribution=cyclic --mpi=pmi2 p"
    )


def test_the_container_comes_between_launcher_and_program() -> None:
    site = Site(launcher="srun", container="/i/x.sif", container_options="--bind /scratch")
    text = launch(site, Resources(gpus=1), "p")
    assert text.endswith("exec --nv --bind /scratch /i/x.sif p")
    assert text.startswith("srun ")


def test_a_knob_may_choose_the_launcher() -> None:
    assert "mpirun.mpich" in launch(Site(launcher="openmpi"), Resources(), "p", launcher="mpich")
    with pytest.raises(ValueError, match="known"):
        launch(Site(), Resources(), "p", launcher="lam")


@pytest.mark.parametrize("launcher", ["openmpi", "mpich"])
def test_the_text_really_starts_ranks(launcher: str) -> None:
    if shutil.which(f"mpirun.{launcher}") is None:
        pytest.skip(f"{launcher} is not installed")
    text = launch(Site(launcher=launcher), Resources(ranks_per_node=2), "echo rank")
    done = subprocess.run(["sh", "-c", text], capture_output=True, text=True, timeout=60)
    assert done.stdout.count("rank") == 2, done.stderr
