"""Which nodes are slow or fast, by the evidence: the most unlike first, then the others weighed again beside it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ridgeline.stats.arrays import numpy
from ridgeline.stats.slow_nodes.effect import FEWEST_RUNS, NodeEffect, NodeRun
from ridgeline.stats.slow_nodes.evidence import FREE, NodeOdds, RunFacts, alike, spread_of_settings, weigh
from ridgeline.stats.student import interval

_FEWEST_FREEDOM = 4  # residual degrees of freedom
MARGIN = 1.5  # on odds, since they are computed with the likeliest spreads and bounds instead of all there could be
_LEAST_WORTH = 0.05  # of one run's worth: nodes that runs separate by less are not decided


def judged(runs: Sequence[NodeRun], known: Sequence[NodeEffect], sign: float) -> tuple[NodeEffect, ...]:
    """`known` has every node, undecided; `sign` is -1 where less is better."""
    found = {effect.node: effect for effect in known}
    names = [*found]
    facts, used = _facts(runs, names, sign)
    if len(used) <= _FEWEST_FREEDOM:
        return tuple(known)
    decided: dict[str, NodeEffect] = {}
    while len(decided) < len(names):
        weighing = _Weighing.of(facts, used, [name for name in names if name not in decided], decided)
        found |= {name: weighing.judged(found[name]) for name in names if name not in decided}
        if (fresh := weighing.decide(found)) is None:
            break
        decided[fresh.node] = fresh
    for name, effect in decided.items() if len(decided) > 1 else ():
        # how slow the first one was estimated while the second was still among its peers
        again = _Weighing.of(facts, used, [name], decided).judged(effect)
        decided[name] = replace(again, verdict=effect.verdict)
    return tuple((found | decided).values())


def _facts(runs: Sequence[NodeRun], names: Sequence[str], sign: float) -> tuple[RunFacts, list[NodeRun]]:
    """What the runs say of nodes, and the runs that say it: all, or those of repeated settings."""

    def speeds(of: Sequence[NodeRun]) -> Any:
        return numpy.asarray([sign * math.log(run.value) for run in of])

    on = numpy.asarray([[float(name in run.nodes) for name in names] for run in runs])
    used, points = list(runs), [dict(run.point) for run in runs]
    levels = spread_of_settings([run.setting for run in runs], points, speeds(runs), on)
    if levels is None:
        times = Counter(run.setting for run in runs)
        used = [run for run in runs if times[run.setting] > 1]
        levels = FREE * alike([run.setting for run in used])
    places = numpy.asarray([run.place for run in used], dtype=float)
    length = float(numpy.ptp(places)) if used else 0.0
    # a walk without direction: steps and trends are both like it
    walk = numpy.minimum.outer(places - places.min(), places - places.min()) / length if length else None
    pairs = alike([frozenset(run.nodes) for run in used]) if any(len(run.nodes) > 1 for run in used) else None
    return RunFacts(speeds(used), levels, walk, pairs), used


def _seen(name: str, runs: Sequence[NodeRun], decided: Mapping[str, NodeEffect]) -> tuple[bool, ...]:
    """The runs in which something is seen of this node: beside a slower one the job waits for that."""
    own = decided[name].speed if name in decided else None
    slower = {
        node
        for node, effect in decided.items()
        if effect.verdict == "slow" and node != name and (own is None or effect.speed is None or effect.speed < own)
    }
    return tuple(name in run.nodes and not slower & set(run.nodes) for run in runs)


@dataclass(frozen=True)
class _Weighing:
    """Odds of all nodes that are not decided yet; those with the same runs are decided together only."""

    weighed: NodeOdds
    groups: tuple[tuple[str, ...], ...]
    runs: tuple[int, ...]  # of each group, among those that count
    all_runs: int

    @classmethod
    def of(
        cls, facts: RunFacts, used: Sequence[NodeRun], names: Sequence[str], decided: Mapping[str, NodeEffect]
    ) -> _Weighing:
        """Of the nodes `names`, beside those that are `decided` already."""
        columns: dict[tuple[bool, ...], list[str]] = {}
        for name in names:
            columns.setdefault(_seen(name, used, decided), []).append(name)
        others = [_seen(name, used, decided) for name in decided if name not in names]
        known = numpy.asarray(others, dtype=float).reshape(len(others), len(used)).T
        table = numpy.asarray([*columns], dtype=float).T
        weighed = weigh(facts, table, known)
        return cls(weighed, tuple(map(tuple, columns.values())), tuple(map(sum, columns)), len(used))

    def judged(self, plain: NodeEffect) -> NodeEffect:
        """With what the odds say, short of naming it."""
        at = next(at for at, group in enumerate(self.groups) if plain.node in group)
        together = tuple(node for node in self.groups[at] if node != plain.node)
        effect = self.weighed.effects[at]
        count = sum(map(len, self.groups))
        whole = 1 + self._all_odds() / count
        either = (self.weighed.slow[at] + self.weighed.fast[at]) / count / whole
        known = replace(plain, together=together, chance=self.weighed.slow[at] / count / whole)
        enough = min(plain.runs, self.all_runs - self.runs[at]) >= FEWEST_RUNS
        if together or not enough or effect.error <= 0 or not self._separated(at):
            return known
        speed = math.exp(effect.mean)
        low, high = interval(effect.mean, effect.error, max(1.0, math.floor(effect.freedom)), plain.level, math.exp)
        likely = math.exp(either * effect.mean * effect.kept)
        return replace(known, verdict="usual", speed=speed, low=low, high=high, likely=likely)

    def decide(self, found: Mapping[str, NodeEffect]) -> NodeEffect | None:
        """The most unlike node, where there is no doubt that there is one and which."""
        count, whole = sum(map(len, self.groups)), self._all_odds()
        sides = (("slow", self.weighed.slow), ("fast", self.weighed.fast))
        odds, at, word = max((odds[at], at, word) for word, odds in sides for at in range(len(self.groups)))
        effect = found[self.groups[at][0]]
        doubt = 1 - effect.level
        if effect.verdict != "usual" or effect.low is None or effect.high is None or self.runs[at] < FEWEST_RUNS:
            return None
        if whole * doubt < MARGIN * count or odds < effect.level * whole or effect.low <= 1 <= effect.high:
            return None
        return replace(effect, verdict="slow" if word == "slow" else "fast")

    def _all_odds(self) -> float:
        each = zip(self.groups, self.weighed.slow, self.weighed.fast, strict=True)
        return math.fsum(len(group) * (slow + fast) for group, slow, fast in each)

    def _separated(self, at: int) -> bool:
        return self.weighed.worth_runs[at] > _LEAST_WORTH and round(self.weighed.freedom, 2) >= _FEWEST_FREEDOM
