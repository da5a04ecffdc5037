"""`nsys stats --format csv`: cuda_gpu_kern_sum (kernels), cuda_api_sum (CUDA calls) and mpi_event_sum (MPI calls).

Several reports may follow each other in one file, as nsys prints them to a terminal.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable

from ridgeline.diagnose.profilers.kernels import SMALL_S, KernelTally
from ridgeline.diagnose.profilers.profile import Call, Function, Profile, is_nccl, summed
from ridgeline.readers.lines import number, whole


def read_nsys(lines: Iterable[str]) -> Profile:
    """Kernels (module GPU) and CUDA calls (module CUDA API) become functions; NCCL's kernels are the communication.

    Where no NCCL kernel ran, MPI events are the calls.
    """
    columns: list[str] = []
    kernels: list[Function] = []
    mpi: list[Call] = []
    for line_number, raw in enumerate(lines, 1):
        line = raw[:8000]
        if line.startswith(('"Time (%)"', "Time (%),")):
            columns = _cells(line)
        elif columns and line.lstrip(' "')[:1].isdigit():
            _row(dict(zip(columns, _cells(line), strict=False)), line_number, kernels, mpi)
        elif not line.strip():
            columns = []
    gpu = [f for f in kernels if f.module == "GPU"]
    total_s = sum(f.seconds or 0.0 for f in gpu)
    nccl = [f for f in gpu if is_nccl(f.name)]
    nccl_s = sum(f.seconds or 0.0 for f in nccl)
    calls = [
        Call(
            f.name.partition("(")[0],
            f.seconds or 0.0,
            _ratio(f.seconds, nccl_s),
            _ratio(f.seconds, total_s),
            None,
            f.line,
        )
        for f in nccl
    ]
    return Profile(
        tool="nsys",
        communication_share=nccl_s / total_s if total_s > 0 else None,
        communication_line=nccl[0].line if nccl else (gpu[0].line if gpu else 0),
        calls=summed(calls or mpi),
        functions=tuple(sorted(kernels, key=lambda f: -f.share)),
    )


def read_nsys_kernels(lines: Iterable[str]) -> KernelTally:
    """The kernels of cuda_gpu_kern_sum and the calls of cuda_api_sum; sums only, so a name counts by its mean."""
    tally, columns = KernelTally("nsys", sizes_known=False), list[str]()
    for line_number, raw in enumerate(lines, 1):
        line = raw[:8000]
        if line.startswith(('"Time (%)"', "Time (%),")):
            columns = _cells(line)
        elif columns and line.lstrip(' "')[:1].isdigit():
            _kernel_row(dict(zip(columns, _cells(line), strict=False)), line_number, line, tally)
        elif not line.strip():
            columns = []
    return tally


def _kernel_row(row: dict[str, str], line_number: int, line: str, tally: KernelTally) -> None:
    nanoseconds, name = number(row.get("Total Time (ns)")), row.get("Name")
    if nanoseconds is None or nanoseconds < 0 or not name or name.startswith("MPI_") or "Source" in row:
        return
    seconds = nanoseconds / 1e9
    if (calls := whole(row.get("Num Calls"))) is not None:
        tally.host(name, seconds, line_number, line, calls)
        return
    count = max(1, whole(row.get("Instances")) or 1)
    kernel = tally.kernel(name)
    kernel.count += count
    kernel.seconds += seconds
    if seconds / count < SMALL_S:
        kernel.small += count
        kernel.small_s += seconds
    if seconds >= kernel.longest_s:
        kernel.longest_s, kernel.line, kernel.text = seconds, line_number, line


def _row(row: dict[str, str], line_number: int, kernels: list[Function], mpi: list[Call]) -> None:
    percent, nanoseconds, name = number(row.get("Time (%)")), number(row.get("Total Time (ns)")), row.get("Name")
    if percent is None or nanoseconds is None or not name or nanoseconds < 0:
        return
    seconds = nanoseconds / 1e9
    if name.startswith("MPI_") or "Source" in row:
        mpi.append(Call(name, seconds, percent / 100, None, whole(row.get("Instances")), line_number))
    else:
        place = "CUDA API" if "Num Calls" in row else "GPU"
        kernels.append(Function(name, place, percent / 100, seconds, line_number))


def _cells(line: str) -> list[str]:
    try:
        return [c.strip() for c in next(csv.reader([line]), [])]
    except csv.Error:
        return []


def _ratio(part: float | None, whole_: float) -> float | None:
    return part / whole_ if part is not None and whole_ > 0 else None
