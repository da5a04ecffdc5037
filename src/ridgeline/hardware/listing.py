"""Every GPU and fabric there is to name, the user's own included."""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline.hardware.cluster import GIB, Fabric, Gpu, fabric_names, gpu_names, load_fabric, load_gpu


@dataclass(frozen=True, slots=True)
class HardwareList:
    """`ridgeline hardware`'s answer. Rates are peaks, dense and one way."""

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
    return HardwareList(tuple(map(load_gpu, gpu_names())), tuple(map(load_fabric, fabric_names())))
