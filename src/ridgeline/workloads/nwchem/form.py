"""The keys of the `nwchem` workload, and how they become its options."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, Tag

from ridgeline.forms.form import TEXT_OR_MAPPING, CountedIn, Environment, Form, Otherwise, Takes, Text
from ridgeline.forms.reading import read_form
from ridgeline.records.problem import Problem
from ridgeline.workloads.nwchem.knobs import MPI_BUILDS
from ridgeline.workloads.nwchem.options import DEBIAN_BLAS, NwchemOptions

_ATOM = re.compile(r"^\s*([A-Za-z]{1,3})\d*((?:\s+[-+]?\d*\.?\d+(?:[eEdD][-+]?\d+)?){3})\s*$")


def _stripped(text: str) -> str:
    if not text.strip():
        raise ValueError("is empty; write some text, or leave the key out")
    return text.strip()


Name = Annotated[str, AfterValidator(_stripped), Takes("text")]


class BasisFileForm(Form):
    """A basis of your own."""

    file: str = Field(min_length=1, description="A file beside the study with the lines of a basis block.")


Basis = Annotated[
    Annotated[str, Field(pattern=r"^[\w+*(),.-]+$"), Tag("<text>")] | Annotated[BasisFileForm, Tag("<mapping>")],
    TEXT_OR_MAPPING,
    Takes("a name of NWChem's library such as cc-pvdz, or {file: FILE} beside the study"),
]


class NwchemForm(Form):
    """NWChem: an input rendered from knobs, started on its ranks, read back, and held to its energy.

    `program` and `env` may name knobs, derived values and `{build}`. The knobs have fixed names.
    """

    whose = "nwchem"

    molecule: Annotated[str, Takes("the name of an xyz file beside the study file")] = Field(
        min_length=1, description="The atoms, in Angstrom.", examples=["water3.xyz"]
    )
    basis: Basis = Field(description="The basis set.", examples=["cc-pvdz"])
    theory: Literal["dft", "scf"] = Field(default="dft", description="Density functional theory, or Hartree-Fock.")
    xc: Name = Field(default="b3lyp", description="The functional of `theory: dft`, as NWChem's input names it.")
    charge: Annotated[int, CountedIn("elementary charges")] = Field(default=0, description="The molecule's charge.")
    multiplicity: int = Field(default=1, ge=1, description="The spin multiplicity, 2S + 1.")
    reference_energy: Annotated[
        float | None, CountedIn("Hartree"), Takes("an energy in Hartree"), Otherwise("a guard must hold the energy")
    ] = Field(
        default=None, description="The right total energy: a result that misses it by more than 1e-6 does not count."
    )
    program: Annotated[Name, Otherwise("Debian's `nwchem.openmpi` or `nwchem.mpich`")] = Field(
        default="", description='The program; {knob} fields allowed, such as "{build}/bin/nwchem".'
    )
    mpi: Literal[MPI_BUILDS] = Field(  # type: ignore[valid-type]  # the names are those of the knob
        default="openmpi", description="The MPI that the program was built with, where `mpi` is no knob."
    )
    armci_network: Annotated[Name, Otherwise("unknown")] = Field(
        default="", description="The ARMCI network that the program was built with, where it is no knob."
    )
    blas_paths: Annotated[dict[str, Text], Takes("a mapping of names to folders"), Otherwise("Debian's folders")] = (
        Field(default={}, description="Folders for LD_LIBRARY_PATH by value of the knob `blas`; Debian's are known.")
    )
    overcommit_memory: bool = Field(
        default=False,
        description="`true`: stack, heap and global of all ranks may exceed the node's memory, being limits only.",
    )
    env: Environment = Field(default={}, description="Environment of the program; {knob} fields allowed.")


def read_options(given: Mapping[str, object], folder: Path) -> NwchemOptions:
    """`folder` is the study file's: molecule and basis file lie there."""
    form, problems = read_form(NwchemForm, given, folder, ("workload",))
    basis = form.basis

    def tried(key: tuple[str, ...], name: str, parse: Callable[[str, str], tuple[str, ...]]) -> tuple[str, ...]:
        try:
            return parse(name, _text(folder, name))
        except ValueError as error:
            problems.append(Problem(("workload", *key), str(error)))
            return ()

    atoms = tried(("molecule",), form.molecule, _atoms) if form.molecule else ()
    from_file = tried(("basis", "file"), basis.file, _basis_lines) if isinstance(basis, BasisFileForm) else ()
    return NwchemOptions(
        atoms=atoms,
        basis=basis if isinstance(basis, str) else "",
        basis_text="".join(from_file),
        theory=form.theory,
        xc=form.xc,
        charge=form.charge,
        multiplicity=form.multiplicity,
        reference_energy=form.reference_energy,
        program=form.program,
        mpi=form.mpi,
        armci_network=form.armci_network,
        overcommit_memory=form.overcommit_memory,
        blas_paths=DEBIAN_BLAS | form.blas_paths,
        env=form.env,
        problems=tuple(problems),
    )


def _text(folder: Path, name: str) -> str:
    try:
        return (folder / name).read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not text"
        raise ValueError(f"{name} cannot be read in {folder} ({reason}); correct the name") from None


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
