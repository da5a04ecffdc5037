from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer


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
    from ridgeline.campaign.asked import comparing
    from ridgeline.campaign.check import check_study
    from ridgeline.cli.campaign.live import drive
    from ridgeline.cli.campaign.one_command import KNOB, is_study, study_of_commands
    from ridgeline.errors import InputError

    if is_study([study]) or re.fullmatch(r"baseline|\w+=\S*", b):
        asked = comparing(check_study(Path(study)), b, a, blocks, out)
    elif a != "baseline":
        raise InputError("--a is a setting of a study file; of two commands the first is A")
    elif study == b:
        raise InputError(
            "both commands are the same; to see how much its runs scatter, use `ridgeline ci gate --update`"
        )
    else:
        asked = comparing(study_of_commands([study, b]), {KNOB: b}, blocks=blocks, out=out)
    drive(*asked, as_json)
