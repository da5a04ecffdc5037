"""`ridgeline plan`: the best ways to serve a model on given GPUs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def plan(
    model: Annotated[str, typer.Option(help="A preset, or the path of a config.json.")],
    gpu: Annotated[str, typer.Option(help="a100, h20, h100, h200, h800, b200, l40s, or one of your own.")],
    nodes: Annotated[int, typer.Option(help="Nodes of the inventory.")] = 1,
    gpus_per_node: Annotated[int, typer.Option(help="GPUs of one node.")] = 8,
    fabric: Annotated[str | None, typer.Option(help="Network between nodes, if not the usual one.")] = None,
    traffic: Annotated[
        str, typer.Option(help="sharegpt, fixed:IN:OUT, lognormal:IN:OUT[:SIGMA], or a trace file.")
    ] = "sharegpt",
    rate: Annotated[
        float | None, typer.Option(help="Requests per second; left out, the highest within the limits is found.")
    ] = None,
    concurrency: Annotated[int | None, typer.Option(help="Requests under way at a time, instead of a rate.")] = None,
    requests: Annotated[int | None, typer.Option(help="Requests of a run without rate or limits.")] = None,
    slo: Annotated[
        list[str] | None, typer.Option(help="A limit such as ttft_p95_ms=2000; may be given more than once.")
    ] = None,
    engine: Annotated[str, typer.Option(help="sglang, or sglang:0.4.10 for an older one.")] = "sglang",
    attention_backend: Annotated[str | None, typer.Option(help="fa3, flashinfer, triton, ...")] = None,
    dtype: Annotated[str | None, typer.Option(help="Weights: bf16, fp8, int4, ...; default: the config's.")] = None,
    kv_dtype: Annotated[str | None, typer.Option(help="KV cache: bf16 or fp8.")] = None,
    calibration: Annotated[Path | None, typer.Option(help="A site file written by `ridgeline calibrate`.")] = None,
    top: Annotated[int, typer.Option(help="How many choices to show.")] = 8,
    seed: Annotated[int, typer.Option(help="Seed of the traffic.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder for the commands and study file of each choice.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> None:
    """Rank layouts for a model, GPUs, traffic and limits, with commands to start them and a study to verify them.

    Example: ridgeline plan --model deepseek-r1 --gpu h200 --nodes 2 --traffic fixed:313:194 --slo ttft_p95_ms=2000
    --slo itl_p95_ms=50
    """
    from ridgeline.serving.planner import answer_plan

    answer = answer_plan(
        model,
        gpu,
        nodes,
        gpus_per_node,
        traffic,
        fabric=fabric,
        rate_s=rate,
        concurrency=concurrency,
        requests=requests,
        slos=slo or (),
        engine=engine,
        attention_backend=attention_backend,
        dtype=dtype,
        kv_dtype=kv_dtype,
        calibration=calibration,
        top=top,
        seed=seed,
    )
    if out is not None:
        answer.write(out)
    print(json.dumps(answer.as_json(), indent=2) if as_json else answer.as_text())
