from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    folder: Annotated[Path, typer.Argument(help="The study folder.")],
    out: Annotated[Path | None, typer.Option(help="File to write; report.html in the folder by default.")] = None,
) -> None:
    """Write the one-page HTML report of a study folder; it needs no network to be read."""
    from ridgeline.campaign.status import answer_on_paper, read_status
    from ridgeline.report.page import write_report

    now = read_status(folder)
    print(write_report(now.study, now.history, answer_on_paper(now), now.exhibits, out or folder / "report.html"))
