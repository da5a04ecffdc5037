"""NWChem's output (7.x): energies, iterations, convergence, times, memory, integral cache, GA statistics, errors.

Standard output and standard error may be in one file, in any order. Nothing here judges a run: a run that failed
prints energies too, so ask `finished`, `converged` and `failures`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from ridgeline.diagnose.readers.lines import number, plain, whole

# What an NWChem output can say. `line` is where it said it.


@dataclass(frozen=True, slots=True)
class _Energy:
    """A `Total DFT energy` or `Total SCF energy` line. NWChem prints it even when the calculation did not converge."""

    theory: str  # SCF, DFT, MP2, ...
    hartree: float
    line: int


@dataclass(frozen=True, slots=True)
class _Iteration:
    """A row of a convergence table. `time_s` counts from the program's start."""

    theory: str
    number: int
    energy_hartree: float
    change_hartree: float | None
    time_s: float
    line: int


@dataclass(frozen=True, slots=True)
class _Memory:
    """Asked for, per process."""

    heap_bytes: int | None = None
    stack_bytes: int | None = None
    global_bytes: int | None = None
    total_bytes: int | None = None
    line: int = 0


@dataclass(frozen=True, slots=True)
class _IntegralCache:
    """Shares (0 to 1) of the integrals that are computed again in each iteration and that are kept."""

    quartets: float
    integrals: float
    direct_share: float
    cached_share: float
    line: int


@dataclass(frozen=True, slots=True)
class _IntegralFile:
    """Where semidirect keeps integrals. None of these lines is printed by a direct calculation."""

    record_doubles: int
    line: int


@dataclass(frozen=True, slots=True)
class _GaStatistics:
    """Of process 0, by operation: create, destroy, get, put, acc, scatter, gather, read&inc."""

    calls: dict[str, int]
    total_bytes: dict[str, float]
    remote_bytes: dict[str, float]
    peak_bytes: int | None
    line: int


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
    text: str


@dataclass(frozen=True, slots=True)
class NwchemOut:
    version: str | None = None
    program: str | None = None
    nproc: int | None = None
    nproc_line: int = 0
    memory: _Memory = _Memory()
    energies: tuple[_Energy, ...] = ()
    iterations: tuple[_Iteration, ...] = ()
    integral_caches: tuple[_IntegralCache, ...] = ()
    integral_files: tuple[_IntegralFile, ...] = ()
    iterative_s: tuple[float, ...] = ()
    tasks: tuple[_NwchemTask, ...] = ()
    total: _Times | None = None
    ga: _GaStatistics | None = None
    heap_peak_bytes: int | None = None
    stack_peak_bytes: int | None = None
    heap_free_bytes: int | None = None
    stack_free_bytes: int | None = None
    grid: str | None = None
    electrons: int | None = None
    basis_functions: int | None = None
    integrated_density: float | None = None
    density_line: int = 0
    optimized_line: int = 0  # where the geometry was found; 0 where none was
    failures: tuple[_NwchemFailure, ...] = ()

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
_MEMORY = re.compile(r"^\s{1,9}(heap|stack|global|total)\s{1,9}=\s{1,20}(\d{1,16}) doubles", re.ASCII)
_CACHE = re.compile(
    rf"#quartets =\s{{0,9}}{_N}\s{{1,9}}#integrals =\s{{0,9}}{_N}\s{{1,9}}#direct =\s{{0,9}}{_N}%"
    rf"\s{{0,9}}#cached =\s{{0,9}}{_N}%",
    re.ASCII,
)
_RECORD = re.compile(r"Record size in doubles =\s{1,20}(\d{1,12}).{0,40}integs per rec", re.ASCII)
_RECORDS = re.compile(
    r"Max\. records in memory =\s{0,20}(\d{1,12})\s{1,20}Max\. records in file\s{1,9}=\s{0,20}(\d{1,12})"
)
_TIMES = re.compile(rf"^\s{{0,9}}(Total|Task)\s{{1,9}}times\s{{1,9}}cpu:\s{{0,20}}{_N}s\s{{1,20}}wall:\s{{0,20}}{_N}s")
_ITERATIVE = re.compile(rf"Total iterative time =\s{{0,20}}{_N}s", re.ASCII)
_FREE = re.compile(r"(Heap|Stack) Space remaining \(MW\):\s{1,20}\S{1,20}\s{1,30}(\d{1,16})", re.ASCII)
_MODULE = re.compile(
    r"^\s{10,60}NWChem (SCF|DFT|MP2|Property|Geometry Optimization|CPHF|TCE|PSPW) (?:Module|Optimization)"
)
_GA_ROW = re.compile(r"^(calls|bytes total|bytes remote):((?:\s{1,30}[\d.e+-]{1,12}){6,8})\s*$", re.ASCII)
_GA_PEAK = re.compile(r"Max memory consumed for GA by this process: (\d{1,16}) bytes", re.ASCII)
_MA_PEAK = re.compile(r"^\s{0,9}maximum total bytes\s{1,30}(\d{1,16})\s{1,30}(\d{1,16})\s*$", re.ASCII)
_SETTING = re.compile(r"^\s{1,9}(program|nproc|nwchem branch)\s{1,12}=\s{1,12}(\S{1,200})", re.ASCII)
_GRID = re.compile(r"Grid used for XC integration:\s{1,9}(\w{1,20})", re.ASCII)
_ELECTRONS = re.compile(r"No\. of electrons\s{0,9}:\s{1,20}(\d{1,9})", re.ASCII)
_BASIS = re.compile(r"AO basis - number of functions:\s{1,20}(\d{1,7})", re.ASCII)
_DENSITY = re.compile(rf"Numeric\. integr\. density =\s{{1,20}}{_N}", re.ASCII)

