"""NWChem's output (7.x): energies, iterations, convergence, times, memory, integral cache, GA statistics, errors.

Standard output and standard error may be in one file, in any order. Nothing here judges a run: a run that failed
prints energies too, so ask `finished`, `converged` and `failures`. What of it is a metric stands at the end.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from ridgeline.diagnose.readers.lines import number, plain, whole
from ridgeline.records.measurement import MetricDefinition

# What an NWChem output can say. `line` is where it said it.


@dataclass(frozen=True, slots=True)
class _Energy:
    """A `Total DFT energy` or `Total SCF energy` line. NWChem prints it even when the calculation did not converge."""

    theory: str  # SCF, DFT, MP2, ...
    hartree: float
    line: int


@dataclass(frozen=True, slots=True)
class _Iteration:
    """A row of a convergence table."""

    theory: str
    line: int


@dataclass(frozen=True, slots=True)
class _IntegralCache:
    """Shares (0 to 1) of the integrals that are computed again in each iteration and that are kept."""

    integrals: float
    direct_share: float
    cached_share: float
    line: int


@dataclass(slots=True)
class _GaStatistics:
    """Of process 0, by operation: create, destroy, get, put, acc, scatter, gather, read&inc."""

    calls: dict[str, float] = field(default_factory=dict)
    total_bytes: dict[str, float] = field(default_factory=dict)
    remote_bytes: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Times:
    cpu_s: float
    wall_s: float
    line: int


@dataclass(frozen=True, slots=True)
class _NwchemTask:
    """One `task` of the input, from its module's banner to its times; `times` is None when it did not end."""

    theory: str
    line: int
    times: _Times | None = None


@dataclass(frozen=True, slots=True)
class _NwchemFailure:
    """`kind` is one of not-converged, memory-limit, memory-inconsistent, ga-create, ma-init, memory-small, input,
    basis, disk, segfault, abort, energy-failed."""

    kind: str
    line: int


@dataclass
class NwchemOut:
    """Sizes that were asked for are of each process. `lines`: where a value, under its name here, was said last."""

    version: str | None = None
    program: str | None = None
    nproc: int | None = None
    heap_doubles: int | None = None
    stack_doubles: int | None = None
    global_doubles: int | None = None
    total_doubles: int | None = None
    energies: tuple[_Energy, ...] = ()
    iterations: tuple[_Iteration, ...] = ()
    integral_caches: tuple[_IntegralCache, ...] = ()
    record_doubles: int | None = None
    most_records: int | None = None  # on file; said by semidirect alone
    iterative_s: tuple[float, ...] = ()
    tasks: tuple[_NwchemTask, ...] = ()
    total: _Times | None = None
    ga: _GaStatistics = field(default_factory=_GaStatistics)
    ga_peak_bytes: int | None = None
    heap_peak_bytes: int | None = None
    stack_peak_bytes: int | None = None
    heap_free_doubles: int | None = None
    stack_free_doubles: int | None = None
    grid: str | None = None
    electrons: int | None = None
    basis_functions: int | None = None
    integrated_density: float | None = None
    optimized: str | None = None  # there where the geometry was found
    failures: tuple[_NwchemFailure, ...] = ()
    lines: dict[str, int] = field(default_factory=dict)

    def asked_bytes(self, part: str) -> int | None:
        """Memory that the input asks for, for each process: heap, stack, global, total."""
        doubles: int | None = getattr(self, f"{part}_doubles")
        return None if doubles is None else doubles * 8

    @property
    def free_bytes(self) -> int:
        """Heap and stack that no process used."""
        return ((self.heap_free_doubles or 0) + (self.stack_free_doubles or 0)) * 8 * (self.nproc or 1)

    def energy(self, theory: str) -> float | None:
        """The last energy printed for SCF, DFT, ... or None."""
        return next((e.hartree for e in reversed(self.energies) if e.theory == theory), None)

    @property
    def finished(self) -> bool:
        """The closing `Total times` line is there; the exit code alone does not tell."""
        return self.total is not None

    @property
    def converged(self) -> bool:
        """An energy was printed and nothing said that it did not converge."""
        return bool(self.energies) and all(f.kind not in ("not-converged", "energy-failed") for f in self.failures)

    @property
    def cached_share(self) -> float | None:
        """Of the last integral evaluation; None for a direct calculation, which prints none."""
        return self.integral_caches[-1].cached_share if self.integral_caches else None


