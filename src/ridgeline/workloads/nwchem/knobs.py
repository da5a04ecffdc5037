"""The knobs an NWChem study may turn, by fixed names, and what their values may be.

A knob outside this table is legal where something of the study uses it: `builds`, `workload.env`, `workload.program`, a
derived value or the job's size. Knobs `armci_*`, `ompi_mca_*` and `ucx_*` become environment variables of that name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from ridgeline.errors import near
from ridgeline.records.expression import Value, is_number
from ridgeline.records.problem import Problem
from ridgeline.records.space import Continuous, Knob, Settings

MPI_BUILDS = ("openmpi", "mpich")
GRIDS = ("xcoarse", "coarse", "medium", "fine", "xfine", "huge")
# `none` hides the energy that every run is judged by; `low` hides only the iterations
_PRINT_LEVELS = ("low", "medium", "high", "debug")
_PLACES = ("core", "hwthread", "l3cache", "numa", "socket", "node")
PROGRESS_RANK = "MPI-PR"  # this ARMCI network takes one rank of every node for itself

# the names of MCA parameters are lower case
_ENV_PREFIXES = {"armci_": "ARMCI_", "ucx_": "UCX_", "ompi_mca_": "OMPI_MCA_"}


Accepts = Callable[[Value], str | None]  # what is wrong with a value, or nothing


def _one_of(*choices: Value) -> Accepts:
    def accepts(value: Value) -> str | None:
        words = [str(choice) for choice in choices]
        return None if value in choices else f"{value!r} is not possible; {near(str(value), words)}"

    return accepts


def _whole(least: int) -> Accepts:
    def accepts(value: Value) -> str | None:
        good = isinstance(value, int) and not isinstance(value, bool) and value >= least
        return None if good else f"{value!r} is not a whole number of at least {least}"

    return accepts


def _positive(value: Value) -> str | None:
    good = is_number(value) and value > 0
    return None if good else f"{value!r} is not a number above 0"


def _flag(value: Value) -> str | None:
    return None if isinstance(value, bool) else f"{value!r} is neither true nor false"


def _word(value: Value) -> str | None:
    return None if isinstance(value, str) and value else f"{value!r} is not a word"


KNOBS: dict[str, Accepts] = {
    "integrals": _one_of("direct", "semidirect"),  # compute integrals anew each time, or keep what fits
    "memsize_mb": _whole(0),  # semidirect: memory for kept integrals, per rank
    "filesize_mb": _whole(0),  # semidirect: file for kept integrals, per rank; 0 for none
    "grid": _one_of(*GRIDS),  # fineness of the integration grid
    "convergence_energy": _positive,  # Hartree by which the last two energies may differ
    "convergence_density": _positive,  # change of the density at which it has converged
    "guess": _one_of("atomic", "hcore"),  # where the orbitals start
    "scf_guess": _flag,  # a Hartree-Fock step before, as a guess for DFT
    "print_level": _one_of(*_PRINT_LEVELS),  # how much NWChem prints
    "memory_stack_mb": _whole(1),  # stack, per rank
    "memory_heap_mb": _whole(1),  # heap, per rank
    "memory_global_mb": _whole(1),  # global arrays, per rank
    "nodes": _whole(1),  # nodes of a run; also write `job: {nodes: nodes}`
    "ranks_per_node": _whole(1),  # MPI ranks on each node
    "threads": _whole(1),  # OpenMP and BLAS threads of a rank
    "map_by": _one_of(*_PLACES),  # how ranks are dealt out
    "bind_to": _one_of(*_PLACES, "none"),  # what a rank is bound to
    "mpi": _one_of(*MPI_BUILDS),  # which MPI build of NWChem, and its launcher
    "blas": _word,  # which BLAS library is loaded
    "armci_network": _word,  # the ARMCI network the program was built with
}
_TOGETHER = (("memory_stack_mb", "memory_heap_mb", "memory_global_mb"),)


def variable(knob: str) -> str | None:
    """The environment variable a knob stands for; None when it stands for none."""
    if knob in KNOBS:
        return None
    for prefix, spelled in _ENV_PREFIXES.items():
        if knob.startswith(prefix):
            rest = knob.removeprefix(prefix)
            return spelled + (rest if prefix == "ompi_mca_" else rest.upper())
    return None


def environment(settings: Settings) -> dict[str, str]:
    """Variables that knobs of this setting ask for."""
    found = {}
    for name, value in settings.items():
        if value is not None and (spelled := variable(name)):
            found[spelled] = str(int(value)) if isinstance(value, bool) else str(value)
    return found


def knob_problems(knobs: Iterable[Knob], used_elsewhere: Collection[str], blas: Collection[str]) -> list[Problem]:
    """Knobs that nothing would apply, values NWChem would refuse, and knobs that make no sense without another."""
    found = []
    present: Mapping[str, Knob] = {knob.name: knob for knob in knobs}
    for name, knob in present.items():
        where = ("space", name)
        if name in KNOBS:
            values = [knob.low, knob.high] if isinstance(knob, Continuous) else knob.values
            wrong = [reason for value in values if (reason := KNOBS[name](value))]
            found += [Problem(where, reason) for reason in dict.fromkeys(wrong[:3])]
        elif variable(name) is None and name not in used_elsewhere:
            found.append(Problem(where, f"no such knob for nwchem; {near(name, KNOBS)}"))
        if name == "blas" and not isinstance(knob, Continuous):
            missing = [str(value) for value in knob.values if value not in blas]
            found += [
                Problem(where, f"{value} has no folder; {near(value, blas)}, or add it to workload.blas_paths")
                for value in missing
            ]
    for group in _TOGETHER:
        given = [name for name in group if name in present]
        if given and len(given) < len(group):
            # NWChem fills in the rest by rules that differ between versions: what was asked would not be known
            rest = ", ".join(name for name in group if name not in given)
            found.append(Problem(("space", given[0]), f"give all of {', '.join(group)}: {rest} is missing"))
    return found
