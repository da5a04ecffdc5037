from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def compare(
    study: Annotated[Path, typer.Argument(help="The study file.")],
    b: Annotated[str, typer.Argument(metavar="B", help="Setting B: 'knob=value,knob=value' changes A, or 'baseline'.")],
    a: Annotated[str, typer.Option("--a", help="Setting A; the study's baseline by default.")] = "baseline",
    blocks: Annotated[int | None, typer.Option(min=3, help="Interleaved ABBA blocks.")] = None,
    out: Annotated[Path | None, typer.Option(help="Study folder to write.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Compare two settings of a study in fresh, interleaved runs and give a verdict with an interval.

    Exit code 0: B is better. 1: no detectable difference. 6: B is worse. 7: too few runs to judge.

    Example: ridgeline compare study.yaml threads=4
    """
    from ridgeline.campaign.assembly import assemble_next_folder
    from ridgeline.campaign.check import check_study
    from ridgeline.campaign.kinds.compare import comparison
    from ridgeline.cli.campaign.live import drive

    found = check_study(study)
    question = comparison(found, a, b, blocks)
    drive(assemble_next_folder(found, out, f"{found.study.name}-compare", question), question, as_json)
