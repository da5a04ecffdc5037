"""Site files: what is shipped loads, what is wrong is named with its line."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline import catalog
from ridgeline.errors import StudyError
from ridgeline.study.site_file import load_site, shipped_names


def test_every_shipped_site_loads_and_names_a_batch_system_we_have() -> None:
    assert {"local", "slurm", "pbs", "nci-gadi", "nscc-aspire2a-plus"} <= set(shipped_names())
    for name in shipped_names():
        site = load_site(name, Path("/nowhere"))
        assert site.name == name
        assert site.batch in catalog.names("executors")


def test_every_key_of_the_record_can_be_said(tmp_path: Path) -> None:
    (tmp_path / "mine.sh").write_text("#!/bin/sh\n")
    (tmp_path / "image.sif").write_text("")
    (tmp_path / "big.yaml").write_text("""\
version: 1
batch: slurm
queue: main
account: 1234
nodes: 4
cores_per_node: 48
gpus_per_node: 8
memory_per_node: 192 GiB
launcher: srun
launcher_options: --mpi=pmi2
modules: [gcc/12.2]
setup: ulimit -s unlimited
container: image.sif
container_options: --no-home
container_runtime: pyxis
container_mounts: [/models, "/data:/d"]
scratch: /scratch/$USER
env: {OMP_NUM_THREADS: 1, MODE: fast}
jobs_at_once: 3
poll_s: 2.5
directives: ["#SBATCH --exclusive"]
service_units_per_node_hour: 96
options: {script: mine.sh, settle_s: 5}
""")
    site = load_site("big.yaml", tmp_path)
    assert (site.name, site.account, site.memory_bytes_per_node) == ("big", "1234", 192 * 2**30)
    assert site.env == {"OMP_NUM_THREADS": "1", "MODE": "fast"}
    assert site.setup == ("ulimit -s unlimited",)
    assert (site.container_runtime, site.container_mounts) == ("pyxis", ("/models", "/data:/d"))
    assert site.options["script"] == str(tmp_path / "mine.sh")
    assert site.container == str(tmp_path / "image.sif")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("qeue: debug", "did you mean queue?"),
        ("nodes: 0", "at least 1"),
        ("nodes: two", "whole number"),
        ("poll_s: -1", "above 0"),
        ("launcher: mpirun", "openmpi"),
        ("memory_per_node: plenty", "190 GB"),
        ("modules: {a: b}", "list"),
        ("env: [A]", "mapping"),
        ("env: {A: true}", "quotes"),
        ("options: {scrip: x}", "did you mean script?"),
        ("options: {script: nowhere.sh}", "no such file"),
        ("options: {settle_s: soon}", "seconds"),
        ("version: 2", "write 1"),
        ("container_runtime: docker", "pyxis"),
        ("container_runtime: pyxis\nlauncher: openmpi", "launcher: srun"),
        ("container_runtime: pyxis\nbatch: pbs", "batch: slurm"),
        *(
            (f'{key}: "gpu\\n#SBATCH --uid=0"', "line break")
            for key in ("name", "queue", "account", "scratch", "container", "container_options", "launcher_options")
        ),
        ('modules: ["gcc\\nrm -rf ~"]', "line break"),
        ('directives: ["#SBATCH --exclusive\\nrm -rf ~"]', "line break"),
        ('options: {mpirun: "mpirun\\nrm"}', "line break"),
        ('env: {A: "a\\0b"}', "NUL"),
    ],
)
def test_a_problem_names_file_line_and_remedy(tmp_path: Path, line: str, told: str) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(f"{'' if 'batch:' in line else 'batch: slurm'}\n\n{line}\n")
    with pytest.raises(StudyError) as error:
        load_site("s.yaml", tmp_path)
    (problem,) = error.value.problems
    assert problem.startswith(f"{file}:3: ")
    assert told in problem


def test_all_problems_are_told_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text("batch: pbs\npol_s: 1\noptions: {request: all}\nnodes: -3\n")
    with pytest.raises(StudyError) as error:
        load_site("s.yaml", tmp_path)
    assert [problem.split(":")[1] for problem in error.value.problems] == ["2", "3", "4"]


@pytest.mark.parametrize(
    ("named", "told"),
    [("slrum", "did you mean slurm?"), ("sites/none.yaml", "no such site file"), (3, "not a site"), ("", "not a site")],
)
def test_a_site_that_is_not_there(tmp_path: Path, named: object, told: str) -> None:
    with pytest.raises(StudyError, match=told.replace("?", r"\?")):
        load_site(named, tmp_path)


def test_a_site_may_stand_in_the_study_itself(tmp_path: Path) -> None:
    assert load_site({"batch": "slurm", "queue": "debug"}, tmp_path).queue == "debug"
    with pytest.raises(StudyError, match="did you mean queue"):
        load_site({"batch": "slurm", "queu": "debug"}, tmp_path)


def test_a_file_of_the_users_goes_before_a_shipped_one_of_the_same_name(tmp_path: Path) -> None:
    (tmp_path / "slurm").write_text("batch: slurm\nqueue: mine\n")
    assert load_site("slurm", tmp_path).queue == "mine"


@given(st.text(max_size=80))
def test_no_text_makes_the_loader_fall_over(text: str) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "s.yaml").write_text(text, encoding="utf-8", errors="replace")
        try:
            load_site("s.yaml", Path(folder))
        except StudyError as error:
            assert error.problems


def test_a_site_inside_a_study_is_called_after_its_batch_system(tmp_path: Path) -> None:
    assert load_site({"batch": "slurm"}, tmp_path).name == "slurm"
    assert load_site({"batch": "slurm", "name": "mine"}, tmp_path).name == "mine"
    assert load_site({}, tmp_path).name == "local"
