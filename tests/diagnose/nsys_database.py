"""A small database in the layout of `nsys export --type sqlite`, made anew for each test that wants one."""

from __future__ import annotations

import sqlite3
import tempfile
from pathlib import Path

NAMES = (
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)",
    "void at::native::vectorized_elementwise_kernel<(int)4, at::native::CUDAFunctor_add<c10::BFloat16>>",
    "fused_moe_kernel",
    "cudaLaunchKernel_v7000",
)


def write_database(path: Path, steps: int = 50) -> None:
    """In each step: 40 us of all-reduce, 40 us of MoE, two small kernels of 3 us, and 34 us of nothing."""
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL)")
    database.executemany("INSERT INTO StringIds VALUES (?, ?)", list(enumerate(NAMES, 1)))
    database.execute(
        "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER,"
        " streamId INTEGER, demangledName INTEGER, shortName INTEGER)"
    )
    database.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, nameId INTEGER)")
    for step in range(steps):
        at = 1_000_000 + 120_000 * step
        for name, began, lasted in ((1, 0, 40_000), (2, 50_000, 3_000), (2, 60_000, 3_000), (3, 70_000, 40_000)):
            row = (at + began, at + began + lasted, 0, 7, name, name)
            database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?, ?, ?)", row)
            database.execute(
                "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, 4)", (row[0] - 9_000, row[0] - 2_000)
            )
    database.commit()
    database.close()


def database_bytes(steps: int = 50) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.sqlite"
        write_database(path, steps)
        return path.read_bytes()
