"""Slow nodes told apart from slow settings: effects of nodes on runs, over a whole journal.

Log speed is the sum of what the setting, the slowest node, the pair of nodes and the time of the run bring, and noise.
A node is named where "this one is slow" explains the runs so much better than "all are alike" that the odds
(`suspicion.odds`) leave no more doubt than the level allows; then the others are weighed again beside it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from ridgeline.records.run import Run
from ridgeline.records.trial import Trial
from ridgeline.stats.compare import Direction
from ridgeline.stats.suspicion.effect import FEWEST_RUNS as FEWEST_RUNS
from ridgeline.stats.suspicion.effect import NodeEffect as NodeEffect
from ridgeline.stats.suspicion.effect import NodeRun as NodeRun

MOST_RUNS = 160  # looked at: those of repeated settings and the latest others; more take seconds and tell no more
STEP = 0.005  # corrections are rounded to this: each change of one makes a search think everything over


def node_runs(runs: Iterable[tuple[Trial, Run]], metric: str) -> list[NodeRun]:
    """What a journal tells of its nodes."""
    return [
        NodeRun(t.key, r.ending.nodes, r.metrics[metric], tuple(t.point.items()), r.number)
        for t, r in runs
        if r.ending.nodes and r.metrics[metric] > 0
    ]


def node_effects(runs: Sequence[NodeRun], direction: Direction, level: float = 0.95) -> list[NodeEffect]:
    """One effect per node, in the order of names. Runs with a value that is not positive are not usable here.

    A job over several nodes waits for the slowest of them.
    """
    return list(_effects(tuple(run for run in runs if run.value > 0 and run.nodes), direction, level))


@lru_cache(maxsize=32)  # every face asks at every look
def _effects(usable: tuple[NodeRun, ...], direction: Direction, level: float) -> tuple[NodeEffect, ...]:
    names = sorted({node for run in usable for node in run.nodes})
    known = [_undecided(name, usable, level) for name in names]
    if len(names) < 2:
        return tuple(known)
    from ridgeline.stats.suspicion.naming import judged  # numpy comes with it, which most verbs can do without

    return judged(_looked_at(usable), known, 1.0 if direction == "maximize" else -1.0)


def corrections(effects: Sequence[NodeEffect], direction: Direction) -> dict[str, float]:
    """Factors that bring values to what usual nodes would have given; nodes that need none are not there."""
    factors = {}
    for effect in effects:
        steps = 0 if effect.likely is None else round(math.log(effect.likely) / STEP)
        if steps:
            factors[effect.node] = math.exp(-steps * STEP if direction == "maximize" else steps * STEP)
    return factors


def corrected(value: float, nodes: Sequence[str], factors: Mapping[str, float]) -> float:
    """A value as it would have been on usual nodes; a job over several is as far off as the node that is furthest."""
    if not nodes or not factors:
        return value
    return value * math.exp(max((math.log(factors.get(node, 1.0)) for node in nodes), key=abs))


def _looked_at(runs: Sequence[NodeRun]) -> tuple[NodeRun, ...]:
    if len(runs) <= MOST_RUNS:
        return tuple(runs)
    times: dict[str, int] = {}
    for run in runs:
        times[run.setting] = times.get(run.setting, 0) + 1
    by_use = sorted(range(len(runs)), key=lambda at: (times[runs[at].setting] < 2, -at))
    return tuple(runs[at] for at in sorted(by_use[:MOST_RUNS]))


def _undecided(name: str, runs: Sequence[NodeRun], level: float) -> NodeEffect:
    elsewhere = {run.setting for run in runs if name not in run.nodes}
    here = [run.setting for run in runs if name in run.nodes]
    repeated = sum(setting in elsewhere for setting in here)
    return NodeEffect(name, "undecided", None, None, None, level, len(here), None, repeated)
