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
    following: Annotated[bool, typer.Option("--follow", help="Go on until the campaign is over or Ctrl-C.")] = False,
) -> None:
    """Say how far a campaign is; may be asked while it runs."""
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