_Match = re.Match[str]

_N = r"(-?\d[\d.]{0,30}(?:[DEde][+-]?\d{1,3})?)"
_THEORY = r"(SCF|DFT|MP2|CCSD(?:\(T\))?|PSPW)"
_ENERGY = re.compile(rf"^\s{{0,40}}Total {_THEORY} energy\s{{0,20}}[=:]?\s{{0,30}}{_N}", re.ASCII)
_DFT_ROW = re.compile(
    rf"^\s{{0,9}}d=\s{{0,5}}\d{{1,5}},ls=[\d.]{{1,9}},\S{{0,9}}\s{{1,9}}(\d{{1,5}})\s{{1,9}}{_N}\s{{0,9}}{_N}"
    rf"\s{{1,9}}\S{{1,20}}\s{{1,9}}\S{{1,20}}\s{{1,9}}{_N}\s*$",
    re.ASCII,
)
_SCF_ROW = re.compile(
    rf"^\s{{8,30}}(\d{{1,5}})\s{{1,9}}(-?\d{{1,9}}\.\d{{6,12}})\s{{1,9}}\d\S{{1,9}}\s{{1,9}}\d\S{{1,9}}\s{{1,9}}{_N}\s*$",
    re.ASCII,
)
_CACHE = re.compile(
    rf"#quartets =\s{{0,9}}{_N}\s{{1,9}}#integrals =\s{{0,9}}{_N}\s{{1,9}}#direct =\s{{0,9}}{_N}%"
    rf"\s{{0,9}}#cached =\s{{0,9}}{_N}%",
    re.ASCII,
)
_TIMES = re.compile(rf"^\s{{0,9}}(Total|Task)\s{{1,9}}times\s{{1,9}}cpu:\s{{0,20}}{_N}s\s{{1,20}}wall:\s{{0,20}}{_N}s")
_ITERATIVE = re.compile(rf"Total iterative time =\s{{0,20}}{_N}s", re.ASCII)
_MODULE = re.compile(
    r"^\s{10,60}NWChem (SCF|DFT|MP2|Property|Geometry Optimization|CPHF|TCE|PSPW) (?:Module|Optimization)"
)
_GA_ROW = re.compile(r"^(calls|bytes total|bytes remote):((?:\s{1,30}[\d.e+-]{1,12}){6,8})\s*$", re.ASCII)

_GA_BYTES = ("get", "put", "acc", "scatter", "gather", "read&inc")
_GA_CALLS = ("create", "destroy", *_GA_BYTES)

# a word of the line, and a pattern whose groups have the names of what they give
_VALUES = tuple(
    (word, re.compile(pattern, re.ASCII))
    for word, pattern in (
        ("doubles =", r"Record size in doubles =\s{1,20}(?P<record_doubles>\d{1,12}).{0,40}integs per rec"),
        *(
            (" doubles", rf"^\s{{1,9}}{part}\s{{1,9}}=\s{{1,20}}(?P<{part}_doubles>\d{{1,16}}) doubles")
            for part in ("heap", "stack", "global", "total")
        ),
        ("Max. records", r"Max\. records in file\s{1,9}=\s{0,20}(?P<most_records>\d{1,12})"),
        ("Heap Space", r"Space remaining \(MW\):\s{1,20}\S{1,20}\s{1,30}(?P<heap_free_doubles>\d{1,16})"),
        ("Stack Space", r"Space remaining \(MW\):\s{1,20}\S{1,20}\s{1,30}(?P<stack_free_doubles>\d{1,16})"),
        ("Optimization conv", r"(?P<optimized>Optimization converged)"),
        ("consumed for GA", r"Max memory consumed for GA by this process: (?P<ga_peak_bytes>\d{1,16}) bytes"),
        (
            "maximum total bytes",
            r"maximum total bytes\s{1,30}(?P<heap_peak_bytes>\d{1,16})\s{1,30}(?P<stack_peak_bytes>\d{1,16})\s*$",
        ),
        (" = ", r"^\s{1,9}program\s{1,12}=\s{1,12}(?P<program>\S{1,200})"),
        (" = ", r"^\s{1,9}nproc\s{1,12}=\s{1,12}(?P<nproc>\d{1,9})"),
        (" = ", r"^\s{1,9}nwchem branch\s{1,12}=\s{1,12}(?P<version>\S{1,200})"),
        ("XC integration", r"Grid used for XC integration:\s{1,9}(?P<grid>\w{1,20})"),
        ("electrons", r"No\. of electrons\s{0,9}:\s{1,20}(?P<electrons>\d{1,9})"),
        ("AO basis", r"AO basis - number of functions:\s{1,20}(?P<basis_functions>\d{1,7})"),
        ("density =", rf"Numeric\. integr\. density =\s{{1,20}}(?P<integrated_density>{_N[1:-1]})"),
    )
)
_WORDS = ("program", "version", "grid", "optimized")  # all others are numbers

