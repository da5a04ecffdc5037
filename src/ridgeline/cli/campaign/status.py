from __future__ import annotations

import gc
import json
import time
from pathlib import Path
from typing import Annotated

import typer

from ridgeline.errors import InputError


def status(
    folder: Annotated[Path, typer.Argument(help="The study folder.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
    following: Annotated[
        bool, typer.Option("--follow", help="Keep the screen up to date until the campaign ends or Ctrl-C.")
    ] = False,
) -> None:
    """Show how far a campaign has got, while it runs or afterwards.

    Example: ridgeline status studies/first --follow
    """
    if following:
        if as_json:
            raise InputError("--follow and --json do not go together; watch the journal itself with `tail -f`")
        from ridgeline.cli.campaign.follow import follow

        follow(folder)
        return
    from ridgeline.campaign.status import read_status
    from ridgeline.cli.text.wording import status_lines

    now = read_status(folder)
    gc.freeze()  # a long history is no garbage: looking through it again and again takes longer than the answer
    print(json.dumps(now.as_json(), indent=1) if as_json else "\n".join(status_lines(now, time.time())))
