from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def best(
    folder: Annotated[Path, typer.Argument(help="The study folder.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Print the answer of a campaign: the setting to paste with its interval, or what else was asked."""
    from ridgeline.campaign.status import read_answer
    from ridgeline.cli.text.answer import answer_lines, yaml_lines

    answer, exhibits = read_answer(folder)
    if as_json:
        print(json.dumps(answer.as_json(), indent=1))
        return
    print(*answer_lines(answer, exhibits), sep="\n")
    if answer.offers and answer.candidate is not None:
        print("", *yaml_lines(answer.candidate), sep="\n")
