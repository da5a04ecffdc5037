"""Does the machine change while we measure? Trend and step in repeats of one setting, and outliers with their cause."""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from statistics import median
from typing import Literal

from ridgeline.records.run import Run
from ridgeline.records.trial import Trial
from ridgeline.stats.compare import Direction, mean_and_spread, oriented_logs
from ridgeline.stats.nodes import NodeEffect, NodeRun, corrected, corrections, node_effects
from ridgeline.stats.wording import count, percent

_FEWEST = 6  # repeats before a trend or step may be called
PERMUTATIONS = 999
_MOST_MEMORY = 0.6  # of a run in the next; beyond that six to twenty repeats cannot tell memory from drift


@dataclass(frozen=True, slots=True)
class Drift:
    """`change` is that of the speed from first to last repeat (trend) or across the step, as a fraction.

    `at` is the index of the first repeat after a step. `p_value` comes from permutations of the order.
    """

    kind: Literal["steady", "trend", "step", "undecided"]
    change: float
    p_value: float
    repeats: int
    at: int | None = None

    def __str__(self) -> str:
        if self.kind == "undecided":
            return f"drift not judged: {count(self.repeats, 'repeat')}, {_FEWEST} are needed"
        if self.kind == "steady":
            return f"no detectable drift over {self.repeats} repeats"
        word = "slower" if self.change < 0 else "faster"
        return f"{abs(self.change):.1%} {word} {self.when}"

    @property
    def when(self) -> str:
        if self.kind == "step":
            return f"from repeat {(self.at or 0) + 1} of {self.repeats} on (p {self.p_value:.3f})"
        return f"from first to last of {self.repeats} repeats (p {self.p_value:.3f})"


def drift(values: Sequence[float], direction: Direction, rng: random.Random, level: float = 0.95) -> Drift:
    """Judge repeats of one setting in the order they ran. Values must be positive; without order, no drift exists.

    The larger of the best step and the straight trend, each as the share of variance it explains, is compared with
    the same for shuffled orders, so that looking at every possible step is paid for. On a machine whose runs resemble
    the ones before them, neighbours agree without any drift: then not the values are shuffled but what each adds to the
    part it shares with the one before, and that part is put back.
    """
    n = len(values)
    if n < _FEWEST or any(v <= 0 for v in values):
        return Drift("undecided", 0.0, 1.0, n)
    logs = oriented_logs(values, direction)
    seen = _explained(logs)
    if mean_and_spread(logs)[1] < 1e-12:
        return Drift("steady", 0.0, 1.0, n)
    p_value = _chance(logs, _memory(logs, seen), max(seen[:2]) - 1e-12, rng, 1 - level)
    if p_value > 1 - level:
        return Drift("steady", 0.0, p_value, n)
    trend, step, slope, at, jump = seen
    if step > trend:
        return Drift("step", math.expm1(jump), p_value, n, at)
    return Drift("trend", math.expm1(slope * (n - 1)), p_value, n)


def _memory(logs: Sequence[float], seen: tuple[float, float, float, int, float]) -> float:
    """How much of a run's deviation the next one has, from 0 to _MOST_MEMORY, once the best step or trend is taken off.

    Taking it off takes part of the memory too: of n runs without any about -3/n is left, and of any there is about
    1 - 7/n (by simulation). A quarter of its own error is added: to overlook memory cries drift where there is none.
    """
    n = len(logs)
    trend, step, _, at, _ = seen
    rest = [value - level for value, level in zip(logs, _course(logs, at if step > trend else None), strict=True)]
    total = math.fsum(value**2 for value in rest)
    if total <= 1e-24:
        return 0.0
    lagged = math.fsum(one * other for one, other in pairwise(rest)) / total
    return min(_MOST_MEMORY, max(0.0, (lagged + 3 / n + 0.25 / math.sqrt(n)) / max(0.25, 1 - 7 / n)))


def _innovations(logs: Sequence[float], memory: float) -> list[float]:
    mean = math.fsum(logs) / len(logs)
    first = (logs[0] - mean) * math.sqrt(1 - memory**2)
    return [first, *(now - mean - memory * (before - mean) for before, now in pairwise(logs))]


def _remembered(innovations: Sequence[float], memory: float) -> list[float]:
    series = [innovations[0] / math.sqrt(1 - memory**2)]
    for innovation in innovations[1:]:
        series.append(memory * series[-1] + innovation)
    return series


def _chance(logs: Sequence[float], memory: float, limit: float, rng: random.Random, doubt: float) -> float:
    """The share of shuffled orders that explain as much as `limit`. Once so many do that it is above `doubt`, whatever
    the rest brings, no more are tried, and it is the share of those that were."""
    shuffled = _innovations(logs, memory)
    reached = 0
    for tried in range(1, PERMUTATIONS + 1):
        rng.shuffle(shuffled)
        reached += max(_explained(_remembered(shuffled, memory))[:2]) >= limit
        if (reached + 1) / (PERMUTATIONS + 1) > doubt:
            return (reached + 1) / (tried + 1)
    return (reached + 1) / (PERMUTATIONS + 1)


def _explained(logs: Sequence[float]) -> tuple[float, float, float, int, float]:
    """Share of variance explained by a trend and by the best step; slope; where the step is and how large."""
    n = len(logs)
    mean = math.fsum(logs) / n
    total = math.fsum((v - mean) ** 2 for v in logs) or 1.0
    centre = (n - 1) / 2
    across = math.fsum((i - centre) * (v - mean) for i, v in enumerate(logs))
    slope = across / math.fsum((i - centre) ** 2 for i in range(n))
    trend = slope * across / total
    best, at, jump, before = 0.0, 0, 0.0, logs[0]
    for cut in range(2, n - 1):  # at least two repeats on each side: one alone is an outlier, not a step
        before += logs[cut - 1]
        left, right = before / cut, (mean * n - before) / (n - cut)
        share = cut * (n - cut) / n * (right - left) ** 2 / total
        if share > best:
            best, at, jump = share, cut, right - left
    return trend, best, slope, at, jump


