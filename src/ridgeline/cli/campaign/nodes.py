from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ridgeline.campaign import scores, status, verdict
from ridgeline.errors import CannotJudge
from ridgeline.report import insights
from ridgeline.stats import nodes as stats_nodes
from ridgeline.stats import wording

if TYPE_CHECKING:
    from ridgeline.stats.nodes import NodeEffect
    from ridgeline.stats.wording import MetricText


def nodes(
    folder: Annotated[Path, typer.Argument(help="The study folder.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """List nodes that are measurably slower or faster than their peers, with confidence intervals and evidence.

    Where the runs don't allow a conclusion, it says so and what is missing (exit code 7). Works while the campaign
    runs, too.

    Example: ridgeline study nodes studies/first
    """
    now = status.read_status(folder)
    effects = scores.effects_of_nodes(now.study, now.history)
    if as_json:
        print(json.dumps({"metric": now.study.goal.metric, "nodes": [asdict(e) for e in effects]}, indent=1))
    else:
        goal = verdict.goal_text(now.study, now.history)
        print("\n".join(_node_lines(effects, goal, now.study.search.sentinel_every)), flush=True)
    if len(effects) < 2 or all(effect.verdict == "undecided" for effect in effects):
        raise CannotJudge(f"{folder}: its runs don't show whether a node is slow")


def _node_lines(effects: Sequence[NodeEffect], goal: MetricText, sentinel_every: int) -> Iterable[str]:
    """Nodes unlike their peers first, then those like them, then those that cannot be judged."""
    if not effects:
        yield "can't judge: no good run recorded its node"
        return
    if len(effects) == 1:
        only = effects[0]
        yield f"can't judge: all {only.runs} good runs were on {only.node}, and a node is judged by its peers"
        return
    unlike = [effect for effect in effects if effect.verdict in ("slow", "fast")]
    usual = [effect for effect in effects if effect.verdict == "usual"]
    unknown = [effect for effect in effects if effect.verdict == "undecided"]
    yield from (f"{insights.node_text(effect, goal)}: {effect.evidence}" for effect in unlike)
    if usual:
        if not unlike:
            yield f"no node is shown to be slower or faster than its peers ({wording.count(len(usual), 'node')} judged)"
        yield from (f"  {effect}: {effect.evidence}" for effect in usual)
    for group in dict.fromkeys(tuple(sorted((e.node, *e.together))) for e in unknown if e.together):
        yield (
            f"can't separate {' from '.join(group)}: all runs that count used {'both' if len(group) == 2 else 'all'}; "
            "a job on one of them and another node would show it"
        )
    if alone := [effect for effect in unknown if not effect.together]:
        names = ", ".join(f"{effect.node} ({wording.count(effect.runs, 'run')})" for effect in alone)
        yield f"can't judge: {names}; {_missing(alone, sentinel_every)}"


def _missing(unknown: Sequence[NodeEffect], sentinel_every: int) -> str:
    if any(effect.runs < stats_nodes.FEWEST_RUNS for effect in unknown):
        return f"a node is judged by {stats_nodes.FEWEST_RUNS} runs there and {stats_nodes.FEWEST_RUNS} elsewhere"
    if not sentinel_every:
        return "settings hardly repeat; let sentinel_every in the study's search stage be above 0"
    return "too few runs of the same setting on different nodes"
