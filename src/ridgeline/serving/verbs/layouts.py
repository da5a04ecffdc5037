"""`ridgeline plan layouts`: which ways of spreading a model over GPUs an engine accepts."""

from __future__ import annotations

from typing import Annotated

import typer

from ridgeline.cli.text.table import json_text
from ridgeline.errors import NothingFound
from ridgeline.serving.engines import fitting
from ridgeline.serving.engines.releases import USUAL_ENGINE
from ridgeline.serving.verbs import memory
from ridgeline.serving.verbs import options as option


def layouts(
    model: option.ModelName,
    gpus: Annotated[int, typer.Option(help="GPUs in all.")],
    gpu: option.GpuName = "h100",
    gpus_per_node: option.GpusPerNode = 8,
    engine: option.EngineName = USUAL_ENGINE,
    dtype: option.Dtype = None,
    as_json: option.AsJson = False,
) -> None:
    """List the legal layouts of a model on GPUs, whether each fits in memory, and why the others are ruled out.

    Exit code 1: none of them fits.

    Example: ridgeline plan layouts --model deepseek-r1 --gpus 16 --gpu h200
    """
    listing = fitting.list_layouts(model, gpu, gpus, gpus_per_node, engine, dtype)
    print(json_text(listing.as_json()) if as_json else memory.layouts_text(listing), flush=True)
    if not any(plan.fits for _, plan in listing.rows):
        raise NothingFound(f"no legal layout of {model} fits {gpus} x {gpu}; use more GPUs, or larger ones")
