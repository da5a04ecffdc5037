"""Slow nodes, as opposed to slow settings: effects of nodes on runs, over a whole journal.

Log speed is the sum of what the setting, the slowest node, the pair of nodes and the time of the run bring, and noise.
A node is called slow where "this one is slow" explains the runs so much better than "all are alike" that the odds
(`slow_nodes.py`) leave no more doubt than the level allows; then the others are weighed again beside it.
"""

from __future__ import annotations

import math
from bisect import insort
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
    """All runs so far, counted as they come: what one more costs does not grow with how many there are.

    Weighing the odds takes as long as a few runs of the controller, so it waits for enough that is new. When it is due
    depends on the runs and their order alone: a resumed campaign weighs the same runs.
    """

    def __init__(self, runs: Iterable[NodeRun] = ()) -> None:
        self._runs: list[NodeRun] = []
        self._by_setting: dict[str, list[int]] = {}
        self._on: dict[str, Counter[str]] = {}  # setting -> node -> runs
        self._there: Counter[str] = Counter()  # node -> runs
        self._repeated: Counter[str] = Counter()  # node -> runs of settings that also ran elsewhere
        self._again: list[int] = []  # runs of repeated settings, in order
        self._once: dict[int, None] = {}  # the others, in order
        self._weighed = 0  # how many runs there were when odds were last due
        self._looked_at: tuple[NodeRun, ...] = ()  # what they are weighed from
        self._counted: dict[str, tuple[int, int]] = {}  # runs and repeats on each node by then
        self._found: dict[tuple[Direction, float], tuple[NodeEffect, ...]] = {}
        for run in runs:
            self.add(run)

    def __len__(self) -> int:
        return len(self._runs)

    @property
    def nodes(self) -> list[str]:
        return sorted(self._there)

    def add(self, run: NodeRun) -> None:
        if run.value <= 0 or not run.nodes:
            return
        at, setting = len(self._runs), run.setting
        self._runs.append(run)
        self._count(run)
        same = self._by_setting.setdefault(setting, [])
        same.append(at)
        if len(same) == 1:
            self._once[at] = None
        else:
            if len(same) == 2:
                del self._once[same[0]]
                insort(self._again, same[0])
            self._again.append(at)
        if self._is_due():
            self._weighed, self._looked_at, self._found = len(self._runs), self.looked_at(), {}
            self._counted = {node: (self._there[node], self._repeated[node]) for node in self._there}

    def _count(self, run: NodeRun) -> None:
        on = self._on.setdefault(run.setting, Counter())
        before = len(self._by_setting.get(run.setting, ()))
        for node in {*on, *run.nodes}:
            was, now = on[node], on[node] + (node in run.nodes)
            # of a setting that only ran here no run is a repeat
            self._repeated[node] += (now if before + 1 > now else 0) - (was if before > was else 0)
            if now > was:
                on[node] = now
                self._there[node] += 1

    def _is_due(self) -> bool:
        count = len(self._runs)
        return count <= EACH_RUN or count - self._weighed >= min(_NEW_SHARE * count, MOST_NEW)

    def looked_at(self) -> tuple[NodeRun, ...]:
        """Those of repeated settings and the latest others."""
        chosen = self._again[-MOST_RUNS:]
        latest = reversed(self._once)
        chosen += [at for at, _ in zip(latest, range(MOST_RUNS - len(chosen)), strict=False)]
        return tuple(self._runs[at] for at in sorted(chosen))

    def of(self, setting: str) -> tuple[int, Mapping[str, int], tuple[str, ...]]:
        """How often a setting ran, how often on each node, and where last."""
        same = self._by_setting.get(setting)
        return (len(same), self._on[setting], self._runs[same[-1]].nodes) if same else (0, {}, ())

    def effects(self, direction: Direction, level: float = 0.95) -> list[NodeEffect]:
        """One per node, in the order of names: as of when odds were last due, with runs counted up to now."""
        if (found := self._found.get((direction, level))) is None:
            found = self._found[direction, level] = self._weigh(direction, level)
        known = {effect.node: effect for effect in found}
        return [
            replace(known[node], runs=self._there[node], repeated=self._repeated[node])
            if node in known
            else _undecided(node, self._there[node], self._repeated[node], level)
            for node in self.nodes
        ]

    def _weigh(self, direction: Direction, level: float) -> tuple[NodeEffect, ...]:
        known = [_undecided(node, *self._counted[node], level) for node in sorted(self._counted)]
        if len(known) < 2:
            return tuple(known)
        from ridgeline.stats.slow_nodes import judged  # numpy comes with it, which most verbs can do without

        return judged(self._looked_at, known, 1.0 if direction == "maximize" else -1.0)


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


def _undecided(node: str, there: int, repeated: int, level: float) -> NodeEffect:
    return NodeEffect(node, "undecided", None, None, None, level, there, None, repeated)


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
