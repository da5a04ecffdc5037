"""The options that several serving verbs take, each worded once. A verb gives the default."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ModelName = Annotated[str, typer.Option(help="A preset, or the path of a config.json.")]
GpuName = Annotated[str, typer.Option(help="a100, h20, h100, h200, h800, b200, l40s, or one of your own.")]
Nodes = Annotated[int, typer.Option(help="Nodes.")]
GpusPerNode = Annotated[int, typer.Option(help="GPUs of one node.")]
Tp = Annotated[int, typer.Option(help="Tensor parallel ranks.")]
Pp = Annotated[int, typer.Option(help="Pipeline stages.")]
Dp = Annotated[int, typer.Option(help="Whole copies of the engine behind a router.")]
Ep = Annotated[int, typer.Option(help="Ranks that hold whole experts.")]
AttnDp = Annotated[int, typer.Option(help="Attention groups inside tp, each with requests and KV of its own.")]
PrefillGroups = Annotated[
    str | None, typer.Option(help="3x3: three prefill groups of three nodes; 4: one of four nodes.")
]
DecodeGroups = Annotated[str | None, typer.Option(help="Likewise for decode, such as 1x4.")]
Fabric = Annotated[str | None, typer.Option(help="ib-ndr, roce-400, ...; default: what such GPUs come with.")]
EngineName = Annotated[str, typer.Option(help="sglang, or sglang:0.4.10 for an older version's defaults and rules.")]
Dtype = Annotated[str | None, typer.Option(help="Weights: bf16, fp8, int4, ...; default: the config's.")]
KvDtype = Annotated[str | None, typer.Option(help="KV cache: bf16 or fp8.")]
MemFraction = Annotated[float | None, typer.Option(help="--mem-fraction-static.")]
MaxRunningRequests = Annotated[int | None, typer.Option(help="Requests decoded at once, whole engine.")]
AttentionBackend = Annotated[str | None, typer.Option(help="fa3, flashinfer, triton, ...")]
CudaGraphMaxBs = Annotated[int | None, typer.Option(help="Largest captured decode batch; 0: no graphs.")]
ChunkedPrefillSize = Annotated[int | None, typer.Option(help="Tokens of one prefill round.")]
TrafficText = Annotated[
    str, typer.Option(help="sharegpt, sharegpt:IN:OUT, fixed:IN:OUT, lognormal:IN:OUT[:SIGMA], or a trace file.")
]
Slos = Annotated[list[str] | None, typer.Option(help="A limit such as ttft_p95_ms=2000; may be repeated.")]
CalibrationFile = Annotated[Path | None, typer.Option(help="A site file made by `ridgeline calibrate`.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document.")]
