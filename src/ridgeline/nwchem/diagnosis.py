"""What an NWChem output means: may its energy be believed, and where did its time go."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ridgeline.diagnose.base import Analyzer, LogSummary, Quote, RawFinding, SummaryFigure, cited, knob, rereadable
from ridgeline.diagnose.readers.batch_text import RankBinding, read_bindings
from ridgeline.nwchem.output import ENERGY, NwchemOut, read_nwchem_out
from ridgeline.records.finding import Finding
from ridgeline.records.measurement import unit_of

# a stored integral takes one double: value and labels packed
_INTEGRAL_BYTES = 8
_ASKED = ("heap_doubles", "stack_doubles", "global_doubles", "total_doubles")


def _analyze(source: str, lines: Iterable[str]) -> list[Finding]:
    """Findings of one output, which may hold the launcher's reported bindings too."""
    text = rereadable(lines)
    out = read_nwchem_out(text)
    rules = (_wrong_density, _failed, _unfinished, _recomputed, _direct, _guess, _idle, _coarse)
    claims = [claim for rule in rules for claim in rule(out)]
    return cited(source, text, [*claims, *_progress_ranks(out, read_bindings(text)), *_sound(out)])


def _portray(lines: Iterable[str]) -> LogSummary:
    out = read_nwchem_out(lines)
    figures = [SummaryFigure(f"{t} energy", e, unit_of(ENERGY)) for t in _THEORIES if (e := out.energy(t)) is not None]
    if out.total:
        figures += [
            SummaryFigure("wall time", out.total.wall_s, unit_of("nwchem_wall_s")),
            SummaryFigure("cpu time", out.total.cpu_s, unit_of("nwchem_cpu_s")),
        ]
    if out.iterations:
        figures.append(SummaryFigure("iterations", len(out.iterations)))
        figures.append(SummaryFigure("iterating", sum(out.iterative_s), unit_of("iterative_s")))
    if out.cached_share is not None:
        figures.append(SummaryFigure("integrals kept", out.cached_share, "share"))
    said = {"nproc": out.nproc, "grid": out.grid, "version": out.version, "basis functions": out.basis_functions}
    memory = {f"memory {n} bytes": out.asked_bytes(n) for n in ("heap", "stack", "global", "total")}
    return LogSummary(tuple(figures), {**said, **memory})


_THEORIES = ("SCF", "DFT", "MP2", "CCSD", "CCSD(T)", "PSPW")


def _sound(out: NwchemOut) -> list[RawFinding]:
    """A run that ended well: its energy, and where its time went."""
    if not out.finished or not out.converged or out.failures or out.total is None:
        return []
    energy, total = out.energies[-1], out.total
    spent = (
        f"{_iterating(out):.0%} of {total.wall_s:.1f} s in {len(out.iterations)} iterations" if out.iterations else ""
    )
    return [
        RawFinding(
            f"finished: {energy.theory} energy {energy.hartree:.6f} Ha on {out.nproc or 1} ranks"
            + (f", {spent}" if spent else ""),
            (Quote(energy.line), Quote(total.line)),
            "Hold other settings to this energy (a guard of 1e-6), and `ridgeline study scale` to see how many ranks "
            "pay.",
            "note",
            key="nwchem.finished",
        )
    ]


def _failed(out: NwchemOut) -> list[RawFinding]:
    known = [f for f in out.failures if f.kind in _FAILURES]
    if known:
        failure = min(known, key=lambda f: list(_FAILURES).index(f.kind))
        claim, advice = _FAILURES[failure.kind]
        energies = [Quote(e.line) for e in out.energies[-1:]] if failure.kind == "not-converged" else []
        return [RawFinding(claim, (Quote(failure.line), *energies), advice, "fault")]
    if out.failures:
        advice = "The cause is in the lines above the quoted one."
        return [RawFinding("NWChem was aborted", (Quote(out.failures[0].line),), advice, "fault")]
    return []


