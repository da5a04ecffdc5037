"""Ports of InfiniBand and Ethernet adapters, from `ibv_devinfo` or from /sys/class/infiniband (the same facts)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ridgeline.files import text_of

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