_GA_BYTES = ("get", "put", "acc", "scatter", "gather", "read&inc")
_GA_CALLS = ("create", "destroy", *_GA_BYTES)

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
    reader = _OutputReader()
    for line_number, raw in enumerate(lines, 1):
        reader.read(line_number, plain(raw)[:2000])
    return reader.gathered()


class _OutputReader:
    def __init__(self) -> None:
        self.out = NwchemOut()
        self.energies: list[_Energy] = []
        self.iterations: list[_Iteration] = []
        self.caches: list[_IntegralCache] = []
        self.files: list[_IntegralFile] = []
        self.iterative_s: list[float] = []
        self.tasks: list[_NwchemTask] = []
        self.failures: list[_NwchemFailure] = []
        self.record_doubles = 0
        self.ga: dict[str, dict[str, float]] = {}
        self.ga_line = 0

    def gathered(self) -> NwchemOut:
        ga = None
        if "calls" in self.ga:
            calls = {name: int(n) for name, n in self.ga["calls"].items()}
            peak = int(self.ga["peak"]["bytes"]) if "peak" in self.ga else None
            ga = _GaStatistics(
                calls, self.ga.get("bytes total", {}), self.ga.get("bytes remote", {}), peak, self.ga_line
            )
        return replace(
            self.out,
            energies=tuple(self.energies),
            iterations=tuple(self.iterations),
            integral_caches=tuple(self.caches),
            integral_files=tuple(self.files),
            iterative_s=tuple(self.iterative_s),
            tasks=tuple(self.tasks),
            ga=ga,
            failures=tuple(self.failures),
        )

    def read(self, line: int, text: str) -> None:
        for word, take in _BY_WORD:
            if word in text and take(self, line, text):
                return
        if _SCF_ROW.match(text):
            self._scf_row(line, text)
            return
        kind = next((kind for mark, kind in _FAILURES if mark in text), None)
        if kind:
            self.failures.append(_NwchemFailure(kind, line, text.strip()[:300]))

    def _energy(self, line: int, text: str) -> bool:
        found = _ENERGY.search(text)
        value = number(found.group(2)) if found else None
        if found and value is not None:
            self.energies.append(_Energy(found.group(1), value, line))
        return found is not None

    def _dft_row(self, line: int, text: str) -> bool:
        found = _DFT_ROW.match(text)
        return found is not None and self._row(line, "DFT", *found.groups())

    def _scf_row(self, line: int, text: str) -> bool:
        found = _SCF_ROW.match(text)
        if found is None:
            return False
        count, energy, time = found.groups()
        return self._row(line, "SCF", count, energy, None, time)

    def _row(self, line: int, theory: str, count: str, energy: str, change: str | None, time: str) -> bool:
        n, energy_hartree, time_s = whole(count), number(energy), number(time)
        if n is not None and energy_hartree is not None and time_s is not None:
            self.iterations.append(_Iteration(theory, n, energy_hartree, number(change), time_s, line))
        return True

    def _memory(self, line: int, text: str) -> bool:
        found = _MEMORY.match(text)
        if found is None:
            return False
        size = {f"{found.group(1)}_bytes": int(found.group(2)) * 8}
        memory = replace(self.out.memory, line=self.out.memory.line or line, **size)
        self.out = replace(self.out, memory=memory)
        return True

    def _cache(self, line: int, text: str) -> bool:
        found = _CACHE.search(text)
        values = [number(v) for v in found.groups()] if found else [None]
        if any(v is None for v in values):
            return False
        quartets, integrals, direct, cached = (float(v or 0.0) for v in values)
        self.caches.append(_IntegralCache(quartets, integrals, direct / 100, cached / 100, line))
        return True

    def _record(self, _line: int, text: str) -> bool:
        if found := _RECORD.search(text):
            self.record_doubles = int(found.group(1))
        return found is not None

    def _records(self, line: int, text: str) -> bool:
        if found := _RECORDS.search(text):
            self.files.append(_IntegralFile(self.record_doubles, line))
        return found is not None

    def _times(self, line: int, text: str) -> bool:
        found = _TIMES.match(text)
        cpu_s, wall_s = (number(found.group(2)), number(found.group(3))) if found else (None, None)
        if found is None or cpu_s is None or wall_s is None:
            return False
        times = _Times(cpu_s, wall_s, line)
        if found.group(1) == "Total":
            self.out = replace(self.out, total=times)
        elif self.tasks:
            self.tasks[-1] = replace(self.tasks[-1], times=times)
        return True

    def _iterative(self, _line: int, text: str) -> bool:
        found = _ITERATIVE.search(text)
        value = number(found.group(1)) if found else None
        if value is not None:
            self.iterative_s.append(value)
        return found is not None

    def _free(self, _line: int, text: str) -> bool:
        if found := _FREE.search(text):
            free = int(found.group(2)) * 8
            heap = found.group(1) == "Heap"
            self.out = replace(self.out, heap_free_bytes=free) if heap else replace(self.out, stack_free_bytes=free)
        return found is not None

    def _module(self, line: int, text: str) -> bool:
        if found := _MODULE.match(text):
            # a DFT task runs the SCF machinery inside itself without a second banner; one banner is one task
            self.tasks.append(_NwchemTask(found.group(1), line))
        return found is not None

    def _ga_row(self, line: int, text: str) -> bool:
        found = _GA_ROW.match(text)
        if found is None:
            return False
        names = _GA_CALLS if found.group(1) == "calls" else _GA_BYTES
        values = [number(v) for v in found.group(2).split()]
        self.ga[found.group(1)] = {n: v for n, v in zip(names, values, strict=False) if v is not None}
        self.ga_line = self.ga_line or line
        return True

    def _ga_peak(self, _line: int, text: str) -> bool:
        if found := _GA_PEAK.search(text):
            self.ga["peak"] = {"bytes": float(found.group(1))}
        return found is not None

    def _ma_peak(self, _line: int, text: str) -> bool:
        if found := _MA_PEAK.match(text):
            heap, stack = int(found.group(1)), int(found.group(2))
            self.out = replace(self.out, heap_peak_bytes=heap, stack_peak_bytes=stack)
        return found is not None

    def _optimized(self, line: int, _text: str) -> bool:
        self.out = replace(self.out, optimized_line=line)
        return True

    def _setting(self, line: int, text: str) -> bool:
        found = _SETTING.match(text)
        if found is None:
            return False
        name, value = found.groups()
        if name == "nproc":
            self.out = replace(self.out, nproc=whole(value), nproc_line=line)
        elif name == "program":
            self.out = replace(self.out, program=value)
        else:
            self.out = replace(self.out, version=value)
        return True

    def _dft_setting(self, line: int, text: str) -> bool:
        if found := _GRID.search(text):
            self.out = replace(self.out, grid=found.group(1))
        elif found := _ELECTRONS.search(text):
            self.out = replace(self.out, electrons=whole(found.group(1)))
        elif found := _BASIS.search(text):
            self.out = replace(self.out, basis_functions=whole(found.group(1)))
        elif found := _DENSITY.search(text):
            self.out = replace(self.out, integrated_density=number(found.group(1)), density_line=line)
        return found is not None


# a cheap test before each pattern: outputs have thousands of lines and few that matter
_BY_WORD: tuple[tuple[str, Callable[[_OutputReader, int, str], bool]], ...] = (
    (" d=", _OutputReader._dft_row),
    ("energy", _OutputReader._energy),
    ("#quartets", _OutputReader._cache),
    ("doubles =", _OutputReader._record),
    (" doubles", _OutputReader._memory),
    ("Max. records", _OutputReader._records),
    ("times", _OutputReader._times),
    ("iterative time", _OutputReader._iterative),
    ("Space remaining", _OutputReader._free),
    ("NWChem ", _OutputReader._module),
    ("Optimization converged", _OutputReader._optimized),
    ("calls:", _OutputReader._ga_row),
    ("bytes ", _OutputReader._ga_row),
    ("consumed for GA", _OutputReader._ga_peak),
    ("maximum total bytes", _OutputReader._ma_peak),
    (" = ", _OutputReader._setting),
    (":", _OutputReader._dft_setting),
    ("density =", _OutputReader._dft_setting),
)
