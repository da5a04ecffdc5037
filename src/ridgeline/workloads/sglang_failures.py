"""Lines by which SGLang says why it failed, in front of what any program may say. The order matters: first found wins.

Running out of memory at start and while running can ask for opposite moves of --mem-fraction-static, so they are told
apart: a pool that comes out too small, or graphs that cannot be captured, against an allocation that fails later.
"""

from __future__ import annotations

import re

from ridgeline.records.outcome import Kind, Signature
from ridgeline.workloads.signatures import PROGRAM_FAILURES


def _signature(pattern: str, kind: Kind, reason: str) -> Signature:
    return Signature(re.compile(pattern), kind, reason)


SGLANG_FAILURES: tuple[Signature, ...] = (
    _signature(
        r"Not enough memory\. Please try (to increase|increasing) --mem-fraction-static",
        Kind.OOM_START,
        "the KV pool came out empty: raise --mem-fraction-static, or use more GPUs for each copy",
    ),
    _signature(
        r"Capture (\w+ ){0,3}(cuda|CUDA) graph failed",
        Kind.OOM_START,
        "no memory for CUDA graphs: lower --mem-fraction-static or the largest captured batch",
    ),
    _signature(
        r"OutOfMemoryError: CUDA out of memory|CUDA error: out of memory",
        Kind.OOM_RUN,
        "a GPU had no memory left: lower --mem-fraction-static or --max-running-requests",
    ),
    _signature(
        r"scheduler died during initialization \(exit code: -9\)|Out of memory: Killed process",
        Kind.OOM_START,
        "the host had no memory left while weights were loaded",
    ),
    _signature(
        r"error: (unrecognized arguments|argument --|the following arguments are required)",
        Kind.REJECTED,
        "the engine does not accept a flag",
    ),
    _signature(
        r"[Ww]atchdog (timeout|caught collective operation timeout)",
        Kind.HANG,
        "ranks waited for each other until the watchdog ended them",
    ),
    *PROGRAM_FAILURES,
)
