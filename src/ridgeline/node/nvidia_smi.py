"""What the command nvidia-smi says: the one place that runs it and reads its table."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence

from ridgeline.node.samples import GpuSample

_LIMIT_S = 30.0
_SAMPLE_LIMIT_S = 10.0
_SAMPLE = ("utilization.gpu", "memory.used", "clocks.sm", "clocks.mem", "power.draw", "temperature.gpu")


def query(columns: Sequence[str], *, visible_only: bool = False, limit_s: float = _LIMIT_S) -> list[list[str]]:
    """A row of cells for each GPU, or only those CUDA_VISIBLE_DEVICES names. OSError says why there is none."""
    command = ["nvidia-smi", f"--query-gpu={','.join(columns)}", "--format=csv,noheader,nounits"]
    if visible_only and (chosen := os.environ.get("CUDA_VISIBLE_DEVICES")):
        command.append(f"--id={chosen}")
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    except FileNotFoundError:
        raise OSError("nvidia-smi was not found, so this host has no NVIDIA GPU") from None
    except subprocess.TimeoutExpired:
        raise OSError(f"nvidia-smi did not answer within {limit_s:g} s; a GPU may hang") from None
    if rows := rows_of(done.stdout, len(columns)):
        return rows
    raise OSError(f"nvidia-smi shows no GPU: {(done.stderr or done.stdout).strip()[:200]}")


def rows_of(text: str, columns: int) -> list[list[str]]:
    """The table's rows; messages about a GPU that is lost stand between them and are left out."""
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines()]
    return [row for row in rows if len(row) == columns and all(row)]


def number(cell: str) -> float | None:
    """None for what a GPU does not tell: '[N/A]', '[Not Supported]'."""
    try:
        return float(cell)
    except ValueError:
        return None


def mebibytes(cell: str) -> float | None:
    """A size, in bytes."""
    size = number(cell)
    return None if size is None else size * 2**20


class NvidiaSmi:
    """GPUs watched through the command, where the library cannot be loaded; a call takes 0.1 s of a core."""

    name = "nvidia-smi"

    def __init__(self) -> None:
        self.count = len(self._rows())

    def read(self) -> tuple[GpuSample, ...]:
        rows = self._rows()
        if len(rows) != self.count:
            raise OSError(f"nvidia-smi shows {len(rows)} of {self.count} GPUs")
        return tuple(map(sample_of, rows))

    def _rows(self) -> list[list[str]]:
        return query(_SAMPLE, visible_only=True, limit_s=_SAMPLE_LIMIT_S)

    def close(self) -> None:
        pass


def sample_of(row: Sequence[str]) -> GpuSample:
    use, memory, sm, memory_clock, power, heat = row
    percent = number(use)
    return GpuSample(
        util=None if percent is None else percent / 100.0,
        memory_bytes=mebibytes(memory),
        sm_mhz=number(sm),
        memory_mhz=number(memory_clock),
        power_w=number(power),
        temperature_c=number(heat),
    )
