"""`ridgeline model`: what a model costs, from its config.json."""

from __future__ import annotations

from typing import Annotated

import typer

from ridgeline.cli.serving import options as option
from ridgeline.cli.text.json import json_text


def model(
    name: Annotated[
        str | None,
        typer.Argument(help="A preset such as deepseek-r1, or the path of a config.json.", show_default=False),
    ] = None,
    dtype: option.Dtype = None,
    kv_dtype: option.KvDtype = None,
    tokens: Annotated[int, typer.Option(help="Length of a prompt, and of a decoding request's context.")] = 1024,
    batch: Annotated[int, typer.Option(help="Requests in a decode step, which share each read of the weights.")] = 64,
    as_json: option.AsJson = False,
) -> None:
    """Show what a model costs: parameters, weights by part, FLOPs and bytes per token, KV bytes per token.

    Without a name, list the presets with their sizes.

    Example: ridgeline model deepseek-r1
    """
    from ridgeline.cli.text.serving.model import costs_text, presets_text
    from ridgeline.model.costs import answer_costs, list_presets

    if name is None:
        presets = list_presets(dtype)
        print(json_text({"models": [one.as_json() for one in presets]}) if as_json else presets_text(presets))
        return
    answer = answer_costs(name, dtype, kv_dtype, tokens, batch)
    print(json_text(answer.as_json()) if as_json else costs_text(answer))
