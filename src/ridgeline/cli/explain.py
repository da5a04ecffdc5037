"""`ridgeline explain`: where one iteration's time goes."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from ridgeline.cli import serving_options as option


def explain(
    model: option.ModelName,
    gpu: option.GpuName,
    nodes: option.Nodes = 1,
    gpus_per_node: option.GpusPerNode = 8,
    tp: option.Tp = 1,
    pp: option.Pp = 1,
    dp: option.Dp = 1,
    ep: option.Ep = 1,
    attn_dp: option.AttnDp = 1,
    prefill_groups: option.PrefillGroups = None,
    decode_groups: option.DecodeGroups = None,
    fabric: option.Fabric = None,
    engine: option.EngineName = "sglang",
    dtype: option.Dtype = None,
    kv_dtype: option.KvDtype = None,
    mem_fraction: option.MemFraction = None,
    max_running_requests: option.MaxRunningRequests = None,
    attention_backend: option.AttentionBackend = None,
    cuda_graph_max_bs: option.CudaGraphMaxBs = None,
    chunked_prefill_size: option.ChunkedPrefillSize = None,
    batch: Annotated[int, typer.Option(help="Requests in the decode step.")] = 128,
    context: Annotated[int, typer.Option(help="Cached tokens of each of them.")] = 500,
    prompt: Annotated[int, typer.Option(help="Tokens of each prompt in the prefill round.")] = 300,
    calibration: option.CalibrationFile = None,
    as_json: option.AsJson = False,
) -> None:
    """Print every term of a decode step and of a prefill round, and what bounds it.

    Example: ridgeline explain --model deepseek-r1 --gpu h200 --nodes 2 --tp 16 --batch 512 --context 450
    """
    from ridgeline.serving.layout import Layout
    from ridgeline.serving.twin.calibration import read_calibration
    from ridgeline.serving.twin.deployment import describe
    from ridgeline.serving.twin.engine import EngineSettings, parse_engine
    from ridgeline.serving.twin.explain import explain as answer

    settings = EngineSettings(
        attention_backend=attention_backend,
        max_running_requests=max_running_requests,
        cuda_graph_max_bs=cuda_graph_max_bs,
        chunked_prefill_size=chunked_prefill_size,
        mem_fraction=mem_fraction,
    )
    deployment = describe(
        model,
        gpu,
        Layout(tp=tp, pp=pp, dp=dp, ep=ep, attn_dp=attn_dp, nodes=nodes, gpus_per_node=gpus_per_node),
        parse_engine(engine, settings),
        prefill_groups=prefill_groups,
        decode_groups=decode_groups,
        fabric=fabric,
        dtype=dtype,
        kv_dtype=kv_dtype,
    )
    found = answer(deployment, batch, context, prompt, read_calibration(calibration) if calibration else None)
    if as_json:
        print(json.dumps({"deployment": str(deployment), "steps": [e.as_json() for e in found]}, indent=2))
    else:
        print("\n\n".join([str(deployment), *(e.as_text() for e in found)]))
