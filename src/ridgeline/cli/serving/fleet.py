"""`ridgeline fleet`: tokens per day and speeds per node, to nodes."""

from __future__ import annotations

from typing import Annotated

import typer

from ridgeline.cli.serving import options as option
from ridgeline.cli.text.json import json_text


def fleet(
    input_tokens_per_day: Annotated[float, typer.Option(help="Prompt tokens per day.")],
    output_tokens_per_day: Annotated[float, typer.Option(help="Generated tokens per day.")],
    prefill_tok_s: Annotated[float, typer.Option(help="Prompt tokens per second and prefill node.")],
    decode_tok_s: Annotated[float, typer.Option(help="Generated tokens per second and decode node.")],
    utilisation: Annotated[float, typer.Option(help="Share of the day that the nodes are this busy.")] = 1.0,
    as_json: option.AsJson = False,
) -> None:
    """Size a fleet: prefill and decode nodes for a day's tokens.

    Example: ridgeline fleet --input-tokens-per-day 608e9 --output-tokens-per-day 168e9 --prefill-tok-s 73.7e3
    --decode-tok-s 14.8e3
    """
    from ridgeline.cli.text.serving.fleet import fleet_text
    from ridgeline.planner.fleet import size_fleet

    answer = size_fleet(input_tokens_per_day, output_tokens_per_day, prefill_tok_s, decode_tok_s, utilisation)
    print(json_text(answer.as_json()) if as_json else fleet_text(answer))
