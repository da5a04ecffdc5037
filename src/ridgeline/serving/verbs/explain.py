"""`ridgeline twin explain`: where one iteration's time goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ridgeline.cli.text.table import json_text
from ridgeline.serving.twin import explain as twin_explain
from ridgeline.serving.verbs import options as option

if TYPE_CHECKING:
    from ridgeline.serving.twin.explain import Explanation


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

    Example: ridgeline twin explain --model deepseek-r1 --gpu h200 --nodes 2 --tp 16 --batch 512 --context 450
    """
    deployment = arguments.deployment()
    found = twin_explain.explain(deployment, batch, context, prompt, option.fitted(calibration))
    if as_json:
        print(json_text({"deployment": str(deployment), "steps": [e.as_json() for e in found]}))
    else:
        print("\n\n".join([str(deployment), *map(_explanation_text, found)]))


_REMEDIES = {
    "compute": "faster tensor cores, a smaller dtype, or more GPUs",
    "memory": "more memory bandwidth, a smaller dtype, or more GPUs that share the weights",
    "network": "fewer ranks that must talk, a faster fabric, or attention DP and pipeline stages instead of TP",
    "latency": "fewer, larger kernels; larger batches use the same gaps better",
    "host": "a larger --cuda-graph-max-bs, smaller batches per rank, or a faster CPU",
}


def _explanation_text(step: Explanation) -> str:
    kind = "cached" if step.phase == "decode" else "new"
    lines = [f"{step.phase}   {step.seconds * 1000:.2f} ms   {step.batch:,} requests, {step.tokens:,} {kind} tokens"]
    for t in sorted(step.terms, key=lambda t: -t.seconds):
        if t.seconds > 0:
            lines.append(f"  {t.seconds * 1000:10.3f} ms  {t.seconds / step.seconds:4.0%}  {t.name:<44} {t.bound}")
    return "\n".join([*lines, f"  mostly {step.bound}: {_REMEDIES[step.bound]}"])
