"""`ridgeline plan fleet`: tokens per day and speeds per node, to nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ridgeline.cli.text.table import json_text
from ridgeline.serving.planner import fleet as planner_fleet
from ridgeline.serving.verbs import options as option

if TYPE_CHECKING:
    from ridgeline.serving.planner.fleet import Fleet


def fleet(
    input_tokens_per_day: Annotated[float, typer.Option(help="Prompt tokens per day.")],
    output_tokens_per_day: Annotated[float, typer.Option(help="Generated tokens per day.")],
    prefill_tok_s: Annotated[float, typer.Option(help="Prompt tokens per second of one prefill node.")],
    decode_tok_s: Annotated[float, typer.Option(help="Generated tokens per second of one decode node.")],
    utilisation: Annotated[float, typer.Option(help="Share of the day that the nodes are this busy.")] = 1.0,
    as_json: option.AsJson = False,
) -> None:
    """Size a fleet: prefill and decode nodes for a day's tokens.

    Example: ridgeline plan fleet --input-tokens-per-day 608e9 --output-tokens-per-day 168e9 --prefill-tok-s 73.7e3
    --decode-tok-s 14.8e3
    """
    answer = planner_fleet.size_fleet(
        input_tokens_per_day, output_tokens_per_day, prefill_tok_s, decode_tok_s, utilisation
    )
    print(json_text(answer.as_json()) if as_json else _fleet_text(answer))


def _fleet_text(fleet: Fleet) -> str:
    ratio = fleet.decode_per_prefill
    whole = f"{fleet.prefill_whole} + {fleet.decode_whole} = {fleet.prefill_whole + fleet.decode_whole}"
    return "\n".join(
        [
            f"prefill {fleet.prefill_nodes:8.1f} nodes",
            f"decode  {fleet.decode_nodes:8.1f} nodes" + ("" if ratio is None else f"   {ratio:.2f} per prefill node"),
            f"in all  {fleet.total_nodes:8.1f} nodes   averaged over the day; whole: {whole}",
        ]
    )
