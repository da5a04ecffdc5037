"""How fast `ridgeline diagnose` reads an SGLang log, and how much memory a trace of gigabytes takes.

    .venv/bin/python benchmarks/diagnose.py                # 400 MB of log, a trace of 1 GB
    .venv/bin/python benchmarks/diagnose.py --trace-gb 8   # as long as it takes

The log repeats what a served H200 wrote (the mix of batch lines and answered requests of a run of example 05, with
other numbers from a fixed seed). The trace is written gzipped, so that 8 GB need little disk; reading includes the
unpacking. Speeds are of processor time on one core, since the machine may be shared; wall time stands beside it.
Peers: `grep -c` over the log as the floor of any reader, and json.load of a part of the trace for its memory.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SERVED = ROOT / "examples/05-sglang-h200/results/llama-8b-serve/runs"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--log-mb", type=int, default=400)
    parser.add_argument("--trace-gb", type=float, default=1.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        log(folder, options.log_mb)
        trace(folder, options.trace_gb)


def log(folder: Path, megabytes: int) -> None:
    path, short = folder / "server.log", folder / "short.log"
    size, start_size = write_log(path, megabytes * 1_000_000), write_log(short, 100_000)
    verb = [sys.executable, "-m", "ridgeline", "diagnose", "--json"]
    cpu_s, wall_s, peak = best_of(3, [*verb, str(path)])
    start_s, _, _ = best_of(3, [*verb, str(short)])
    print(
        f"SGLang log, {size / 1e6:.0f} MB  ridgeline diagnose  {size / 1e6 / cpu_s:.0f} MB/s of processor time with "
        f"its start of {start_s:.2f} s, {(size - start_size) / 1e6 / (cpu_s - start_s):.0f} MB/s without; "
        f"{size / 1e6 / wall_s:.0f} MB/s of wall time, {peak / 1e6:.0f} MB of memory"
    )
    cpu_s, wall_s, _ = best_of(3, ["grep", "-c", "#running-req: [1-9][0-9]*, #token", str(path)])
    print(f"SGLang log, {size / 1e6:.0f} MB  grep -c of one pattern  {size / 1e6 / cpu_s:.0f} MB/s of processor time")
    path.unlink()


def trace(folder: Path, gigabytes: float) -> None:
    path = folder / "trace.json.gz"
    size = write_trace(path, int(gigabytes * 1e9))
    cpu_s, wall_s, peak = best_of(1, [sys.executable, "-m", "ridgeline", "diagnose", "--json", str(path)])
    print(
        f"PyTorch trace, {size / 1e9:.1f} GB in a gzip file of {path.stat().st_size / 1e6:.0f} MB  ridgeline diagnose  "
        f"{size / 1e6 / cpu_s:.0f} MB/s of processor time, {wall_s:.0f} s, {peak / 1e6:.0f} MB of memory"
    )
    part = folder / "part.json"
    part_size = write_trace(part, 100_000_000, zipped=False)
    _, _, peak = best_of(1, [sys.executable, "-c", f"import json; json.load(open({str(part)!r}))"])
    print(f"PyTorch trace, {part_size / 1e9:.1f} GB  json.load  {peak / 1e6:.0f} MB of memory")


def best_of(times: int, command: list[str]) -> tuple[float, float, float]:
    """Processor seconds, wall seconds and peak bytes of the quickest run, on one core."""
    core = min(os.sched_getaffinity(0))
    runs = []
    for _ in range(times):
        began = time.perf_counter()
        with tempfile.TemporaryFile() as sink:  # not /dev/null, for which grep stops at its first match
            child = subprocess.Popen(command, stdout=sink, preexec_fn=lambda: os.sched_setaffinity(0, {core}))
            _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        assert child.returncode == 0, (command, child.returncode)
        runs.append((usage.ru_utime + usage.ru_stime, time.perf_counter() - began, usage.ru_maxrss * 1024))
    return min(runs)


def write_log(path: Path, size: int) -> int:
    """A start as it was, then its lines of work again and again, a second further every fifty lines."""
    source = next(p for p in sorted(SERVED.glob("*/engine.log")) if b"Decode batch" in p.read_bytes())
    lines = source.read_bytes().split(b"\n")
    work = [n for n, line in enumerate(lines) if b" batch, #" in line]
    start = lines[: work[0]]
    rows = [line for line in lines[work[0] :] if b" batch, #" in line or b' - "POST ' in line]
    pick = random.Random(15)
    written = 0
    with path.open("wb") as file:
        written += file.write(b"\n".join(start) + b"\n")
        at = 0
        while written < size:
            at += 1
            second = at // 50
            stamp = b"[2026-11-%02d %02d:%02d:%02d]" % (
                15 + second // 86400 % 14,
                second // 3600 % 24,
                second // 60 % 60,
                second % 60,
            )
            row = rows[pick.randrange(len(rows))]
            written += file.write(stamp + row[row.index(b"]") + 1 :] + b"\n")
    return written


def write_trace(path: Path, size: int, *, zipped: bool = True) -> int:
    """Events in PyTorch's layout; a block of some thousand is repeated with its own names and times."""
    block = ",\n".join(json.dumps(event, indent=2) for event in _events(random.Random(8))).encode()
    written = 0
    with gzip.open(path, "wb", compresslevel=1) if zipped else path.open("wb") as file:
        written += file.write(b'{\n  "schemaVersion": 1,\n  "traceEvents": [\n')
        while written < size:
            written += file.write(block + b",\n")
        written += file.write(b'{"ph": "M", "name": "end"}\n]}\n')
    return written


def _events(pick: random.Random) -> list[dict[str, object]]:
    names = [f"void kernel_{n}<at::native::functor, {n % 7}>(int, float*)" for n in range(300)]
    names += ["ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "fused_moe_kernel"]
    events: list[dict[str, object]] = []
    for n in range(3000):
        at = 1e9 + 20.0 * n
        common = {"ph": "X", "pid": 0, "tid": 7, "ts": at}
        events.append({**common, "cat": "cpu_op", "name": "aten::mm", "dur": 9.0, "args": {"External id": n}})
        events.append(
            {**common, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "dur": 5.0, "args": {"correlation": n}}
        )
        args = {"device": 0, "stream": 7, "correlation": n, "grid": [132, 1, 1], "block": [128, 1, 1]}
        events.append({**common, "cat": "kernel", "name": pick.choice(names), "dur": pick.uniform(2, 30), "args": args})
    return events


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    main()
