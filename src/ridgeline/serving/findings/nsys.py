"""`nsys stats --format csv`: cuda_gpu_kern_sum (kernels), cuda_api_sum (CUDA calls) and mpi_event_sum (MPI calls).

Several reports may follow each other in one file, as nsys prints them to a terminal.
"""

from __future__ import annotations

import csv
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from ridgeline.diagnose.profilers.profile import Call, Function, Profile, is_nccl, summed
from ridgeline.diagnose.readers.lines import number, whole
from ridgeline.errors import ReadError
from ridgeline.serving.findings.kernels import SMALL_S, KernelTally


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


# The SQLite file that `nsys export --type sqlite` writes, summed up by SQLite itself: no row is held in memory.

_KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
_RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
_COPIES = ("CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET")


def read_nsys_sqlite(path: Path) -> KernelTally:
    """ReadError where the file is torn or is another program's database. A kernel's `line` is its longest row."""
    tally = KernelTally("nsys")
    try:
        with _opened(path) as database:
            tables = {str(name) for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if _KERNELS not in tables or "StringIds" not in tables:
                raise ReadError(f"{path}: an SQLite file without nsys's table {_KERNELS}; was CUDA traced?")
            _kernels(database, tally)
            for table in _COPIES:
                if table in tables:
                    for (seconds,) in database.execute(f"SELECT total(end - start) / 1e9 FROM {table}"):  # noqa: S608
                        tally.copies_s += float(seconds)
            if _RUNTIME in tables:
                _host(database, tally)
    except sqlite3.Error as error:
        raise ReadError(f"{path}: not a whole SQLite file ({error}); export it again with nsys") from error
    except (TypeError, ValueError, OverflowError) as error:
        raise ReadError(f"{path}: its tables do not hold what nsys writes ({error})") from error
    return tally


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    # read-only and immutable: no lock, no journal beside the file, also where we may not write
    database = sqlite3.connect(f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1", uri=True)
    try:
        database.execute("PRAGMA cache_size = -20000")
        database.execute("PRAGMA temp_store = FILE")
        database.text_factory = lambda raw: raw.decode("utf-8", "replace")
        yield database
    finally:
        database.close()


def _kernels(database: sqlite3.Connection, tally: KernelTally) -> None:
    columns = {str(row[1]) for row in database.execute(f"PRAGMA table_info({_KERNELS})")}
    name = "demangledName" if "demangledName" in columns else "shortName"
    small = round(SMALL_S * 1e9)
    # SQLite takes the bare columns of a max() query from the row that is the largest
    rows = database.execute(
        f"SELECT s.value, count(*), total(k.end - k.start), max(k.end - k.start), k.rowid, "  # noqa: S608
        f"total(k.end - k.start < {small}), "
        f"total(CASE WHEN k.end - k.start < {small} THEN k.end - k.start ELSE 0 END) "
        f"FROM {_KERNELS} k LEFT JOIN StringIds s ON s.id = k.{name} WHERE k.end >= k.start GROUP BY k.{name}"
    )
    for value, count, total, longest, row, few, few_ns in rows:
        kernel = tally.kernel(str(value or "(no name)")[:1000])
        kernel.count += int(count)
        kernel.seconds += float(total) / 1e9
        kernel.small += int(few)
        kernel.small_s += float(few_ns) / 1e9
        if longest / 1e9 >= kernel.longest_s:
            kernel.longest_s, kernel.line = longest / 1e9, int(row)
        kernel.text = (
            f"{_KERNELS}: {count} x {kernel.name[:120]}, {float(total) / 1e6:.3f} ms, longest {longest / 1e3:.1f} us"
        )
    for start, end, device in database.execute(
        f"SELECT min(start), max(end), deviceId FROM {_KERNELS} WHERE end >= start GROUP BY deviceId"  # noqa: S608
    ):
        tally.between(start / 1e9, end / 1e9, int(device or 0))


def _host(database: sqlite3.Connection, tally: KernelTally) -> None:
    for value, count, seconds, row in database.execute(
        f"SELECT s.value, count(*), total(r.end - r.start) / 1e9, min(r.rowid) "  # noqa: S608
        f"FROM {_RUNTIME} r LEFT JOIN StringIds s ON s.id = r.nameId WHERE r.end >= r.start GROUP BY r.nameId"
    ):
        name = str(value or "(no name)").partition("_v")[0][:200]
        tally.host(name, float(seconds), int(row), f"{_RUNTIME}: {count} x {name}, {seconds * 1e3:.3f} ms", int(count))
