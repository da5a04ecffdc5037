"""Slow nodes told apart from slow settings: effects of nodes on runs, over a whole journal.

Log speed is the sum of what the setting, the nodes, the pair of nodes and the time of the run bring, and noise. Nodes
are estimated as they are. Of the other parts only the spread is learned: a setting that ran once tells of its node as
much as the knobs explain of it, and one that ran on two nodes tells of both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

from ridgeline.records.expression import Value
from ridgeline.records.run import Run
from ridgeline.records.trial import Trial
from ridgeline.stats.coding import KnobCoding
from ridgeline.stats.compare import Direction
from ridgeline.stats.mixed import MixedFit, mixed
from ridgeline.stats.wording import count

FEWEST_RUNS = 3  # on a node, and on its peers, before anything is said about it
FEWEST_FREEDOM = 4  # residual degrees of freedom
FEWEST_SETTINGS = 8  # of fewer, the spread between settings is not known: each then has a level of its own
MOST_RUNS = 160  # looked at: those of repeated settings and the latest others; more take seconds and tell no more
# the most that random parts may vary, as variance over that of one run's noise
SETTINGS_SPREAD, MACHINE_SPREAD = 1e5, 10.0
STEP = 0.005  # corrections are rounded to this: each change of one makes a search think everything over


@dataclass(frozen=True, slots=True)
class NodeRun:
    """One run: its setting, where it was, and what it measured (`value` is positive).

    `point` is what the setting changes, `place` its number in the order of all runs; without them a setting that ran
    once tells nothing, and the machine is taken for steady.
    """

    setting: str
    nodes: tuple[str, ...]
    value: float
    point: tuple[tuple[str, Value], ...] = ()
    place: int = 0


@dataclass(frozen=True, slots=True)
class NodeEffect:
    """`speed` is that of the node over the mean of its peers: 0.91 is 9% slower. The interval is simultaneous over
    all judged nodes; `verdict` is undecided where runs are too few or where nodes were only used together.

    `likely` is the speed pulled toward 1 by the share of the nodes' spread that is noise: what values are corrected by.
    `repeated` counts the runs there of settings that also ran elsewhere.
    """

    node: str
    verdict: Literal["slow", "fast", "usual", "undecided"]
    speed: float | None
    low: float | None
    high: float | None
    level: float
    runs: int
    likely: float | None = None
    repeated: int = 0

    def __str__(self) -> str:
        if self.speed is None or self.low is None or self.high is None:
            return f"node {self.node}: too little to judge ({self.runs} runs)"
        if self.verdict == "usual":
            low, high = (self.low - 1) * 100, (self.high - 1) * 100
            return f"node {self.node} is like its peers ({low:+.1f}% to {high:+.1f}%)"
        word = "slower" if self.verdict == "slow" else "faster"
        ends = sorted(abs(1 - end) * 100 for end in (self.low, self.high))
        return (
            f"node {self.node} is {abs(1 - self.speed) * 100:.0f}% {word} than its peers"
            f" ({self.level * 100:g}%: {ends[0]:.0f} to {ends[1]:.0f})"
        )

    @property
    def evidence(self) -> str:
        """'7 runs there, 3 of settings that also ran elsewhere'."""
        return f"{count(self.runs, 'run')} there, {self.repeated} of settings that also ran elsewhere"


def node_runs(runs: Iterable[tuple[Trial, Run]], metric: str) -> list[NodeRun]:
    """What a journal tells of its nodes."""
    return [
        NodeRun(t.key, r.ending.nodes, r.metrics[metric], tuple(t.point.items()), r.number)
        for t, r in runs
        if r.ending.nodes and r.metrics[metric] > 0
    ]


def node_effects(runs: Sequence[NodeRun], direction: Direction, level: float = 0.95) -> list[NodeEffect]:
    """One effect per node, in the order of names. Runs with a value that is not positive are not usable here.

    A job over several nodes counts for each of them in equal parts.
    """
    return list(_effects(tuple(run for run in runs if run.value > 0 and run.nodes), direction, level))


@lru_cache(maxsize=32)  # every face asks at every look
def _effects(usable: tuple[NodeRun, ...], direction: Direction, level: float) -> tuple[NodeEffect, ...]:
    usable = _looked_at(usable)
    names = sorted({node for run in usable for node in run.nodes})
    undecided = {name: _undecided(name, usable, level) for name in names}
    if len(names) < 2:
        return tuple(undecided.values())
    settings = _levels(usable)
    fit = _fitted(usable, names, settings, 1.0 if direction == "maximize" else -1.0)
    judged = [name for name in names if fit and _may_judge(name, names, usable, fit, len(settings))]
    if fit is None or not judged:
        return tuple(undecided.values())
    share = 1 - (1 - level) / len(judged)

    def judge(name: str, peers: Sequence[str]) -> NodeEffect:
        others = [peer for peer in peers if peer != name]
        if name not in judged or not others:
            return undecided[name]
        contrast = _contrast(name, names, others, len(settings))
        return _judge(undecided[name], fit.interval(contrast, share))

    peers = _usual(names, judge)
    errors = {
        name: fit.error(_contrast(name, names, [peer for peer in peers if peer != name], len(settings)))
        for name in judged
        if set(peers) != {name}
    }
    return _shrunk([judge(name, peers) for name in names], errors)


def corrections(effects: Sequence[NodeEffect], direction: Direction) -> dict[str, float]:
    """Factors that bring values to what usual nodes would have given; nodes that need none are not there."""
    factors = {}
    for effect in effects:
        steps = 0 if effect.likely is None else round(math.log(effect.likely) / STEP)
        if steps:
            factors[effect.node] = math.exp(-steps * STEP if direction == "maximize" else steps * STEP)
    return factors


def corrected(value: float, nodes: Sequence[str], factors: Mapping[str, float]) -> float:
    """A value as it would have been on usual nodes; a job over several nodes is corrected in equal parts."""
    if not nodes or not factors:
        return value
    return value * math.exp(math.fsum(math.log(factors.get(node, 1.0)) for node in nodes) / len(nodes))


def _looked_at(runs: Sequence[NodeRun]) -> tuple[NodeRun, ...]:
    if len(runs) <= MOST_RUNS:
        return tuple(runs)
    times: dict[str, int] = {}
    for run in runs:
        times[run.setting] = times.get(run.setting, 0) + 1
    by_use = sorted(range(len(runs)), key=lambda at: (times[runs[at].setting] < 2, -at))
    return tuple(runs[at] for at in sorted(by_use[:MOST_RUNS]))


def _levels(runs: Sequence[NodeRun]) -> list[str]:
    """The settings that each have a level of their own; none where there are enough to learn how they spread."""
    settings = sorted({run.setting for run in runs})
    told = any(run.point for run in runs)
    return [] if told and len(settings) >= FEWEST_SETTINGS else settings


def _fitted(runs: Sequence[NodeRun], names: Sequence[str], settings: Sequence[str], sign: float) -> MixedFit | None:
    """None where there are no more runs than effects."""
    rows = [
        [float(run.setting == s) for s in settings] + [(name in run.nodes) / len(run.nodes) for name in names]
        for run in runs
    ]
    if len(runs) <= len(rows[0]):
        return None
    return mixed(rows, [sign * math.log(run.value) for run in runs], _random_parts(runs, not settings))


def _random_parts(runs: Sequence[NodeRun], settings: bool) -> list[tuple[Any, float]]:
    """What blurs a run besides noise: its setting, the pair of nodes it was on, and when it ran."""
    import numpy

    parts: list[tuple[Any, float]] = []
    if settings:
        points = [dict(run.point) for run in runs]
        names = list(dict.fromkeys(name for point in points for name in point))
        codes = [(KnobCoding.of([point.get(name) for point in points]), name) for name in names]
        coded = [[c for coding, name in codes for c in coding.code(point.get(name))] for point in points]
        knobs = numpy.asarray(coded, dtype=float)
        knobs -= knobs.mean(axis=0)
        parts += [(knobs @ knobs.T, SETTINGS_SPREAD), (_alike([run.setting for run in runs]), SETTINGS_SPREAD)]
    if any(len(run.nodes) > 1 for run in runs):
        parts.append((_alike([frozenset(run.nodes) for run in runs]), MACHINE_SPREAD))
    if len({run.place for run in runs}) > 1:
        places = numpy.asarray([run.place for run in runs], dtype=float)
        places = (places - places.min()) / (places.max() - places.min())
        # a walk without direction: steps and trends are both like it
        parts.append((numpy.minimum.outer(places, places), MACHINE_SPREAD))
    return parts


def _alike(labels: Sequence[object]) -> Any:
    import numpy

    return numpy.asarray([[float(a == b) for b in labels] for a in labels])


def _usual(names: Sequence[str], judge: Callable[[str, Sequence[str]], NodeEffect]) -> list[str]:
    """The nodes that are each other's measure: the most unlike one is put aside, then the next, until all are alike.

    Without this, one slow node would make all others look fast.
    """
    peers = list(names)
    while True:
        unlike = [effect for effect in (judge(name, peers) for name in peers) if effect.verdict in ("slow", "fast")]
        if not unlike:
            return peers
        peers.remove(max(unlike, key=_distance).node)


def _distance(effect: NodeEffect) -> tuple[float, bool]:
    """How far from its peers; of two nodes, each as far from the other, the slow one is named."""
    assert effect.speed is not None
    return round(abs(math.log(effect.speed)), 12), effect.verdict == "slow"


def _contrast(name: str, names: Sequence[str], others: Sequence[str], settings: int) -> list[float]:
    weights = {other: -1 / len(others) for other in others} | {name: 1.0}
    return [0.0] * settings + [weights.get(other, 0.0) for other in names]


def _may_judge(name: str, names: Sequence[str], runs: Sequence[NodeRun], fit: MixedFit, settings: int) -> bool:
    here = sum(name in run.nodes for run in runs)
    enough = min(here, len(runs) - here) >= FEWEST_RUNS and round(fit.freedom, 6) >= FEWEST_FREEDOM
    others = [other for other in names if other != name]
    return enough and fit.estimable(_contrast(name, names, others, settings))


def _judge(known: NodeEffect, interval: tuple[float, float, float]) -> NodeEffect:
    speed, low, high = (math.exp(end) for end in interval)
    verdict: Literal["slow", "fast", "usual"] = "slow" if high < 1 else "fast" if low > 1 else "usual"
    return replace(known, verdict=verdict, speed=speed, low=low, high=high)


def _shrunk(effects: Sequence[NodeEffect], errors: Mapping[str, float]) -> tuple[NodeEffect, ...]:
    """With `likely`: by how much nodes differ beyond their errors says how much of an effect is real.

    Nodes that are alike are held against each other only: one slow node says nothing about the scatter of the rest.
    """
    logs = {e.node: math.log(e.speed) for e in effects if e.speed is not None and e.node in errors}
    usual = [e.node for e in effects if e.verdict == "usual" and e.node in logs]

    def likely(effect: NodeEffect) -> NodeEffect:
        if effect.node not in logs:
            return effect
        among = usual if effect.verdict == "usual" else [*logs]
        squares = [logs[node] ** 2 - errors[node] ** 2 for node in among]
        spread = max(0.0, math.fsum(squares) / len(squares))
        kept = spread / (spread + errors[effect.node] ** 2) if spread else 0.0
        return replace(effect, likely=math.exp(kept * logs[effect.node]))

    return tuple(map(likely, effects))


def _undecided(name: str, runs: Sequence[NodeRun], level: float) -> NodeEffect:
    elsewhere = {run.setting for run in runs if name not in run.nodes}
    here = [run.setting for run in runs if name in run.nodes]
    repeated = sum(setting in elsewhere for setting in here)
    return NodeEffect(name, "undecided", None, None, None, level, len(here), None, repeated)
