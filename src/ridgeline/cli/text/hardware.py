"""Every GPU and fabric there is to name, the user's own included."""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline.serving.hardware.cluster import GIB, Fabric, Gpu, fabric_names, gpu_names, load_fabric, load_gpu


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

    def as_text(self) -> str:
        lines = ["GPU           memory  bandwidth    bf16     fp8    link  fabric"]
        for g in self.gpus:
            fp8 = f"{g.flops['fp8'] / 1e12:,.0f}" if "fp8" in g.flops else "-"
            lines.append(
                f"{g.name:<10} {g.memory_bytes / GIB:5.0f} GiB  {g.bandwidth_bytes_s / 1e12:4.2f} TB/s  "
                f"{g.flops_of('bf16') / 1e12:6,.0f}  {fp8:>6}    {g.link.bytes_s / 1e9:4.0f}  {g.fabric}"
            )
        lines += ["  dense TFLOP/s; link in GB/s each way", "", "fabric      rails  port GB/s  latency  kind"]
        lines += [
            f"{f.name:<10}  {f.rails:5}  {f.port.bytes_s / 1e9:9.1f}  {f.port.latency_s * 1e6:4.1f} us  {f.kind}"
            for f in self.fabrics
        ]
        return "\n".join(lines)


def list_hardware() -> HardwareList:
    return HardwareList(tuple(map(load_gpu, gpu_names())), tuple(map(load_fabric, fabric_names())))
