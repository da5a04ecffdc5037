from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def verify(
    folder: Annotated[Path, typer.Argument(help="The study folder.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Work out every number of a study folder again, from its journal and the files of its runs.

    Leaves with 1 when something does not match. What cannot be checked is listed and is no failure.
    """
    from ridgeline.campaign.verify.folder import verify_folder
    from ridgeline.cli.text.json import json_text
    from ridgeline.cli.text.verify import verification_lines
    from ridgeline.errors import ExitCode

    found = verify_folder(folder)
    print(json_text(found.as_json()) if as_json else "\n".join(verification_lines(found)))
    if not found.holds:
        raise typer.Exit(ExitCode.NOTHING_BETTER)
