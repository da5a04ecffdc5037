"""Two goals at once: the settings of which none is better in both, each with the intervals of its own runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ridgeline.stats.compare import Direction, pooled_spread
from ridgeline.stats.student import interval


@dataclass(frozen=True, slots=True)
class GoalValue:
    """A setting's value of one goal: the mean of its runs, with an interval where the noise is known."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Tradeoff:
    """One setting with both goals. `place` is on the front, near it (another is better in both, but that is not
    shown), or behind it."""

    setting: str
    first: GoalValue
    second: GoalValue
    runs: int
    place: Literal["on", "near", "behind"] = "on"


def tradeoffs(
    runs: Mapping[str, Sequence[tuple[float, float]]], directions: tuple[Direction, Direction], level: float = 0.95
) -> list[Tradeoff]:
    """Every setting, the best of the first goal first. `runs` are both values of each run, by setting.

    The noise is the same for all settings, in logs, and learned from those that ran more than once. Values that are not
    positive have no logs: their settings are left out.
    """
    usable = {key: values for key, values in runs.items() if values and all(a > 0 and b > 0 for a, b in values)}
    noise = [pooled_spread([math.log(pair[goal]) for pair in values] for values in usable.values()) for goal in (0, 1)]
    found = []
    for key, values in usable.items():
        first, second = (_level([pair[goal] for pair in values], noise[goal], level) for goal in (0, 1))
        found.append(Tradeoff(key, first, second, len(values)))
    placed = [replace(one, place=_place(one, found, directions)) for one in found]
    sign = -1 if directions[0] == "maximize" else 1
    return sorted(placed, key=lambda one: sign * one.first.value)


def _level(values: Sequence[float], noise: tuple[float, int], level: float) -> GoalValue:
    middle = math.fsum(map(math.log, values)) / len(values)
    value = min(max(math.exp(middle), min(values)), max(values))  # equal values keep a limit that is just theirs
    spread, freedom = noise
    if not freedom:
        return GoalValue(value)
    if not spread:
        return GoalValue(value, value, value)
    return GoalValue(value, *interval(middle, spread / math.sqrt(len(values)), freedom, level, math.exp))


def _place(
    one: Tradeoff, others: Sequence[Tradeoff], directions: tuple[Direction, Direction]
) -> Literal["on", "near", "behind"]:
    signs = [1 if direction == "maximize" else -1 for direction in directions]
    near = False
    for other in others:
        goals = [*zip(signs, (other.first, other.second), (one.first, one.second), strict=True)]
        ahead = [sign * (theirs.value - own.value) for sign, theirs, own in goals]
        if other is not one and min(ahead) >= 0 and max(ahead) > 0:
            near = True
            if all(
                _surely_above(theirs, own) if sign > 0 else _surely_above(own, theirs) for sign, theirs, own in goals
            ):
                return "behind"
    return "near" if near else "on"


def _surely_above(a: GoalValue, b: GoalValue) -> bool:
    return a.low is not None and b.high is not None and a.low > b.high
