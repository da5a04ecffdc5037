"""Real NWChem: whole campaigns on this machine, what the guard must refuse, scaling, and the faults people meet."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ridgeline.stats.scaling import WORTH
from ridgeline.study.journal import read_events
from tests.command_line import ridgeline
from tests.workloads.nwchem.runs import WATER

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = ROOT / "examples"

needs_nwchem = [
    pytest.mark.nwchem,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not all(map(shutil.which, ("nwchem.openmpi", "nwchem.mpich", "mpirun.openmpi", "mpirun.mpich"))),
        reason="NWChem is not installed (Debian: nwchem-openmpi nwchem-mpich nwchem-data)",
    ),
]
pytestmark = needs_nwchem

ONE_WATER = """\
version: 1
name: water
workload: {kind: nwchem, molecule: water.xyz, basis: cc-pvdz}
space: {ranks_per_node: [1, 2], grid: medium, memory_stack_mb: 100, memory_heap_mb: 50, memory_global_mb: 100}
baseline: {ranks_per_node: 1}
goal: {minimize: wall_s}
guards: [energy_hartree within 1e-6 of baseline]
job: {limit: 2m, retries: 0}
stages: {baseline: {repeats: 1}}
"""


def write_study(folder: Path, *changes: tuple[str, str]) -> Path:
    (folder / "water.xyz").write_text(WATER)
    text = ONE_WATER
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path = folder / "study.yaml"
    path.write_text(text)
    return path


def ended(folder: Path) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """(point, ended event) of every run of a study folder."""
    events = list(read_events(folder / "journal.jsonl"))
    points = {e["trial"]: e["point"] for e in events if e["event"] == "trial"}
    trials = {e["run"]: e["trial"] for e in events if e["event"] == "run"}
    return [(points[trials[e["run"]]], dict(e)) for e in events if e["event"] == "ended"]


def measured(event: dict[str, Any]) -> dict[str, float]:
    return {metric: value for metric, value, *_ in event["measurements"]}


def copied(name: str, folder: Path, *changes: tuple[str, str]) -> Path:
    shutil.copytree(EXAMPLES / name, folder)
    study = folder / "study.yaml"
    text = study.read_text()
    for old, new in changes:
        assert re.search(old, text), old
        text = re.sub(old, new, text)
    study.write_text(text)
    return study


# few runs, of a basis that takes a second where the example's takes five
SHORT = (
    (r"budget: \{.*\}", "budget: {trials: 3}"),
    (r"confirm: \{.*\}", "confirm: {top: 1, blocks: 3}"),
    (r"basis: cc-pvdz", "basis: sto-3g"),
    (r"limit: 2m", "limit: 1m"),
)


def test_example_02_comes_to_a_verdict_and_holds_the_energy(tmp_path: Path) -> None:
    good = "{blas: openblas-serial, mpi: openmpi, integrals: semidirect, memsize_mb: 100, filesize_mb: 0, "
    good += "ranks_per_node: 1, memory_stack_mb: 100, memory_global_mb: 100, grid: fine}"
    study = copied(
        "02-nwchem-water",
        tmp_path / "study",
        *SHORT,
        (r"goal:", f"presets: [{good}]\nsearch: {{sentinel_every: 0}}\ngoal:"),
    )
    (study.parent / "water3.xyz").write_text(WATER)  # one is enough for a verdict
    checked = ridgeline("check", study, cwd=tmp_path)
    assert "4 ranks need more than" in checked.stdout or len(os.sched_getaffinity(0)) >= 4
    done = ridgeline("tune", study, "--out", "out", "--json", cwd=tmp_path)
    # whether a setting beats the baseline by more than the noise of this machine is luck; having a verdict is not
    assert done.returncode in (0, 1), done.stderr
    answer = json.loads(done.stdout)
    assert answer["verdict"]["kind"] in ("confirmed", "no-difference", "unconfirmed", "keep-baseline")
    # the folder may be opened on a smaller machine than the one that ran it
    elsewhere = subprocess.run(
        ["taskset", "-c", "0", sys.executable, "-m", "ridgeline", "best", "out"], cwd=tmp_path, capture_output=True
    )
    assert elsewhere.returncode == done.returncode, elsewhere.stderr
    runs = ended(tmp_path / "out")
    energies = [measured(e)["energy_hartree"] for _, e in runs if e["outcome"]["kind"] == "ok"]
    assert len(energies) >= 4, (
        "the baseline's repeats and the preset; a confirmation only where something looked better"
    )
    assert max(energies) - min(energies) <= 2e-6
    for point, event in runs:
        outcome = event["outcome"]
        assert outcome["kind"] in ("ok", "wrong", "crash", "timeout"), outcome
        assert outcome["kind"] == "ok" or outcome["reason"], point
        assert outcome["kind"] != "ok" or point["grid"] != "coarse"


def test_the_guard_refuses_what_is_fast_and_wrong(tmp_path: Path) -> None:
    shutil.copy(EXAMPLES / "02-nwchem-water" / "water3.xyz", tmp_path)  # of one molecule, two of the traps are none
    (tmp_path / "study.yaml").write_text("""\
