from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ridgeline.campaign import asked as campaign_asked
from ridgeline.campaign import check
from ridgeline.cli.campaign import live
from ridgeline.cli.options import takes


@dataclass(frozen=True)
class EdgeArguments:
    """A knob of a study, and how sure its edge is to be."""

    study: Annotated[Path, typer.Argument(help="The study file.")]
    knob: Annotated[str, typer.Option(help="The knob to raise, such as mem_fraction_static.")]
    at: Annotated[str, typer.Option(help="Setting of the other knobs: 'knob=value,knob=value', or 'baseline'.")] = (
        "baseline"
    )
    repeats: Annotated[int, typer.Option(min=1, help="Runs that must pass at the edge.")] = 3
    margin: Annotated[
        float, typer.Option(min=0, max=0.9, help="How far below the edge to stay in production, as a share of it.")
    ] = 0.03
    fails: Annotated[
        float | None,
        typer.Option(help="Run the value for production until at most this share of its runs fails, such as 0.1."),
    ] = None
    out: Annotated[Path | None, typer.Option(help="Study folder to write; studies/NAME-edge-KNOB by default.")] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False


@takes(EdgeArguments)
def edge(options: EdgeArguments) -> None:
    """Find the largest value of a knob that passes, with few crashes, and the value to use in production.

    Runs of the value for production show how often it fails at most: 3 leave two thirds open, 31 one in ten.

    Run it again, or `ridgeline resume` its folder, to continue after a stop.

    Exit code 1: no value passed, or the budget ended before the edge was found.

    Example: ridgeline study edge study.yaml --knob threads --repeats 2
    """
    asked = campaign_asked.edge_of(
        check.check_study(options.study),
        options.knob,
        options.at,
        repeats=options.repeats,
        margin=options.margin,
        fails=options.fails,
        out=options.out,
    )
    live.drive(*asked, options.as_json)
