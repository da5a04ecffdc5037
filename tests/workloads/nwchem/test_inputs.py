"""What is asked of NWChem beside a DFT energy: other theories, geometries, and inputs of one's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from ridgeline.campaign.check import CheckedStudy, check_study
from ridgeline.errors import StudyError
from ridgeline.nwchem.form import environment
from ridgeline.nwchem.output import read_nwchem_out
from ridgeline.nwchem.workload import _problem
from ridgeline.records.outcome import Kind
from tests.workloads.nwchem.runs import GUARD, SAMPLES, checked, finished, first_trial, write_study

OWN = """\
start water
scratch_dir ./scratch
memory stack {stack} mb heap 50 mb global 200 mb
geometry
  O 0.0 0.0 0.11730
  H 0.0 0.75720 -0.46920
  H 0.0 -0.75720 -0.46920
end
basis spherical
  * library cc-pvdz
end
task scf
task mp2
"""


def written(found: CheckedStudy, folder: Path) -> str:
    found.workload.prepare(first_trial(found), folder)
    return (folder / "nwchem.nw").read_text()


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ("theory: mp2", ["scf\n", "task mp2 energy"]),
        ("theory: mp2, freeze_core: true", ["mp2\n  freeze atomic\nend", "task mp2 energy"]),
        ("theory: ccsd(t), freeze_core: true", ["ccsd\n  freeze atomic\nend", "task ccsd(t) energy"]),
        ("theory: ccsd", ["task ccsd energy"]),
        ("task: optimize", ["dft\n", "task dft optimize"]),
        ("theory: scf, task: optimize", ["task scf optimize"]),
        ("spherical: true", ["basis spherical\n  * library cc-pvdz\nend", "task dft energy"]),
    ],
)
def test_what_is_asked_stands_in_the_input(tmp_path: Path, options: str, wanted: list[str]) -> None:
    text = written(checked(tmp_path, "{integrals: direct}", options=options), tmp_path / "run")
    assert all(part in text for part in wanted), text


@pytest.mark.parametrize(
    ("sample", "theory", "hartree"),
    [
        ("mp2-1h2o.out", "mp2", -76.228438031904),
        ("ccsd-t-1h2o.out", "mp2", -76.228438031903693),
        ("ccsd-t-1h2o.out", "ccsd", -76.238004737874789),
        ("ccsd-t-1h2o.out", "ccsd(t)", -76.241041229610701),
    ],
)
def test_the_energy_is_that_of_the_theory(tmp_path: Path, sample: str, theory: str, hartree: float) -> None:
    found = checked(tmp_path, "{ranks_per_node: 2}", options=f"theory: {theory}")
    reading, outcome = finished(found, tmp_path / "run", sample)
    assert (outcome.kind, outcome.reason) == (Kind.OK, "")
    assert reading.metrics["energy_hartree"] == hartree
    assert reading.metrics["scf_energy_hartree"] == -76.026772056985
    assert reading.metrics["iterations"] > 0


def test_a_geometry_counts_when_it_was_found() -> None:
    energy = [
        "         Total DFT energy =      -76.420627128356",
        " Total times  cpu:        1.5s     wall:        7.0s",
    ]
    assert "Optimization converged" in _problem(read_nwchem_out(energy), "dft", None, "optimize")
    found = read_nwchem_out(["      Optimization converged", *energy])
    assert _problem(found, "dft", None, "optimize") == ""
    given_up = read_nwchem_out(["  Failed to converge in maximum number of steps or available time", *energy])
    assert _problem(given_up, "dft", None, "optimize") == "the calculation did not converge"


def own_study(folder: Path, text: str = OWN, options: str = "theory: mp2", space: str = "{stack: [100, 200]}") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "own.nw").write_text(text)
    baseline = f"baseline: {{stack: 100}}\n{GUARD}"
    path = write_study(folder, space, options=f"input: own.nw, {options}", more=baseline)
    path.write_text(path.read_text().replace("molecule: water.xyz, basis: cc-pvdz, ", ""))
    return path


def test_an_input_of_ones_own_is_a_template(tmp_path: Path) -> None:
    found = check_study(own_study(tmp_path))
    assert written(found, tmp_path / "run") == OWN.replace("{stack}", "100")
    assert "stack 200 mb" in found.workload.paste({"stack": 200})
    _, outcome = finished(found, tmp_path / "run", "mp2-1h2o.out")
    assert outcome.kind is Kind.UNVERIFIED  # one rank was asked for, the sample ran on two: the rest of it is right
    assert "1 ranks were asked for" in outcome.reason


@pytest.mark.parametrize(
    ("text", "options", "says"),
    [
        (OWN, "theory: dft", "own.nw ends with `task mp2`, but `theory` is dft"),
        (OWN.replace("{stack}", "{stak}"), "theory: mp2", "{stak} is not a knob or a derived value"),
        (OWN.replace("task", "# task"), "theory: mp2", "own.nw has no `task` line"),
        (OWN, "theory: mp2, basis: sto-3g", "workload.basis: own.nw says this itself; leave it out"),
        ("", "theory: mp2", "own.nw is empty"),
    ],
)
def test_what_is_wrong_with_an_input_is_said_before_anything_runs(
    tmp_path: Path, text: str, options: str, says: str
) -> None:
    with pytest.raises(StudyError) as caught:
        check_study(own_study(tmp_path, text, options))
    assert says in str(caught.value)


def test_a_knob_that_the_input_does_not_name_changes_nothing_and_is_refused(tmp_path: Path) -> None:
    space = "{stack: [100, 200], integrals: [direct, semidirect]}"
    path = own_study(tmp_path, space=space)
    path.write_text(path.read_text().replace("{stack: 100}", "{stack: 100, integrals: direct}"))
    with pytest.raises(StudyError, match="integrals"):
        check_study(path)


def test_without_an_input_molecule_and_basis_are_needed(tmp_path: Path) -> None:
    path = write_study(tmp_path, "{ranks_per_node: [1, 2]}", more=f"baseline: {{ranks_per_node: 1}}\n{GUARD}")
    path.write_text(path.read_text().replace(", molecule: water.xyz, basis: cc-pvdz", ""))
    with pytest.raises(StudyError) as caught:
        check_study(path)
    assert "workload.molecule: is missing; or name an `input` of your own" in str(caught.value)
    assert "workload.basis: is missing" in str(caught.value)


def test_samples_are_whole() -> None:
    for name in ("mp2-1h2o.out", "ccsd-t-1h2o.out"):
        assert read_nwchem_out((SAMPLES / name).read_text().splitlines()).finished


def test_knobs_that_are_variables_are_spelled_as_programs_read_them() -> None:
    asked = {"ompi_mca_btl": "self", "armci_use_win_allocate": True, "nothing": 3, "omp_num_threads": None}
    found = environment(asked)
    assert found["OMPI_MCA_btl"] == "self"
    assert found["ARMCI_USE_WIN_ALLOCATE"] == "1", "true is 1 where a C program reads it"
    assert not {"nothing", "NOTHING", "OMP_NUM_THREADS"} & found.keys()
