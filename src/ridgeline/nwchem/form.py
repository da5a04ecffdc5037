"""The keys of the `nwchem` workload, and how they become its options."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, Tag

from ridgeline.errors import Problem, near
from ridgeline.records.expression import Value, is_number
from ridgeline.records.space import Continuous, Knob, Settings
from ridgeline.study.forms import (
    TEXT_OR_MAPPING,
    Accepts,
    DefaultText,
    Environment,
    Form,
    Text,
    ValueUnit,
    read_form,
)

# The knobs an NWChem study may turn, by fixed names, and what their values may be.
#
# A knob outside this table is legal where something of the study uses it: `builds`, `workload.env`, `workload.program`,
# a derived value or the job's size. Knobs `armci_*`, `ompi_mca_*` and `ucx_*` become environment variables of that
# name.

_MPI_BUILDS = ("openmpi", "mpich")
_GRIDS = ("xcoarse", "coarse", "medium", "fine", "xfine", "huge")
# `none` hides the energy that every run is judged by; `low` hides only the iterations
_PRINT_LEVELS = ("low", "medium", "high", "debug")
_PLACES = ("core", "hwthread", "l3cache", "numa", "socket", "node")
PROGRESS_RANK = "MPI-PR"  # this ARMCI network takes one rank of every node for itself

# the names of MCA parameters are lower case
_ENV_PREFIXES = {"armci_": "ARMCI_", "ucx_": "UCX_", "ompi_mca_": "OMPI_MCA_"}


_KnobCheck = Callable[[Value], str | None]  # what is wrong with a value, or nothing


def _one_of(*choices: Value) -> _KnobCheck:
    def accepts(value: Value) -> str | None:
        words = [str(choice) for choice in choices]
        return None if value in choices else f"{value!r} is not possible; {near(str(value), words)}"

    return accepts


def _whole(least: int) -> _KnobCheck:
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


KNOBS: dict[str, _KnobCheck] = {
    "integrals": _one_of("direct", "semidirect"),  # compute integrals again each time, or keep what fits
    "memsize_mb": _whole(0),  # semidirect: memory for kept integrals, per rank
    "filesize_mb": _whole(0),  # semidirect: file for kept integrals, per rank; 0 for none
    "grid": _one_of(*_GRIDS),  # fineness of the integration grid
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
    "mpi": _one_of(*_MPI_BUILDS),  # which MPI build of NWChem, and its launcher
    "blas": _word,  # which BLAS library is loaded
    "armci_network": _word,  # the ARMCI network the program was built with
}
_TOGETHER = (("memory_stack_mb", "memory_heap_mb", "memory_global_mb"),)


def _variable(knob: str) -> str | None:
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
        if value is not None and (spelled := _variable(name)):
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
        elif _variable(name) is None and name not in used_elsewhere:
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


# Debian keeps every BLAS in a folder of its own and lets update-alternatives choose a default; a run names its folder
_DEBIAN_BLAS = {
    "reference": "/usr/lib/*/blas:/usr/lib/*/lapack",
    "openblas-serial": "/usr/lib/*/openblas-serial",
    "openblas-pthread": "/usr/lib/*/openblas-pthread",
}


_THEORIES = ("dft", "scf", "mp2", "ccsd", "ccsd(t)")
_TASKS = ("energy", "optimize")


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
    blas_paths: Mapping[str, str] = field(default_factory=lambda: dict(_DEBIAN_BLAS))
    env: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()


_UNLESS_INPUT = "required, unless `input` is given"
_TASK = re.compile(r"^[ \t]*task[ \t]+(\S+)(?:[ \t]+(\w+))?", re.MULTILINE | re.IGNORECASE)
_ATOM = re.compile(r"^\s*([A-Za-z]{1,3})\d*((?:\s+[-+]?\d*\.?\d+(?:[eEdD][-+]?\d+)?){3})\s*$")


def _stripped(text: str) -> str:
    if not text.strip():
        raise ValueError("is empty; write some text, or leave the key out")
    return text.strip()


_Name = Annotated[str, AfterValidator(_stripped), Accepts("text")]


class BasisFileForm(Form):
    """A basis of your own."""

    file: str = Field(min_length=1, description="A file beside the study with the lines of a basis block.")


_Basis = Annotated[
    Annotated[str, Field(pattern=r"^[\w+*(),.-]+$"), Tag("<text>")] | Annotated[BasisFileForm, Tag("<mapping>")],
    TEXT_OR_MAPPING,
    Accepts("a name of NWChem's library such as cc-pvdz, or {file: FILE} beside the study"),
]


class NwchemForm(Form):
    """NWChem: an input rendered from knobs, started on its ranks, read back, and held to its energy.

    `program` and `env` may name knobs, derived values and `{build}`. The knobs have fixed names.
    """

    whose = "nwchem"
    makes = NwchemOptions
    aside = frozenset({"input", "molecule", "basis", "blas_paths"})

    input: Annotated[str, Accepts("the name of a file beside the study file"), DefaultText("one is written")] = Field(
        default="",
        description="An input of your own, in place of `molecule` and `basis`; {knob} fields allowed.",
    )
    molecule: Annotated[str, Accepts("the name of an xyz file beside the study file"), DefaultText(_UNLESS_INPUT)] = (
        Field(default="", description="The atoms, in Angstrom.", examples=["water3.xyz"])
    )
    basis: Annotated[_Basis, DefaultText(_UNLESS_INPUT)] = Field(
        default="", description="The basis set.", examples=["cc-pvdz"]
    )
    spherical: bool = Field(description="Spherical functions in place of Cartesian ones.")
    theory: Literal[_THEORIES] = Field(  # type: ignore[valid-type]
        description="What is computed, and whose energy is read: `scf` is Hartree-Fock."
    )
    task: Literal[_TASKS] = Field(  # type: ignore[valid-type]
        description="One energy, or the geometry of lowest energy; of `input`, its last task."
    )
    freeze_core: bool = Field(description="Of mp2 and ccsd: core electrons are not correlated.")
    xc: _Name = Field(description="The functional of `theory: dft`, as NWChem's input names it.")
    charge: Annotated[int, ValueUnit("elementary charges")] = Field(description="The molecule's charge.")
    multiplicity: int = Field(ge=1, description="The spin multiplicity, 2S + 1.")
    reference_energy: Annotated[
        float | None, ValueUnit("Hartree"), Accepts("an energy in Hartree"), DefaultText("a guard must hold the energy")
    ] = Field(description="The right total energy: a result that misses it by more than 1e-6 does not count.")
    program: Annotated[_Name, DefaultText("Debian's `nwchem.openmpi` or `nwchem.mpich`")] = Field(
        description='The program; {knob} fields allowed, such as "{build}/bin/nwchem".'
    )
    mpi: Literal[_MPI_BUILDS] = Field(  # type: ignore[valid-type]  # the names are those of the knob
        description="The MPI that the program was built with, where `mpi` is no knob."
    )
    armci_network: Annotated[_Name, DefaultText("unknown")] = Field(
        description="The ARMCI network that the program was built with, where it is no knob."
    )
    blas_paths: Annotated[
        dict[str, Text], Accepts("a mapping of names to folders"), DefaultText("Debian's folders")
    ] = Field(default={}, description="Folders for LD_LIBRARY_PATH by value of the knob `blas`; Debian's are known.")
    overcommit_memory: bool = Field(
        description="`true`: stack, heap and global of all ranks may exceed the node's memory, being limits only.",
    )
    env: Environment = Field(description="Environment of the program; {knob} fields allowed.")


def read_options(given: Mapping[str, object], folder: Path) -> NwchemOptions:
    """`folder` is the study file's: input, molecule and basis file lie there."""
    form, problems = read_form(NwchemForm, given, folder, ("workload",))
    basis = form.basis

    def tried(key: tuple[str, ...], name: str, parse: Callable[[str, str], tuple[str, ...]]) -> tuple[str, ...]:
        try:
            return parse(name, _text(folder, name))
        except ValueError as error:
            problems.append(Problem(("workload", *key), str(error)))
            return ()

    template, task = tried(("input",), form.input, _input) if form.input else (), form.task
    problems += _of_the_input(form, template[0] if template else "")
    if template and (last := _last_task(template[0])):
        task = "optimize" if last[1] == "optimize" else "energy"
    atoms = tried(("molecule",), form.molecule, _atoms) if form.molecule else ()
    from_file = tried(("basis", "file"), basis.file, _basis_lines) if isinstance(basis, BasisFileForm) else ()
    options: NwchemOptions = form.record(
        atoms=atoms,
        basis=basis if isinstance(basis, str) else "",
        basis_text="".join(from_file),
        template="".join(template),
        task=task,
        blas_paths=_DEBIAN_BLAS | form.blas_paths,
        problems=tuple(problems),
    )
    return options


