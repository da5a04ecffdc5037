"""`ridgeline model show`, `list` and `make`: what models cost, from their config.json; a folder with no download."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ridgeline.cli.text.table import json_text
from ridgeline.serving.hardware import cluster
from ridgeline.serving.model import costs as model_costs
from ridgeline.serving.model import folder as model_folder
from ridgeline.serving.verbs import options as option

if TYPE_CHECKING:
    from ridgeline.serving.model.costs import ModelCosts
    from ridgeline.serving.model.folder import MadeModel
    from ridgeline.serving.model.model import Model


def show(
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

    Without a name, what `ridgeline model list` prints.

    Example: ridgeline model show deepseek-r1
    """
    if name is None:  # `ridgeline model` of 0.2
        list_models(dtype, as_json)
        return
    answer = model_costs.answer_costs(name, dtype, kv_dtype, tokens, batch)
    print(json_text(answer.as_json()) if as_json else _costs_text(answer))


def list_models(dtype: option.Dtype = None, as_json: option.AsJson = False) -> None:
    """List the models whose shape is known, with their parameters and the size of their weights.

    Example: ridgeline model list
    """
    presets = model_costs.list_presets(dtype)
    print(json_text({"models": [_size_json(m) for m in presets]}) if as_json else _presets_text(presets))


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


def _costs_text(costs: ModelCosts) -> str:
    m, tokens, batch = costs.model, costs.tokens, costs.batch
    mixture = f", {m.experts.per_token} of {m.experts.count} experts a token" if m.experts else ""
    parts = sorted(m.weight_bytes_by_part().items(), key=lambda part: -part[1])
    return "\n".join(
        [
            f"{m.name}: {m.layers} layers, {costs.attention}{mixture}, context {m.context_tokens:,}",
            *(f"  {text}" for text in m.assumed),
            "",
            f"  parameters   {m.params / 1e9:10.2f} e9      {m.active_params / 1e9:.2f} e9 used by each token",
            f"  weights      {m.weight_bytes / cluster.GIB:10.2f} GiB     {_dtypes(costs)}",
            *(f"    {name:<15}{size / cluster.GIB:10.3f}" for name, size in parts),
            f"  KV cache     {m.kv_bytes_per_token / 1024:10.2f} KiB a token, {m.kv_dtype}",
            *_kept(costs),
            f"  prefill      {m.prefill_flops(tokens) / tokens / 1e9:10.2f} GFLOP and "
            f"{m.prefill_bytes(tokens) / tokens / 1e6:,.1f} MB a token, prompt of {tokens:,}",
            f"  decode       {m.decode_flops(tokens) / 1e9:10.2f} GFLOP and "
            f"{m.decode_bytes(batch, tokens) / batch / 1e6:,.1f} MB a token, {batch:,} requests of {tokens:,}",
            *(f"  not in these figures: {note}" for note in m.notes),
        ]
    )


def _presets_text(presets: Sequence[Model]) -> str:
    width = max(len(m.name) for m in presets)
    lines = [f"{'model':<{width}}  {'parameters':>10}  {'active':>8}  {'weights':>10}  dtype"]
    for m in presets:
        sizes = f"{m.params / 1e9:8.1f} B  {m.active_params / 1e9:6.1f} B  {m.weight_bytes / cluster.GIB:6.1f} GiB"
        lines.append(f"{m.name:<{width}}  {sizes}  {m.weights_dtype}")
    return "\n".join(
        [*lines, "", "`ridgeline model show NAME` shows one in detail; NAME may also be the path of a config.json."]
    )


def _size_json(m: Model) -> dict[str, object]:
    return {
        "name": m.name,
        "parameters": m.params,
        "active_parameters": m.active_params,
        "weight_bytes": m.weight_bytes,
        "dtype": m.weights_dtype,
    }


def _dtypes(costs: ModelCosts) -> str:
    m = costs.model
    attention = m.attention_dtype or m.dtype
    return m.weights_dtype if attention == m.weights_dtype else f"{m.weights_dtype}, attention {attention}"


def _kept(costs: ModelCosts) -> list[str]:
    """What a request keeps besides what grows with it, and where layers differ each kind of them."""
    m = costs.model
    lines = [f"  windows      {w * size / 2**20:10.2f} MiB a request, {w:,} tokens at most" for w, size in m.window_kv]
    if m.state_bytes_per_request:
        lines.append(f"  states       {m.state_bytes_per_request / 2**20:10.2f} MiB a request, however long")
    if m.mixers:
        lines += [f"    {kind['layers']:>3} layers     {kind['kind']}" for kind in costs.layer_kinds]
    return lines
