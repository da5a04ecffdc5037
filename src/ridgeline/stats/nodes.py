"""Slow nodes told apart from slow settings: effects of nodes on runs of the same settings."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ridgeline.stats.compare import Direction
from ridgeline.stats.regression import LeastSquares, least_squares

FEWEST_RUNS = 3  # on a node, and on its peers, before anything is said about it
FEWEST_FREEDOM = 4  # residual degrees of freedom


@dataclass(frozen=True, slots=True)
class NodeRun:
    """One run of a setting that ran more than once (baseline, sentinel, confirm block). `value` is positive."""

    setting: str
    nodes: tuple[str, ...]
    value: float


@dataclass(frozen=True, slots=True)
class NodeEffect:
    """`speed` is that of the node over the mean of its peers: 0.91 is 9% slower. The interval is simultaneous over
    all judged nodes; `verdict` is undecided where runs are too few or where nodes were only used together."""

    node: str
    verdict: Literal["slow", "fast", "usual", "undecided"]
    speed: float | None
    low: float | None
    high: float | None
    level: float
    runs: int

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


def node_effects(runs: Sequence[NodeRun], direction: Direction, level: float = 0.95) -> list[NodeEffect]:
    """One effect per node, in the order of names. Runs with a value that is not positive are not usable here.

    Model: log speed = setting + mean of the effects of the nodes used + noise, by least squares. A job over several
    nodes counts for each of them in equal parts.
    """
    usable = [run for run in runs if run.value > 0 and run.nodes]
    names = sorted({node for run in usable for node in run.nodes})
    if len(names) < 2:
        return [_undecided(name, usable, level) for name in names]
    settings = sorted({run.setting for run in usable})
    rows = [_row(run, settings, names) for run in usable]
    sign = 1.0 if direction == "maximize" else -1.0
    fit = least_squares(rows, [sign * math.log(run.value) for run in usable])
    counts = {name: sum(name in run.nodes for run in usable) for name in names}
    judged = [name for name in names if _may_judge(name, names, usable, counts, fit, len(settings))]
    share = 1 - (1 - level) / max(1, len(judged))

    def judge(name: str, peers: Sequence[str]) -> NodeEffect:
        others = [peer for peer in peers if peer != name]
        if name not in judged or not others:
            return _undecided(name, usable, level)
        contrast = _contrast(name, names, others, len(settings))
        return _judge(name, fit.interval(contrast, share), level, counts[name])

    peers = _usual(names, judge)
    return [judge(name, peers) for name in names]


def corrections(effects: Sequence[NodeEffect], direction: Direction) -> dict[str, float]:
    """Factors that bring values of nodes shown to differ to what their peers would have given; others are not there."""
    factors = {}
    for effect in effects:
        if effect.verdict in ("slow", "fast") and effect.speed:
            factors[effect.node] = 1 / effect.speed if direction == "maximize" else effect.speed
    return factors


def corrected(value: float, nodes: Sequence[str], factors: Mapping[str, float]) -> float:
    """A value as it would have been on usual nodes; a job over several nodes is corrected in equal parts."""
    if not nodes:
        return value
    return value * math.exp(math.fsum(math.log(factors.get(node, 1.0)) for node in nodes) / len(nodes))


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


def _row(run: NodeRun, settings: Sequence[str], names: Sequence[str]) -> list[float]:
    part = 1 / len(run.nodes)
    return [float(run.setting == s) for s in settings] + [part * (name in run.nodes) for name in names]


def _contrast(name: str, names: Sequence[str], others: Sequence[str], settings: int) -> list[float]:
    weights = {other: -1 / len(others) for other in others} | {name: 1.0}
    return [0.0] * settings + [weights.get(other, 0.0) for other in names]


def _may_judge(
    name: str,
    names: Sequence[str],
    runs: Sequence[NodeRun],
    counts: Mapping[str, int],
    fit: LeastSquares,
    settings: int,
) -> bool:
    elsewhere = sum(name not in run.nodes for run in runs)
    enough = counts[name] >= FEWEST_RUNS and elsewhere >= FEWEST_RUNS and fit.freedom >= FEWEST_FREEDOM
    others = [other for other in names if other != name]
    return enough and fit.estimable(_contrast(name, names, others, settings))


def _judge(name: str, interval: tuple[float, float, float], level: float, runs: int) -> NodeEffect:
    speed, low, high = (math.exp(end) for end in interval)
    verdict: Literal["slow", "fast", "usual"] = "slow" if high < 1 else "fast" if low > 1 else "usual"
    return NodeEffect(name, verdict, speed, low, high, level, runs)


def _undecided(name: str, runs: Sequence[NodeRun], level: float) -> NodeEffect:
    return NodeEffect(name, "undecided", None, None, None, level, sum(name in run.nodes for run in runs))