def _wrong_density(out: NwchemOut) -> list[RawFinding]:
    """Integrating the density must give back the number of electrons; when it does not, the energy means nothing."""
    density, electrons = out.integrated_density, out.electrons
    if not density or not electrons or abs(density - electrons) < 1e-3 * electrons:
        return []
    advice = "Do not use this run. Repeat it on one rank; if that is right, suspect the MPI or ARMCI build."
    if out.program and "mpich" in out.program and (out.nproc or 0) > 1:
        advice = "Set ARMCI_USE_WIN_ALLOCATE=0: this MPICH build of NWChem gives wrong results without it."
    return [
        RawFinding(
            f"the density integrates to {density:.4f} electrons where there are {electrons}: the result is wrong",
            (Quote(out.lines["integrated_density"]), *(Quote(e.line) for e in out.energies[-1:])),
            advice,
            "fault",
        )
    ]


def _unfinished(out: NwchemOut) -> list[RawFinding]:
    if out.finished or out.failures or not (out.nproc or out.tasks):
        return []
    line = out.iterations[-1].line if out.iterations else out.tasks[-1].line if out.tasks else out.lines["nproc"]
    return [
        RawFinding(
            "the output ends without `Total times`: the program did not finish",
            (Quote(line),),
            "It was killed (time limit, memory, node) or is still running. The exit code alone does not tell: "
            "look at the batch system's record of the job.",
            "fault",
        )
    ]


