"""Is a program slower than its reference? New runs against stored ones, with a stated false-alarm rate and power.

The statistic is Wilcoxon's: how often a new run is slower than a stored one. If nothing changed, its distribution does
not depend on the noise, so the false-alarm rate holds for noise of any shape (two modes, long tails). Runs that follow
the one before (a neighbour, a warm machine) tell less than as many that stand alone: by how much is read off the order
of the stored ones, and their statistic is divided by it. How much power a shift of `slower` has does depend on the
noise, and is read off the pairs of stored runs.

Looks are group-sequential (power-family error spending, exponent 2, both ways): the standardised statistic at look k
behaves as a random walk at time I(n) = 1/(1/m + 1/n), with m stored and n new runs, although the stored ones are
always the same. The limits are found by simulating that walk with a fixed seed.

Pairs: the old program and the new one in turn, which of the two comes first drawn for each pair. If nothing changed,
the sign of a pair's difference is a fair coin, whatever the machine does meanwhile and however runs follow each other.
The statistic is Wilcoxon's signed rank of the differences; looks and limits are as above, at time n pairs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import NormalDist, median
from typing import Any

from ridgeline.stats.arrays import numpy as np
from ridgeline.stats.compare import Direction

# what a gate finds, and how often it may be wrong, where nobody says otherwise
SLOWER, FALSE_ALARM, POWER = 0.03, 0.01, 0.9
MOST_RUNS = 100
FEWEST_REFERENCE = 12  # stored runs: fewer say too little about the noise
FEWEST_NEW = 6  # new runs before the first look
_LOOKS = 6
_WALKS = 60_000
_SPENDING = 2.0  # exponent: little of the error is spent on the first looks
_WORTH = 0.5  # of `slower`: a change that is certain but smaller than this is no alarm
_STORED_PER_NEW = 2.0  # stored runs to measure for each new one that a gate may take
_SPARE = 1.02  # times the signal that the rates ask for: the noise itself is an estimate
_STRETCHES = 12  # stored runs for each stretch of them that counts as one run: fewer hide how far they swing
_PAST = 3  # runs before it that a run may follow: two modes that stay for a while need more than one
# By so many standard errors that is raised where it decides, and where a reference is measured: whoever stops where the
# runs happen to look as if each stood alone has most of his false alarms from that.
_ERRORS_OF_A_GATE, _ERRORS_OF_A_REFERENCE = 1.0, 2.0
_ALL_TURNED = math.sqrt(12) * 0.5  # the drift at time 1 of a shift that turns every pair around
_MOST_KEPT = 0.98  # share of their deviation that the next run keeps; beyond it there is no mean


@dataclass(frozen=True, slots=True)
class GatePlan:
    """New runs at each look, and the limits there: slower from `alarm_at` on, not slower up to `pass_at`.

    `slower` is what is found with the stated power, as a share: what was asked for, or more where the stored runs and
    the limit of new ones cannot show that. So many runs in a row as `stretch` tell as much as one that stands alone;
    where the stored ones are too few to rule out more than that, `alone` says that they are taken to stand alone.
    """

    looks: tuple[int, ...]
    alarm_at: tuple[float, ...]
    pass_at: tuple[float, ...]
    slower: float
    asked: float
    false_alarm: float
    power: float
    stretch: float = 1.0
    alone: bool = False

    @property
    def most_runs(self) -> int:
        return self.looks[-1]

    def __str__(self) -> str:
        """'finds a 3% slowdown 90% of the time, with 1 false alarm in 100'."""
        text = f"finds a {_share(self.slower)} slowdown {self.power:.0%} of the time"
        text += f", with 1 false alarm in {1 / self.false_alarm:.0f}"
        return f"{text} if no run depends on the one before, which so few do not show" if self.alone else text


@dataclass(frozen=True, slots=True)
class GateResult:
    """`slower` is None while it is undecided. `change` is that of the metric towards worse, with a 95% interval."""

    slower: bool | None
    change: float
    low: float
    high: float
    runs: int


def _share(value: float) -> str:
    return f"{value * 100:.2g}%" if value < 0.1 else f"{value:.0%}"


def gate_plan(
    reference: Sequence[float],
    direction: Direction,
    slower: float = SLOWER,
    false_alarm: float = FALSE_ALARM,
    power: float = POWER,
    most_runs: int = MOST_RUNS,
) -> GatePlan:
    """How many new runs a gate against these stored ones takes at most, and what it finds with them.

    ValueError where so few runs show no slowdown at these rates, however large.
    """
    stored = _worse(reference, direction)
    found, gaps = slower, _gaps(stored)
    needed = (_drift_needed(false_alarm, power) * _SPARE / _ALL_TURNED) ** 2
    given = 1 / (1 / most_runs + 1 / len(stored))
    if needed > given:
        raise ValueError(
            f"{len(stored)} stored runs and {most_runs} new ones show no slowdown with {power:.0%} at 1 false alarm in "
            f"{1 / false_alarm:.0f}; allow more runs, more false alarms or less power"
        )
    # few runs hardly say how far each follows the one before, and never more than leaves something to be found
    most = min(len(stored) / _STRETCHES, given / needed * 0.99)
    raised = _stretch(stored, slower, _ERRORS_OF_A_GATE)
    stretch = max(1.0, min(raised, most))
    while (limits := _limits_for(gaps, len(stored), stretch, found, false_alarm, power, most_runs)) is None:
        found *= 1.02
    return GatePlan(*limits, found, slower, false_alarm, power, stretch, raised > stretch)


def reference_wanted(
    values: Sequence[float], direction: Direction, slower: float, false_alarm: float, power: float, most: int
) -> int:
    """Stored runs that a gate with these rates needs, as far as those so far show their noise.

    It is asked again at twice as many at most, and not after every run: whoever stops at the first run that says
    enough stops where the noise looks smaller than it is.
    """
    size = min(most, FEWEST_REFERENCE)
    while size <= len(values):
        stored = _worse(values[:size], direction)
        signal = _signal(_gaps(stored), slower)
        time = (_drift_needed(false_alarm, power) * _SPARE / signal) ** 2 if signal else float(most)
        alone = max(_STRETCHES, (1 + _STORED_PER_NEW) * time)
        wanted = min(most, math.ceil(alone * _stretch(stored, slower, _ERRORS_OF_A_REFERENCE)))
        if wanted <= size:
            break
        size = min(wanted, 2 * size)
    return size


def judge_gate(plan: GatePlan, reference: Sequence[float], values: Sequence[float], direction: Direction) -> GateResult:
    """What the new runs show, looked at as the plan says. Runs beyond the look that decided it are left out."""
    stored = _worse(reference, direction)
    return _looked_at(
        plan,
        _worse(values, direction),
        lambda new: _wilcoxon(stored, new) / math.sqrt(plan.stretch),
        lambda new: _change(stored, new, plan.stretch),
    )


def _looked_at(
    plan: GatePlan,
    values: Sequence[float],
    z_of: Callable[[Sequence[float]], float],
    change_of: Callable[[Sequence[float]], GateResult],
) -> GateResult:
    """What the first look that decides shows; without one, what there is so far."""
    for runs, alarm_at, pass_at in zip(plan.looks, plan.alarm_at, plan.pass_at, strict=True):
        if len(values) < runs:
            break
        z, found = z_of(values[:runs]), change_of(values[:runs])
        slower = z >= alarm_at and found.change >= math.expm1(math.log1p(plan.asked) * _WORTH)
        if slower or z < pass_at or runs == plan.most_runs:
            return replace(found, slower=slower)
    return change_of(values)


FEWEST_PAIRS = 8  # before the first look: how far their differences scatter says how many there are to be
_ALL_POSITIVE = math.sqrt(3) / 2  # the drift at time 1 of a shift that turns every mean of two pairs around


def pairs_plan(
    pairs: Sequence[tuple[float, float]],
    direction: Direction,
    slower: float = SLOWER,
    false_alarm: float = FALSE_ALARM,
    power: float = POWER,
    most_pairs: int = MOST_RUNS,
) -> GatePlan:
    """How many pairs of an old run and a new one a gate takes at most, and what it finds with them.

    By the scatter of the first FEWEST_PAIRS pairs alone, whatever follows them. ValueError where there are fewer, or
    where so many pairs show no slowdown at these rates, however large.
    """
    if len(pairs) < FEWEST_PAIRS:
        raise ValueError(f"{len(pairs)} pairs of runs, {FEWEST_PAIRS} are needed")
    needed = _drift_needed(false_alarm, power) * _SPARE
    if (needed / _ALL_POSITIVE) ** 2 > most_pairs:
        raise ValueError(
            f"{most_pairs} runs of each show no slowdown with {power:.0%} at 1 false alarm in {1 / false_alarm:.0f}; "
            f"allow {math.ceil((needed / _ALL_POSITIVE) ** 2)}, more false alarms or less power"
        )
    # what two pairs differ by does not contain what all of them share
    gaps = _gaps(_pair_changes(pairs[:FEWEST_PAIRS], direction)) / 2
    found = slower
    while (time := _pairs_needed(gaps, found, needed)) > most_pairs:
        found *= 1.02
    runs = max(FEWEST_PAIRS, math.ceil(time))
    looks = _looks(runs, FEWEST_PAIRS)
    times = tuple(round(n / runs, 2) for n in looks)
    _, alarm_at, pass_at = _boundaries(times, false_alarm, power)
    return GatePlan(looks, alarm_at, pass_at, found, slower, false_alarm, power)


def judge_pairs(plan: GatePlan, pairs: Sequence[tuple[float, float]], direction: Direction) -> GateResult:
    """What the pairs (old, new) show, looked at as the plan says; those beyond the look that decided are left out."""
    return _looked_at(plan, _pair_changes(pairs, direction), _signed_rank, _pairs_change)


def _pair_changes(pairs: Sequence[tuple[float, float]], direction: Direction) -> list[float]:
    """How much worse the new run of each pair was, in logs."""
    old, new = (_worse([pair[side] for pair in pairs], direction) for side in (0, 1))
    return [after - before for before, after in zip(old, new, strict=True)]


def _pairs_needed(gaps: Any, slower: float, needed: float) -> float:
    """Pairs until a shift by `slower` is found; few differences say little of their tails, so a gap more is counted."""
    turned = _turned(gaps, slower) / (len(gaps) + 1)
    return (needed / (_ALL_POSITIVE * turned)) ** 2 if turned else math.inf


def _signed_rank(changes: Sequence[float]) -> float:
    """Standardised; what did not change is left out, ties share their rank. 0 where nothing changed."""
    moved = np.asarray([change for change in changes if change])
    if not len(moved):
        return 0.0
    rank = _ranks(np.abs(moved)) + 1
    return float(np.sum(np.sign(moved) * rank) / math.sqrt(float(rank @ rank)))


def _pairs_change(changes: Sequence[float]) -> GateResult:
    """How much worse, by the median over the means of any two differences (Hodges and Lehmann)."""
    n, at = len(changes), np.asarray(changes)
    first, second = np.triu_indices(n)
    return _middle((at[first] + at[second]) / 2, n * (n + 1) * (2 * n + 1) / 24, n)


def _middle(differences: Any, variance: float, runs: int) -> GateResult:
    """The median of the differences of these runs, and the interval that this variance of their ranks gives."""
    if not runs:
        return GateResult(None, 0.0, -1.0, math.inf, 0)
    differences = np.sort(differences)
    half = NormalDist().inv_cdf(0.975) * math.sqrt(variance)
    edge = max(0, math.floor(len(differences) / 2 - half))
    at = float(median(differences)), float(differences[edge]), float(differences[len(differences) - 1 - edge])
    change, low, high = map(math.expm1, at)
    return GateResult(None, change, low, high, runs)


def _stretch(stored: Sequence[float], slower: float, errors: float) -> float:
    """How many of these runs in a row tell as much as one that stands alone; 1 where none follows the one before.

    An autoregression of the ranks on the last few: the variance of a mean of many runs over that of as many which stand
    alone, and so many standard errors of its log more. Where all lie closer together than any alarm asks for, their
    order does not matter.
    """
    if max(stored) - min(stored) < math.log1p(slower) * _WORTH:
        return 1.0
    rank = _ranks(np.asarray(stored))
    rank = rank - rank.mean()
    count, squares = len(rank), float(rank @ rank)
    past = min(_PAST, count // 8)
    if not squares or not past:
        return 1.0
    shared = np.asarray([float(rank[lag:] @ rank[: count - lag]) / squares for lag in range(past + 1)])
    lags = np.arange(past)
    follows = np.linalg.solve(shared[np.abs(lags[:, None] - lags)], shared[1:])
    own = max(1 - float(follows @ shared[1:]), 1e-3)
    kept = float(follows.sum())
    kept += (1 + 3 * kept) / count  # the mean that is taken away takes some of what few runs share with it
    found = max(1.0, own / (1 - min(kept, _MOST_KEPT)) ** 2)  # runs that seem to avoid the one before are luck
    return found * math.exp(errors * 2 * math.sqrt(past / count))


def _ranks(values: Any) -> Any:
    """From 0; values that are the same share the mean of theirs."""
    ordered = np.sort(values)
    return 0.5 * (np.searchsorted(ordered, values, "left") + np.searchsorted(ordered, values, "right") - 1)


def _worse(values: Sequence[float], direction: Direction) -> list[float]:
    """Logs, turned so that more is worse."""
    sign = 1.0 if direction == "minimize" else -1.0
    return [sign * math.log(value) for value in values]


def _gaps(stored: Sequence[float]) -> Any:
    """How far the stored runs are from each other, pair by pair, sorted."""
    at = np.asarray(stored)
    first, second = np.triu_indices(len(at), 1)
    return np.sort(np.abs(at[first] - at[second]))


def _signal(gaps: Any, slower: float) -> float:
    """The drift of the statistic for a shift by `slower`, at time 1: how many pairs it turns around."""
    return _ALL_TURNED * (_turned(gaps, slower) / len(gaps))


def _turned(gaps: Any, slower: float) -> float:
    """How many of these gaps a shift by `slower` turns around."""
    shift = math.log1p(slower)
    return 0.5 * float(np.searchsorted(gaps, shift, "left") + np.searchsorted(gaps, shift, "right"))


def _limits_for(
    gaps: Any, stored: int, stretch: float, slower: float, false_alarm: float, power: float, most_runs: int
) -> tuple[tuple[int, ...], tuple[float, ...], tuple[float, ...]] | None:
    """None where so many new runs do not give that power."""
    signal = _signal(gaps, slower)
    if not signal:
        return None
    time = (_drift_needed(false_alarm, power) * _SPARE / signal) ** 2 * stretch
    if time >= stored:
        return None
    runs = max(FEWEST_NEW, math.ceil(1 / (1 / time - 1 / stored)))
    if runs > most_runs:
        return None
    looks = _looks(runs, FEWEST_NEW)
    per_stored = round(runs / stored, 1)  # one decimal is enough, and spares most of the simulations
    times = tuple(round((per_stored + 1) / (per_stored + runs / n), 2) for n in looks)
    _, alarm_at, pass_at = _boundaries(times, false_alarm, power)
    return looks, alarm_at, pass_at


def _looks(runs: int, fewest: int) -> tuple[int, ...]:
    return tuple(sorted({max(fewest, math.ceil(runs * k / _LOOKS)) for k in range(1, _LOOKS + 1)}))


def _drift_needed(false_alarm: float, power: float) -> float:
    return _boundaries(tuple(round(k / _LOOKS, 2) for k in range(1, _LOOKS + 1)), false_alarm, power)[0]


@lru_cache(maxsize=512)
def _boundaries(
    times: tuple[float, ...], false_alarm: float, power: float
) -> tuple[float, tuple[float, ...], tuple[float, ...]]:
    """The drift at the last look that has this power, and the limits at all of them; `times` ends with 1."""
    steps = np.diff(np.asarray((0.0, *times)))
    walk = np.cumsum(np.random.default_rng(0).standard_normal((_WALKS, len(times))) * np.sqrt(steps), axis=1)
    quiet = np.ascontiguousarray((walk / np.sqrt(np.asarray(times))).T)  # all walks at one look lie together
    low, high = 1.0, 12.0
    for _ in range(18):
        drift = 0.5 * (low + high)
        missed, *_ = _spent(quiet, drift, times, false_alarm, 1 - power)
        low, high = (drift, high) if missed > 1 - power else (low, drift)
    _, alarm_at, pass_at = _spent(quiet, high, times, false_alarm, 1 - power)
    return high, alarm_at, pass_at


def _spent(
    quiet: Any, drift: float, times: tuple[float, ...], false_alarm: float, miss: float
) -> tuple[float, tuple[float, ...], tuple[float, ...]]:
    """The share of walks with this drift that is missed, and the limits that spend both errors look by look."""
    count = quiet.shape[1]
    still = moved = np.arange(count)  # the walks that nothing has been decided of, without the drift and with it
    alarm_at, pass_at, missed, alarmed = [], [], 0.0, 0.0
    for at, time in enumerate(times):
        z, shifted = quiet[at].take(still), quiet[at].take(moved) + drift * math.sqrt(time)
        alarm = _upper(z, (false_alarm * time**_SPENDING - alarmed) * count)
        last = at == len(times) - 1
        lower = alarm if last else min(alarm, -_upper(-shifted, (miss * time**_SPENDING - missed) * count))
        alarmed += float(np.count_nonzero(z >= alarm)) / count
        missed += float(np.count_nonzero(shifted < lower)) / count
        still = still[(z < alarm) & (z >= lower)]
        moved = moved[(shifted < alarm) & (shifted >= lower)]
        alarm_at.append(alarm)
        pass_at.append(lower)
    return missed, tuple(alarm_at), tuple(pass_at)


def _upper(values: Any, number: float) -> float:
    """The limit that so many of the values reach."""
    at = len(values) - min(int(number), len(values))
    return float(np.partition(values, at)[at]) if at < len(values) else 8.0


def _wilcoxon(stored: Sequence[float], new: Sequence[float]) -> float:
    """Standardised, ties allowed for; 0 where all values are the same."""
    x, y = np.sort(np.asarray(stored)), np.asarray(new)
    m, n = len(x), len(y)
    larger = 0.5 * float(np.sum(np.searchsorted(x, y, "left") + np.searchsorted(x, y, "right")))
    _, tied = np.unique(np.concatenate([x, y]), return_counts=True)
    total = m + n
    variance = m * n / 12 * (total + 1 - float(np.sum(tied**3 - tied)) / (total * (total - 1)))
    return (larger - m * n / 2) / math.sqrt(variance) if variance > 0 else 0.0


def _change(stored: Sequence[float], new: Sequence[float], stretch: float) -> GateResult:
    """How much worse, by the median over all pairs of a new and a stored run (Hodges and Lehmann)."""
    m, n = len(stored), len(new)
    differences = np.subtract.outer(np.asarray(new), np.asarray(stored)).ravel()
    return _middle(differences, m * n * (m + n + 1) / 12 * stretch, n)
