from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def resume(
    folder: Annotated[Path, typer.Argument(help="The study folder that `tune` wrote.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Go on with a campaign that was stopped or killed; a finished one shows its answer again."""
    from ridgeline.cli.campaign.live import drive
    from ridgeline.store.folder import StudyFolder

    drive(StudyFolder.open(folder), None, as_json)
