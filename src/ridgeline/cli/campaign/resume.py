from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ridgeline.campaign import extension
from ridgeline.cli.campaign import live
from ridgeline.study import folder as study_folder


def resume(
    folder: Annotated[Path, typer.Argument(help="The study folder that `tune` wrote.")],
    trials: Annotated[
        str | None, typer.Option(metavar="+N", help="Extend a finished campaign by this many search trials.")
    ] = None,
    blocks: Annotated[
        str | None, typer.Option(metavar="+N", help="Extend a finished campaign by this many interleaved blocks.")
    ] = None,
    wall: Annotated[
        str | None, typer.Option(metavar="+TIME", help="Add this to `budget.wall`. Alone: to finish the confirmation.")
    ] = None,
    node_hours: Annotated[
        str | None, typer.Option(metavar="+N", help="Add this to `budget.node_hours`, as with --wall.")
    ] = None,
    why: Annotated[bool, typer.Option("--why", help="Also print why each trial was chosen.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Continue a campaign that was stopped or killed, or extend a finished one.

    Without options, a finished campaign prints its answer again. One that ended without a verdict prints the command
    that would lead to one.

    Example: ridgeline resume studies/first --blocks +2
    """
    live.drive(
        study_folder.StudyFolder.open(folder),
        None,
        as_json,
        extension.parse_extension(trials, blocks, wall, node_hours),
        why,
    )
