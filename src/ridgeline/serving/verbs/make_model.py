"""`ridgeline model make`: a model folder of a given shape, with no download."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ridgeline.serving.hardware import cluster
from ridgeline.serving.model import folder as model_folder
from ridgeline.serving.verbs import options as option

if TYPE_CHECKING:
    from ridgeline.serving.model.folder import MadeModel


def make_model(
    shape: Annotated[str, typer.Argument(help="A preset (llama-8b, deepseek-v2-lite, ...) or a config.json.")],
    folder: Annotated[Path, typer.Argument(help="Where to write config.json and the tokenizer.")],
    layers: Annotated[int | None, typer.Option(help="Fewer layers of the same width, for a small machine.")] = None,
    context: Annotated[int | None, typer.Option(help="Context window in tokens [default: the shape's].")] = None,
    as_json: option.AsJson = False,
) -> None:
    """Write a model folder (config.json and a tokenizer) of a given shape, to be started with --load-format dummy.

    Example: ridgeline model make llama-8b models/llama-8b
    """
    made = model_folder.write_model_folder(shape, folder, layers=layers, context_tokens=context)
    print(json.dumps(made.as_json()) if as_json else _folder_text(made))


def _folder_text(made: MadeModel) -> str:
    folder, weights_gib = shlex.quote(str(made.folder)), made.weight_bytes / cluster.GIB
    return "\n".join(
        [
            f"{made.folder}: {made.params / 1e9:.2f}e9 parameters, {weights_gib:.1f} GiB of weights",
            f"  vocabulary {made.vocab}, context {made.context_tokens}; no weights are written. With SGLang or vLLM:",
            f"  python3 -m sglang.launch_server --model-path {folder} --load-format dummy",
            f"  vllm serve {folder} --load-format dummy",
        ]
    )