# text -> kind; the first that is in the line wins
_FAILURES = (
    ("failed to converge", "not-converged"),
    ("Failed to converge", "not-converged"),  # a geometry, within its steps
    ("Global memory limit unreasonable", "memory-limit"),
    ("Inconsistent memory specification", "memory-inconsistent"),
    ("Error creating ga", "ga-create"),
    ("MA error: MA_init", "ma-init"),
    ("ptsalloc: increase memory", "memory-small"),
    ("failed opening basis file", "basis"),
    ("invalid format", "input"),
    ("input error at line", "input"),
    ("There is an error in the input file", "input"),
    ("No space left on device", "disk"),
    ("energy failed", "energy-failed"),
    ("Segmentation Violation", "segfault"),
    ("Segmentation fault", "segfault"),
    ("ARMCI Error:", "abort"),
    ("MPI_ABORT was invoked", "abort"),
    ("application called MPI_Abort", "abort"),
    ("Received an Error in Communication", "abort"),
)


def read_nwchem_out(lines: Iterable[str]) -> NwchemOut:
    """Gather the facts of an output; one that is cut or foreign gives fewer."""
    out = NwchemOut()
    for line, raw in enumerate(lines, 1):
        _read(out, line, plain(raw)[:2000])
    return out


def _read(out: NwchemOut, line: int, text: str) -> None:
    for word, pattern, take in _BY_WORD:
        # the word is a cheap test before the pattern: outputs have thousands of lines and few that matter
        if word in text and (found := pattern.search(text)) and take(out, line, found) is not False:
            return
    for word, pattern in _VALUES:
        if word in text and (found := pattern.search(text)):
            for name, value in found.groupdict().items():
                setattr(out, name, value if name in _WORDS else whole(value) if value.isdecimal() else number(value))
                out.lines[name] = line
            return
    if kind := next((kind for mark, kind in _FAILURES if mark in text), None):
        out.failures += (_NwchemFailure(kind, line),)


# Each takes what its pattern found; False: the line may be another's.


def _energy(out: NwchemOut, line: int, found: _Match) -> None:
    if (hartree := number(found[2])) is not None:
        out.energies += (_Energy(found[1], hartree, line),)


def _row(out: NwchemOut, line: int, found: _Match) -> None:
    """Number, energy, and at last the time; the change between them is in DFT's tables alone."""
    if None not in (whole(found[1]), number(found[2]), number(found[found.re.groups])):
        out.iterations += (_Iteration("DFT" if found.re is _DFT_ROW else "SCF", line),)


def _cache(out: NwchemOut, line: int, found: _Match) -> bool:
    values = [number(value) for value in found.groups()]
    _, integrals, direct, cached = (value or 0.0 for value in values)
    if None not in values:
        out.integral_caches += (_IntegralCache(integrals, direct / 100, cached / 100, line),)
    return None not in values


