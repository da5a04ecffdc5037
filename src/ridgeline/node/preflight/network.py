"""Network adapters (ibv_devinfo): which ports NCCL may use, and the line that tells it."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ridgeline.files import text_of
from ridgeline.node.preflight.check import Check

_LINE = re.compile(r"^\s*(hca_id|port|state|link_layer|active_mtu):\s*(\S+)")


@dataclass(frozen=True, slots=True)
class HcaPort:
    """`rate` in words as the kernel gives them ('400 Gb/sec (4X NDR)'), empty where the source does not say."""

    device: str
    port: int
    link_layer: str
    active: bool
    rate: str = ""

    @property
    def is_infiniband(self) -> bool:
        # older drivers print IB for it
        return self.link_layer.lower() in ("infiniband", "ib")


def read_ibv_devinfo(lines: Iterable[str]) -> list[HcaPort]:
    """Every port, in the order of the text. A port without a link layer (old drivers) has an empty one."""
    return list(_ports(lines))


def _ports(lines: Iterable[str]) -> Iterator[HcaPort]:
    device, port = "", 0
    seen: dict[str, str] = {}
    for line in lines:
        found = _LINE.match(line)
        if found is None:
            continue
        name, value = found.groups()
        if name in ("hca_id", "port") and port:
            yield _port(device, port, seen)
            port, seen = 0, {}
        if name == "hca_id":
            device = value
        elif name == "port" and value.isdigit():
            port = int(value)
        else:
            seen[name] = value
    if port:
        yield _port(device, port, seen)


def _port(device: str, port: int, seen: dict[str, str]) -> HcaPort:
    return HcaPort(device, port, seen.get("link_layer", ""), seen.get("state") == "PORT_ACTIVE")


def read_infiniband_folder(root: Path = Path("/sys/class/infiniband")) -> list[HcaPort]:
    """The kernel's own view, where ibv_devinfo is not installed; empty on a host without such adapters."""
    ports = []
    for folder in sorted(root.glob("*/ports/*"), key=lambda p: (p.parts[-3], len(p.name), p.name)):
        if folder.name.isdigit():
            state = text_of(folder / "state")  # '4: ACTIVE'
            link_layer, rate = text_of(folder / "link_layer").strip(), text_of(folder / "rate").strip()
            ports.append(HcaPort(folder.parts[-3], int(folder.name), link_layer, "ACTIVE" in state, rate))
    return ports


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