def _recomputed(out: NwchemOut) -> list[RawFinding]:
    if not out.integral_caches or out.most_records is None:
        return []
    cache = out.integral_caches[-1]
    missing = cache.integrals * cache.direct_share * _INTEGRAL_BYTES
    free = out.free_bytes
    if cache.direct_share < 0.05 or missing > 0.8 * free:
        return []
    record = out.record_doubles or 65536
    # whole records, a fifth more than needed since ranks do not share evenly
    doubles = -(-int(1.2 * cache.integrals / (out.nproc or 1)) // record + 1) * record
    return [
        RawFinding(
            f"{cache.direct_share:.0%} of the integrals are computed again in every iteration, although keeping them "
            f"takes {_mib(missing)} and {_mib(free)} is unused",
            (Quote(cache.line), Quote(out.lines["most_records"])),
            f"Let semidirect keep them: `semidirect memsize {doubles} filesize 0` (doubles per process; "
            "add it to the stack of the memory line).",
            share=_iterating(out) * cache.direct_share,
            knobs=knob("nwchem", "memsize_mb", 0, [_mb(doubles)]),
            key="nwchem.recomputed",
        )
    ]


def _direct(out: NwchemOut) -> list[RawFinding]:
    """A direct calculation prints no cache line; n**4/8 integrals are an upper bound for n functions."""
    rows = [i for i in out.iterations if i.theory == "DFT"]
    if out.integral_caches or not rows or not out.basis_functions or not out.finished:
        return []
    most = out.basis_functions**4 / 8 * _INTEGRAL_BYTES
    free, asked = out.free_bytes, [out.lines[name] for name in out.lines if name in _ASKED]
    if most > 0.8 * free or not asked:
        return []
    doubles = (int(most / _INTEGRAL_BYTES / (out.nproc or 1)) // 65536 + 2) * 65536
    return [
        RawFinding(
            f"integrals are computed again in each of {len(rows)} iterations, although all of them take at most "
            f"{_mib(most)} and {_mib(free)} is unused",
            (Quote(min(asked)), Quote(rows[-1].line)),
            f"Replace `direct` by `semidirect memsize {doubles} filesize 0` (doubles per process) and compare.",
            share=_iterating(out),
            knobs=(
                *knob("nwchem", "integrals", "direct", ["semidirect"]),
                *knob("nwchem", "memsize_mb", 0, [_mb(doubles)]),
            ),
            key="nwchem.direct",
        )
    ]


def _guess(out: NwchemOut) -> list[RawFinding]:
    """An SCF task before a DFT task only provides its starting orbitals."""
    for first, second in zip(out.tasks, out.tasks[1:], strict=False):
        if first.theory == "SCF" and second.theory == "DFT" and first.times and second.times:
            whole = out.total.wall_s if out.total else first.times.wall_s + second.times.wall_s
            share = first.times.wall_s / whole if whole > 0 else 0.0
            if share >= 0.05:
                return [
                    RawFinding(
                        f"{share:.0%} of the time is an SCF task that only gives the DFT task its starting guess",
                        (Quote(first.times.line), Quote(second.times.line)),
                        "Remove `task scf` unless its energy is wanted, and check that the DFT energy stays inside "
                        "its guard.",
                        share=share,
                        knobs=knob("nwchem", "scf_guess", True, [False]),
                        key="nwchem.scf-guess",
                    )
                ]
    return []


def _idle(out: NwchemOut) -> list[RawFinding]:
    total = out.total
    if total is None or total.wall_s < 2.0 or total.cpu_s >= 0.75 * total.wall_s:
        return []
    return [
        RawFinding(
            f"rank 0 used the processor for {total.cpu_s:.0f} of {total.wall_s:.0f} seconds",
            (Quote(total.line),),
            "It waited for the disk, for other ranks, or for a core it shares: check scratch, binding "
            "(--report-bindings) and what else ran on the node.",
            share=1 - total.cpu_s / total.wall_s,
            knobs=knob("nwchem", "bind_to", "none", ["core"]),
            key="nwchem.idle",
        )
    ]


def _coarse(out: NwchemOut) -> list[RawFinding]:
    if out.grid not in ("coarse", "xcoarse") or not out.energies:
        return []
    return [
        RawFinding(
            f"the integration grid is {out.grid}",
            (Quote(out.energies[-1].line),),
            "It is fast and moves the energy by some 1e-5 Ha: above the usual guard of 1e-6. Use medium or fine.",
            "warning",
            knobs=knob("nwchem", "grid", out.grid, ["medium", "fine"]),
            key="nwchem.coarse-grid",
        )
    ]


def _progress_ranks(out: NwchemOut, bindings: Iterable[RankBinding]) -> list[RawFinding]:
    bound = {b.rank: b for b in bindings}
    if not out.nproc or len(bound) <= out.nproc:
        return []
    last = max(bound.values(), key=lambda b: b.line)
    return [
        RawFinding(
            f"{len(bound)} ranks were started and {out.nproc} compute: {len(bound) - out.nproc} only make progress",
            (Quote(out.lines["nproc"]), Quote(last.line)),
            "This is how ARMCI MPI-PR works, one rank per node. Compare builds by computing ranks, give each node one "
            "rank more than it has work for, and never start a single rank.",
            "note",
        )
    ]


def _iterating(out: NwchemOut) -> float:
    """The part of the run between the first and the last iteration: at most that much goes into integrals."""
    total = out.total.wall_s if out.total else 0.0
    return min(1.0, sum(out.iterative_s) / total) if total > 0 else 0.0


def _mb(doubles: int) -> int:
    return max(1, -(-doubles * 8 // 1_000_000))


def _mib(size: float) -> str:
    return f"{size / 2**20:.1f} MiB" if size < 2**30 else f"{size / 2**30:.1f} GiB"


# gravest cause first; what is not here is only an echo of one that is
_FAILURES = {
    "memory-inconsistent": (
        "the memory line contradicts itself, and NWChem stopped (with exit code 0)",
        "stack + heap + global must not exceed total. Give three of the four numbers, or only total.",
    ),
    "memory-limit": (
        "NWChem refused the memory it was asked to use",
        "The sum per process times ranks must fit the node: lower global first.",
    ),
    "ga-create": ("a global array did not fit", "Raise global on the memory line, or use more nodes."),
    "ma-init": (
        "heap and stack could not be allocated",
        "The node has less memory than stack + heap times ranks: lower them or use fewer ranks per node.",
    ),
    "memory-small": ("a work array did not fit", "Raise stack on the memory line."),
    "basis": ("a basis set was not found", "Check its name, and that NWCHEM_BASIS_LIBRARY ends with a slash."),
    "input": ("the input file has an error", "Correct the line that is quoted above or below."),
    "disk": (
        "the scratch disk is full",
        "Limit filesize of semidirect, or compute direct; a full local disk can take a node down.",
    ),
    "not-converged": (
        "the calculation did not converge; the energy it prints is not a result",
        "Raise `iterations`, keep the default convergence, and check that the MPI build is sound on one rank.",
    ),
    "energy-failed": ("the energy could not be computed", "The cause is in the lines above the quoted one."),
    "segfault": (
        "the program crashed",
        "ARMCI or MPI and NWChem may not match: try one rank, then another ARMCI_NETWORK build.",
    ),
}

ANALYZER = Analyzer(
    "nwchem-out",
    "output of NWChem",
    re.compile(
        r"Northwest Computational Chemistry Package|NWChem (?:Input|DFT|SCF) Module|see the NWChem manual at"
        r"|^\[\d{1,6}\] ARMCI Error: "
    ),
    _analyze,
    _portray,
    failures="own",
)