def _times(out: NwchemOut, line: int, found: _Match) -> bool:
    cpu_s, wall_s = number(found[2]), number(found[3])
    if cpu_s is None or wall_s is None:
        return False
    times = _Times(cpu_s, wall_s, line)
    if found[1] == "Total":
        out.total = times
    elif out.tasks:
        out.tasks = (*out.tasks[:-1], replace(out.tasks[-1], times=times))
    return True


def _iterative(out: NwchemOut, _line: int, found: _Match) -> None:
    if (seconds := number(found[1])) is not None:
        out.iterative_s += (seconds,)


def _module(out: NwchemOut, line: int, found: _Match) -> None:
    # a DFT task runs the SCF machinery inside itself without a second banner; one banner is one task
    out.tasks += (_NwchemTask(found[1], line),)


def _ga_row(out: NwchemOut, _line: int, found: _Match) -> None:
    rows = {"calls": out.ga.calls, "bytes total": out.ga.total_bytes, "bytes remote": out.ga.remote_bytes}
    names = _GA_CALLS if found[1] == "calls" else _GA_BYTES
    values = map(number, found[2].split())
    rows[found[1]] |= {name: value for name, value in zip(names, values, strict=False) if value is not None}


_BY_WORD: tuple[tuple[str, re.Pattern[str], Callable[[NwchemOut, int, _Match], bool | None]], ...] = (
    (" d=", _DFT_ROW, _row),
    ("energy", _ENERGY, _energy),
    ("#quartets", _CACHE, _cache),
    ("times", _TIMES, _times),
    ("iterative time", _ITERATIVE, _iterative),
    ("NWChem ", _MODULE, _module),
    ("calls:", _GA_ROW, _ga_row),
    ("bytes ", _GA_ROW, _ga_row),
    ("", _SCF_ROW, _row),
)


# Every metric of NWChem with its unit, which way is better, and what it means.

ENERGY = "energy_hartree"
_NWCHEM = ("nwchem",)
_ROWS: tuple[tuple[object, ...], ...] = (
    (ENERGY, "Ha", "", "Total energy of the theory asked for.", _NWCHEM),
    ("scf_energy_hartree", "Ha", "", "Hartree-Fock energy below a correlated method.", _NWCHEM),
    ("iterations", "", "lower", "Iterations of the self-consistent field.", _NWCHEM),
    ("iterative_s", "s", "lower", "Time in the last iterative solution, as NWChem prints it.", _NWCHEM),
    ("nwchem_cpu_s", "s", "lower", "CPU time of one rank in all tasks, as NWChem prints it.", _NWCHEM),
    ("nwchem_wall_s", "s", "lower", "Wall time of all tasks, as NWChem prints it.", _NWCHEM),
    ("heap_peak_bytes", "bytes", "lower", "Most heap in use on the reporting rank.", _NWCHEM),
    ("stack_peak_bytes", "bytes", "lower", "Most stack in use on the reporting rank.", _NWCHEM),
    ("ga_peak_bytes", "bytes", "lower", "Most memory in global arrays on the reporting rank.", _NWCHEM),
    ("memory_asked_bytes", "bytes", "lower", "Memory that the input asked for, for each rank.", _NWCHEM),
    ("integrals_cached_share", "", "higher", "Share of the integrals kept instead of computed again.", _NWCHEM),
    ("ga_get_calls", "", "lower", "Calls of GA get on the reporting rank.", _NWCHEM),
    ("ga_acc_calls", "", "lower", "Calls of GA accumulate on the reporting rank.", _NWCHEM),
    ("ga_total_bytes", "bytes", "lower", "Bytes moved by global arrays, local ones included.", _NWCHEM),
    ("ga_remote_bytes", "bytes", "lower", "Bytes moved by global arrays between ranks.", _NWCHEM),
    ("density_error", "", "lower", "Integrated density less the number of electrons.", _NWCHEM),
    ("nproc", "", "", "Ranks that NWChem counts.", _NWCHEM),
)  # fmt: skip

METRICS = tuple(MetricDefinition(*row) for row in _ROWS)  # type: ignore[arg-type]
