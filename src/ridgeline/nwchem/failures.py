"""Lines by which NWChem, its memory and its MPI say why a run failed. Some of these leave with exit code 0."""

from __future__ import annotations

import re

from ridgeline.diagnose.readers.failures import PROGRAM_FAILURES
from ridgeline.records.outcome import Kind, Signature

NO_PROGRAM = "ridgeline: no NWChem here"  # rank.sh writes these three
NO_BLAS = "ridgeline: no such BLAS here"
NO_SCRATCH = "ridgeline: no scratch here"


def _signature(pattern: str, kind: Kind, reason: str) -> Signature:
    return Signature(re.compile(pattern), kind, reason, even_if_exit_0=True)


_NWCHEM_FAILURES: tuple[Signature, ...] = (
    _signature(
        NO_PROGRAM,
        Kind.SITE_FAULT,
        "NWChem is not on the node: its operator installs it (Debian: nwchem-openmpi, nwchem-mpich), "
        "the site file loads its module, or `workload.program` names it",
    ),
    _signature(
        NO_BLAS,
        Kind.REJECTED,
        "this BLAS is not on the node: its operator installs it (Debian: libblas3 liblapack3, libopenblas0-serial, "
        "libopenblas0-pthread), or `workload.blas_paths` names its folder",
    ),
    _signature(
        r"(mpirun|mpiexec|srun)[.\w]*: (command )?not found|: (mpirun|mpiexec|srun)[.\w]*: (command )?not found",
        Kind.SITE_FAULT,
        "no MPI launcher on the node: its operator installs Open MPI or MPICH, or the site file loads its module",
    ),
    _signature(
        # on a full disk NWChem computes on without its files, and leaves with 0
        rf"No space left on device|Disk quota exceeded|{NO_SCRATCH}|eaf_write: rc ne bytes|File too large",
        Kind.SITE_FAULT,
        "the scratch disk is full: free it, give the site another `scratch`, or write less (filesize_mb 0)",
    ),
    _signature(
        r"failed opening basis file|bas_tag_lib: .*(basis|library)|no basis set found|"
        r"basis set not found|bas_input: .*not (found|in)",
        Kind.REJECTED,
        "NWChem does not find the basis set: correct `workload.basis`, or have the operator install its library "
        "(Debian: nwchem-data; NWCHEM_BASIS_LIBRARY elsewhere)",
    ),
    _signature(
        r"Inconsistent memory specification", Kind.REJECTED, "stack, heap and global do not fit together as asked"
    ),
    _signature(
        r"Global memory limit unreasonable", Kind.REJECTED, "the global memory asked for makes no sense to NWChem"
    ),
    _signature(r"MA_init: could not allocate|MA error: MA_init", Kind.OOM_START, "stack and heap cannot be allocated"),
    _signature(r"Error creating ga|ga_create.* failed|nga_create.* failed", Kind.OOM_RUN, "global memory is too small"),
    _signature(
        r"ptsalloc: increase memory|insufficient memory|MA_push_get|ma_alloc_get|could not allocate .* on the stack",
        Kind.OOM_RUN,
        "stack and heap are too small for this calculation",
    ),
    _signature(
        r"sym_movecs_adapt: negative proj",
        Kind.WRONG,
        "the orbitals are broken (MPICH builds from two ranks on: set ARMCI_USE_WIN_ALLOCATE=0)",
    ),
    _signature(r"[Ff]ailed to converge|did not converge", Kind.WRONG, "the calculation did not converge"),
    _signature(
        r"xc_input: invalid format|input error at line|There is an error in the input file",
        Kind.REJECTED,
        "NWChem does not accept the input",
    ),
)

SIGNATURES: tuple[Signature, ...] = (*_NWCHEM_FAILURES, *PROGRAM_FAILURES)
