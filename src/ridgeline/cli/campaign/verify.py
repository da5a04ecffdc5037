from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def verify(
    folder: Annotated[Path, typer.Argument(help="The study folder.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Recompute every number of a study folder from its journal and the files of its runs; list what differs.

    Exit code 1: something differs. What can't be checked is listed, and doesn't count as a difference.

    Example: ridgeline verify studies/first
    """
    from ridgeline.campaign.verify.folder import verify_folder
    from ridgeline.cli.text.json import json_text
    from ridgeline.cli.text.verify import verification_lines
    from ridgeline.errors import ExitCode

    found = verify_folder(folder)
    print(json_text(found.as_json()) if as_json else "\n".join(verification_lines(found)))
    if not found.holds:
        raise typer.Exit(ExitCode.NOTHING_BETTER)
