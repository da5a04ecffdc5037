"""Where the baseline should be run next, so that a slow node is told from a slow setting with the fewest runs.

Settings of a search hardly repeat, so it is runs of one setting that tell nodes apart. One run on each node shows whom
to suspect; a few more on the suspect settle it. Nodes that look like their peers cost nothing beyond that one run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ridgeline.stats.compare import Direction
from ridgeline.stats.nodes import NodeEffect, NodeRun

SUSPICIOUS = 0.97  # of its peers' speed; a node that is less slow than this is not worth a run
MOST_LOOKS = 4  # runs of the baseline on a suspect before its peers are looked at again
MOST_MORE = 8  # runs of the baseline beyond one a node; what is not settled by then is small, or the machine is noisy


@dataclass(frozen=True, slots=True)
class Look:
    """Where to run the baseline next; `urgent` where that is worth a run of its own and cannot wait for the next
    sentinel."""

    nodes: tuple[str, ...]
    urgent: bool = False


def next_look(
    runs: Sequence[NodeRun],
    baseline: str,
    effects: Sequence[NodeEffect],
    width: int,
    direction: Direction,
) -> Look:
    """`runs` are all good runs so far, `baseline` is its setting, `width` the nodes of one job.

    No nodes: there is nothing to choose between, or fewer nodes were seen than a job takes.
    """
    seen = sorted({node for run in runs for node in run.nodes})
    if len(seen) <= width:
        return Look(())
    repeats = [run for run in runs if run.setting == baseline]
    times = {node: sum(node in run.nodes for run in repeats) for node in seen}
    speeds = _speeds(repeats, seen, direction)
    known = {effect.node: effect for effect in effects}
    new = [node for node in seen if not times[node]]
    suspects = [node for node in seen if speeds[node] < SUSPICIOUS and not _settled(known.get(node))]
    if len(repeats) >= len(seen) + MOST_MORE:
        suspects = []
    open_ = [node for node in suspects if times[node] < MOST_LOOKS]
    first = new[0] if new else min(open_ or seen, key=lambda node: (speeds[node] if open_ else times[node], node))
    company = sorted((node for node in seen if node != first), key=lambda node: (node in suspects, times[node], node))
    return Look(tuple(sorted([first, *company[: width - 1]])), bool(new or suspects))


def _settled(effect: NodeEffect | None) -> bool:
    return effect is not None and (effect.verdict == "slow" or (effect.low or 0.0) > SUSPICIOUS)


def _speeds(repeats: Sequence[NodeRun], nodes: Sequence[str], direction: Direction) -> Mapping[str, float]:
    """Of the baseline on each node over that on the others; 1 where one side has no runs."""
    sign = 1.0 if direction == "maximize" else -1.0
    found = {}
    for node in nodes:
        here = [sign * math.log(run.value) for run in repeats if node in run.nodes]
        elsewhere = [sign * math.log(run.value) for run in repeats if node not in run.nodes]
        found[node] = math.exp(_mean(here) - _mean(elsewhere)) if here and elsewhere else 1.0
    return found


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
