"""`ridgeline make-model`: a model folder of a given shape, with no download."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ridgeline.cli.serving import options as option


def make_model(
    shape: Annotated[str, typer.Argument(help="A preset (llama-8b, deepseek-v2-lite, ...) or a config.json.")],
    folder: Annotated[Path, typer.Argument(help="Where to write config.json and the tokenizer.")],
    layers: Annotated[int | None, typer.Option(help="Fewer layers of the same width, for a small machine.")] = None,
    context: Annotated[int | None, typer.Option(help="Context window in tokens [default: the shape's].")] = None,
    as_json: option.AsJson = False,
) -> None:
    """Write a model folder (config.json and a tokenizer) of a given shape, to be started with --load-format dummy.

    Example: ridgeline make-model llama-8b models/llama-8b
    """
    from ridgeline.cli.serving.model import folder_text
    from ridgeline.model.folder import write_model_folder

    made = write_model_folder(shape, folder, layers=layers, context_tokens=context)
    print(json.dumps(made.as_json()) if as_json else folder_text(made))
