"""What a value would have been had the machine not changed: seen through the repeats of the baseline around it.

Where drift is found in those repeats (`drift`), a raw value says as much about when it was measured as about its
setting. Divided by the baseline's level at that time, it speaks of the setting again.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from ridgeline.records.run import Run
from ridgeline.records.trial import Trial
from ridgeline.stats.compare import Direction
from ridgeline.stats.drift import Drift, drift
from ridgeline.stats.nodes import NodeEffect, NodeRun, corrected, corrections, node_effects

MOST_REPEATS = 200  # of the baseline looked at: a change shows in these, and all of a long campaign would take seconds


@dataclass(frozen=True, slots=True)
class BaselineRun:
    """One run of the baseline: its place in the order of all runs, its value, and where it ran."""

    place: int
    value: float
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Regimes:
    """`places` and `levels` are the baseline's course, in logs; both empty where the machine did not change."""

    drift: Drift
    places: tuple[int, ...] = ()
    levels: tuple[float, ...] = ()

    @property
    def changed(self) -> bool:
        return bool(self.levels)

    def seen_through(self, value: float, place: int) -> float:
        """The value as it would be at the baseline's mean level; as it is where the machine did not change.

        Between two repeats the level is taken from both, by distance; before the first and after the last it stays.
        """
        if not self.changed or value <= 0:
            return value
        mean = math.fsum(self.levels) / len(self.levels)
        return value * math.exp(mean - self._level(place))

    def _level(self, place: int) -> float:
        after = bisect_right(self.places, place)
        if after == 0:
            return self.levels[0]
        if after == len(self.places):
            return self.levels[-1]
        left, right = self.places[after - 1], self.places[after]
        share = (place - left) / (right - left)
        return (1 - share) * self.levels[after - 1] + share * self.levels[after]


def regimes(repeats: Sequence[BaselineRun], direction: Direction, level: float = 0.95) -> Regimes:
    """The baseline's course over a search, as far as its repeats show one.

    Nodes that are known to be slow or fast are allowed for. Where the repeats ran on nodes of which that is not known,
    a change of node cannot be separated from a change in time, and none is found.
    """
    in_order = sorted(repeats, key=lambda repeat: repeat.place)
    return _regimes(tuple(in_order[:: len(in_order) // MOST_REPEATS + 1]), direction, level)


def baseline_course(
    runs: Iterable[tuple[Trial, Run]],
    metric: str,
    effects: Sequence[NodeEffect],
    direction: Direction,
    level: float = 0.95,
) -> Regimes:
    """As `regimes`, of runs of the baseline, with what the whole journal says of their nodes."""
    repeats = [BaselineRun(run.number, run.metrics[metric], run.ending.nodes) for _, run in runs]
    unknown = {effect.node for effect in effects if effect.verdict == "undecided"}
    if not any(unknown.intersection(repeat.nodes) for repeat in repeats):
        factors = corrections(effects, direction)
        repeats = [BaselineRun(r.place, corrected(r.value, r.nodes, factors)) for r in repeats]
    return regimes(repeats, direction, level)


@lru_cache(maxsize=32)  # every face asks for it at every look, and permutations take their time
def _regimes(looked_at: tuple[BaselineRun, ...], direction: Direction, level: float) -> Regimes:
    values = _freed_from_nodes(looked_at, direction, level)
    found = drift(values, direction, random.Random(0), level)
    if found.kind not in ("step", "trend"):
        return Regimes(found)
    logs = [math.log(value) for value in values]
    course = _stepped(logs, found.at or 0) if found.kind == "step" else _straight(logs)
    return Regimes(found, tuple(repeat.place for repeat in looked_at), tuple(course))


def _freed_from_nodes(repeats: Sequence[BaselineRun], direction: Direction, level: float) -> list[float]:
    """Empty where nodes and time cannot be separated."""
    if len({repeat.nodes for repeat in repeats}) < 2:
        return [repeat.value for repeat in repeats]
    effects = node_effects([NodeRun("baseline", r.nodes, r.value) for r in repeats], direction, level)
    if any(effect.verdict == "undecided" for effect in effects):
        return []
    factors = corrections(effects, direction)
    return [corrected(repeat.value, repeat.nodes, factors) for repeat in repeats]


def _stepped(logs: Sequence[float], at: int) -> list[float]:
    return [math.fsum(side) / len(side) for side in (logs[:at], logs[at:]) for _ in side]


def _straight(logs: Sequence[float]) -> list[float]:
    middle, mean = (len(logs) - 1) / 2, math.fsum(logs) / len(logs)
    across = math.fsum((i - middle) * v for i, v in enumerate(logs))
    slope = across / math.fsum((i - middle) ** 2 for i in range(len(logs)))
    return [mean + slope * (i - middle) for i in range(len(logs))]
