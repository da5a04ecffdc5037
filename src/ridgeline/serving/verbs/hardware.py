"""`ridgeline plan hardware`: the GPUs and fabrics that can be named, your own included."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline.cli.text.table import json_text
from ridgeline.serving.hardware import cluster
from ridgeline.serving.verbs import options as option

if TYPE_CHECKING:
    from ridgeline.serving.hardware.cluster import HardwareList


def hardware(as_json: option.AsJson = False) -> None:
    """List GPUs and fabrics with their peaks. A YAML file named by RIDGELINE_HARDWARE adds your own.

    Example: ridgeline plan hardware
    """
    answer = cluster.list_hardware()
    print(json_text(answer.as_json()) if as_json else _hardware_text(answer))


def _hardware_text(found: HardwareList) -> str:
    wide = max(10, *(len(g.name) for g in found.gpus))
    lines = [f"{'GPU':<{wide}}    memory  bandwidth    bf16     fp8    link  fabric"]
    for g in found.gpus:
        fp8 = f"{g.flops['fp8'] / 1e12:,.0f}" if "fp8" in g.flops else "-"
        lines.append(
            f"{g.name:<{wide}} {g.memory_bytes / cluster.GIB:5.0f} GiB  {g.bandwidth_bytes_s / 1e12:4.2f} TB/s  "
            f"{g.flops_of('bf16') / 1e12:6,.0f}  {fp8:>6}    {g.link.bytes_s / 1e9:4.0f}  {g.fabric}"
        )
    lines += ["  dense TFLOP/s; link in GB/s each way", "", "fabric      rails  port GB/s  latency  kind"]
    lines += [
        f"{f.name:<10}  {f.rails:5}  {f.port.bytes_s / 1e9:9.1f}  {f.port.latency_s * 1e6:4.1f} us  {f.kind}"
        for f in found.fabrics
    ]
    return "\n".join(lines)
