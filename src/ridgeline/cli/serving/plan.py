"""`ridgeline plan`: the best ways to serve a model on given GPUs."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ridgeline.cli.serving import options as option
from ridgeline.cli.text.json import json_text
from ridgeline.errors import InputError

if TYPE_CHECKING:
    from ridgeline.planner.planner import Plan


def plan(
    model: option.ModelName,
    gpu: option.GpuName,
    nodes: Annotated[int, typer.Option(help="Nodes to plan for.")] = 1,
    gpus_per_node: option.GpusPerNode = 8,
    fabric: option.Fabric = None,
    traffic: option.TrafficText = "sharegpt",
    rate: Annotated[
        float | None, typer.Option(help="Requests per second; default: the highest within the limits.")
    ] = None,
    concurrency: Annotated[int | None, typer.Option(help="Requests at once, instead of a rate.")] = None,
    requests: Annotated[int | None, typer.Option(help="Requests in a run without rate or limits.")] = None,
    slo: option.Slos = None,
    engine: option.EngineName = "sglang",
    attention_backend: option.AttentionBackend = None,
    dtype: option.Dtype = None,
    kv_dtype: option.KvDtype = None,
    calibration: option.CalibrationFile = None,
    top: Annotated[int, typer.Option(help="How many choices to show.")] = 8,
    layout: Annotated[
        list[str] | None, typer.Option(help="Try and show this one too, such as P3x3D4 or 'tp 16 dp 2'; repeatable.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the traffic.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder for the commands and study file of each choice.")] = None,
    deploy: Annotated[
        Path | None, typer.Option(help="File for the first choice as `ridgeline deploy` reads it.")
    ] = None,
    gpu_hour: Annotated[
        float | None,
        typer.Option(help="Price of a GPU in dollars an hour, to get dollars per million tokens.", min=0.0),
    ] = None,
    verdict: Annotated[bool, typer.Option("--verdict", help="Only say whether to split prefill from decode.")] = False,
    as_json: option.AsJson = False,
) -> None:
    """Rank layouts for a model, GPUs, traffic and limits, with commands that start them and a study that checks them.

    With --rate the fewest GPUs that keep every limit come first, else the most requests per second. --out DIR writes
    commands.txt and study.yaml for each choice.

    Example: ridgeline plan --model deepseek-r1 --gpu h200 --nodes 2 --traffic fixed:313:194 --slo ttft_p95_ms=2000
    --slo itl_p95_ms=50
    """
    from ridgeline.planner.planner import answer_plan

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
        named=layout or (),
        seed=seed,
    )
    _write("--out", out, answer, _write_folder)
    print(_shown(answer, verdict, as_json, gpu_hour), flush=True)
    _write("--deploy", deploy, answer, _write_service)


def _shown(answer: Plan, verdict: bool, as_json: bool, gpu_hour: float | None) -> str:
    from ridgeline.cli.text.serving.plan import plan_text
    from ridgeline.cli.text.serving.verdict import verdict_text
    from ridgeline.service.from_plan import plan_json

    if gpu_hour is not None and not gpu_hour < math.inf:
        raise InputError(f"--gpu-hour {gpu_hour:g} is not a price; give dollars an hour, such as 2.5")
    if as_json:
        return json_text(answer.verdict.as_json() if verdict else plan_json(answer))
    return verdict_text(answer) if verdict else plan_text(answer, gpu_hour)


def _write(name: str, path: Path | None, answer: Plan, write: Callable[[Path, Plan], None]) -> None:
    if path is None:
        return
    try:
        write(path, answer)
    except OSError as error:
        raise InputError(
            f"{name} {path}: cannot be written ({error.strerror}); name a place that you may write"
        ) from None


def _write_folder(path: Path, answer: Plan) -> None:
    from ridgeline.service.from_plan import write_plan

    write_plan(answer, path)


def _write_service(path: Path, answer: Plan) -> None:
    from ridgeline.files import write_whole
    from ridgeline.service.from_plan import deployable_text

    write_whole(path, deployable_text(answer, path.name))
