"""`ridgeline explain`: where one iteration's time goes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def explain(
    model: Annotated[str, typer.Option(help="A preset, or the path of a config.json.")],
    gpu: Annotated[str, typer.Option(help="a100, h20, h100, h200, h800, b200, l40s, or one of your own.")],
    nodes: Annotated[int, typer.Option(help="Nodes.")] = 1,
    gpus_per_node: Annotated[int, typer.Option(help="GPUs of one node.")] = 8,
    tp: Annotated[int, typer.Option(help="Tensor parallel ranks.")] = 1,
    pp: Annotated[int, typer.Option(help="Pipeline stages.")] = 1,
    dp: Annotated[int, typer.Option(help="Whole copies of the engine.")] = 1,
    ep: Annotated[int, typer.Option(help="Ranks that hold whole experts.")] = 1,
    attn_dp: Annotated[int, typer.Option(help="Attention groups inside tp.")] = 1,
    prefill_groups: Annotated[str | None, typer.Option(help="3x3: three prefill groups of three nodes.")] = None,
    decode_groups: Annotated[str | None, typer.Option(help="Likewise for decode.")] = None,
    fabric: Annotated[str | None, typer.Option(help="ib-ndr, roce-400, ...")] = None,
    engine: Annotated[str, typer.Option(help="sglang, or sglang:0.4.10.")] = "sglang",
    dtype: Annotated[str | None, typer.Option(help="Weights: bf16, fp8, int4, ...")] = None,
    kv_dtype: Annotated[str | None, typer.Option(help="KV cache: bf16 or fp8.")] = None,
    mem_fraction: Annotated[float | None, typer.Option(help="--mem-fraction-static.")] = None,
    max_running_requests: Annotated[int | None, typer.Option(help="Requests decoded at once.")] = None,
    attention_backend: Annotated[str | None, typer.Option(help="fa3, flashinfer, triton, ...")] = None,
    cuda_graph_max_bs: Annotated[int | None, typer.Option(help="Largest captured decode batch; 0: no graphs.")] = None,
    chunked_prefill_size: Annotated[int | None, typer.Option(help="Tokens of one prefill round.")] = None,
    batch: Annotated[int, typer.Option(help="Requests in the decode step.")] = 128,
    context: Annotated[int, typer.Option(help="Cached tokens of each of them.")] = 500,
    prompt: Annotated[int, typer.Option(help="Tokens of each prompt in the prefill round.")] = 300,
    calibration: Annotated[Path | None, typer.Option(help="A file made by `ridgeline calibrate`.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
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
