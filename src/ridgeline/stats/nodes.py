"""Slow nodes, as opposed to slow settings: effects of nodes on runs, over a whole journal.

Log speed is the sum of what the setting, the slowest node, the pair of nodes and the time of the run bring, and noise.
A node is called slow where "this one is slow" explains the runs so much better than "all are alike" that the odds
(`slow_nodes.py`) leave no more doubt than the level allows; then the others are weighed again beside it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from ridgeline.records.run import Run
from ridgeline.records.trial import Trial
from ridgeline.stats.compare import Direction
from ridgeline.stats.node_effect import FEWEST_RUNS as FEWEST_RUNS
from ridgeline.stats.node_effect import NodeEffect as NodeEffect
from ridgeline.stats.node_effect import NodeRun as NodeRun

MOST_RUNS = 128  # looked at: those of repeated settings and the latest others; more take seconds and tell no more
EACH_RUN = 64  # up to so many runs the odds are weighed after each; then once enough are new:
_NEW_SHARE, MOST_NEW = 0.1, 64  # this share of all, and at most so many
_STEP = 0.005  # corrections are rounded to this: each change of one makes a search think everything over


def node_runs(runs: Iterable[tuple[Trial, Run]], metric: str) -> list[NodeRun]:
    """What a journal tells of its nodes."""
    return [
        NodeRun(t.key, r.ending.nodes, r.metrics[metric], tuple(t.point.items()), r.number)
        for t, r in runs
        if r.ending.nodes and r.metrics[metric] > 0
    ]


def node_effects(runs: Iterable[NodeRun], direction: Direction, level: float = 0.95) -> list[NodeEffect]:
    """One effect per node, in the order of names. Runs with a value that is not positive are not usable here.

    A job over several nodes waits for the slowest of them.
    """
    return list(_effects(tuple(runs), direction, level))


@lru_cache(maxsize=4)
def _effects(runs: tuple[NodeRun, ...], direction: Direction, level: float) -> tuple[NodeEffect, ...]:
    """Kept: several parts of a report ask about the same runs, and weighing them takes seconds."""
    return tuple(NodeRuns(runs).effects(direction, level))


class NodeRuns:
    """All runs so far.

    Weighing the odds takes as long as a few runs of the controller, so it waits for enough that is new. When it is due
    depends on the runs and their order alone: a resumed campaign weighs the same runs.
    """

    def __init__(self, runs: Iterable[NodeRun] = ()) -> None:
        self._runs: list[NodeRun] = []
        self._weighed = 0  # how many runs there were when odds were last due
        self._found: dict[tuple[Direction, float], tuple[NodeEffect, ...]] = {}
        self._counted: dict[float, list[NodeEffect]] = {}  # every node with its runs up to now, by level
        for run in runs:
            self.add(run)

    def __len__(self) -> int:
        return len(self._runs)

    @property
    def nodes(self) -> list[str]:
        return sorted({node for run in self._runs for node in run.nodes})

    def add(self, run: NodeRun) -> None:
        if run.value <= 0 or not run.nodes:
            return
        self._runs.append(run)
        self._counted = {}
        count = len(self._runs)
        if count <= EACH_RUN or count - self._weighed >= min(_NEW_SHARE * count, MOST_NEW):
            self._weighed, self._found = count, {}

    def of(self, setting: str) -> tuple[int, Mapping[str, int], tuple[str, ...]]:
        """How often a setting ran, how often on each node, and where last."""
        same = [run for run in self._runs if run.setting == setting]
        return len(same), Counter(node for run in same for node in run.nodes), same[-1].nodes if same else ()

    def effects(self, direction: Direction, level: float = 0.95) -> list[NodeEffect]:
        """One per node, in the order of names: as of when odds were last due, with runs counted up to now."""
        if (found := self._found.get((direction, level))) is None:
            found = self._found[direction, level] = self._weigh(direction, level)
        known = {effect.node: effect for effect in found}
        if (now := self._counted.get(level)) is None:
            now = self._counted[level] = _undecided(self._runs, level)
        return [replace(known.get(each.node, each), runs=each.runs, repeated=each.repeated) for each in now]

    def _weigh(self, direction: Direction, level: float) -> tuple[NodeEffect, ...]:
        runs = self._runs[: self._weighed]
        known = _undecided(runs, level)
        if len(known) < 2:
            return tuple(known)
        from ridgeline.stats.slow_nodes import judged  # numpy comes with it, which most verbs can do without

        return judged(looked_at(runs), known, 1.0 if direction == "maximize" else -1.0)


def looked_at(runs: Sequence[NodeRun]) -> tuple[NodeRun, ...]:
    """Those of repeated settings and the latest others."""
    times = Counter(run.setting for run in runs)
    again = [at for at, run in enumerate(runs) if times[run.setting] > 1][-MOST_RUNS:]
    once = [at for at, run in enumerate(runs) if times[run.setting] == 1]
    latest = once[len(once) - min(len(once), MOST_RUNS - len(again)) :]
    return tuple(runs[at] for at in sorted([*again, *latest]))


def _undecided(runs: Sequence[NodeRun], level: float) -> list[NodeEffect]:
    """Every node, in the order of names, with its runs: how many, and how many of settings that also ran elsewhere."""
    times = Counter(run.setting for run in runs)
    there = Counter((run.setting, node) for run in runs for node in run.nodes)
    on, repeated = Counter[str](), Counter[str]()
    for (setting, node), count in there.items():
        on[node] += count
        repeated[node] += count if times[setting] > count else 0
    return [
        NodeEffect(node, "undecided", None, None, None, level, on[node], None, repeated[node]) for node in sorted(on)
    ]


def corrections(effects: Sequence[NodeEffect], direction: Direction) -> dict[str, float]:
    """Factors that bring values to what usual nodes would have given; nodes that need none are not there."""
    factors = {}
    for effect in effects:
        steps = 0 if effect.likely is None else round(math.log(effect.likely) / _STEP)
        if steps:
            factors[effect.node] = math.exp(-steps * _STEP if direction == "maximize" else steps * _STEP)
    return factors


def corrected(value: float, nodes: Sequence[str], factors: Mapping[str, float]) -> float:
    """A value as it would have been on usual nodes; a job over several is as far off as the node that is furthest."""
    if not nodes or not factors:
        return value
    return value * math.exp(max((math.log(factors.get(node, 1.0)) for node in nodes), key=abs))


# Where the baseline should be run next, so that a slow node is separated from a slow setting with the fewest runs.
#
# Settings of a search hardly repeat, so it is runs of one setting that tell nodes apart. One run on each node shows
# whom to suspect; a few more on the suspect settle it. Nodes that look like their peers cost nothing beyond that one
# run.

_FEWEST_BASELINE_RUNS = 6  # before anything can be said of nodes
_WORTH_A_RUN = 0.08  # chance of being slow from which on a node is worth a run
# runs of the baseline beyond one a node: what is not settled by then is small, or the machine is noisy
_MOST_MORE = 12
_LIKELY, MOST_MORE_IF_LIKELY = 0.3, 26  # chance of being slow from which on a node is worth more of them
MOST_URGENT = 2  # runs of the baseline after one trial of the search


def most_baseline_runs(nodes: int, width: int) -> int:
    """How many runs of the baseline a campaign spends on telling so many nodes apart, beyond its regular ones."""
    return math.ceil(nodes / width) + MOST_MORE_IF_LIKELY


@dataclass(frozen=True, slots=True)
class BaselinePlacement:
    """Where to run the baseline next: on these nodes, or on any but those to `avoid`. `urgent` is how many such runs
    each trial of the search is worth; 0: it can wait for the next sentinel."""

    nodes: tuple[str, ...] = ()
    urgent: int = 0
    avoid: tuple[str, ...] = ()


def next_baseline_run(
    runs: NodeRuns, baseline: str, effects: Sequence[NodeEffect], width: int, there_are: int = 0
) -> BaselinePlacement:
    """`runs` are all good runs so far, `baseline` is its setting, `width` the nodes of one job; `there_are` at least so
    many nodes, seen or not.

    Neither nodes nor any to avoid: there is nothing to choose between, or fewer nodes were seen than a job takes.
    """
    seen = runs.nodes
    repeats, on, before = runs.of(baseline)
    times = {node: on.get(node, 0) for node in seen}
    chances = {effect.node: effect.chance for effect in effects if effect.verdict not in ("slow", "fast")}
    named = set(seen) - set(chances)
    looked_at = sum(map(bool, times.values())) / width
    more = repeats - looked_at
    enough = _WORTH_A_RUN if more < _MOST_MORE else _LIKELY if more < MOST_MORE_IF_LIKELY else 1.0
    suspects = [node for node in seen if chances.get(node, 0.0) >= enough]
    new = [node for node in seen if not times[node]]
    # a site that cannot avoid nodes would be asked in vain: that, too, is given up after a while
    if not suspects and not new and seen and len(seen) + width <= there_are and more < _MOST_MORE:
        return BaselinePlacement((), 1, tuple(seen))
    if len(seen) <= width:
        return BaselinePlacement()

    def wanted(node: str) -> tuple[float, ...]:
        return -round(chances.get(node, 0.0), 2) if node in suspects else 0.0, times[node], node in named

    # in turn with its peers: a machine that wanders would otherwise be taken for the suspect
    fresh = [node for node in seen if not (node in before and node in suspects)] or seen
    first = min(fresh, key=lambda node: (*wanted(node), node))
    company = sorted(
        set(fresh) - {first}, key=lambda node: (node in named, round(chances.get(node, 0.0), 2), times[node], node)
    )
    if len(company) < width - 1:
        company = sorted(set(seen) - {first})
    begun = repeats >= _FEWEST_BASELINE_RUNS
    likely = any(chances[node] >= _LIKELY for node in suspects)
    urgent = MOST_URGENT if likely else int(bool(new or suspects or not begun))
    return BaselinePlacement(tuple(sorted([first, *company[: width - 1]])), urgent)
