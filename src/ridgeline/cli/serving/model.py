"""`ridgeline model`: what a model costs, from its config.json."""

from __future__ import annotations

from typing import Annotated

import typer

from ridgeline.cli.serving import options as option
from ridgeline.cli.text.json import json_text


def model(
    name: Annotated[str, typer.Argument(help="A preset such as deepseek-r1, or the path of a config.json.")],
    dtype: option.Dtype = None,
    kv_dtype: option.KvDtype = None,
    tokens: Annotated[int, typer.Option(help="Length of a prompt, and of what a decoding request holds.")] = 1024,
    batch: Annotated[
        int, typer.Option(help="Requests of a decode step, which share what is read of the weights.")
    ] = 64,
    as_json: option.AsJson = False,
) -> None:
    """Say what a model costs: parameters, weights by part, FLOPs and bytes per token, KV bytes per token.

    Example: ridgeline model deepseek-r1
    """
    from ridgeline.cli.text.serving.model import costs_text
    from ridgeline.model.costs import answer_costs

    answer = answer_costs(name, dtype, kv_dtype, tokens, batch)
    print(json_text(answer.as_json()) if as_json else costs_text(answer))
