from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ridgeline.campaign import asked, check
from ridgeline.cli.campaign import live


def scale(
    study: Annotated[Path, typer.Argument(help="The study file.")],
    over: Annotated[
        str | None,
        typer.Option(
            help="The knob to scale; default: the first of nodes, ranks_per_node, ranks and threads that the study has."
        ),
    ] = None,
    at: Annotated[
        str, typer.Option(help="Setting of the other knobs: 'knob=value,knob=value', or 'baseline'.")
    ] = "baseline",
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each size, interleaved.")] = 3,
    out: Annotated[Path | None, typer.Option(help="Study folder to write.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Run one setting on 1..n ranks, nodes or threads: speed-up, parallel efficiency, and where more stops paying off.

    Exit code 0: shown. 1: fewer than two sizes passed. 7: too few runs to tell whether more pays.

    Example: ridgeline study scale study.yaml --over threads
    """
    live.drive(*asked.scaling(check.check_study(study), over, at, repeats, out), as_json)
