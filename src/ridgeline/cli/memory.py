"""`ridgeline memory`: does this model fit these GPUs, and how many tokens of KV cache are left."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from ridgeline.cli import serving_options as option


def memory(
    model: option.ModelName,
    gpu: option.GpuName,
    nodes: option.Nodes = 1,
    gpus_per_node: Annotated[
        int | None, typer.Option(help="GPUs of one node; as many as the layout needs if left out.")
    ] = None,
    tp: option.Tp = 1,
    pp: option.Pp = 1,
    dp: option.Dp = 1,
    ep: option.Ep = 1,
    attn_dp: option.AttnDp = 1,
    mem_fraction: option.MemFraction = None,
    max_running_requests: option.MaxRunningRequests = None,
    cuda_graph_max_bs: option.CudaGraphMaxBs = None,
    chunked_prefill_size: option.ChunkedPrefillSize = None,
    attention_backend: option.AttentionBackend = None,
    dtype: option.Dtype = None,
    kv_dtype: option.KvDtype = None,
    as_json: option.AsJson = False,
) -> None:
    """Say whether a model fits a layout of GPUs, with the KV pool, the largest batch and the margin.

    Example: ridgeline memory --model deepseek-r1 --gpu h100 --nodes 2 --gpus-per-node 8 --tp 16
    """
    from ridgeline.serving.fitting import answer_memory
    from ridgeline.serving.layout import Layout
    from ridgeline.serving.twin.engine import EngineSettings

    size = gpus_per_node or max(1, -(-tp * pp * dp // max(1, nodes)))
    settings = EngineSettings(
        attention_backend=attention_backend,
        max_running_requests=max_running_requests,
        cuda_graph_max_bs=cuda_graph_max_bs,
        chunked_prefill_size=chunked_prefill_size,
        mem_fraction=mem_fraction,
    )
    layout = Layout(tp=tp, pp=pp, dp=dp, ep=ep, attn_dp=attn_dp, nodes=nodes, gpus_per_node=size)
    answer = answer_memory(model, gpu, layout, settings, dtype, kv_dtype)
    print(json.dumps(answer.as_json(), indent=2) if as_json else answer.as_text())
