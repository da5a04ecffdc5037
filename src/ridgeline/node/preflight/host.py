"""What the host itself must have: ports, files, scratch space, shared and locked memory, processor features."""

from __future__ import annotations

import getpass
import os
import platform
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ridgeline import ports
from ridgeline.files import text_of
from ridgeline.node.preflight.check import Check

_COLUMNS = 8  # kbytes quota limit grace, files quota limit grace


@dataclass(frozen=True, slots=True)
class FileQuota:
    """`limit` is the smaller of the soft and the hard one that is set; None when neither is."""

    filesystem: str
    files: int
    limit: int | None

    @property
    def left(self) -> int | None:
        return None if self.limit is None else max(0, self.limit - self.files)


def read_quota(lines: Iterable[str]) -> list[FileQuota]:
    """One per file system. A long name stands on a line of its own, its numbers on the next."""
    found: list[FileQuota] = []
    words: list[str] = []
    inside = False
    for line in lines:
        if "Filesystem" in line and "files" in line:
            inside, words = True, []
            continue
        if not inside:
            continue
        words += line.split()
        if len(words) > _COLUMNS:
            name, numbers = words[0], words[1 : _COLUMNS + 1]
            quota = _quota(name, numbers)
            inside = quota is not None
            if quota is not None:
                found.append(quota)
            words = []
    return found


def _quota(name: str, numbers: list[str]) -> FileQuota | None:
    files, soft, hard = (_count(text) for text in numbers[4:7])
    if files is None:
        return None
    limits = [limit for limit in (soft, hard) if limit]
    return FileQuota(name, files, min(limits) if limits else None)


def _count(text: str) -> int | None:
    # an exceeded figure carries a star; lfs puts figures it is not sure of in brackets
    digits = text.strip("*[]")
    return int(digits) if digits.isdigit() else None


USUAL_PORTS = (ports.SGLANG_PORT, ports.VLLM_PORT, ports.BOOTSTRAP_PORT, ports.TORCH_PORT)
_FEW_FILES = 20_000  # a source build of an engine or of NWChem makes more
SCRATCH_BYTES = 20 * 2**30
SHARED_MEMORY_BYTES = 2**30  # NCCL and the engines' workers talk through it; containers often get 64 MiB
LIMIT_S = 20.0


def port_check(asked: Sequence[int] = USUAL_PORTS) -> Check:
    busy = [port for port in asked if not ports.is_free(port)]
    if busy:
        detail = (
            f"{', '.join(map(str, busy))} in use; stop what listens there (`ss -ltnp` shows it) or choose other ports"
        )
        return Check("ports", "warn", detail)
    return Check("ports", "ok", f"{', '.join(map(str, asked))} free")


def file_check(folder: Path) -> Check:
    """Files that may still be made: by Lustre's quota, the host's quota, or the file system's own count."""
    left = [quota for quota in quotas(folder) if quota.left is not None]
    if left:
        least = min(left, key=lambda quota: quota.left or 0)
        detail = f"{least.left:,} of {least.limit:,} files left on {least.filesystem}"
        few = least.left is not None and least.left < _FEW_FILES
        return Check("files", "warn" if few else "ok", f"{detail}; prune old builds and runs" if few else detail)
    room = os.statvfs(folder)
    if not room.f_files:
        return Check("files", "ok", f"no limit on the number of files in {folder}")
    few = room.f_favail < _FEW_FILES
    detail = f"no quota; {room.f_favail:,} files can still be created on the file system of {folder}"
    return Check("files", "warn" if few else "ok", detail)


def quotas(folder: Path) -> list[FileQuota]:
    for command in (["lfs", "quota", "-u", getpass.getuser(), str(folder)], ["quota", "-w", "-p"]):
        if shutil.which(command[0]):
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
            except (OSError, subprocess.TimeoutExpired):
                continue
            if found := read_quota(done.stdout.splitlines()):
                return found
    return []


def scratch_check(folder: Path) -> Check:
    if not folder.is_dir():
        return Check("scratch", "fail", f"{folder} is not a folder on this node; name one with --scratch")
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x" * 2**20)
            file.flush()
    except OSError as error:
        return Check("scratch", "fail", f"{folder} cannot be written: {error.strerror}")
    free = shutil.disk_usage(folder).free
    detail = f"{free / 2**30:,.0f} GiB free in {folder}"
    if free < SCRATCH_BYTES:
        return Check("scratch", "warn", f"{detail}; kernel caches and logs may fill it")
    return Check("scratch", "ok", detail)


def shared_memory_check(folder: Path = Path("/dev/shm")) -> Check:  # noqa: S108  the kernel's, not a temporary file
    if not folder.is_dir():
        return Check("shared memory", "warn", f"{folder} does not exist; NCCL needs it between the GPUs of a node")
    free = shutil.disk_usage(folder).free
    detail = f"{free / 2**30:.1f} GiB free in {folder}"
    if free < SHARED_MEMORY_BYTES:
        return Check("shared memory", "warn", f"{detail}; give the container more (--shm-size 16g, or --ipc host)")
    return Check("shared memory", "ok", detail)


def locked_memory_check(uses_infiniband: bool) -> Check:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft == resource.RLIM_INFINITY:
        return Check("locked memory", "ok", "unlimited")
    detail = f"limited to {soft / 2**20:,.0f} MiB"
    if uses_infiniband:
        return Check(
            "locked memory", "fail", f"{detail}; InfiniBand needs `ulimit -l unlimited` (limits.conf, LimitMEMLOCK)"
        )
    return Check("locked memory", "ok", f"{detail}; enough without InfiniBand")


def processor_check(text: str | None = None) -> Check:
    """Engines on the CPU die by SIGILL where an instruction is missing, with no message at all."""
    detail = f"{os.cpu_count()} cores, {platform.machine()}"
    flags = set((text if text is not None else text_of(Path("/proc/cpuinfo"))).split())
    if flags & {"avx512_bf16", "amx_bf16", "bf16"}:
        return Check("processor", "ok", f"{detail}, bfloat16")
    return Check("processor", "ok", f"{detail}, no bfloat16: start an engine on the CPU with --dtype float32")
