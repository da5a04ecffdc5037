"""What an NWChem output can say. `line` is where it said it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Energy:
    """A `Total DFT energy` or `Total SCF energy` line. NWChem prints it even when the calculation did not converge."""

    theory: str  # SCF, DFT, MP2, ...
    hartree: float
    line: int


@dataclass(frozen=True, slots=True)
class Iteration:
    """A row of a convergence table. `time_s` counts from the program's start."""

    theory: str
    number: int
    energy_hartree: float
    change_hartree: float | None
    time_s: float
    line: int


@dataclass(frozen=True, slots=True)
class Memory:
    """Asked for, per process."""

    heap_bytes: int | None = None
    stack_bytes: int | None = None
    global_bytes: int | None = None
    total_bytes: int | None = None
    line: int = 0


@dataclass(frozen=True, slots=True)
class IntegralCache:
    """Shares (0 to 1) of the integrals that are computed again in each iteration and that are kept."""

    quartets: float
    integrals: float
    direct_share: float
    cached_share: float
    line: int


@dataclass(frozen=True, slots=True)
class IntegralFile:
    """Where semidirect keeps integrals. None of these lines is printed by a direct calculation."""

    record_doubles: int
    line: int


@dataclass(frozen=True, slots=True)
class GaStatistics:
    """Of process 0, by operation: create, destroy, get, put, acc, scatter, gather, read&inc."""

    calls: dict[str, int]
    total_bytes: dict[str, float]
    remote_bytes: dict[str, float]
    peak_bytes: int | None
    line: int


@dataclass(frozen=True, slots=True)
class Times:
    cpu_s: float
    wall_s: float
    line: int


@dataclass(frozen=True, slots=True)
class NwchemTask:
    """One `task` of the input, from its module's banner to its times; `times` is None when it did not end."""

    theory: str
    line: int
    times: Times | None = None


@dataclass(frozen=True, slots=True)
class NwchemFailure:
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
    memory: Memory = Memory()
    energies: tuple[Energy, ...] = ()
    iterations: tuple[Iteration, ...] = ()
    integral_caches: tuple[IntegralCache, ...] = ()
    integral_files: tuple[IntegralFile, ...] = ()
    iterative_s: tuple[float, ...] = ()
    tasks: tuple[NwchemTask, ...] = ()
    total: Times | None = None
    ga: GaStatistics | None = None
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
    failures: tuple[NwchemFailure, ...] = ()

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
