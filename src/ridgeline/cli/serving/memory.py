"""`ridgeline memory`: does this model fit these GPUs, and how many tokens of KV cache are left."""

from __future__ import annotations

from ridgeline.cli.serving import options as option
from ridgeline.cli.text.json import json_text


@option.takes(option.EngineArguments)
def memory(arguments: option.EngineArguments, as_json: option.AsJson = False) -> None:
    """Check whether a model fits a layout of GPUs: KV pool, largest batch, margin.

    Example: ridgeline memory --model deepseek-r1 --gpu h100 --nodes 2 --gpus-per-node 8 --tp 16
    """
    from ridgeline.cli.text.serving.memory import memory_text
    from ridgeline.engines.fitting import answer_memory

    layout = arguments.layout(whole_nodes=False)
    answer = answer_memory(
        arguments.model, arguments.gpu, layout, arguments.settings(), arguments.dtype, arguments.kv_dtype
    )
    print(json_text(answer.as_json()) if as_json else memory_text(answer))
