"""The NWChem workload without NWChem: what it refuses, what it writes, what it reads, what it believes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ridgeline.errors import StudyError
from ridgeline.records.outcome import Kind
from tests.workloads.nwchem.runs import GUARD, SAMPLES, checked, finished, first_trial

MEMORY = "memory_stack_mb: 200, memory_heap_mb: 50, memory_global_mb: 400"
DEBIAN = (
    "\tlibblas.so.3 => /usr/lib/x86_64-linux-gnu/{0}/libblas.so.3 (0x00)\n\tlibmpi.so.40 => /lib/libmpi.so.40 (0x00)\n"
)


def problems(folder: Path, space: str, **more: str) -> str:
    with pytest.raises(StudyError) as caught:
        checked(folder, space, **more)
    return str(caught.value)


# what a study may say


@pytest.mark.parametrize(
    ("space", "says"),
    [
        ("{rank_per_node: 2}", "space.rank_per_node: no such knob for nwchem; did you mean ranks_per_node?"),
        ("{grid: corse}", "'corse' is not possible; did you mean coarse?"),
        ("{integrals: incore}", "'incore' is not possible"),
        ("{ranks_per_node: 0}", "0 is not a whole number of at least 1"),
        ("{scf_guess: 1}", "1 is neither true nor false"),
        ("{convergence_energy: -1.0e-6}", "not a number above 0"),
        ("{memory_stack_mb: 100}", "memory_heap_mb, memory_global_mb is missing"),
        ("{blas: openblas}", "openblas has no folder"),
        ("{nodes: 2}", "also write `job: {nodes: nodes}`"),
        ("{print_level: none}", "'none' is not possible"),
    ],
)
def test_a_wrong_knob_is_named_with_its_remedy(tmp_path: Path, space: str, says: str) -> None:
    message = problems(tmp_path, space)
    assert says in message
    assert "study.yaml:" in message


def test_a_knob_of_ones_own_is_legal_where_something_uses_it(tmp_path: Path) -> None:
    assert "no such knob" in problems(tmp_path, "{transports: tcp}")
    found = checked(tmp_path / "used", "{transports: tcp}", options='env: {UCX_TLS: "{transports}"}')
    assert found.workload.prepare(first_trial(found), tmp_path / "run").env["UCX_TLS"] == "tcp"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("xcc: pbe", "no such key of nwchem; did you mean xc?"),
        ("theory: mp4", "is 'mp4'; it must be one of dft, scf, mp2, ccsd, ccsd(t)"),
        ("multiplicity: 0", "is 0; it must be a whole number of at least 1"),
        ("reference_energy: low", "is 'low'; it must be an energy in Hartree"),
        ('program: "{bild}/nwchem"', "{bild} is not a knob or a derived value"),
        ("mpi: intel", "is 'intel'; it must be one of openmpi, mpich"),
    ],
)
def test_a_wrong_option_is_named_with_its_remedy(tmp_path: Path, options: str, says: str) -> None:
    assert says in problems(tmp_path, "{grid: fine}", options=options)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "water.xyz cannot be read"),
        ("", "an xyz file starts with the number of its atoms"),
        ("3\nwater\nO 0 0 0\nH 0 0 1\n", "its first line is '3', and 2 lines of atoms follow"),
        ("1\nwater\nO 0 0 zero\n", "water.xyz:3: 'O 0 0 zero' is not an atom; write `element x y z`"),
    ],
)
def test_a_wrong_molecule_is_named_by_line(tmp_path: Path, text: str | None, says: str) -> None:
    found = checked(tmp_path, "{grid: fine}")
    path = tmp_path / "water.xyz"
    path.unlink() if text is None else path.write_text(text)
    assert says in str([p.message for p in type(found.workload)(found.study).problems()])  # type: ignore[call-arg]


def test_a_basis_may_come_from_a_file_that_must_be_there(tmp_path: Path) -> None:
    found = checked(tmp_path, "{grid: fine}")
    study = tmp_path / "study.yaml"
    study.write_text(study.read_text().replace("basis: cc-pvdz", "basis: {file: own.nw}"))
    assert "own.nw cannot be read" in problems_of(study)
    (tmp_path / "own.nw").write_text("")
    assert "own.nw is empty" in problems_of(study)
    (tmp_path / "own.nw").write_text("O library 6-31g*\nH library 6-31g\n")
    from ridgeline.campaign.check import check_study

    found = check_study(study)
    found.workload.prepare(first_trial(found), tmp_path / "run")
    assert "basis\n  O library 6-31g*\n  H library 6-31g\nend" in (tmp_path / "run" / "nwchem.nw").read_text()


def problems_of(study: Path) -> str:
    from ridgeline.campaign.check import check_study

    with pytest.raises(StudyError) as caught:
        check_study(study)
    return str(caught.value)


def test_a_study_must_hold_the_energy(tmp_path: Path) -> None:
    assert "nothing holds the energy" in problems(tmp_path, "{grid: fine}", more="")
    checked(tmp_path / "reference", "{grid: fine}", options="reference_energy: -76.42", more="")
    checked(tmp_path / "condition", "{grid: fine}", more="guards: ['abs(energy_hartree + 76.42) < 0.1']")


# what cannot work is refused before a run is spent


@pytest.mark.parametrize(
    ("setting", "options", "says"),
    [
        ({"ranks_per_node": 8}, "", "8 ranks need more than the 4 cores of a node"),
        ({"ranks_per_node": 2, "threads": 4}, "", "2 ranks of 4 threads need more than the 4 cores"),
        ({"ranks_per_node": 4, "memory_global_mb": 2000}, "", "4 ranks x 2250 MB"),
        ({"ranks_per_node": 4, "memory_global_mb": 2000}, "overcommit_memory: true", None),
        ({"ranks_per_node": 1}, "armci_network: MPI-PR", "MPI-PR keeps one rank of each node"),
        ({"ranks_per_node": 2}, "armci_network: MPI-PR", None),
        ({"integrals": "semidirect", "memsize_mb": 300}, "", "memsize of 300 MB comes out of stack and heap"),
        ({"integrals": "semidirect", "memsize_mb": 200}, "", None),
    ],
)
def test_refusals(tmp_path: Path, setting: dict[str, object], options: str, says: str | None) -> None:
    space = f"{{ranks_per_node: [2, 1, 4, 8], threads: [1, 4], {MEMORY.replace('400', '[400, 2000]')}}}"
    base = "baseline: {ranks_per_node: 2, threads: 1, memory_global_mb: 400}"
    site = "site: {cores_per_node: 4, memory_per_node: 4 GiB}"
    found = checked(tmp_path, space, options=options, more=f"{GUARD}\n{base}\n{site}")
    settings = {**found.study.space.settings(found.study.baseline), **setting}
    reason = found.workload.refusal(settings)  # type: ignore[arg-type]
    assert reason is None if says is None else says in str(reason)


# the input


def test_every_input_knob_is_written(tmp_path: Path) -> None:
    space = (
        "{integrals: semidirect, memsize_mb: 80, filesize_mb: 0, grid: xfine, convergence_energy: 1.0e-7, "
        f"convergence_density: 1.0e-6, guess: hcore, scf_guess: true, print_level: high, {MEMORY}}}"
    )
    found = checked(tmp_path, space, options="xc: pbe0, charge: 1, multiplicity: 2")
    found.workload.prepare(first_trial(found), tmp_path / "run")
    text = (tmp_path / "run" / "nwchem.nw").read_text()
    for line in (
        "memory stack 200 mb heap 50 mb global 400 mb",
        "print high",
        "charge 1",
        "O 0.0 0.0 0.11730",
        "* library cc-pvdz",
        f"semidirect memsize {80 * 2**20 // 8} filesize 0",
        "nopen 1",
        "vectors input hcore output guess.movecs",
        "task scf energy",
        "xc pbe0",
        "mult 2",
        "grid xfine",
        "convergence energy 1.0e-07 density 1.0e-06",
        "vectors input guess.movecs",
        "task dft energy",
    ):
        assert line in text, line
    assert text.index("task scf energy") < text.index("xc pbe0")


def test_an_absent_knob_leaves_the_default(tmp_path: Path) -> None:
    found = checked(tmp_path, "{ranks_per_node: 1}")
    found.workload.prepare(first_trial(found), tmp_path / "run")
    text = (tmp_path / "run" / "nwchem.nw").read_text()
    assert not any(word in text for word in ("memory", "grid", "direct", "convergence", "task scf", "print"))


def test_preparing_again_writes_the_same(tmp_path: Path) -> None:
    found = checked(tmp_path, "{blas: reference, bind_to: core, ranks_per_node: 2}")
    run = tmp_path / "run"
    one = found.workload.prepare(first_trial(found), run)
    files = {path.name: path.read_bytes() for path in run.iterdir()}
    assert found.workload.prepare(first_trial(found), run) == one
    assert {path.name: path.read_bytes() for path in run.iterdir()} == files


# how it is started


@pytest.mark.parametrize(
    ("mpi", "line"),
    [
        ("openmpi", "-np 2 --map-by socket --bind-to core --report-bindings sh rank.sh"),
        ("mpich", "-np 2 -ppn 2 -map-by socket -bind-to core sh rank.sh"),
    ],
)
def test_the_mpi_build_decides_the_launcher(tmp_path: Path, mpi: str, line: str) -> None:
    found = checked(tmp_path, f"{{mpi: {mpi}, ranks_per_node: 2, map_by: socket, bind_to: core}}")
    job = found.workload.prepare(first_trial(found), tmp_path / "run")
    assert f"mpirun.{mpi}" in job.command
    assert line in job.command
    assert f"nwchem.{mpi}" in (tmp_path / "run" / "rank.sh").read_text()
    assert job.resources.ranks_per_node == 2


def test_srun_of_the_site_starts_either_build(tmp_path: Path) -> None:
    site = "site: {batch: slurm, launcher: srun, launcher_options: --mpi=pmi2}\njob: {nodes: 2}"
    found = checked(tmp_path, "{mpi: mpich}", more=f"{GUARD}\n{site}")
    job = found.workload.prepare(first_trial(found), tmp_path / "run")
    assert "srun --nodes=2 --ntasks=2 --mpi=pmi2 sh rank.sh" in job.command


def test_environment_knobs_become_variables(tmp_path: Path) -> None:
    space = "{armci_use_win_allocate: 0, ompi_mca_btl_sm_eager_limit: 4096, ucx_tls: 'self,sm', threads: 2}"
    found = checked(tmp_path, space)
    env = found.workload.prepare(first_trial(found), tmp_path / "run").env
    assert env == {
        "OMP_NUM_THREADS": "2",
        "OPENBLAS_NUM_THREADS": "2",
        "ARMCI_USE_WIN_ALLOCATE": "0",
        "OMPI_MCA_btl_sm_eager_limit": "4096",
        "UCX_TLS": "self,sm",
    }


def run_rank(folder: Path, options: str, space: str = "{grid: fine}") -> subprocess.CompletedProcess[str]:
    found = checked(folder, space, options=options)
    found.workload.prepare(first_trial(found), folder / "run")
    return subprocess.run(["sh", "rank.sh"], cwd=folder / "run", capture_output=True, text=True, timeout=600)


def test_a_rank_says_when_nwchem_is_missing(tmp_path: Path) -> None:
    done = run_rank(tmp_path, "program: nwchem-of-nobody")
    assert done.returncode == 127
    assert "ridgeline: no NWChem here: nwchem-of-nobody is not on the PATH of" in done.stderr


def test_a_rank_says_when_its_blas_is_missing(tmp_path: Path) -> None:
    done = run_rank(tmp_path, "program: /bin/true, blas_paths: {own: /no/such/folder}", "{blas: own}")
    assert done.returncode == 72
    assert "ridgeline: no such BLAS here: /no/such/folder" in done.stderr


def test_a_rank_puts_its_blas_in_front_and_notes_what_it_got(tmp_path: Path) -> None:
    (tmp_path / "libs").mkdir()
    done = run_rank(
        tmp_path, f"program: /bin/true, blas_paths: {{own: '{tmp_path}/lib*'}}", "{blas: own, ucx_tls: tcp}"
    )
    assert done.returncode == 0
    noted = (tmp_path / "run" / "environment").read_text()
    assert f"LD_LIBRARY_PATH={tmp_path}/libs:" in noted
    assert "UCX_TLS=tcp" in noted
    assert "libc.so" in (tmp_path / "run" / "libraries").read_text()


# what it reads


def test_a_good_run_is_measured(tmp_path: Path) -> None:
    found = checked(tmp_path, f"{{grid: medium, {MEMORY}}}")
    reading, outcome = finished(found, tmp_path / "run", "direct-1h2o.out", libraries=DEBIAN.format("blas"))
    assert outcome.kind is Kind.OK, outcome
    metrics = reading.metrics
    assert metrics["energy_hartree"] == -76.420369138691
    assert metrics["wall_s"] == 2.5
    assert (metrics["nwchem_cpu_s"], metrics["nwchem_wall_s"]) == (0.4, 0.5)
    assert metrics["iterations"] > 3
    assert metrics["nproc"] == 1
    assert metrics["ga_get_calls"] > 0
    assert metrics["heap_peak_bytes"] > 0
    assert all(m.unit for m in reading.measurements if m.metric.endswith(("_s", "_bytes", "_hartree")))


def test_kept_integrals_are_measured(tmp_path: Path) -> None:
    found = checked(tmp_path, "{integrals: semidirect, ranks_per_node: 2}")
    reading, outcome = finished(found, tmp_path / "run", "semidirect-1h2o-2ranks.out")
    assert outcome.kind is Kind.OK, outcome
    assert reading.metrics["integrals_cached_share"] == 1.0
    assert "scf_energy_hartree" in reading.metrics


@pytest.mark.parametrize(
    ("sample", "exit_code", "kind", "says"),
    [
        ("not-converged.out", 0, Kind.WRONG, "did not converge"),
        ("not-converged.out", 255, Kind.WRONG, "did not converge"),
        ("mpich-diverged.out", 0, Kind.WRONG, "did not converge"),
        ("memory-inconsistent.out", 0, Kind.REJECTED, "do not fit together"),
        ("no-basis.out", 255, Kind.REJECTED, "correct `workload.basis`"),
    ],
)
def test_a_failed_run_is_told_whatever_its_exit_code(
    tmp_path: Path, sample: str, exit_code: int, kind: Kind, says: str
) -> None:
    found = checked(tmp_path, "{grid: medium}")
    _, outcome = finished(found, tmp_path / "run", sample, exit_code=exit_code)
    assert outcome.kind is kind, outcome
    assert says in outcome.reason
    assert outcome.evidence is not None


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("Memory_Defaults: Global memory limit unreasonable", Kind.REJECTED),
        ("dft_main0d: Error creating ga", Kind.OOM_RUN),
        ("MA error: MA_init: could not allocate 419430400 bytes", Kind.OOM_START),
        ("xc_input: invalid format", Kind.REJECTED),
        ("bas_tag_lib: failed opening basis file", Kind.REJECTED),
        ("ptsalloc: increase memory", Kind.OOM_RUN),
        ("eaf_write: rc ne bytes        -1999 bytes     16000000", Kind.SITE_FAULT),
        ("write(4): No space left on device", Kind.SITE_FAULT),
        ("run.sh: 23: mpirun: not found", Kind.SITE_FAULT),
        ("ridgeline: no NWChem here: nwchem.mpich is not on the PATH of n3", Kind.SITE_FAULT),
        ("ridgeline: no such BLAS here: /usr/lib/*/openblas-serial on n3", Kind.REJECTED),
        ("[0] ARMCI Error: 0:sym_movecs_adapt: negative proj:", Kind.WRONG),
        ("Segmentation fault (core dumped)", Kind.CRASH),
    ],
)
def test_the_failures_met_in_the_field(tmp_path: Path, line: str, kind: Kind) -> None:
    found = checked(tmp_path, "{grid: medium}")
    _, outcome = finished(found, tmp_path / "run", "no-basis.out", exit_code=1, stderr=line + "\n")
    if "basis" not in line:  # its own sample says something else as well
        (tmp_path / "run" / "stdout").write_text("")
    from ridgeline.campaign.judge import find_signature

    seen = find_signature(tmp_path / "run", found.workload.logs, found.workload.signatures)
    assert seen is not None
    assert seen.kind is kind
    assert outcome.kind is not Kind.OK


@pytest.mark.parametrize("sample", ["direct-1h2o.out", "partly-cached-2h2o.out", "semidirect-1h2o-2ranks.out"])
def test_no_failure_is_seen_in_a_good_output(tmp_path: Path, sample: str) -> None:
    from ridgeline.campaign.judge import find_signature

    found = checked(tmp_path, "{grid: medium}")
    assert find_signature(SAMPLES, (sample,), found.workload.signatures) is None


def test_a_cut_output_does_not_count(tmp_path: Path) -> None:
    found = checked(tmp_path, "{grid: medium}")
    finished(found, tmp_path / "run", "direct-1h2o.out")
    text = (SAMPLES / "direct-1h2o.out").read_text()
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / "stdout").write_text(text[: text.index("Total times  cpu:")])
    from ridgeline.records.run import Cause, Ending, Resources, Run

    reading = found.workload.read(Run(1, 1, 1, tmp_path / "cut", Resources(), Ending(Cause.EXITED, exit_code=0)))
    assert "Total times" in reading.problem


@pytest.mark.parametrize("gap", [0.0, 9e-7, 1.1e-6, -1.1e-6, 1.0])
def test_the_reference_energy_holds(tmp_path: Path, gap: float) -> None:
    found = checked(tmp_path, "{grid: medium}", options=f"reference_energy: {-76.420369138691 + gap!r}", more="")
    _, outcome = finished(found, tmp_path / "run", "direct-1h2o.out")
    assert outcome.kind is (Kind.OK if abs(gap) <= 1e-6 else Kind.WRONG), outcome


# applied, not only asked


@pytest.mark.parametrize(
    ("space", "more", "says"),
    [
        ("{grid: medium}", {}, ""),
        ("{grid: fine}", {}, "grid fine was asked for, NWChem used medium"),
        ("{ranks_per_node: 2}", {}, "2 ranks were asked for, NWChem counts 1"),
        (f"{{{MEMORY}}}", {}, ""),
        (f"{{{MEMORY.replace('200', '300')}}}", {}, "stack of 300 MB was asked for, NWChem took 200.0 MB"),
        ("{blas: openblas-serial}", {"libraries": DEBIAN.format("openblas-serial")}, ""),
        ("{blas: openblas-serial}", {"libraries": DEBIAN.format("openblas-pthread")}, "libblas.so.3 was loaded from"),
        ("{blas: openblas-serial}", {}, "no BLAS library is among those"),
        ("{mpi: mpich}", {"libraries": DEBIAN.format("blas")}, "the mpich build was asked for"),
        ("{ucx_tls: tcp}", {"environment": "UCX_TLS=all\n"}, "UCX_TLS=tcp did not reach the ranks (there: all)"),
        ("{bind_to: core}", {}, "reported where 0 of 1 ranks are bound"),
    ],
)
def test_what_differs_from_the_setting_is_unverified(
    tmp_path: Path, space: str, more: dict[str, str], says: str
) -> None:
    site = "site: {cores_per_node: 8, memory_per_node: 64 GiB}"
    found = checked(tmp_path, space, more=f"{GUARD}\n{site}")
    reading, outcome = finished(found, tmp_path / "run", "direct-1h2o.out", **more)  # type: ignore[arg-type]
    assert outcome.kind is (Kind.UNVERIFIED if says else Kind.OK), outcome
    assert says in reading.unverified


@pytest.mark.parametrize(
    ("cores", "says"), [(("0", "1"), ""), (("0", "0"), "ranks share cores"), (("0", None), "rank 1 is not bound so")]
)
def test_reported_bindings_are_compared(tmp_path: Path, cores: tuple[str | None, ...], says: str) -> None:
    lines = [
        f"[vm:9305] MCW rank {rank} " + (f"bound to socket 0[core {core}[hwt 0]]: [B/.]" if core else "is not bound")
        for rank, core in enumerate(cores)
    ]
    found = checked(tmp_path, "{bind_to: core, ranks_per_node: 2}", more=f"{GUARD}\nsite: {{cores_per_node: 8}}")
    reading, _ = finished(found, tmp_path / "run", "semidirect-1h2o-2ranks.out", stderr="\n".join(lines))
    assert says in reading.unverified
    assert bool(says) == bool(reading.unverified)


def test_a_progress_rank_is_not_counted(tmp_path: Path) -> None:
    found = checked(tmp_path, "{ranks_per_node: 2}", options="armci_network: MPI-PR")
    _, outcome = finished(found, tmp_path / "run", "direct-1h2o.out")
    assert outcome.kind is Kind.OK, outcome


def test_paste_is_a_script_one_can_run(tmp_path: Path) -> None:
    found = checked(tmp_path, "{blas: openblas-serial, ranks_per_node: 2, armci_use_win_allocate: 0, mpi: mpich}")
    text = found.workload.paste(first_trial(found).settings)
    subprocess.run(["sh", "-n"], input=text, text=True, check=True)
    for part in ("task dft energy", "export ARMCI_USE_WIN_ALLOCATE=0", "openblas-serial", "nwchem.mpich"):
        assert part in text
    # a launcher may put folders before LD_LIBRARY_PATH: the BLAS is put in front of them by every rank
    assert "sh rank.sh" in text and text.index("openblas-serial") < text.index("mpirun")
    plain = checked(tmp_path, "{ranks_per_node: 2, mpi: mpich}")
    assert "nwchem.mpich nwchem.nw" in plain.workload.paste(first_trial(plain).settings)


def test_the_guide_names_every_knob_option_and_metric() -> None:
    from ridgeline.nwchem.form import KNOBS, NwchemForm
    from ridgeline.study.forms import fields

    guide = (Path(__file__).parents[3] / "docs" / "guides" / "tune-nwchem.md").read_text()
    assert [name for name in (*KNOBS, *fields(NwchemForm)) if f"`{name}`" not in guide] == []
    assert "reference/metrics.md" in guide
