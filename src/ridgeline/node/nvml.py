"""What the NVIDIA driver says about its GPUs: through NVML where that works, else through nvidia-smi.

Whatever a GPU or its driver does not support is None.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ridgeline.node.nvidia_smi import NvidiaSmi
from ridgeline.node.samples import GpuSample


class GpuSource(Protocol):
    count: int
    name: str

    def read(self) -> tuple[GpuSample, ...]: ...

    def close(self) -> None: ...


def open_gpus() -> GpuSource | str:
    """The GPUs this process may use, or why there is nothing to watch."""
    try:
        return Nvml()
    except OSError as error:
        reason = str(error)
    try:
        return NvidiaSmi()
    except OSError as error:
        return f"no GPU is watched: {reason}; {error}"


class Nvml:
    """The driver's own library. OSError when it cannot be loaded or finds no GPU."""

    name = "NVML"

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
        self._handles = [handles[index] for index in visible(os.environ.get("CUDA_VISIBLE_DEVICES"), identities)]
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
        return GpuSample(
            util=None if use is None else use.gpu / 100.0,
            memory_bytes=None if memory is None else float(memory.used),
            sm_mhz=_float(ask(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM)),
            memory_mhz=_float(ask(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_MEM)),
            power_w=_from_milli(ask(nvml.nvmlDeviceGetPowerUsage, handle)),
            energy_j=_from_milli(ask(nvml.nvmlDeviceGetTotalEnergyConsumption, handle)),
            temperature_c=_float(ask(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU)),
        )

    def close(self) -> None:
        with contextlib.suppress(self._nvml.NVMLError):
            self._nvml.nvmlShutdown()


def _float(value: int | None) -> float | None:
    return None if value is None else float(value)


def _from_milli(value: int | None) -> float | None:
    return None if value is None else value / 1e3


def visible(chosen: str | None, identities: Sequence[str]) -> list[int]:
    """Which GPUs CUDA_VISIBLE_DEVICES leaves: by number or by the start of an identity; all when it is not set."""
    if chosen is None:
        return list(range(len(identities)))
    indices = []
    for entry in (part.strip() for part in chosen.split(",")):
        matches = [i for i, name in enumerate(identities) if entry == str(i) or _names(entry, name)]
        if not matches:
            break  # CUDA stops at the first one that does not exist
        indices.append(matches[0])
    return indices


def _names(entry: str, identity: str) -> bool:
    return entry.startswith(("GPU-", "MIG-")) and identity.startswith(entry)
