"""What the NVIDIA driver says about its GPUs: through NVML where the library is there, else through nvidia-smi.

Called by ctypes, so that nothing has to be installed on a compute node. Whatever a GPU does not support is None.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ridgeline.readers.samples import GpuSample

_SM_CLOCK, _MEMORY_CLOCK = 1, 2
_ON_CORE = 0  # temperature sensor
_SMI_FIELDS = "utilization.gpu,memory.used,clocks.sm,clocks.mem,power.draw,temperature.gpu"
_SMI_LIMIT_S = 10.0


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


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class Nvml:
    """The driver's own library. OSError when it is not there or finds no GPU."""

    name = "NVML"

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            raise OSError("libnvidia-ml.so.1 is not there, so no NVIDIA driver") from None
        if status := self._library.nvmlInit_v2():
            raise OSError(f"NVML does not start (status {status}); is the driver loaded?")
        self._handles = self._visible(self._all())
        self.count = len(self._handles)
        if not self.count:
            self.close()
            raise OSError("the driver is there but shows no GPU")

    def _all(self) -> list[ctypes.c_void_p]:
        found = ctypes.c_uint()
        self._library.nvmlDeviceGetCount_v2(ctypes.byref(found))
        handles = [ctypes.c_void_p() for _ in range(found.value)]
        for index, handle in enumerate(handles):
            self._library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle))
        return handles

    def _visible(self, handles: Sequence[ctypes.c_void_p]) -> list[ctypes.c_void_p]:
        identities = [self._uuid(handle) for handle in handles]
        return [handles[index] for index in visible(os.environ.get("CUDA_VISIBLE_DEVICES"), identities)]

    def _uuid(self, handle: ctypes.c_void_p) -> str:
        text = ctypes.create_string_buffer(96)
        return "" if self._library.nvmlDeviceGetUUID(handle, text, ctypes.c_uint(96)) else text.value.decode()

    def read(self) -> tuple[GpuSample, ...]:
        return tuple(self._sample(handle) for handle in self._handles)

    def _sample(self, handle: ctypes.c_void_p) -> GpuSample:
        library, word = self._library, ctypes.c_uint
        use = _ask(library.nvmlDeviceGetUtilizationRates, _Utilization(), handle)
        memory = _ask(library.nvmlDeviceGetMemoryInfo, _Memory(), handle)
        energy = _ask(library.nvmlDeviceGetTotalEnergyConsumption, ctypes.c_ulonglong(), handle)
        power = _ask(library.nvmlDeviceGetPowerUsage, word(), handle)
        sm = _ask(library.nvmlDeviceGetClockInfo, word(), handle, word(_SM_CLOCK))
        memory_clock = _ask(library.nvmlDeviceGetClockInfo, word(), handle, word(_MEMORY_CLOCK))
        heat = _ask(library.nvmlDeviceGetTemperature, word(), handle, word(_ON_CORE))
        return GpuSample(
            util=None if use is None else use.gpu / 100.0,
            memory_bytes=None if memory is None else float(memory.used),
            sm_mhz=None if sm is None else float(sm.value),
            memory_mhz=None if memory_clock is None else float(memory_clock.value),
            power_w=None if power is None else power.value / 1e3,
            energy_j=None if energy is None else energy.value / 1e3,
            temperature_c=None if heat is None else float(heat.value),
        )

    def close(self) -> None:
        self._library.nvmlShutdown()


def _ask(function: Callable[..., int], into: Any, *arguments: Any) -> Any:
    """What the function wrote, or None where this GPU or driver does not support it."""
    return None if function(*arguments, ctypes.byref(into)) else into


def visible(chosen: str | None, identities: Sequence[str]) -> list[int]:
    """Which GPUs CUDA_VISIBLE_DEVICES leaves: by number or by the start of an identity; all when it says nothing."""
    if chosen is None:
        return list(range(len(identities)))
    indices = []
    for word in (part.strip() for part in chosen.split(",")):
        matches = [i for i, name in enumerate(identities) if (word.isdigit() and int(word) == i) or _names(word, name)]
        if not matches:
            break  # CUDA stops at the first one that does not exist
        indices.append(matches[0])
    return indices


def _names(word: str, identity: str) -> bool:
    return word.startswith(("GPU-", "MIG-")) and identity.startswith(word)


class NvidiaSmi:
    """The command, for hosts where the library cannot be loaded; it takes a tenth of a second of one core a call."""

    name = "nvidia-smi"

    def __init__(self) -> None:
        self.count = len(self.read())
        if not self.count:
            raise OSError("nvidia-smi shows no GPU")

    def read(self) -> tuple[GpuSample, ...]:
        command = ["nvidia-smi", f"--query-gpu={_SMI_FIELDS}", "--format=csv,noheader,nounits"]
        if chosen := os.environ.get("CUDA_VISIBLE_DEVICES"):
            command.append(f"--id={chosen}")
        try:
            answer = subprocess.run(command, capture_output=True, text=True, timeout=_SMI_LIMIT_S, check=False)
        except FileNotFoundError:
            raise OSError("nvidia-smi is not there either") from None
        except subprocess.TimeoutExpired:
            raise OSError(f"nvidia-smi did not answer within {_SMI_LIMIT_S:g} s; a GPU may hang") from None
        if answer.returncode:
            raise OSError(f"nvidia-smi failed: {answer.stdout.strip() or answer.stderr.strip()}")
        return tuple(smi_sample(line) for line in answer.stdout.splitlines() if line.strip())

    def close(self) -> None:
        pass


def smi_sample(line: str) -> GpuSample:
    """One line of the query above; '[N/A]' and '[Not Supported]' are None."""
    numbers: list[float | None] = []
    for word in line.split(","):
        try:
            numbers.append(float(word))
        except ValueError:
            numbers.append(None)
    util, memory_mib, sm, memory_clock, power, heat = (numbers + [None] * 6)[:6]
    return GpuSample(
        util=None if util is None else util / 100.0,
        memory_bytes=None if memory_mib is None else memory_mib * 2**20,
        sm_mhz=sm,
        memory_mhz=memory_clock,
        power_w=power,
        temperature_c=heat,
    )
