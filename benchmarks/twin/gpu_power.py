"""What a GPU draws under tensor work and under memory work, and how far its clock gives way at its power limit.

    python benchmarks/twin/gpu_power.py [--seconds 3] [--json FILE]

Run on the GPU's host, with torch and nvidia-ml-py; nothing of the GPU is set, and nothing else should run on it. Each
load runs all the time, and half of it: half the time leaves the clock alone, so that what a second of full work draws
at the highest clock follows from it; all the time, what would draw more than the limit runs at a lower clock and draws
the limit. Operands with more zeros draw less, so that the clock gives way by more or less.
"""

from __future__ import annotations

import argparse
import json
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

SIDE, WIDE = 8192, 16384
SAMPLE_S, SETTLE_S = 0.02, 0.7
AHEAD = 16  # calls that are given to the GPU before it is waited for


@dataclass(frozen=True)
class Load:
    """`amount` is FLOPs or bytes of one call."""

    name: str
    call: Callable[[], object]
    amount: float
    unit: str


@dataclass(frozen=True)
class Drawn:
    """`busy` is the share of the time in which the load ran; `rate` counts that time alone."""

    load: str
    busy: float
    watts: float
    sm_mhz: float
    rate: float
    unit: str
    reasons: tuple[str, ...]


class Meter:
    """Energy by the driver's counter, clocks and reasons for lower ones by samples: from its start to `stop`."""

    REASONS: ClassVar = {0x4: "power limit", 0x20: "thermal", 0x40: "thermal", 0x8: "hardware", 0x80: "power brake"}

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle
        self._mhz: list[int] = []
        self._seen: set[str] = set()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._from_mj, self._from_s = nvml.nvmlDeviceGetTotalEnergyConsumption(handle), time.perf_counter()
        self._thread.start()

    def _watch(self) -> None:
        nvml, handle = self._nvml, self._handle
        while not self._done.wait(SAMPLE_S):
            self._mhz.append(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))
            bits = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
            self._seen |= {name for bit, name in self.REASONS.items() if bits & bit}

    def stop(self) -> tuple[float, float, tuple[str, ...]]:
        """Watts and MHz on average, and what held the clock back."""
        drawn_mj = self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle) - self._from_mj
        seconds = time.perf_counter() - self._from_s
        self._done.set()
        self._thread.join()
        return drawn_mj / 1e3 / seconds, statistics.mean(self._mhz), tuple(sorted(self._seen))


def loads(torch: Any) -> list[Load]:
    found = []
    for zeros in (0.0, 0.5, 0.75, 0.9, 1.0):
        a, b = (torch.randn(SIDE, SIDE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        for operand in (a, b):
            operand *= torch.rand(SIDE, SIDE, device="cuda") >= zeros
        out = torch.empty_like(a)
        found.append(Load(f"bf16 product, {zeros:.0%} zeros", partial(torch.mm, a, b, out=out), 2 * SIDE**3, "FLOP/s"))
    weights = [torch.randn(WIDE, WIDE, device="cuda", dtype=torch.bfloat16) for _ in range(8)]
    for rows in (1, 16, 64, 256):
        x = torch.randn(rows, WIDE, device="cuda", dtype=torch.bfloat16)
        found.append(
            Load(
                f"weights read for {rows} rows",
                partial(_each, torch, x, weights),
                len(weights) * weights[0].nbytes,
                "B/s",
            )
        )
    big, copy = (torch.empty(2**31, device="cuda", dtype=torch.uint8).random_() for _ in range(2))
    found.append(Load("copy", lambda: copy.copy_(big), 2.0 * big.nbytes, "B/s"))
    scale = torch.ones((), device="cuda")
    a8, b8 = (torch.randn(SIDE, SIDE, device="cuda").to(torch.float8_e4m3fn) for _ in range(2))
    found.append(Load("fp8 product", lambda: torch._scaled_mm(a8, b8.t(), scale, scale, out_dtype=torch.bfloat16),
                      2 * SIDE**3, "FLOP/s"))  # fmt: skip
    small = torch.zeros(1024, device="cuda")
    found.append(Load("next to nothing", lambda: small.add_(1.0), 0.0, ""))
    return found


def _each(torch: Any, rows: Any, weights: list[Any]) -> None:
    for matrix in weights:
        torch.mm(rows, matrix)


def drawn(torch: Any, meter: Callable[[], Meter], load: Load, *, half: bool, seconds: float) -> Drawn:
    """The load runs before, until clocks and limits have settled."""
    _run(torch, load, half=half, seconds=SETTLE_S)
    watched, began = meter(), time.perf_counter()
    calls, busy_s = _run(torch, load, half=half, seconds=seconds)
    took_s = time.perf_counter() - began
    watts, sm_mhz, reasons = watched.stop()
    return Drawn(load.name, busy_s / took_s, watts, sm_mhz, calls * load.amount / busy_s, load.unit, reasons)


def _run(torch: Any, load: Load, *, half: bool, seconds: float) -> tuple[int, float]:
    """Calls, and the seconds in which the load ran. After each call, half: as long a pause."""
    calls, busy_s, began = 0, 0.0, time.perf_counter()
    while (start := time.perf_counter()) < began + seconds:
        load.call()
        calls += 1
        if half:
            torch.cuda.synchronize()
            took_s = time.perf_counter() - start
            busy_s += took_s
            while time.perf_counter() < start + 2 * took_s:
                pass
        elif calls % AHEAD == 0:
            torch.cuda.synchronize()
    torch.cuda.synchronize()
    return calls, busy_s if half else time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    # of the host: nothing of ours installs them
    pynvml: Any = import_module("pynvml")
    torch: Any = import_module("torch")
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    limit_w = pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1e3
    highest = pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM)
    print(f"{torch.cuda.get_device_name()}: at most {limit_w:.0f} W and {highest} MHz")
    print("| load | busy | W | SM MHz | rate | held back by |\n|---|---|---|---|---|---|")
    found = []
    for load in loads(torch):
        for half in (True, False):
            row = drawn(torch, lambda: Meter(pynvml, handle), load, half=half, seconds=options.seconds)
            found.append(row)
            why = ", ".join(row.reasons)
            print(f"| {row.load} | {row.busy:.0%} | {row.watts:.0f} | {row.sm_mhz:.0f} | "
                  f"{row.rate / 1e12:.3f} T{row.unit} | {why} |", flush=True)  # fmt: skip
    if options.json:
        options.json.write_text(json.dumps({"limit_w": limit_w, "highest_mhz": highest,
                                            "rows": [asdict(row) for row in found]}, indent=1))  # fmt: skip


if __name__ == "__main__":
    main()
