"""What an NWChem run measured, whether it may count, and whether it was run as asked."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ridgeline.files import text_of
from ridgeline.readers.report_bindings import RankBinding, read_bindings
from ridgeline.records.measurement import Measurement
from ridgeline.records.metrics import ENERGY, reported
from ridgeline.records.space import Settings
from ridgeline.workloads.nwchem.facts import NwchemOut
from ridgeline.workloads.nwchem.output import read_nwchem_out
from ridgeline.workloads.nwchem.start import ARRIVED, LIBRARIES, Start

_TOLERANCE_HARTREE = 1e-6
_MPI_LIBRARY = {"openmpi": "libmpi.so", "mpich": "libmpich.so"}
_MB = 2**20


@dataclass(frozen=True, slots=True)
class Output:
    """The files of a run that say something."""

    facts: NwchemOut
    bindings: tuple[RankBinding, ...]
    libraries: dict[str, str]  # name -> path the loader took
    arrived: dict[str, str]

    @classmethod
    def of(cls, folder: Path) -> Output:
        texts = [text_of(folder / name).splitlines() for name in ("stdout", "stderr")]
        return cls(
            read_nwchem_out(itertools.chain(*texts)),
            tuple(binding for text in texts for binding in read_bindings(text)),
            dict(re.findall(r"^\s*(\S+) => (\S+)", text_of(folder / LIBRARIES), re.MULTILINE)),
            dict(line.split("=", 1) for line in text_of(folder / ARRIVED).splitlines() if "=" in line),
        )


def measurements(output: Output, theory: str) -> list[Measurement]:
    return [reported(name, value, "stdout") for name, value in _values(output.facts, theory)]


def _values(facts: NwchemOut, theory: str) -> Iterator[tuple[str, float]]:
    table: dict[str, float | None] = {
        ENERGY: facts.energy(theory.upper()),
        "scf_energy_hartree": facts.energy("SCF") if theory != "scf" else None,
        "iterations": float(sum(row.theory == _iterated(theory) for row in facts.iterations)) or None,
        "iterative_s": facts.iterative_s[-1] if facts.iterative_s else None,
        "nwchem_cpu_s": facts.total.cpu_s if facts.total else None,
        "nwchem_wall_s": facts.total.wall_s if facts.total else None,
        "heap_peak_bytes": facts.heap_peak_bytes,
        "stack_peak_bytes": facts.stack_peak_bytes,
        "memory_asked_bytes": facts.memory.total_bytes,
        "integrals_cached_share": facts.cached_share,
        "nproc": facts.nproc,
    }
    if facts.integrated_density is not None and facts.electrons:
        table["density_error"] = abs(facts.integrated_density - facts.electrons)
    if facts.ga is not None:
        table["ga_peak_bytes"] = facts.ga.peak_bytes
        table["ga_get_calls"] = facts.ga.calls.get("get")
        table["ga_acc_calls"] = facts.ga.calls.get("acc")
        table["ga_total_bytes"] = sum(facts.ga.total_bytes.values())
        table["ga_remote_bytes"] = sum(facts.ga.remote_bytes.values())
    yield from ((name, float(value)) for name, value in table.items() if value is not None)


def _iterated(theory: str) -> str:
    return "DFT" if theory == "dft" else "SCF"  # mp2 and ccsd start from Hartree-Fock


def problem(facts: NwchemOut, theory: str, reference_hartree: float | None, task: str = "energy") -> str:
    """Why the result may not count. NWChem leaves with 0 after some errors and prints unconverged energies."""
    if not facts.finished:
        return "stdout has no `Total times  cpu:` line: NWChem did not come to its end"
    energy = facts.energy(theory.upper())
    if energy is None:
        return f"stdout has no `Total {theory.upper()} energy` line"
    if not facts.converged:
        return "the calculation did not converge"
    if task == "optimize" and not facts.optimized_line:
        return "stdout has no `Optimization converged` line: the geometry was not found"
    if reference_hartree is not None and not abs(energy - reference_hartree) <= _TOLERANCE_HARTREE:
        gap = abs(energy - reference_hartree)
        return (
            f"{ENERGY} = {energy!r} is {gap:.3g} from the reference {reference_hartree!r}; limit {_TOLERANCE_HARTREE:g}"
        )
    return ""


def differences(output: Output, start: Start, settings: Settings, compute_ranks: int, mpi: str | None) -> str:
    """What the run shows that differs from what the setting asked for; empty when nothing does."""
    facts = output.facts
    found: list[str] = []
    if facts.nproc is not None and facts.nproc != compute_ranks:
        found.append(f"{compute_ranks} ranks were asked for, NWChem counts {facts.nproc}")
    found += _memory(facts, settings)
    found += _libraries(output.libraries, start.blas, mpi)
    found += [
        f"{name}={value} did not reach the ranks (there: {output.arrived.get(name, 'unset')})"
        for name, value in start.env.items()
        if output.arrived and output.arrived.get(name) != value
    ]
    if start.binding.report:
        found += _places(output.bindings, start)
    if settings.get("grid") and facts.grid and facts.grid.lower() != settings["grid"]:
        found.append(f"grid {settings['grid']} was asked for, NWChem used {facts.grid.lower()}")
    return "; ".join(found)


def _memory(facts: NwchemOut, settings: Settings) -> Iterator[str]:
    for part in ("stack", "heap", "global"):
        asked_mb, used = settings.get(f"memory_{part}_mb"), getattr(facts.memory, f"{part}_bytes")
        # NWChem keeps a few words of each block for itself
        if isinstance(asked_mb, int) and used is not None and abs(used - asked_mb * _MB) > 0.01 * _MB:
            yield f"{part} of {asked_mb} MB was asked for, NWChem took {used / _MB:.1f} MB"


def _libraries(loaded: dict[str, str], blas: str, mpi: str | None) -> Iterator[str]:
    if mpi and loaded and not any(name.startswith(_MPI_LIBRARY[mpi]) for name in loaded):
        yield f"the {mpi} build was asked for, but {_MPI_LIBRARY[mpi]} is not loaded"
    if not blas:
        return
    wanted = [re.compile(re.escape(pattern).replace(r"\*", "[^/]+") + "/") for pattern in blas.split(":")]
    taken = {name: path for name, path in loaded.items() if re.match(r"lib(blas|lapack|openblas|mkl|blis)", name)}
    if not taken:
        yield "no BLAS library is among those the program loads, so the asked-for one cannot be shown"
    for name, path in taken.items():
        if not any(pattern.match(path) for pattern in wanted):
            yield f"{name} was loaded from {path}, not from {blas}"


def _places(bindings: Sequence[RankBinding], start: Start) -> Iterator[str]:
    ranks = start.resources.nodes * start.resources.ranks_per_node
    last = {binding.rank: binding for binding in bindings}
    if len(last) < ranks:
        yield f"the launcher reported where {len(last)} of {ranks} ranks are bound"
        return
    place, room = start.binding.bind_to, start.binding.cores_per_rank
    bound = [binding for binding in last.values() if binding.cpus is not None]
    if place == "none" and any(len(binding.cpus or ()) == 1 for binding in bound):
        yield "no binding was asked for, the launcher bound ranks to single cores"
    if place in ("core", "hwthread"):
        short = sorted(set(last) - {binding.rank for binding in bound if len(binding.cpus or ()) >= room})
        if short and ranks > 1:
            yield f"binding to {place} was asked for, rank {short[0]} is not bound so"
        places = [(binding.host, cpu) for binding in bound for cpu in binding.cpus or ()]
        if len(set(places)) < len(places):
            yield f"binding to {place} was asked for, ranks share cores"
    if start.binding.map_by == "node" and start.resources.nodes > 1:
        hosts = [last[rank].host for rank in sorted(last)]
        if all(hosts) and any(one == other for one, other in itertools.pairwise(hosts)):
            yield "mapping by node was asked for, neighbouring ranks share a node"
