"""`ridgeline layouts`: which ways of spreading a model over GPUs an engine accepts."""

from __future__ import annotations

import json
from typing import Annotated

import typer


def layouts(
    model: Annotated[str, typer.Option(help="A preset, or the path of a config.json.")],
    gpus: Annotated[int, typer.Option(help="GPUs in all.")],
    gpu: Annotated[str, typer.Option(help="a100, h20, h100, h200, h800, b200, l40s, or one of your own.")] = "h100",
    gpus_per_node: Annotated[int, typer.Option(help="GPUs of one node.")] = 8,
    engine: Annotated[str, typer.Option(help="sglang, or sglang:0.4.10 for the rules of an older one.")] = "sglang",
    dtype: Annotated[str | None, typer.Option(help="Weights: bf16, fp8, int4, ...; default: the config's.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> None:
    """List the legal layouts of a model on GPUs, with what fits in memory, and the reasons against the others.

    Example: ridgeline layouts --model deepseek-r1 --gpus 16 --gpu h200
    """
    from ridgeline.serving.fitting import list_layouts

    listing = list_layouts(model, gpu, gpus, gpus_per_node, engine, dtype)
    print(json.dumps(listing.as_json(), indent=2) if as_json else listing.as_text())