@dataclass(frozen=True, slots=True)
class Repeat:
    """One run of a setting that was run several times, in order."""

    value: float
    nodes: tuple[str, ...] = ()
    place: int = 0  # in the order of all runs


_Cause = Literal["node", "first run", "trend", "unexplained"]


@dataclass(frozen=True, slots=True)
class Outlier:
    """A run far from the others of its setting. It stays in every figure; this says what it is likely to be."""

    index: int
    change: float  # of the speed against the median run, as a fraction
    cause: _Cause
    reason: str

    def __str__(self) -> str:
        return f"run {self.index + 1} is {percent(self.change)} off the median: {self.cause}, {self.reason}"


def outliers(repeats: Sequence[Repeat], direction: Direction, drifted: Drift | None = None) -> list[Outlier]:
    """Runs of one setting that lie more than 5 robust standard deviations from the median, with a likely cause.

    Fewer than five repeats have no outliers: which of three is the odd one cannot be said.
    """
    if len(repeats) < 5 or any(r.value <= 0 for r in repeats):
        return []
    logs = oriented_logs([r.value for r in repeats], direction)
    middle = median(logs)
    scale = 1.4826 * median(abs(v - middle) for v in logs)
    # of a nearly deterministic program every last digit would be an outlier; a tenth of a percent is nobody's concern
    limit = max(5 * scale, 1e-3)
    found = []
    for index, value in enumerate(logs):
        if abs(value - middle) > limit:
            cause, reason = _cause(index, logs, repeats, middle, limit, drifted)
            found.append(Outlier(index, math.expm1(value - middle), cause, reason))
    return found


def _cause(
    index: int, logs: Sequence[float], repeats: Sequence[Repeat], middle: float, limit: float, drifted: Drift | None
) -> tuple[_Cause, str]:
    off = logs[index] - middle
    if drifted is not None and drifted.kind in ("step", "trend"):
        # where the median lies decides which side of the change looks odd
        late = index >= (len(logs) / 2 if drifted.at is None else drifted.at)
        if late == ((drifted.change > 0) == (off > 0)):
            return "trend", str(drifted)
    if index == 0:
        return "first run", "nothing was warm yet (file cache, clocks, just-in-time compilation)"
    for node in repeats[index].nodes:
        here = [v for v, r in zip(logs, repeats, strict=True) if node in r.nodes]
        elsewhere = [v for v, r in zip(logs, repeats, strict=True) if node not in r.nodes]
        if elsewhere and all(abs(v - middle) > limit / 2 and (v - middle > 0) == (off > 0) for v in here):
            runs = "the only run there" if len(here) == 1 else f"all {len(here)} runs there are off"
            return "node", f"{node}, {runs}"
    return "unexplained", "not the first run, no trend, no slow node explains it"


# What a value would have been had the machine not changed: seen through the repeats of the baseline around it.
#
# Where drift is found in those repeats (`drift`), a raw value says as much about when it was measured as about its
# setting. Divided by the baseline's level at that time, it speaks of the setting again.

MOST_REPEATS = 200  # of the baseline looked at: a change shows in these, and all of a long campaign would take seconds


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


def regimes(repeats: Sequence[Repeat], direction: Direction, level: float = 0.95) -> Regimes:
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
    repeats = [Repeat(run.metrics[metric], run.ending.nodes, run.number) for _, run in runs]
    unknown = {effect.node for effect in effects if effect.verdict == "undecided"}
    if not any(unknown.intersection(repeat.nodes) for repeat in repeats):
        factors = corrections(effects, direction)
        repeats = [Repeat(corrected(r.value, r.nodes, factors), place=r.place) for r in repeats]
    return regimes(repeats, direction, level)


@lru_cache(maxsize=32)  # every face asks for it at every look, and permutations take their time
def _regimes(looked_at: tuple[Repeat, ...], direction: Direction, level: float) -> Regimes:
    values = _freed_from_nodes(looked_at, direction, level)
    found = drift(values, direction, random.Random(0), level)
    if found.kind not in ("step", "trend"):
        return Regimes(found)
    logs = [math.log(value) for value in values]
    return Regimes(found, tuple(repeat.place for repeat in looked_at), tuple(_course(logs, found.at)))


def _freed_from_nodes(repeats: Sequence[Repeat], direction: Direction, level: float) -> list[float]:
    """Empty where nodes and time cannot be separated."""
    if len({repeat.nodes for repeat in repeats}) < 2:
        return [repeat.value for repeat in repeats]
    effects = node_effects([NodeRun("baseline", r.nodes, r.value) for r in repeats], direction, level)
    if any(effect.verdict == "undecided" for effect in effects):
        return []
    factors = corrections(effects, direction)
    return [corrected(repeat.value, repeat.nodes, factors) for repeat in repeats]


def _course(logs: Sequence[float], at: int | None) -> list[float]:
    """The levels before and after a step, or a straight line."""
    if at is not None:
        return [math.fsum(side) / len(side) for side in (logs[:at], logs[at:]) for _ in side]
    middle, mean, slope = (len(logs) - 1) / 2, math.fsum(logs) / len(logs), _explained(logs)[2]
    return [mean + slope * (i - middle) for i in range(len(logs))]
