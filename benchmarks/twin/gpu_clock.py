"""What a lower clock does to a GPU's kernels: times just behind heavy work that brought it down, beside usual ones.

    python benchmarks/twin/gpu_clock.py [--trials 30] [--json FILE]

Run on the GPU's host, with torch; nothing of the GPU is set, and nothing else should run on it. Large products bring
the card to its power limit, so that its clock gives way. What runs right behind them on the same stream runs at that
clock, which a kernel that counts cycles tells before and after it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

SIDE, WIDE = 8192, 16384
HEAVY_S, IDLE_S = 0.3, 0.05
CYCLES = 200_000  # counted to tell the clock
SMALL = 200  # kernels that move next to nothing, in one graph

Work = Callable[[], object]


@dataclass(frozen=True)
class Timed:
    """A kernel behind `heavy` work: medians of its milliseconds, and of the clock before and after it."""

    kernel: str
    heavy: str
    ms: float
    mhz_before: float
    mhz_after: float


def heavy_work(torch: Any) -> dict[str, tuple[Work, float]]:
    """By name, with the seconds of one call. The first draws next to nothing, and the card waits for no host."""
    a, b = (torch.randn(SIDE, SIDE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out, scale = torch.empty_like(a), torch.ones((), device="cuda")
    a8, b8 = (torch.randn(SIDE, SIDE, device="cuda").to(torch.float8_e4m3fn) for _ in range(2))
    zeros = a * (torch.rand(SIDE, SIDE, device="cuda") >= 0.75)
    fp8 = partial(torch._scaled_mm, a8, b8.t(), scale, scale, out_dtype=torch.bfloat16)
    return {
        "counting": (partial(torch.cuda._sleep, CYCLES), CYCLES / 1.98e9),
        "products, 75% zeros": (partial(torch.mm, zeros, zeros, out=out), 1.4e-3),
        "products": (partial(torch.mm, a, b, out=out), 1.6e-3),
        "fp8 products": (fp8, 0.9e-3),
        "fp8 products and copies": (_beside(torch, fp8), 1.1e-3),
    }


def _beside(torch: Any, product: Work) -> Work:
    """The product while memory is copied on another stream."""
    side = torch.cuda.Stream()
    big, copy = (torch.empty(2**29, device="cuda", dtype=torch.uint8) for _ in range(2))

    def both() -> None:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            copy.copy_(big)
        product()
        torch.cuda.current_stream().wait_stream(side)

    return both


def kernels(torch: Any) -> dict[str, Work]:
    weights = torch.randn(2, WIDE, WIDE, device="cuda", dtype=torch.bfloat16)
    found: dict[str, Work] = {}
    for rows in (1, 64, 256):
        x = torch.randn(rows, WIDE, device="cuda", dtype=torch.bfloat16)
        found[f"weights for {rows} rows"] = partial(torch.matmul, x, weights)
    big, copy = (torch.empty(2**29, device="cuda", dtype=torch.uint8) for _ in range(2))
    found["copy"] = partial(copy.copy_, big)
    a, b = (torch.randn(SIDE, SIDE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    found["product"] = partial(torch.mm, a, b)
    found[f"{SMALL} small kernels"] = _small(torch)
    return found


def _small(torch: Any) -> Work:
    few = torch.zeros(1024, device="cuda")
    few.add_(1.0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(SMALL):
            few.add_(1.0)
    replay: Work = graph.replay
    return replay


def timed(torch: Any, kernel: tuple[str, Work], heavy: tuple[str, tuple[Work, float]], trials: int) -> Timed:
    name, call = kernel
    heavy_name, (heavy_call, heavy_s) = heavy
    call()
    rows, count = [], partial(torch.cuda._sleep, CYCLES)
    for _ in range(trials):
        torch.cuda.synchronize()
        time.sleep(IDLE_S)
        for _ in range(round(HEAVY_S / heavy_s)):
            heavy_call()
        events = [torch.cuda.Event(enable_timing=True) for _ in range(4)]
        events[0].record()
        works: tuple[Work, ...] = (count, call, count)
        for work, event in zip(works, events[1:], strict=True):
            work()
            event.record()
        torch.cuda.synchronize()
        before, ms, after = (first.elapsed_time(last) for first, last in pairwise(events))
        rows.append((ms, CYCLES / before / 1e3, CYCLES / after / 1e3))
    return Timed(name, heavy_name, *(statistics.median(column) for column in zip(*rows, strict=True)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch: Any = import_module("torch")  # of the host: nothing of ours installs it
    heavies = heavy_work(torch)
    print("| kernel | behind | ms | MHz before, after | clock kept | time, of usual |\n|---|---|---|---|---|---|")
    found = []
    for kernel in kernels(torch).items():
        usual: Timed | None = None
        for heavy in heavies.items():
            row = timed(torch, kernel, heavy, options.trials)
            usual = usual or row
            found.append(row)
            kept = (row.mhz_before + row.mhz_after) / (usual.mhz_before + usual.mhz_after)
            print(f"| {row.kernel} | {row.heavy} | {row.ms:.4f} | {row.mhz_before:.0f}, {row.mhz_after:.0f} | "
                  f"{kept:.3f} | {row.ms / usual.ms:.3f} |", flush=True)  # fmt: skip
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in found], indent=1) + "\n")


if __name__ == "__main__":
    main()
