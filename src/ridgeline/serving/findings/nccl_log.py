"""What NCCL's lines mean: settings that were not applied, the wrong network, the wrong port."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from ridgeline.diagnose.base import Analyzer, Quote, RawFinding, cited, knob, rereadable
from ridgeline.records.finding import Finding
from ridgeline.serving.engines.nccl_log import NcclLog, read_nccl_log


def _analyze(source: str, lines: Iterable[str]) -> list[Finding]:
    """Findings of an output in which NCCL_DEBUG=INFO was on."""
    text = rereadable(lines)
    log = read_nccl_log(text)
    rules = (_unapplied, _refused, _sockets, _ethernet, _chosen, _no_gpu_direct, _no_p2p, _warnings)
    return cited(source, text, [claim for rule in rules for claim in rule(log)])


def _unapplied(log: NcclLog) -> Iterator[RawFinding]:
    asked = {name: setting.value for name, setting in log.exported.items()}
    for name, said in log.unapplied(asked).items():
        echo = f"NCCL says {said}" if said else "NCCL does not mention it"
        quotes = [Quote(log.exported[name].line)] + ([Quote(log.settings[name].line)] if name in log.settings else [])
        yield RawFinding(
            f"{name}={asked[name]} was asked for, but {echo}",
            tuple(quotes),
            "Check the name's spelling and that the variable reaches every rank (mpirun -x, srun --export). NCCL "
            "ignores what it does not know; some settings are echoed only with NCCL_DEBUG_SUBSYS=ALL.",
            "warning",
        )


def _refused(log: NcclLog) -> list[RawFinding]:
    return [
        RawFinding("NCCL refused or ignored a setting", (Quote(w.line),), "Correct or remove it.", "warning")
        for w in log.refused[:3]
    ]


def _sockets(log: NcclLog) -> Iterator[RawFinding]:
    over_tcp = [t for t in log.transports if t.name.startswith("NET/Socket")]
    if (log.network is None or log.network.value != "Socket") and not over_tcp:
        return
    quotes = [Quote(log.network.line)] if log.network else []
    yield RawFinding(
        "NCCL uses TCP sockets between nodes, not InfiniBand",
        (*quotes, *(Quote(t.line) for t in over_tcp[:1])),
        "Look above for `NET/IB : No device found`: the container needs /dev/infiniband and libibverbs, "
        "NCCL_IB_DISABLE must be 0, and NCCL_IB_HCA must name ports that exist (see `ridgeline site preflight`).",
        "warning",
        key="nccl.sockets",
    )


def _ethernet(log: NcclLog) -> Iterator[RawFinding]:
    wrong = [nic for nic in log.nics if nic.link in ("RoCE", "Ethernet")]
    right = [nic.name for nic in log.nics if nic.link == "IB"]
    if not wrong or not right:
        return
    names = ", ".join(nic.name for nic in wrong)
    yield RawFinding(
        f"{names} is an Ethernet port among InfiniBand ports, and NCCL spreads its channels over all of them",
        (Quote(wrong[0].line, wrong[0].name),),
        f"List the InfiniBand ports only: NCCL_IB_HCA={','.join(right)}",
        "warning",
        knobs=knob("engine", "NCCL_IB_HCA", _asked(log, "NCCL_IB_HCA"), [",".join(right)]),
        key="nccl.ethernet",
    )


def _asked(log: NcclLog, name: str) -> str:
    said = log.settings.get(name) or log.exported.get(name)
    return said.value.rstrip(".") if said else ""


def _chosen(log: NcclLog) -> Iterator[RawFinding]:
    for name, attribute in (("NCCL_ALGO", "algorithm"), ("NCCL_PROTO", "protocol")):
        setting = log.settings.get(name)
        if setting is None or setting.value.startswith("^") or ":" in setting.value:
            continue
        wanted = {part.strip(". ").upper() for part in setting.value.split(",")}
        other = [c for c in log.chosen if getattr(c, attribute).upper() not in wanted]
        if other:
            yield RawFinding(
                f"{name} is {setting.value}, yet {other[0].collective} of {other[0].size_bytes} bytes used "
                f"{getattr(other[0], attribute)}",
                (Quote(setting.line), Quote(other[0].line)),
                "NCCL falls back where a choice is not possible for a collective, size or GPU. The defaults are "
                "seldom beaten: compare with them before keeping the setting.",
            )


def _no_gpu_direct(log: NcclLog) -> Iterator[RawFinding]:
    plain = [t for t in log.transports if t.name.startswith("NET/IB") and "GDR" not in t.name]
    if not plain:
        return
    yield RawFinding(
        "InfiniBand is used without GPUDirect: data passes through host memory",
        (Quote(plain[0].line),),
        "Load the nvidia_peermem module on the nodes, and see nvidia-smi topo -m for a NIC far from its GPU.",
        key="nccl.no-gpu-direct",
    )


def _no_p2p(log: NcclLog) -> Iterator[RawFinding]:
    """Ranks of one node that talk through host memory, although GPUs of one node can reach each other."""
    shared = [t for t in log.transports if t.name.startswith("SHM")]
    direct = [t for t in log.transports if t.name.startswith(("P2P", "NVLS"))]
    off = next((s for n, s in log.settings.items() if n == "NCCL_P2P_DISABLE" and s.value.rstrip(".") != "0"), None)
    if not shared and off is None and log.no_p2p_line is None:
        return
    within = sum(t.channels for t in shared) + sum(t.channels for t in direct)
    part = f": {sum(t.channels for t in shared)} of {within} channels within a node" if shared else ""
    lines = [off.line if off else None, log.no_p2p_line, shared[0].line if shared else None]
    advice = (
        "Unset NCCL_P2P_DISABLE."
        if off
        else "See nvidia-smi topo -m: NV# between GPUs means NVLink. Without it look at the container (one that hides "
        "GPUs from each other), at ACS and IOMMU for PCIe, and at `ridgeline site preflight`."
    )
    yield RawFinding(
        f"GPUs of one node talk through host memory, not by NVLink or PCIe peer access{part}",
        tuple(Quote(line) for line in lines if line),
        advice,
        "warning",
        knobs=knob("engine", "NCCL_P2P_DISABLE", off.value.rstrip("."), ["0"]) if off else (),
        key="nccl.no-p2p",
    )


def _warnings(log: NcclLog) -> Iterator[RawFinding]:
    if not log.warnings:
        return
    first = log.warnings[0]
    times = f" {log.warned} times, first" if log.warned > 1 else ""
    yield RawFinding(
        f"NCCL warned{times}: {first.value.strip()[:120]}",
        (Quote(first.line),),
        "A connection that fails or a completion with an error points to a node or a link: try the same run "
        "without that node.",
        "warning",
    )


ANALYZER = Analyzer("nccl-log", "output with NCCL_DEBUG=INFO lines", re.compile(r"\] NCCL INFO |NCCL WARN "), _analyze)
