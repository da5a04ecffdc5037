"""What a study says to the `nwchem` workload; every mistake becomes a Problem with its place.

workload:
  kind: nwchem
  molecule: water3.xyz            # beside the study; Angstrom
  basis: cc-pvdz                  # of NWChem's library, or {file: my-basis.nw} beside the study
  theory: dft                     # or scf
  xc: b3lyp
  charge: 0
  multiplicity: 1
  reference_energy: -229.29853    # Hartree; unless given, a guard must hold the energy to the baseline
  program: "{build}/bin/nwchem"   # Debian's nwchem.openmpi or nwchem.mpich unless said
  mpi: openmpi                    # where it is no knob
  armci_network: MPI-PR           # what the program was built with, where it is no knob
  blas_paths: {mkl: /opt/mkl/lib} # folders for LD_LIBRARY_PATH by value of the knob `blas`
  overcommit_memory: true         # stack + heap + global x ranks may exceed the node: they are limits, taken as needed
  env: {UCX_TLS: "{transports}"}
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ridgeline.records.template import NO_VARIABLE, is_variable
from ridgeline.workloads.base import Problem
from ridgeline.workloads.command.options import Where, near
from ridgeline.workloads.nwchem.knobs import MPI_BUILDS

OPTIONS = (
    "molecule",
    "basis",
    "theory",
    "xc",
    "charge",
    "multiplicity",
    "reference_energy",
    "program",
    "mpi",
    "armci_network",
    "blas_paths",
    "overcommit_memory",
    "env",
)
# Debian keeps every BLAS in a folder of its own and lets update-alternatives choose a default; a run names its folder
DEBIAN_BLAS = {
    "reference": "/usr/lib/*/blas:/usr/lib/*/lapack",
    "openblas-serial": "/usr/lib/*/openblas-serial",
    "openblas-pthread": "/usr/lib/*/openblas-pthread",
}
_ATOM = re.compile(r"^\s*([A-Za-z]{1,3})\d*((?:\s+[-+]?\d*\.?\d+(?:[eEdD][-+]?\d+)?){3})\s*$")


@dataclass
class NwchemOptions:
    """The options as far as they could be read. `basis_text` is the text of a basis block."""

    atoms: tuple[str, ...] = ()
    basis: str = ""
    basis_text: str = ""
    theory: str = "dft"
    xc: str = "b3lyp"
    charge: int = 0
    multiplicity: int = 1
    reference_energy: float | None = None
    program: str = ""
    mpi: str = "openmpi"
    armci_network: str = ""
    overcommit_memory: bool = False
    blas_paths: dict[str, str] = field(default_factory=lambda: dict(DEBIAN_BLAS))
    env: dict[str, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


def read_options(given: Mapping[str, object], folder: Path) -> NwchemOptions:
    """`folder` is the study file's: molecule and basis file lie there."""
    reader = _Reader(folder)
    reader.read(given)
    return reader.options


class _Reader:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.options = NwchemOptions()

    def read(self, given: Mapping[str, object]) -> None:
        options = self.options
        for key in given:
            if key not in OPTIONS:
                self._report((key,), f"no such key of nwchem; {near(key, OPTIONS)}")
        self._molecule(given.get("molecule"))
        self._basis(given.get("basis"))
        options.theory = self._choice(given, "theory", ("dft", "scf"))
        options.mpi = self._choice(given, "mpi", MPI_BUILDS)
        for key in ("xc", "program", "armci_network"):
            if key in given:
                value = given[key]
                if isinstance(value, str) and value.strip():
                    setattr(options, key, value.strip())
                else:
                    self._report((key,), "must be text")
        options.charge = self._whole(given, "charge", 0, None)
        options.multiplicity = self._whole(given, "multiplicity", 1, 1)
        energy = given.get("reference_energy")
        if energy is not None:
            if isinstance(energy, int | float) and not isinstance(energy, bool):
                options.reference_energy = float(energy)
            else:
                self._report(("reference_energy",), f"{energy!r} is not an energy in Hartree")
        options.overcommit_memory = given.get("overcommit_memory", False) is True
        if not isinstance(given.get("overcommit_memory", False), bool):
            self._report(("overcommit_memory",), "must be true or false")
        options.blas_paths |= self._texts(given, "blas_paths")
        options.env = self._texts(given, "env")
        for name in options.env:
            if not is_variable(name):
                self._report(("env", name), NO_VARIABLE)

    def _report(self, where: Where, message: str) -> None:
        self.options.problems.append(Problem(("workload", *where), message))

    def _choice(self, given: Mapping[str, object], key: str, choices: tuple[str, ...]) -> str:
        value = given.get(key, choices[0])
        if isinstance(value, str) and value in choices:
            return value
        self._report((key,), f"{value!r} is not possible; {near(str(value), choices)}")
        return choices[0]

    def _whole(self, given: Mapping[str, object], key: str, default: int, least: int | None) -> int:
        value = given.get(key, default)
        if isinstance(value, int) and not isinstance(value, bool) and (least is None or value >= least):
            return value
        self._report((key,), f"{value!r} is not a whole number" + ("" if least is None else f" of at least {least}"))
        return default

    def _texts(self, given: Mapping[str, object], key: str) -> dict[str, str]:
        value = given.get(key)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            self._report((key,), "must be a list of `name: text` pairs")
            return {}
        found = {}
        for name, text in value.items():
            if isinstance(text, bool) or not isinstance(text, str | int | float):
                self._report((key, str(name)), f'must be text; write "{text}" in quotes')
            else:
                found[str(name)] = str(text)
        return found

    def _file(self, given: object, where: Where, what: str) -> str | None:
        if not isinstance(given, str) or not given:
            self._report(where, f"must name {what} beside the study file")
            return None
        path = self._folder / given
        try:
            return path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not text"
            self._report(where, f"{given} cannot be read in {self._folder} ({reason}); correct the name")
            return None

    def _molecule(self, given: object) -> None:
        text = self._file(given, ("molecule",), "an xyz file")
        if text is None:
            return
        lines = text.splitlines()
        count = lines[0].strip() if lines else ""
        atoms = [line for line in lines[2:] if line.strip()]
        if not count.isdigit() or int(count) != len(atoms) or not atoms:
            message = f"{given}: an xyz file starts with the number of its atoms; {count!r} stands there, "
            self._report(("molecule",), f"{message}and {len(atoms)} lines of atoms follow the title")
            return
        for number, line in enumerate(atoms, 3):
            if not _ATOM.match(line):
                self._report(("molecule",), f"{given}:{number}: not `element x y z`: {line.strip()[:60]!r}")
                return
        self.options.atoms = tuple(" ".join(line.split()) for line in atoms)

    def _basis(self, given: object) -> None:
        if isinstance(given, str) and re.fullmatch(r"[\w+*(),.-]+", given):
            self.options.basis = given
        elif isinstance(given, Mapping) and set(given) == {"file"}:
            text = self._file(given["file"], ("basis", "file"), "a file with the lines of a basis block")
            if text is not None and not text.strip():
                self._report(("basis", "file"), f"{given['file']} is empty; put the lines of a basis block there")
            self.options.basis_text = (text or "").strip("\n")
        else:
            self._report(
                ("basis",), "must be a name of NWChem's library such as cc-pvdz, or {file: FILE} beside the study"
            )
