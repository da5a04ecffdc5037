"""Network adapters: which ports NCCL may use, and the line that tells it."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from ridgeline.node.preflight.check import Check
from ridgeline.node.preflight.ibv_devinfo import HcaPort, read_ibv_devinfo, read_infiniband_folder

LIMIT_S = 20.0


def list_ports(folder: Path = Path("/sys/class/infiniband")) -> list[HcaPort]:
    """By the kernel, which also knows rates; by ibv_devinfo where /sys is not mounted (some containers)."""
    if ports := read_infiniband_folder(folder):
        return ports
    try:
        done = subprocess.run(["ibv_devinfo"], capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return read_ibv_devinfo(done.stdout.splitlines())


def hca_line(ports: Sequence[HcaPort]) -> str | None:
    """The export with active InfiniBand ports only; None where there are none.

    NCCL matches names by their beginning, so mlx5_1 would also take mlx5_10; the leading = asks for whole names.
    """
    names = [f"{port.device}:{port.port}" for port in ports if port.is_infiniband and port.active]
    return f"export NCCL_IB_HCA='={','.join(names)}'" if names else None


def network_check(ports: Sequence[HcaPort]) -> Check:
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
