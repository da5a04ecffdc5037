"""What NWChem measures: every metric with its unit, which way is better, and what it means."""

from __future__ import annotations

from ridgeline.records.measurement import MetricDefinition

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
    ("integrals_cached_share", "", "higher", "Share of the integrals kept instead of computed anew.", _NWCHEM),
    ("ga_get_calls", "", "lower", "Calls of GA get on the reporting rank.", _NWCHEM),
    ("ga_acc_calls", "", "lower", "Calls of GA accumulate on the reporting rank.", _NWCHEM),
    ("ga_total_bytes", "bytes", "lower", "Bytes moved by global arrays, local ones included.", _NWCHEM),
    ("ga_remote_bytes", "bytes", "lower", "Bytes moved by global arrays between ranks.", _NWCHEM),
    ("density_error", "", "lower", "Integrated density less the number of electrons.", _NWCHEM),
    ("nproc", "", "", "Ranks that NWChem counts.", _NWCHEM),
)  # fmt: skip

METRICS = tuple(MetricDefinition(*row) for row in _ROWS)  # type: ignore[arg-type]
