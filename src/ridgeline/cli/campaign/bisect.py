from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def bisect(
    study: Annotated[Path, typer.Argument(help="The study file.")],
    over: Annotated[
        str | None, typer.Option(help="The knob whose values are the history, in order: releases, commits.")
    ] = None,
    between: Annotated[
        tuple[Path, Path] | None,
        typer.Option(
            metavar="GOOD BAD",
            help="Instead of --over: what `env` printed on a fast and on a slow host; finds the variables that matter.",
        ),
    ] = None,
    good: Annotated[str | None, typer.Option(help="A value that was fast; the first by default.")] = None,
    bad: Annotated[str | None, typer.Option(help="A value that is slow; the last by default.")] = None,
    at: Annotated[
        str, typer.Option(help="Setting of the other knobs: 'knob=value,knob=value', or 'baseline'.")
    ] = "baseline",
    slower: Annotated[float, typer.Option(min=0.1, max=100, help="Slowdown worth finding, in percent.")] = 3.0,
    runs: Annotated[int, typer.Option(min=8, help="At most so many runs.")] = 400,
    out: Annotated[
        Path | None, typer.Option(help="Study folder to write; studies/NAME-bisect-KNOB or -environment by default.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Find the change that made a program slower: which value of an ordered knob, or which variables of a slow host's
    environment, under noise.

    Both ends are run again first. Values that cannot be built or run are skipped. Run it again, or `ridgeline resume`
    its folder, to continue after a stop.

    Exit code 0: found. 1: not reproduced here, or an end does not run. 7: not resolved within the runs or the budget.

    Example: ridgeline ci bisect study.yaml --over threads --good 4 --bad 1
    """
    from ridgeline.campaign.asked import bisecting
    from ridgeline.campaign.check import check_study
    from ridgeline.cli.campaign.live import drive

    asked = bisecting(
        check_study(study), over, good=good, bad=bad, between=between, at=at, slower=slower / 100, runs=runs, out=out
    )
    drive(*asked, as_json)
