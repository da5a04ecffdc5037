"""How ranks are started, by each launcher."""

from __future__ import annotations

import shlex
import shutil
import subprocess

import pytest

from ridgeline.records.launch import LAUNCHERS, Binding, contained, launch, rank_text
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


def pyxis(**more: object) -> Site:
    given = {"batch": "slurm", "launcher": "srun", "container": "docker://registry.example#team/x:25.09", **more}
    return Site(container_runtime="pyxis", **given)  # type: ignore[arg-type]


def as_srun_gets_it(text: str, **env: str) -> list[str]:
    """The words a shell makes of the text in a run folder; a syntax error fails."""
    assert subprocess.run(["sh", "-n", "-c", text], check=False).returncode == 0, text
    show = f'cd /; PWD=/data/studies/s/runs/0001; srun() {{ printf "%s\\n" "$@"; }}; {text}'
    return subprocess.run(["sh", "-c", show], capture_output=True, text=True, check=True, env=env).stdout.splitlines()


def test_pyxis_takes_the_image_at_the_srun_that_starts_the_ranks() -> None:
    site = pyxis(container_options="--no-container-remap-root", launcher_options="--mpi=pmix")
    text = launch(site, Resources(nodes=2, ranks_per_node=4, gpus=8), "./p --in x")
    assert text.count("srun") == 1, "one step, and no Apptainer"
    assert as_srun_gets_it(text) == [
        *("--nodes=2", "--ntasks=8", "--mpi=pmix", "--container-image=docker://registry.example#team/x:25.09"),
        "--container-mounts=/data/studies/s:/data/studies/s",
        *("--container-workdir=/data/studies/s/runs/0001", "--no-container-remap-root", "./p", "--in", "x"),
    ]


def test_pyxis_mounts_what_the_site_names_and_the_jobs_scratch() -> None:
    site = pyxis(container="/images/x.sqsh", container_mounts=("/models", "/lib64:/host:ro"), scratch="/local")
    told = as_srun_gets_it(launch(site, Resources(), "p"), RIDGELINE_SCRATCH="/local/ridgeline-7")
    assert "--container-image=/images/x.sqsh" in told
    assert (
        "--container-mounts=/data/studies/s:/data/studies/s,/models:/models,/lib64:/host:ro,"
        "/local/ridgeline-7:/local/ridgeline-7" in told
    )


def test_pyxis_without_a_launcher_is_one_step_on_this_node() -> None:
    told = as_srun_gets_it(contained(pyxis(launcher="none"), Resources(nodes=2), "sh -c 'a; b'"), SLURMD_NODENAME="n7")
    assert told[:5] == ["--overlap", "--nodes=1", "--ntasks=1", "--cpu-bind=none", "--nodelist=n7"]
    assert told[-3:] == ["sh", "-c", "a; b"]


def test_pyxis_knows_no_mpirun() -> None:
    with pytest.raises(ValueError, match=r"pyxis.*srun"):
        launch(pyxis(), Resources(), "p", launcher="openmpi")


def test_apptainer_binds_what_the_site_names() -> None:
    site = Site(container="/i/x.sif", container_mounts=("/models", "/lib64:/host:ro"))
    assert contained(site, Resources(), "p").endswith("exec --bind /models --bind /lib64:/host:ro /i/x.sif p")


def test_a_knob_may_choose_the_launcher() -> None:
    assert "mpirun.mpich" in launch(Site(launcher="openmpi"), Resources(), "p", launcher="mpich")
    with pytest.raises(ValueError, match="known"):
        launch(Site(), Resources(), "p", launcher="lam")


@pytest.mark.parametrize("launcher", ["openmpi", "mpich"])
def test_the_text_really_starts_ranks(launcher: str) -> None:
    if shutil.which(f"mpirun.{launcher}") is None:
        pytest.skip(f"{launcher} is not installed")
    text = launch(Site(launcher=launcher), Resources(ranks_per_node=2), "echo rank")
    done = subprocess.run(["sh", "-c", text], capture_output=True, text=True, timeout=600)
    assert done.stdout.count("rank") == 2, done.stderr
