"""What a GPU, a node and a fabric can do. Numbers are in serving/hardware/presets.yaml; users add a file of their own.

Rates are bytes and FLOPs per second, one direction, peak: what part of them an engine reaches is the twin's business.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError, did_you_mean
from ridgeline.records.expression import is_number
from ridgeline.serving.hardware.gpu_limits import NO_LIMITS, GpuLimits, parse_limits

# YAML files of people's own, with numbers as YAML 1.2 and study files have them: to PyYAML alone 4.8e12 is text.

_EXPONENT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)[eE][-+]?[0-9]+$")


def read_yaml(text: str) -> Any:
    """The document as plain values; yaml.YAMLError where it is none. What is quoted stays text."""
    import yaml

    return yaml.load(text, Loader=_loader())  # noqa: S506  a safe loader that knows one more way to write a number


@lru_cache(maxsize=1)
def _loader() -> Any:
    import yaml

    # the C twin of the safe loader is ten times faster
    safe: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    loader: Any = type("NumberLoader", (safe,), {})
    loader.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+.0123456789"))
    return loader


GIB = 2**30
MIB = 2**20
# Layouts of more GPUs than this are copies of smaller ones.
_MOST_GPUS = 16_384


@dataclass(frozen=True, slots=True)
class Link:
    """One GPU's way to its neighbours: bytes per second each way, and the delay of one hop."""

    bytes_s: float
    latency_s: float


@dataclass(frozen=True)
class Gpu:
    name: str
    generation: str  # ampere, ada, hopper, blackwell, cdna3, cdna4
    memory_bytes: int  # what nvidia-smi shows
    bandwidth_bytes_s: float
    flops: Mapping[str, float] = field(hash=False)  # dense, by dtype
    link: Link
    fabric: str  # the fabric such GPUs usually come with
    sms: int = 132
    domain: int = 0  # GPUs joined by one switch, where that is more than a node (NVL72)
    source: str = ""  # where the figures are from
    power_w: float | None = None  # that it draws at most
    clock_mhz: float | None = None  # its highest
    limits: GpuLimits = NO_LIMITS  # below these two
    cycle: float = 1.0  # how long a clock cycle takes, over that of the highest clock
    unified: bool = False  # its memory is the host's too: what programs and files hold of it is not known here

    @property
    def host_bytes_s(self) -> float:
        """What a copy between its memory and the host's reaches: 80% of PCIe 4 or 5 x16, or of NVLink-C2C."""
        if self.unified:
            return self.bandwidth_bytes_s / 2
        if self.name.startswith("gb"):
            return 0.8 * 450e9
        return 0.8 * (32e9 if self.generation in ("ampere", "ada") else 64e9)

    @property
    def spelled(self) -> str:
        """Its name and what it is held to, as `load_gpu` reads them."""
        return "@".join((self.name, *self.limits.words))

    @property
    def most_w(self) -> float | None:
        """What it may draw: what it is held to, or its own limit."""
        return self.limits.power_w or self.power_w

    @property
    def is_amd(self) -> bool:
        return self.generation.startswith("cdna")

    def flops_of(self, dtype: str) -> float:
        """FLOP/s for weights of this dtype. A dtype without tensor cores here is unpacked and computed in 16 bits."""
        dtype = "fp4" if dtype == "mxfp4" else dtype
        if dtype in self.flops:
            return self.flops[dtype]
        return self.flops["fp32" if dtype == "fp32" else "bf16"]


@dataclass(frozen=True, slots=True)
class Node:
    gpu: Gpu
    gpus: int


@dataclass(frozen=True, slots=True)
class Fabric:
    name: str
    kind: str  # infiniband, roce, ethernet
    rails: int  # ports of one node
    port: Link

    def bytes_s_per_gpu(self, gpus: int) -> float:
        """What each of `gpus` GPUs of a node gets when all send at once; one GPU alone uses one port."""
        return self.port.bytes_s * min(self.rails, gpus) / gpus


@dataclass(frozen=True, slots=True)
class Cluster:
    node: Node
    nodes: int
    fabric: Fabric

    @property
    def gpu(self) -> Gpu:
        return self.node.gpu

    @property
    def gpus(self) -> int:
        return self.nodes * self.node.gpus

    def __str__(self) -> str:
        held = self.gpu.limits.words
        at = f" at {' and '.join(held)}" if held else ""
        return f"{self.nodes} x {self.node.gpus} {self.gpu.name.upper()}{at}"


def load_gpu(name: str) -> Gpu:
    """A GPU by any of its spellings, h100, H100, h100-80gb, and what it is held to: h100@500W@1500MHz."""
    name, *written = name.split("@")
    gpu = _known_gpu(name)
    return held_to(gpu, parse_limits(gpu.name, written)) if written else gpu


