from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def best(
    folder: Annotated[Path, typer.Argument(help="The study folder.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Print the setting to paste, with its interval: the confirmed winner, else the best of the search so far."""
    from ridgeline.campaign.answer import read_answer
    from ridgeline.cli.text.scaling import scaling_lines
    from ridgeline.cli.text.wording import answer_lines

    answer = read_answer(folder)
    if as_json:
        print(json.dumps(answer.as_json(), indent=1))
    else:
        scaled = answer.verdict == "scaling"
        print(*(scaling_lines(answer.standing["verdict"]) if scaled else answer_lines(answer)), sep="\n")
