"""What a study says to the `nwchem` workload, as a record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ridgeline.records.problem import Problem

# Debian keeps every BLAS in a folder of its own and lets update-alternatives choose a default; a run names its folder
DEBIAN_BLAS = {
    "reference": "/usr/lib/*/blas:/usr/lib/*/lapack",
    "openblas-serial": "/usr/lib/*/openblas-serial",
    "openblas-pthread": "/usr/lib/*/openblas-pthread",
}


THEORIES = ("dft", "scf", "mp2", "ccsd", "ccsd(t)")
TASKS = ("energy", "optimize")


@dataclass(frozen=True, slots=True)
class NwchemOptions:
    """The options as far as they could be read. `basis_text` is the text of a basis block, `template` a whole input."""

    template: str = ""
    spherical: bool = False
    task: str = "energy"
    freeze_core: bool = False
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
    blas_paths: Mapping[str, str] = field(default_factory=lambda: dict(DEBIAN_BLAS))
    env: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