def held_to(gpu: Gpu, limits: GpuLimits) -> Gpu:
    """The GPU under these limits. InputError where they are none, or where nothing is known of how it would run."""
    if too_much := beyond_limits(gpu, limits):
        raise InputError(too_much)
    name = gpu.name.upper()
    for what, value, highest in _compared(gpu, limits):
        if highest is None:
            raise InputError(
                f"the highest {what} of {name} is not known here; give it as `{_KEYS[what]}` in RIDGELINE_HARDWARE"
            )
        if value < _LEAST_SHARE * highest:
            unit, least = _UNITS[what], _LEAST_SHARE * highest
            raise InputError(
                f"{value:g} {unit} is too far from what was measured to predict {name}; give {least:g} {unit} or more"
            )
    if limits and gpu.power_w is None:
        raise InputError(f"what {name} draws at most is not known here; give it as `power_w` in RIDGELINE_HARDWARE")
    # what is no less than its own is none
    power_w = None if limits.power_w == gpu.power_w else limits.power_w
    return replace(gpu, limits=GpuLimits(power_w, None if limits.clock_mhz == gpu.clock_mhz else limits.clock_mhz))


def beyond_limits(gpu: Gpu, limits: GpuLimits) -> str:
    """Why nvidia-smi does not set them on this GPU, as far as that is certain."""
    if limits and gpu.is_amd:
        return f"limits of {gpu.name.upper()} are neither set nor predicted: only those of NVIDIA's GPUs are"
    for what, value, highest in _compared(gpu, limits):
        if highest is not None and value > highest:
            unit = _UNITS[what]
            return f"{value:g} {unit} is more than the {highest:g} {unit} that {gpu.name.upper()} has at most"
    return ""


_KEYS, _UNITS = {"power": "power_w", "clock": "clock_mhz"}, {"power": "W", "clock": "MHz"}
_LEAST_SHARE = 0.25


def _compared(gpu: Gpu, limits: GpuLimits) -> Iterator[tuple[str, float, float | None]]:
    if limits.power_w is not None:
        yield "power", limits.power_w, gpu.power_w
    if limits.clock_mhz is not None:
        yield "clock", limits.clock_mhz, gpu.clock_mhz


def _known_gpu(name: str) -> Gpu:
    table = _tables()["gpus"]
    key = name.lower().replace("_", "-").removeprefix("nvidia-")
    spellings = {s.lower(): n for n, row in table.items() for s in (n, *row.get("also", ()))}
    if key not in spellings:
        raise _unknown("GPU", name, list(table))
    found = spellings[key]
    row = table[found]
    where = f"hardware: gpus.{found}"
    try:
        return Gpu(
            name=found,
            generation=str(row["generation"]),
            memory_bytes=int(_positive(row["memory_mib"], f"{where}.memory_mib") * MIB),
            bandwidth_bytes_s=_positive(row["bandwidth_gb_s"], f"{where}.bandwidth_gb_s") * 1e9,
            flops={d: _positive(v, f"{where}.tflops.{d}") * 1e12 for d, v in row["tflops"].items()},
            link=_link(_row("link", str(row["link"])), f"hardware: links.{row['link']}"),
            fabric=str(row["fabric"]),
            sms=int(_positive(row.get("sms", 132), f"{where}.sms")),
            domain=int(_positive(row["domain"], f"{where}.domain")) if "domain" in row else 0,
            source=str(row.get("source", "")),
            power_w=_positive(row["power_w"], f"{where}.power_w") if "power_w" in row else None,
            clock_mhz=_positive(row["clock_mhz"], f"{where}.clock_mhz") if "clock_mhz" in row else None,
            unified=row.get("unified") is True,
        )
    except KeyError as missing:
        raise InputError(f"{where}: {missing} is missing; see serving/hardware/presets.yaml for the shape") from None


def _load_fabric(name: str) -> Fabric:
    row, where = _row("fabric", name), f"hardware: fabrics.{name}"
    rails = int(_positive(row.get("rails", 1), f"{where}.rails"))
    return Fabric(name, str(row.get("kind", "infiniband")), rails, _link(row, where))


def _row(kind: str, name: str) -> Mapping[str, Any]:
    table = _tables()[f"{kind}s"]
    if name not in table:
        raise _unknown(kind, name, list(table))
    found: Mapping[str, Any] = table[name]
    return found