version: 1
name: traps
workload: {kind: nwchem, molecule: water3.xyz, basis: cc-pvdz}
space:
  blas: openblas-serial
  mpi: [openmpi, mpich]
  integrals: [direct, semidirect]
  ranks_per_node: [1, 2]
  grid: [fine, coarse]
  convergence_energy: [1.0e-6, 1.0e-4]
  convergence_density: [1.0e-5, 1.0e-3]
goal: {minimize: wall_s}
guards: [energy_hartree within 1e-6 of baseline]
baseline: &base
  {mpi: openmpi, integrals: direct, ranks_per_node: 1, grid: fine,
   convergence_energy: 1.0e-6, convergence_density: 1.0e-5}
presets:
  - {<<: *base, grid: coarse}
  - {<<: *base, convergence_energy: 1.0e-4, convergence_density: 1.0e-3}
  - {<<: *base, mpi: mpich, ranks_per_node: 2}
budget: {trials: 3}
stages: {baseline: {repeats: 1}}
job: {limit: 3m}
""")
    done = ridgeline("tune", "study.yaml", "--out", "out", cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "no setting but the baseline passed" in done.stderr
    (_, base), *tried = ended(tmp_path / "out")
    assert base["outcome"]["kind"] == "ok"
    coarse, loose, broken, again = (e["outcome"] for _, e in tried)
    assert again["kind"] == "ok", "the baseline still works: it is the settings"
    for outcome in (coarse, loose):
        assert outcome["kind"] == "wrong"
        assert "energy_hartree" in outcome["reason"]
    # nwchem.mpich with two ranks and ARMCI's default windows: the orbitals break or the energy diverges
    assert broken["kind"] in ("wrong", "crash", "timeout"), broken


def test_scaling_over_ranks(tmp_path: Path) -> None:
    done = ridgeline("study", "scale", write_study(tmp_path), "--repeats", 2, "--out", "out", "--json", cwd=tmp_path)
    verdict = json.loads(done.stdout)["verdict"]
    assert verdict["kind"] == "scaling"
    shown = verdict["sure"] if verdict["pays_to"] else verdict["steps"][1]["marginal_low"] >= WORTH
    assert done.returncode == (0 if shown else 7), done.stderr  # two runs a size on a busy machine may show nothing
    assert ("not shown" in done.stderr) is not shown
    assert verdict["over"] == "ranks_per_node"
    assert [(step["size"], step["runs"]) for step in verdict["steps"]] == [(1, 2), (2, 2)]
    assert verdict["steps"][1]["speedup_low"] < verdict["steps"][1]["speedup"] < verdict["steps"][1]["speedup_high"]
    order = [point["ranks_per_node"] for point, _ in ended(tmp_path / "out")]
    assert order == [1, 1, 2, 2, 1], "a warm-up, then each block in the other order"
    for point, event in ended(tmp_path / "out"):
        assert measured(event)["nproc"] == point["ranks_per_node"]
    again = ridgeline("resume", "out", cwd=tmp_path)
    assert again.returncode == done.returncode, again.stderr
    assert "speed-up" in again.stdout


# faults: each message says who must do what


def fault(folder: Path, *changes: tuple[str, str], code: int = 3) -> str:
    """What is said when the baseline cannot run: 3 where the site is at fault, 1 where the study is."""
    done = ridgeline("tune", write_study(folder, *changes), "--out", "out", cwd=folder)
    assert done.returncode == code, done.stdout + done.stderr
    assert "the baseline itself did not pass" in done.stderr
    return done.stderr


def test_nwchem_missing(tmp_path: Path) -> None:
    said = fault(tmp_path, ("basis: cc-pvdz", "basis: cc-pvdz, program: nwchem.elsewhere"))
    assert "its operator installs it (Debian: nwchem-openmpi, nwchem-mpich)" in said
    assert "nwchem.elsewhere is not on the PATH" in said


def test_mpi_missing(tmp_path: Path) -> None:
    said = fault(tmp_path, ("goal:", "site: {options: {mpirun: /opt/elsewhere/mpirun}}\ngoal:"))
    assert "no MPI launcher on the node: its operator installs Open MPI or MPICH" in said


def test_wrong_basis(tmp_path: Path) -> None:
    said = fault(tmp_path, ("cc-pvdz", "cc-pvdzz"), code=1)
    assert "NWChem does not find the basis set: correct `workload.basis`" in said


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "tiny"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("a small disk can be mounted by root only")
    yield disk
    subprocess.run(["umount", disk], check=True)


def test_scratch_full(tmp_path: Path, tiny_disk: Path) -> None:
    """NWChem leaves with 0 and the right energy here: it goes on without its files, at another speed."""
    said = fault(tmp_path, ("goal:", f"site: {{scratch: {tiny_disk}}}\ngoal:"))
    assert "the scratch disk is full: free it" in said
    assert not list(tiny_disk.iterdir())


# notes how each rank was started, then is NWChem
PROBE = """\
#!/bin/sh
{ for word in "$@"; do printf 'argument %s\\n' "$word"; done
  env | grep -E '^(OMP_NUM_THREADS|OPENBLAS_NUM_THREADS|ARMCI_[A-Z_]*|LD_LIBRARY_PATH|A_TEXT|OF_THE_SITE)=' | sort
  cat "$1"
} > "$(mktemp "$(dirname "$0")/records/$HOW.XXXXXX")"
exec nwchem.MPI "$@"
"""


@pytest.mark.parametrize("mpi", ["openmpi", "mpich"])
def test_what_is_pasted_starts_nwchem_as_the_run_did(tmp_path: Path, mpi: str) -> None:
    """In a clean shell: the same arguments, environment and input for every rank, and the same energy."""
    (tmp_path / "records").mkdir()
    probe = tmp_path / "probe"
    probe.write_text(PROBE.replace("MPI", mpi))
    probe.chmod(0o755)
    options = f"basis: cc-pvdz, program: '{probe}', mpi: {mpi}, env: {{A_TEXT: \"it's {{memory_heap_mb}}\", HOW: run}}"
    study = write_study(
        tmp_path,
        ("basis: cc-pvdz", options),
        ("ranks_per_node: [1, 2]", "ranks_per_node: [2], blas: openblas-serial, armci_use_win_allocate: 0"),
        ("{ranks_per_node: 1}", "{ranks_per_node: 2}"),
        ("job:", "site: {name: here, batch: local, env: {OF_THE_SITE: '1 2'}}\nbudget: {trials: 1}\njob:"),
    )
    ridgeline("tune", study, "--out", "out", cwd=tmp_path)
    pasted = json.loads(ridgeline("best", "out", "--json", cwd=tmp_path).stdout)["reference"]["paste"]
    assert "HOW=run" in pasted, "with a single point there is nothing but the baseline to paste"
    clean = ["env", "-i", f"PATH={os.environ['PATH']}", "HOME=/tmp", "OMPI_ALLOW_RUN_AS_ROOT=1",
             "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1", "sh", "-s"]  # fmt: skip
    by_hand = pasted.replace("HOW=run", "HOW=paste")
    done = subprocess.run(clean, input=by_hand, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    ran, again = ([p.read_text() for p in (tmp_path / "records").glob(f"{how}.*")] for how in ("run", "paste"))
    assert len(again) == 2, done.stderr
    assert set(again) == set(ran) and len(set(ran)) == 1, "every rank of every run was started alike"
    assert "task dft energy" in ran[0] and "A_TEXT=it's 50" in ran[0] and "OF_THE_SITE=1 2" in ran[0]
    energies = {round(measured(e)["energy_hartree"], 6) for _, e in ended(tmp_path / "out")}
    told = re.findall(r"Total DFT energy =\s*(\S+)", done.stdout + _outputs(tmp_path))
    assert energies == {round(float(energy), 6) for energy in told}


def _outputs(folder: Path) -> str:
    return "".join(p.read_text(errors="replace") for p in folder.glob("*/nwchem.out"))


OWN_INPUT = """\
start water
scratch_dir ./scratch
memory stack 100 mb heap 50 mb global 100 mb
geometry
  H 0.0 0.0 0.36
  H 0.0 0.0 -0.36
