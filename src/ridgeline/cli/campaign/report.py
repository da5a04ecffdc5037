from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    folder: Annotated[Path, typer.Argument(help="The study folder.")],
    out: Annotated[Path | None, typer.Option(help="File to write; report.html in the folder by default.")] = None,
) -> None:
    """Write the one-page HTML report of a study folder; it needs no network to be read."""
    from ridgeline.report.page import write_report

    print(write_report(folder, out or folder / "report.html"))
