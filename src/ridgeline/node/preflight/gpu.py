"""GPUs of this node: free memory by the driver, rates by torch under the engine's own Python."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ridgeline.node.nvidia_smi import mebibytes, query
from ridgeline.node.preflight.check import Check

PROBE = Path(__file__).with_name("probe.py")
_PROBE_LIMIT_S = 300.0
_IN_USE_SHARE = 0.02  # of a GPU's memory; the driver itself holds a little
SPREAD = 0.05  # GPUs of one node that differ by more are named
_RATES = (
    ("matmul_flops", "gpu matmul", 1e12, "TFLOP/s bf16"),
    ("copy_bytes_s", "gpu copy", 1e9, "GB/s"),
    ("from_host_bytes_s", "host to gpu", 1e9, "GB/s"),
)


@dataclass(frozen=True, slots=True)
class GpuState:
    name: str
    total_bytes: float
    used_bytes: float
    driver: str


@dataclass(frozen=True, slots=True)
class GpuProbe:
    """What the probe printed. `skipped` says why it could not measure."""

    versions: Mapping[str, str] = field(default_factory=dict)
    gpus: Sequence[Mapping[str, Sequence[float]]] = ()
    all_reduce_bytes_s: Sequence[float] = ()
    peer_access: bool | None = None
    skipped: str = ""


def list_gpus() -> list[GpuState] | str:
    """The GPUs, or why there are none."""
    try:
        rows = query(("name", "memory.total", "memory.used", "driver_version"))
    except OSError as error:
        return str(error)
    return gpu_states(rows) or "nvidia-smi does not tell the memory of any GPU; a GPU may be lost, see `nvidia-smi`"


def gpu_states(rows: Sequence[Sequence[str]]) -> list[GpuState]:
    gpus = []
    for name, total, used, driver in rows:
        total_bytes, used_bytes = mebibytes(total), mebibytes(used)
        if total_bytes is not None and used_bytes is not None:
            gpus.append(GpuState(name, total_bytes, used_bytes, driver))
    return gpus


def memory_check(gpus: Sequence[GpuState]) -> Check:
    busy = [
        f"gpu{number} {gpu.used_bytes / 2**30:.1f} of {gpu.total_bytes / 2**30:.0f} GiB"
        for number, gpu in enumerate(gpus)
        if gpu.used_bytes > _IN_USE_SHARE * gpu.total_bytes
    ]
    if busy:
        return Check("gpu memory", "warn", f"in use: {', '.join(busy)}; `nvidia-smi` shows by whom; stop that first")
    least = min(gpu.total_bytes - gpu.used_bytes for gpu in gpus)
    return Check("gpu memory", "ok", f"{len(gpus)} x {gpus[0].name}, {least / 2**30:.1f} GiB free on each")


def probe(python: str, *arguments: str) -> GpuProbe:
    """Run the probe under `python`. Never raises for what that Python lacks: it says so in `skipped`."""
    command = [python, str(PROBE), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_LIMIT_S, check=False)
    except FileNotFoundError:
        return GpuProbe(skipped=f"{python}: no such program; name the engine's Python with --python")
    except PermissionError:
        return GpuProbe(skipped=f"{python} is not executable; name the engine's Python with --python")
    except subprocess.TimeoutExpired:
        return GpuProbe(skipped=f"the GPU probe did not finish within {_PROBE_LIMIT_S:g} s: a GPU or its links hang")
    try:
        facts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return GpuProbe(
            facts["versions"],
            facts["gpus"],
            facts.get("all_reduce_bytes_s", ()),
            facts.get("peer_access"),
            facts.get("skipped", ""),
        )
    except (ValueError, IndexError, KeyError, TypeError):
        last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        return GpuProbe(skipped=f"the GPU probe failed under {python} (exit code {done.returncode}): {last}")


def rate_checks(probed: GpuProbe, python: str) -> list[Check]:
    if not probed.gpus:
        why = probed.skipped or "no GPU"
        return [Check("gpu rates", "skip", f"not measured: {why} ({python}; --python names another)")]
    checks = [_rate_check(probed, *row) for row in _RATES]
    if len(probed.gpus) == 1:
        return [*checks, Check("all-reduce", "skip", "one GPU: nothing to reduce over")]
    if not probed.all_reduce_bytes_s:
        return [*checks, Check("all-reduce", "fail", "NCCL could not reduce over the GPUs; see NCCL_DEBUG=INFO")]
    rate = _middle(probed.all_reduce_bytes_s) / 1e9
    links = "" if probed.peer_access else "; some GPUs cannot reach each other directly (no NVLink, or it is off)"
    samples = {"all": tuple(value / 1e9 for value in probed.all_reduce_bytes_s)}
    status = "ok" if probed.peer_access else "warn"
    detail = f"{rate:.0f} GB/s bus bandwidth over {len(probed.gpus)} GPUs{links}"
    return [*checks, Check("all-reduce", status, detail, "GB/s", samples)]  # type: ignore[arg-type]


def _rate_check(probed: GpuProbe, metric: str, name: str, scale: float, unit: str) -> Check:
    samples = {f"gpu{n}": tuple(value / scale for value in gpu[metric]) for n, gpu in enumerate(probed.gpus)}
    middles = {gpu: _middle(values) for gpu, values in samples.items()}
    usual = _middle(list(middles.values()))
    detail = f"{usual:,.0f} {unit}" + (" each" if len(middles) > 1 else "")
    slow = [f"{gpu} {value:,.0f}" for gpu, value in middles.items() if value < (1 - SPREAD) * usual]
    if slow:
        return Check(name, "warn", f"{detail}, but {', '.join(slow)}", unit, samples)
    return Check(name, "ok", detail, unit, samples)


def _middle(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
