"""Watches GPUs and host while a run lasts, so that use, memory, clocks and joules a token are metrics too.

    monitor = Monitor(run_folder)
    monitor.start()
    ...
    metrics = monitor.stop()        # {"gpu_util_mean": 0.83, "energy_j": 51234.0, "host_cpu_share": 0.12, ...}

Every second is a line of samples.csv at once, so a run that was killed keeps what was seen of it:

    time_s,host_cpu_share,host_memory_bytes,gpu0_util,gpu0_memory_bytes,gpu0_sm_mhz,gpu0_memory_mhz,gpu0_power_w,...

A last row that was cut short is left out. An empty cell is something the driver would not tell.
"""

from __future__ import annotations

import csv
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TextIO

from ridgeline.errors import ReadError
from ridgeline.serving.node.nvml import GpuSample, Nvml

HOST_COLUMNS = ("time_s", "host_cpu_share", "host_memory_bytes")
GPU_COLUMNS = ("util", "memory_bytes", "sm_mhz", "memory_mhz", "power_w", "energy_j", "temperature_c")


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


class Monitor:
    """A thread that sleeps nearly always. Where no GPU can be watched, the host alone is."""

    def __init__(self, folder: Path, interval_s: float = 1.0) -> None:
        self.path = folder / "samples.csv"
        self._interval_s = interval_s
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._gpus: Nvml | None = None

    def start(self) -> None:
        with suppress(OSError):
            self._gpus = Nvml()
        count = self._gpus.count if self._gpus else 0
        self.path.parent.mkdir(parents=True, exist_ok=True)
        names = [*HOST_COLUMNS, *(f"gpu{number}_{name}" for number in range(count) for name in GPU_COLUMNS)]
        self.path.write_text(",".join(names) + "\n")
        self._thread = threading.Thread(target=self._watch, name="monitor", daemon=True)
        self._thread.start()

    def stop(self) -> dict[str, float]:
        """End the thread and sum up; the same figures when called again."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if not self.path.is_file():
            return {}
        with self.path.open() as lines:
            return _summary(read_samples(lines))

    def _watch(self) -> None:
        before = _cpu_ticks()
        next_s = time.monotonic()
        # a full disk or a driver that went away must not end the run that is being watched
        with suppress(OSError), self.path.open("a", buffering=1) as file:
            last = False
            while not last:
                next_s += self._interval_s
                last = self._over.wait(max(0.0, next_s - time.monotonic()))
                before = self._write(file, before)
        if self._gpus is not None:
            self._gpus.close()

    def _write(self, file: TextIO, before: tuple[int, int]) -> tuple[int, int]:
        ticks = _cpu_ticks()
        gpus = self._gpus.read() if self._gpus else ()
        file.write(_line_of(Sample(time.time(), _cpu_share(before, ticks), _memory_used_bytes(), gpus)))
        return ticks


def _line_of(sample: Sample) -> str:
    cells = [f"{sample.time_s:.3f}", _cell(sample.host_cpu_share), _cell(sample.host_memory_bytes)]
    cells += [_cell(getattr(gpu, name)) for gpu in sample.gpus for name in GPU_COLUMNS]
    return ",".join(cells) + "\n"


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}".rstrip("0").rstrip(".")


def _cpu_ticks(text: str | None = None) -> tuple[int, int]:
    """Busy and all clock ticks of all cores since the start of this host."""
    first = (text or Path("/proc/stat").read_text()).splitlines()[0].split()[1:]
    # user nice system idle iowait irq softirq steal; guest time is counted in user already
    ticks = [int(word) for word in first[:8]]
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)


def _cpu_share(before: tuple[int, int], now: tuple[int, int]) -> float | None:
    passed = now[1] - before[1]
    return (now[0] - before[0]) / passed if passed > 0 else None


def _memory_used_bytes(text: str | None = None) -> float:
    """What programs hold: all memory less what the kernel would give at once."""
    values = {}
    for line in (text or Path("/proc/meminfo").read_text()).splitlines():
        name, _, rest = line.partition(":")
        values[name] = int(rest.split()[0]) * 1024
    return float(values["MemTotal"] - values["MemAvailable"])


def _summary(samples: Sequence[Sample]) -> dict[str, float]:
    """Figures of all samples. What nothing was seen of is left out.

    `util` and `share` are shares from 0 to 1. Power and energy are of all GPUs together, memory and clocks of the
    GPU that has most of it (memory) or least (clock).
    """
    if not samples:
        return {}
    by_gpu = list(zip(*(sample.gpus for sample in samples), strict=True))
    gpus = [gpu for sample in samples for gpu in sample.gpus]
    power = [sum(known) if (known := _known(gpu.power_w for gpu in s.gpus)) else None for s in samples]
    figures = {
        "monitored_s": samples[-1].time_s - samples[0].time_s,
        "host_cpu_share": _mean(sample.host_cpu_share for sample in samples),
        "host_memory_peak_bytes": _largest(sample.host_memory_bytes for sample in samples),
        "gpu_util_mean": _mean(gpu.util for gpu in gpus),
        "gpu_memory_peak_bytes": _largest(gpu.memory_bytes for gpu in gpus),
        "gpu_sm_mean_mhz": _mean(gpu.sm_mhz for gpu in gpus),
        # one hot GPU slows all that wait for it
        "gpu_sm_lowest_mhz": min(_known(_mean(gpu.sm_mhz for gpu in series) for series in by_gpu), default=None),
        "gpu_temperature_peak_c": _largest(gpu.temperature_c for gpu in gpus),
        "power_mean_w": _mean(power),
        "power_peak_w": _largest(power),
        "energy_j": _energy(samples, by_gpu, power),
    }
    return {name: value for name, value in figures.items() if value is not None}


def _energy(
    samples: Sequence[Sample], gpus: Sequence[Sequence[GpuSample]], power: Sequence[float | None]
) -> float | None:
    """By the GPUs' own counters where all have one, else power over time."""
    counters = [(series[0].energy_j, series[-1].energy_j) for series in gpus]
    if counters and all(first is not None and last is not None for first, last in counters):
        return sum(last - first for first, last in counters if first is not None and last is not None)
    known = [(sample.time_s, watts) for sample, watts in zip(samples, power, strict=True) if watts is not None]
    pieces = [
        (watts + later_watts) / 2 * (later_s - time_s) for (time_s, watts), (later_s, later_watts) in pairwise(known)
    ]
    return sum(pieces) if pieces else None


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _mean(values: Iterable[float | None]) -> float | None:
    known = _known(values)
    return sum(known) / len(known) if known else None


def _largest(values: Iterable[float | None]) -> float | None:
    return max(_known(values), default=None)
