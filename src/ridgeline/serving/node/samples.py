"""samples.csv: what was seen of GPUs and host while a run lasted, one row a second. Written by the run's own monitor.

    time_s,host_cpu_share,host_memory_bytes,gpu0_util,gpu0_memory_bytes,gpu0_sm_mhz,gpu0_memory_mhz,gpu0_power_w,...

A run that was killed leaves a last row cut short; it is left out. An empty cell is something the driver would not tell.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass

from ridgeline.errors import ReadError

HOST_COLUMNS = ("time_s", "host_cpu_share", "host_memory_bytes")
GPU_COLUMNS = ("util", "memory_bytes", "sm_mhz", "memory_mhz", "power_w", "energy_j", "temperature_c")


@dataclass(frozen=True, slots=True)
class GpuSample:
    """`util` is the share of the last second in which a kernel ran; `energy_j` counts from the driver's start."""

    util: float | None = None
    memory_bytes: float | None = None
    sm_mhz: float | None = None
    memory_mhz: float | None = None
    power_w: float | None = None
    energy_j: float | None = None
    temperature_c: float | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    time_s: float
    host_cpu_share: float | None
    host_memory_bytes: float | None
    gpus: tuple[GpuSample, ...] = ()


def read_samples(lines: Iterable[str]) -> list[Sample]:
    """ReadError when the first line is not a header of ours."""
    rows = csv.reader(lines)
    header = next(rows, [])
    if not header or header[: len(HOST_COLUMNS)] != list(HOST_COLUMNS):
        raise ReadError(f"not a samples.csv: it begins with {','.join(header)[:80]!r}, not with {HOST_COLUMNS[0]}")
    count = sum(name.startswith("gpu") and name.endswith("_util") for name in header)
    samples = []
    for row in rows:
        if len(row) != len(header):
            continue
        cells = dict(zip(header, map(_number, row), strict=True))
        time_s = cells["time_s"]
        if time_s is not None:
            gpus = tuple(GpuSample(**{name: cells.get(f"gpu{n}_{name}") for name in GPU_COLUMNS}) for n in range(count))
            samples.append(Sample(time_s, cells["host_cpu_share"], cells["host_memory_bytes"], gpus))
    return samples


def _number(text: str) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None
