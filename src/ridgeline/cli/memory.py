"""`ridgeline memory`: does this model fit these GPUs, and how many tokens of KV cache are left."""

from __future__ import annotations

import json
from typing import Annotated

import typer


def memory(
    model: Annotated[str, typer.Option(help="A preset, or the path of a config.json.")],
    gpu: Annotated[str, typer.Option(help="a100, h20, h100, h200, h800, b200, l40s, or one of your own.")],
    nodes: Annotated[int, typer.Option(help="Nodes.")] = 1,
    gpus_per_node: Annotated[
        int | None, typer.Option(help="GPUs of one node; as many as the layout needs if left out.")
    ] = None,
    tp: Annotated[int, typer.Option(help="Tensor parallel ranks.")] = 1,
    pp: Annotated[int, typer.Option(help="Pipeline stages.")] = 1,
    dp: Annotated[int, typer.Option(help="Whole copies of the engine.")] = 1,
    ep: Annotated[int, typer.Option(help="Ranks that hold whole experts.")] = 1,
    attn_dp: Annotated[int, typer.Option(help="Attention groups inside tp, each with a KV cache of its own.")] = 1,
    mem_fraction: Annotated[float | None, typer.Option(help="--mem-fraction-static.")] = None,
    max_running_requests: Annotated[
        int | None, typer.Option(help="Requests in flight, all attention groups together.")
    ] = None,
    cuda_graph_max_bs: Annotated[int | None, typer.Option(help="Largest captured decode batch; 0: no graphs.")] = None,
    chunked_prefill_size: Annotated[int | None, typer.Option(help="Tokens of one prefill step.")] = None,
    attention_backend: Annotated[str | None, typer.Option(help="fa3, flashinfer, triton, ...")] = None,
    dtype: Annotated[str | None, typer.Option(help="Weights: bf16, fp8, int4, ...; default: the config's.")] = None,
    kv_dtype: Annotated[str | None, typer.Option(help="KV cache: bf16 or fp8.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
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
