"""Everything that is looked at on one node before GPU hours are spent on it."""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from pathlib import Path

from ridgeline.files import text_of
from ridgeline.node.preflight import gpu, host, network
from ridgeline.node.preflight.check import Check, NodeReport
from ridgeline.node.preflight.versions import version_checks


def preflight(python: str, scratch: Path, ports: Sequence[int] = ()) -> NodeReport:
    """Never raises for what a host lacks: each check says what it skipped and why."""
    adapters = network.list_ports()
    gpus = gpu.list_gpus()
    probed = gpu.probe(python)
    versions = _driver(gpus) | dict(probed.versions)
    hca = network.hca_line(adapters)
    checks = [
        Check("gpu memory", "skip", gpus) if isinstance(gpus, str) else gpu.memory_check(gpus),
        *gpu.rate_checks(probed, python),
        *version_checks(versions),
        network.network_check(adapters),
        host.locked_memory_check(hca is not None),
        host.port_check(ports or host.USUAL_PORTS),
        host.scratch_check(scratch),
        *([host.file_check(scratch)] if scratch.is_dir() else []),
        host.shared_memory_check(),
        host.processor_check(),
    ]
    return NodeReport(socket.gethostname(), tuple(checks), versions, (hca,) if hca else ())


def _driver(gpus: list[gpu.GpuState] | str) -> dict[str, str]:
    if not isinstance(gpus, str):
        return {"driver": gpus[0].driver}
    # the module may be loaded where nvidia-smi is not installed
    found = re.search(r"Kernel Module.*?(\d+\.[\d.]+)", text_of(Path("/proc/driver/nvidia/version")))
    return {"driver": found.group(1)} if found else {}
