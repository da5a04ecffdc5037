from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from ridgeline.campaign import asked as campaign_asked
from ridgeline.campaign import check
from ridgeline.cli.campaign import live, one_command
from ridgeline.errors import InputError


def compare(
    study: Annotated[str, typer.Argument(metavar="STUDY|'COMMAND A'", help="The study file; or a command to time.")],
    b: Annotated[
        str,
        typer.Argument(
            metavar="B", help="Setting B: 'knob=value,knob=value' changes A, or 'baseline'. Or the other command."
        ),
    ],
    a: Annotated[str, typer.Option("--a", help="Setting A; the study's baseline by default.")] = "baseline",
    blocks: Annotated[int | None, typer.Option(min=3, help="Blocks of interleaved runs.")] = None,
    out: Annotated[Path | None, typer.Option(help="Study folder to write.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Compare two settings of a study, or two commands, in fresh, interleaved runs and give a verdict with an interval.

    Commands run in this folder and are compared by wall time: ridgeline compare './old in.txt' './new in.txt'

    Exit code 0: B is better. 1: no detectable difference. 6: B is worse. 7: too few runs to judge.

    Example: ridgeline compare study.yaml threads=4
    """
    if one_command.is_study([study]) or re.fullmatch(r"baseline|\w+=\S*", b):
        asked = campaign_asked.comparing(check.check_study(Path(study)), b, a, blocks, out)
    elif a != "baseline":
        raise InputError("--a is a setting of a study file; of two commands the first is A")
    elif study == b:
        raise InputError(
            "both commands are the same; to see how much its runs scatter, use `ridgeline ci gate --update`"
        )
    else:
        asked = campaign_asked.comparing(
            one_command.study_of_commands([study, b]), {one_command.KNOB: b}, blocks=blocks, out=out
        )
    live.drive(*asked, as_json)
