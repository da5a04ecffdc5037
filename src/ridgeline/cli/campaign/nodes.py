from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def nodes(
    folder: Annotated[Path, typer.Argument(help="The study folder.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """List nodes that are measurably slower or faster than their peers, with confidence intervals and evidence.

    Where the runs don't allow a conclusion, it says so and what is missing. Works while the campaign runs, too.

    Example: ridgeline nodes studies/first
    """
    from dataclasses import asdict

    from ridgeline.campaign.scores import effects_of_nodes
    from ridgeline.campaign.status import read_status
    from ridgeline.campaign.verdict import goal_text
    from ridgeline.cli.text.site import node_lines

    now = read_status(folder)
    effects = effects_of_nodes(now.study, now.history)
    if as_json:
        print(json.dumps({"metric": now.study.goal.metric, "nodes": [asdict(e) for e in effects]}, indent=1))
    else:
        print(*node_lines(effects, goal_text(now.study, now.history), now.study.search.sentinel_every), sep="\n")
