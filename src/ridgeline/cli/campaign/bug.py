from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ridgeline import files
from ridgeline.campaign import bug as campaign_bug


def bug(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run that failed.")],
    out: Annotated[Path | None, typer.Option(help="File to write; printed by default.")] = None,
) -> None:
    """Write a failed run as a bug report: command, versions, log around the deciding line, what was tried.

    Markdown for an issue tracker, with secrets and home folders masked; read it before you send it.

    Example: ridgeline study bug studies/first/runs/0023-tp8 --out bug.md
    """
    text = campaign_bug.bug_report(*campaign_bug.failed_run(run))
    if out is None:
        print(text, end="")
    else:
        files.write_whole(out, text)
        print(out)