def _of_the_input(form: NwchemForm, template: str) -> list[Problem]:
    """What does not fit together: an input of one's own says all that other keys would."""
    if not form.input:
        missing = [name for name in ("molecule", "basis") if not getattr(form, name)]
        return [Problem(("workload", name), "is missing; or name an `input` of your own") for name in missing]
    said_there = ("molecule", "basis", "spherical", "charge", "multiplicity", "freeze_core", "task")
    given = [name for name in said_there if name in form.model_fields_set]
    found = [Problem(("workload", name), f"{form.input} says this itself; leave it out") for name in given]
    last = _last_task(template)
    if template and last is None:
        found.append(Problem(("workload", "input"), f"{form.input} has no `task` line; NWChem would do nothing"))
    elif last is not None and last[0] != form.theory:
        text = f"{form.input} ends with `task {last[0]}`, but `theory` is {form.theory}, whose energy would be read"
        found.append(Problem(("workload", "theory"), f"{text}; known: {', '.join(_THEORIES)}"))
    return found


def _last_task(template: str) -> tuple[str, str] | None:
    tasks = [(theory.lower(), operation.lower()) for theory, operation in _TASK.findall(template)]
    return tasks[-1] if tasks else None


def _input(name: str, text: str) -> tuple[str, ...]:
    if not text.strip():
        raise ValueError(f"{name} is empty; put an NWChem input there")
    return (text if text.endswith("\n") else f"{text}\n",)


def _text(folder: Path, name: str) -> str:
    try:
        return (folder / name).read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not text"
        raise ValueError(f"{name} cannot be read in {folder} ({reason}); put it there, or correct the name") from None


def _atoms(name: str, text: str) -> tuple[str, ...]:
    lines = text.splitlines()
    count = lines[0].strip() if lines else ""
    atoms = [line for line in lines[2:] if line.strip()]
    if not count.isdigit() or int(count) != len(atoms) or not atoms:
        raise ValueError(
            f"{name}: an xyz file starts with the number of its atoms; its first line is {count!r}, "
            f"and {len(atoms)} lines of atoms follow the title"
        )
    for number, line in enumerate(atoms, 3):
        if not _ATOM.match(line):
            raise ValueError(f"{name}:{number}: {line.strip()[:60]!r} is not an atom; write `element x y z`")
    return tuple(" ".join(line.split()) for line in atoms)


def _basis_lines(name: str, text: str) -> tuple[str, ...]:
    if not text.strip():
        raise ValueError(f"{name} is empty; put the lines of a basis block there")
    return (text.strip("\n"),)