end
basis spherical
  * library sto-3g
end
set mp2:aotol2e {tolerance:.1e}
task mp2 optimize
"""


QUICK = "stages: {baseline: {repeats: 1}, confirm: {top: 0}}\nbudget: {trials: 0}"


def test_a_geometry_by_mp2_from_an_input_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "own.nw").write_text(OWN_INPUT)
    study = write_study(
        tmp_path,
        ("molecule: water.xyz, basis: cc-pvdz", "input: own.nw, theory: mp2"),
        ("grid: medium, memory_stack_mb: 100, memory_heap_mb: 50, memory_global_mb: 100", "tolerance: 1.0e-9"),
        (
            "stages: {baseline: {repeats: 1}}",
            "stages: {baseline: {repeats: 1}, confirm: {top: 0}}\nbudget: {trials: 0}",
        ),
    )
    done = ridgeline("tune", study, "--out", "out", cwd=tmp_path)
    assert done.returncode in (0, 1), done.stderr
    for _, event in ended(tmp_path / "out"):
        assert event["outcome"]["kind"] == "ok", event["outcome"]
    run = next((tmp_path / "out" / "runs").iterdir())
    assert "Optimization converged" in (run / "stdout").read_text()
    assert "Total MP2 energy" in (run / "stdout").read_text()