def make_cluster(gpu: str | Gpu, nodes: int = 1, gpus_per_node: int = 8, fabric: str | None = None) -> Cluster:
    """`nodes` equal nodes; without a name the fabric is the one such GPUs usually come with."""
    if nodes < 1 or gpus_per_node < 1:
        raise InputError(
            f"a cluster of {nodes} nodes with {gpus_per_node} GPUs each has no GPU; give at least 1 of each"
        )
    if nodes * gpus_per_node > _MOST_GPUS:
        raise InputError(
            f"{nodes:,} nodes of {gpus_per_node:,} GPUs are more than the {_MOST_GPUS:,} that we look at together; "
            "ask for one part of them: copies behind a router do not slow each other down"
        )
    chosen = load_gpu(gpu) if isinstance(gpu, str) else gpu
    return Cluster(Node(chosen, gpus_per_node), nodes, _load_fabric(fabric or chosen.fabric))


def gpu_names() -> list[str]:
    return list(_tables()["gpus"])


def _tables() -> Mapping[str, Mapping[str, Any]]:
    return _read_tables(os.environ.get("RIDGELINE_HARDWARE", ""))


@lru_cache(maxsize=4)
def _read_tables(own_file: str) -> Mapping[str, Mapping[str, Any]]:
    shipped = (resources.files("ridgeline.serving.hardware") / "presets.yaml").read_text()
    tables = _parse(shipped, "serving/hardware/presets.yaml")
    if not own_file:
        return tables
    try:
        own = _parse(Path(own_file).read_text(), own_file)
    except OSError as error:
        raise InputError(f"RIDGELINE_HARDWARE names {own_file}, which cannot be read: {error.strerror}") from None
    return {kind: {**tables[kind], **own[kind]} for kind in tables}


def _parse(text: str, source: str) -> dict[str, dict[str, Any]]:
    import yaml

    try:
        tree = read_yaml(text)
    except yaml.YAMLError as error:
        raise InputError(f"{source}: not YAML ({error})") from None
    kinds = ("gpus", "links", "fabrics")
    if not isinstance(tree, dict) or set(tree) - set(kinds):
        raise InputError(
            f"{source}: expected the keys gpus, links, fabrics; see serving/hardware/presets.yaml for the shape"
        )
    for kind in kinds:
        rows = tree.setdefault(kind, {})
        if not isinstance(rows, dict) or not all(isinstance(r, dict) for r in rows.values()):
            raise InputError(f"{source}: {kind} must map a name to its properties")
    return tree


def _link(row: Mapping[str, Any], where: str) -> Link:
    try:
        return Link(
            _positive(row["gb_s"], f"{where}.gb_s") * 1e9, _positive(row["latency_us"], f"{where}.latency_us") * 1e-6
        )
    except KeyError as missing:
        raise InputError(f"{where}: {missing} is missing") from None


def _positive(value: Any, where: str) -> float:
    if not is_number(value) or not value > 0:
        raise InputError(f"{where} is {value!r}; it must be a number above zero")
    return float(value)


def _unknown(kind: str, name: str, known: list[str]) -> InputError:
    hint = did_you_mean(name.lower(), known, likeness=0.5)
    return InputError(
        f"{kind} {name!r} is not known; {hint}{' ' if hint else ''}known: {', '.join(known)}. "
        "Add your own in a YAML file named by RIDGELINE_HARDWARE"
    )


# Every GPU and fabric there is to name, the user's own included.


@dataclass(frozen=True, slots=True)
class HardwareList:
    """`ridgeline plan hardware`'s answer. Rates are peaks, dense and one way."""

    gpus: tuple[Gpu, ...]
    fabrics: tuple[Fabric, ...]

    def as_json(self) -> dict[str, object]:
        return {
            "gpus": {
                g.name: {
                    "generation": g.generation,
                    "memory_gib": round(g.memory_bytes / GIB, 2),
                    "bandwidth_bytes_s": g.bandwidth_bytes_s,
                    "flops": dict(g.flops),
                    "link_bytes_s": g.link.bytes_s,
                    "link_latency_s": g.link.latency_s,
                    "fabric": g.fabric,
                    "power_w": g.power_w,
                    "clock_mhz": g.clock_mhz,
                    "unified_memory": g.unified,
                    "source": g.source,
                }
                for g in self.gpus
            },
            "fabrics": {
                f.name: {
                    "kind": f.kind,
                    "rails": f.rails,
                    "port_bytes_s": f.port.bytes_s,
                    "port_latency_s": f.port.latency_s,
                }
                for f in self.fabrics
            },
        }


def list_hardware() -> HardwareList:
    return HardwareList(tuple(map(load_gpu, gpu_names())), tuple(map(_load_fabric, _tables()["fabrics"])))
