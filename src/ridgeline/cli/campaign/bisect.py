from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ridgeline.campaign import asked, check
from ridgeline.cli.campaign import live
from ridgeline.cli.options import takes


@dataclass(frozen=True)
class BisectArguments:
    """The history of a study, its ends, and what is worth finding."""

    study: Annotated[Path, typer.Argument(help="The study file.")]
    over: Annotated[str, typer.Option(help="The knob whose values are the history, in order: releases, commits.")]
    good: Annotated[str | None, typer.Option(help="A value that was fast; the first by default.")] = None
    bad: Annotated[str | None, typer.Option(help="A value that is slow; the last by default.")] = None
    at: Annotated[str, typer.Option(help="Setting of the other knobs: 'knob=value,knob=value', or 'baseline'.")] = (
        "baseline"
    )
    slower: Annotated[float, typer.Option(min=0.1, max=100, help="Slowdown worth finding, in percent.")] = 3.0
    runs: Annotated[int, typer.Option(min=8, help="At most so many runs.")] = 400
    out: Annotated[Path | None, typer.Option(help="Study folder to write; studies/NAME-bisect-KNOB by default.")] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False


@takes(BisectArguments)
def bisect(options: BisectArguments) -> None:
    """Find the change that made a program slower, under noise: which value of an ordered knob.

    Both ends are run again first. Values that cannot be built or run are skipped. Run it again, or `ridgeline resume`
    its folder, to continue after a stop.

    Exit code 0: found. 1: not reproduced here, or an end does not run. 7: not resolved within the runs or the budget.

    Example: ridgeline ci bisect study.yaml --over threads --good 4 --bad 1
    """
    found = check.check_study(options.study)
    live.drive(
        *asked.bisecting(
            found,
            options.over,
            (options.good, options.bad),
            options.at,
            slower=options.slower / 100,
            runs=options.runs,
            out=options.out,
        ),
        options.as_json,
    )
