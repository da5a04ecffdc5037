"""`ridgeline explain`: where one iteration's time goes."""

from __future__ import annotations

from typing import Annotated

import typer

from ridgeline.cli.serving import options as option
from ridgeline.cli.text.json import json_text


@option.takes(option.DeploymentArguments)
def explain(
    arguments: option.DeploymentArguments,
    batch: Annotated[int, typer.Option(help="Requests in the decode step.")] = 128,
    context: Annotated[int, typer.Option(help="Cached tokens per request.")] = 500,
    prompt: Annotated[int, typer.Option(help="Tokens of each prompt in the prefill round.")] = 300,
    calibration: option.CalibrationFile = None,
    as_json: option.AsJson = False,
) -> None:
    """Break a decode step and a prefill round down into their terms, and say what bounds each.

    Example: ridgeline explain --model deepseek-r1 --gpu h200 --nodes 2 --tp 16 --batch 512 --context 450
    """
    from ridgeline.cli.text.serving.explain import explanation_text
    from ridgeline.twin.calibration import read_calibration
    from ridgeline.twin.explain import explain as answer

    deployment = arguments.deployment()
    found = answer(deployment, batch, context, prompt, read_calibration(calibration) if calibration else None)
    if as_json:
        print(json_text({"deployment": str(deployment), "steps": [e.as_json() for e in found]}))
    else:
        print("\n\n".join([str(deployment), *map(explanation_text, found)]))
