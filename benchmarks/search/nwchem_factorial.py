"""A full factorial of real NWChem, measured here and kept as a table: every setting of a small water case.

    python -m benchmarks.search.nwchem_factorial --out benchmarks/search/nwchem-water.csv [--repeats 2]

Needs NWChem and its BLAS libraries (see examples/02-nwchem-water). One rank, and the goal is NWChem's own processor
time, since that can be measured on a busy machine; the least of the repeats counts. Settings whose energy moves are
kept as `wrong`. The table is raced by copying it into a folder of its own for `benchmarks.search.run`.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import subprocess
import sys
import tempfile
from pathlib import Path

from ridgeline.records.trial import Stage
from ridgeline.study.history import read_history

WATER = """3
one water molecule
O 0.00000 0.00000 0.11730
H 0.00000 0.75720 -0.46920
H 0.00000 -0.75720 -0.46920
"""
GRIDS = ("coarse", "medium", "fine")
CHOICES = {
    "blas": ("reference", "openblas-serial", "openblas-pthread"),
    "mpi": ("openmpi", "mpich"),
    "integrals": ("direct", "semidirect"),
}
STUDY = f"""
version: 1
name: nwchem-factorial
workload: {{kind: nwchem, molecule: water.xyz, basis: cc-pvtz, xc: b3lyp}}
space:
  blas: [{", ".join(CHOICES["blas"])}]
  mpi: [{", ".join(CHOICES["mpi"])}]
  integrals: [{", ".join(CHOICES["integrals"])}]
  grid: [{", ".join(GRIDS)}]
  ranks_per_node: 1
goal: {{minimize: nwchem_cpu_s}}
guards: [energy_hartree within 1e-6 of baseline]
baseline: {{blas: reference, mpi: openmpi, integrals: direct, grid: fine}}
budget: {{trials: 36}}
job: {{limit: 5m}}
search: {{sampler: grid}}
confirm: {{top: 0}}
"""


def measured(folder: Path) -> dict[tuple[str, ...], float | None]:
    """Seconds of each setting, None where the result was wrong or it failed."""
    study = folder / "study.yaml"
    study.write_text(STUDY)
    (folder / "water.xyz").write_text(WATER)
    subprocess.run([sys.executable, "-m", "ridgeline", "tune", str(study), "--out", str(folder / "out")], check=True)
    history = read_history(folder / "out")
    found: dict[tuple[str, ...], float | None] = {}
    for trial in history.trials.values():
        key = tuple(str(trial.point[name]) for name in (*CHOICES, "grid"))
        found.setdefault(key, None)
    for trial, run in history.ok_runs(*Stage):
        key = tuple(str(trial.point[name]) for name in (*CHOICES, "grid"))
        found[key] = min(found[key] or run.metrics["nwchem_cpu_s"], run.metrics["nwchem_cpu_s"])
    return found


def write(path: Path, repeats: list[dict[tuple[str, ...], float | None]]) -> None:
    columns = [f"{name}_{value.replace('-', '')}" for name, values in CHOICES.items() for value in values]
    with path.open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow([*columns, "grid", "time_ms", "outcome"])
        for setting in itertools.product(*CHOICES.values(), GRIDS):
            seconds = [one.get(setting) for one in repeats]
            known = [value for value in seconds if value is not None]
            hot = [
                int(value == own) for own, values in zip(setting, CHOICES.values(), strict=False) for value in values
            ]
            least = f"{1000 * min(known):.0f}" if known else ""
            rows.writerow([*hot, GRIDS.index(setting[-1]), least, "ok" if known else "wrong"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=2)
    asked = parser.parse_args()
    repeats = []
    for _ in range(asked.repeats):
        with tempfile.TemporaryDirectory(prefix="nwchem-factorial-") as folder:
            repeats.append(measured(Path(folder)))
        write(asked.out, repeats)


if __name__ == "__main__":
    main()
