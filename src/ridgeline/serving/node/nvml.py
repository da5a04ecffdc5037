"""What the NVIDIA driver says about its GPUs: samples of them through NVML, facts through nvidia-smi.

Whatever a GPU or its driver does not support is None.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

_LIMIT_S = 30.0


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


def query(
    columns: Sequence[str], *, gpu: str = "", visible_only: bool = False, limit_s: float = _LIMIT_S
) -> list[list[str]]:
    """A row of cells for each GPU, for one, or for those CUDA_VISIBLE_DEVICES names. OSError says why there is none."""
    command = ["nvidia-smi", f"--query-gpu={','.join(columns)}", "--format=csv,noheader,nounits"]
    if chosen := gpu or (visible_only and os.environ.get("CUDA_VISIBLE_DEVICES")):
        command.append(f"--id={chosen}")
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=limit_s, check=False)
    except FileNotFoundError:
        raise FileNotFoundError("nvidia-smi was not found, so this host has no NVIDIA GPU") from None
    except subprocess.TimeoutExpired:
        raise OSError(f"nvidia-smi did not answer within {limit_s:g} s; a GPU may hang") from None
    if rows := _rows_of(done.stdout, len(columns)):
        return rows
    raise OSError(f"nvidia-smi shows no GPU: {(done.stderr or done.stdout).strip()[:200]}")


def _rows_of(text: str, columns: int) -> list[list[str]]:
    """The table's rows; messages about a GPU that is lost stand between them and are left out."""
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines()]
    return [row for row in rows if len(row) == columns and all(row)]


def mebibytes(cell: str) -> float | None:
    """A size, in bytes; None for what a GPU does not tell: '[N/A]', '[Not Supported]'."""
    try:
        return float(cell) * 2**20
    except ValueError:
        return None


class Nvml:
    """The GPUs this process may use, by the driver's own library. OSError when it cannot be loaded or finds none."""

    def __init__(self) -> None:
        try:
            import pynvml  # only what watches a GPU pays for loading it
        except ImportError:
            raise OSError("the package nvidia-ml-py is not installed") from None
        self._nvml = pynvml
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise OSError(f"NVML does not start ({error}); is an NVIDIA driver loaded?") from None
        handles = [
            pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(self._ask(pynvml.nvmlDeviceGetCount) or 0)
        ]
        identities = [str(self._ask(pynvml.nvmlDeviceGetUUID, handle) or "") for handle in handles]
        self._handles = [handles[index] for index in _visible(os.environ.get("CUDA_VISIBLE_DEVICES"), identities)]
        self.count = len(self._handles)
        if not self.count:
            self.close()
            raise OSError("the driver is there but shows no GPU")

    def _ask(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """The answer, or None where this GPU or driver does not support it."""
        try:
            return function(*arguments)
        except self._nvml.NVMLError:
            return None

    def read(self) -> tuple[GpuSample, ...]:
        return tuple(self._sample(handle) for handle in self._handles)

    def _sample(self, handle: Any) -> GpuSample:
        nvml, ask = self._nvml, self._ask
        use = ask(nvml.nvmlDeviceGetUtilizationRates, handle)
        memory = ask(nvml.nvmlDeviceGetMemoryInfo, handle)
        milliwatts = ask(nvml.nvmlDeviceGetPowerUsage, handle)
        millijoules = ask(nvml.nvmlDeviceGetTotalEnergyConsumption, handle)
        return GpuSample(
            util=None if use is None else use.gpu / 100.0,
            memory_bytes=None if memory is None else memory.used,
            sm_mhz=ask(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM),
            memory_mhz=ask(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_MEM),
            power_w=None if milliwatts is None else milliwatts / 1e3,
            energy_j=None if millijoules is None else millijoules / 1e3,
            temperature_c=ask(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
        )

    def close(self) -> None:
        with contextlib.suppress(self._nvml.NVMLError):
            self._nvml.nvmlShutdown()


def _visible(chosen: str | None, identities: Sequence[str]) -> list[int]:
    """Which GPUs CUDA_VISIBLE_DEVICES leaves: by number or by the start of an identity; all when it is not set."""
    if chosen is None:
        return list(range(len(identities)))
    indices = []
    for entry in (part.strip() for part in chosen.split(",")):
        named = entry.startswith(("GPU-", "MIG-"))
        matches = [i for i, name in enumerate(identities) if entry == str(i) or (named and name.startswith(entry))]
        if not matches:
            break  # CUDA stops at the first one that does not exist
        indices.append(matches[0])
    return indices
