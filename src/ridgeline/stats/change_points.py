"""Where in an ordered history did runs become slower? The posterior of change points under noise, and what to run next.

The log of a run is the level of its version plus an effect of its block (what ran together, on one node) plus noise;
levels change at none, one or two places. Flat prior on the first level, jumps normal with a spread of some times the
noise, the noise unknown: the marginal likelihood has a closed form for every set of change points, averaged over a few
sizes of jumps and of block effects. All of it is computed again at each look, and stopping when the posterior says so
costs nothing: under no change, the chance that the odds of a change ever reach 19 is at most one in 19 times their
prior (Ville's inequality).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ridgeline.stats.arrays import numpy as np
from ridgeline.stats.student import interval

_PRIOR = (0.5, 0.4, 0.1)  # of none, one and two changes
_JUMPS = (0.3, 3.0, 40.0, 2000.0, 1e6)  # variance of a jump over that of the noise; the last for programs without any
_BLOCKS = (0.0, 0.5)  # variance between blocks over that of the noise
_DAYS = (*_BLOCKS, 5.0, 50.0)  # between blocks that ran on different days
_LEAST_NOISE = 0.002  # what runs of any program scatter by, in logs, before they say so themselves; counts as two runs
_SURE = 0.96  # of a change at one place: a little more than the 95% that is asked of all that is said
_UNLIKELY = 1e-5  # pairs of changes less probable than this are left out of what to run next


@dataclass(frozen=True)
class Observed:
    """One run: its version by place in the history, the log of its value turned so that more is worse, its block."""

    place: int
    worse: float
    block: Hashable


@dataclass(frozen=True)
class ChangePosterior:
    """`at[t]` is the probability that versions t and t+1 differ. `changes` are the most probable places, first to last.

    `levels` are each version's own level on average over all that is possible, `between` how they vary with what is.
    """

    at: Sequence[float]
    none: float
    two: float
    changes: tuple[int, ...]
    levels: Sequence[float]
    noise: float
    block_share: float
    _between: Any

    @property
    def found(self) -> tuple[int, ...]:
        """Places of which it is sure that there is a change."""
        return tuple(t for t in self.changes if self.at[t] >= _SURE)

    @property
    def settled(self) -> bool:
        """Whether a change is found and a second one is found too, or unlikely."""
        return len(self.found) == 2 or (len(self.found) == 1 and self.two < 0.5)

    @cached_property
    def likely(self) -> tuple[int, ...]:
        """The fewest places that hold 95% of where the change is, first to last; empty where there may be none."""
        total, kept = math.fsum(self.at), []
        for t in sorted(range(len(self.at)), key=lambda t: -self.at[t]):
            kept.append(t)
            if math.fsum(self.at[k] for k in kept) >= 0.95 * total:
                break
        return tuple(sorted(kept)) if self.none < 0.5 else ()

    def next_pair(self, cost_s: Sequence[float]) -> tuple[int, int]:
        """The two versions that, run A B B A, tell most about where the change is for the node time they take."""
        cost = np.asarray(cost_s, dtype=float)
        own = np.diag(self._between)
        each = self.noise**2 / 2 + self.block_share * self.noise**2
        shared = self.block_share * self.noise**2
        a, d = own[:, None], own[None, :]
        before = each * each - shared * shared
        after = (each + a) * (each + d) - (shared + self._between) ** 2
        gain = np.log(np.maximum(after / before, 1.0)) / (cost[:, None] + cost[None, :])
        gain = np.triu(gain, 1)
        first, second = divmod(int(np.argmax(gain)), len(cost))
        return (first, second) if first != second else (0, len(cost) - 1)


def change_posterior(runs: Sequence[Observed], versions: int, blocks: Sequence[float] = _BLOCKS) -> ChangePosterior:
    """What these runs say of a history of so many versions; two or more."""
    y = np.asarray([run.worse for run in runs])
    place = np.asarray([run.place for run in runs])
    steps = (place[:, None] > np.arange(versions - 1)[None, :]).astype(float)
    labels = {label: number for number, label in enumerate(dict.fromkeys(run.block for run in runs))}
    member = np.zeros((len(runs), len(labels)))
    member[np.arange(len(runs)), [labels[run.block] for run in runs]] = 1.0
    pairs = np.triu_indices(versions - 1, 1)
    logs, fits = [], []
    for share in blocks:
        fit = _whitened(y, steps, member, share)
        for jump in _JUMPS:
            logs.append(_evidence(fit, jump, pairs))
            fits.append((fit, jump, share))
    weight = np.exp(np.asarray(logs) - max(float(np.max(each)) for each in logs))  # (fit, model)
    singles, doubles = versions - 1, len(pairs[0])
    prior = np.concatenate(
        [[_PRIOR[0]], np.full(singles, _PRIOR[1] / singles), np.full(doubles, _PRIOR[2] / max(1, doubles))]
    )
    joint = weight * prior
    joint /= joint.sum()
    return _summary(joint, fits, pairs, versions)


@dataclass(frozen=True)
class _Fit:
    """Sums with the blocks whitened out and the first level projected out."""

    yy: float
    c: Any
    g: Any
    mean_y: float
    mean_s: Any
    freedom: int
    constant: float


def _whitened(y: Any, steps: Any, member: Any, share: float) -> _Fit:
    sizes = member.sum(axis=0)
    shrink = share / (1 + share * sizes)
    all_ = np.column_stack([np.ones(len(y)), y, steps])
    sums = member.T @ all_
    cross = all_.T @ all_ - sums.T @ (shrink[:, None] * sums)
    ones = cross[0, 0]
    rest = cross[1:, 1:] - np.outer(cross[1:, 0], cross[0, 1:]) / ones
    constant = -0.5 * float(np.sum(np.log1p(share * sizes))) - 0.5 * math.log(ones)
    return _Fit(
        float(rest[0, 0]) + 2 * _LEAST_NOISE**2,
        rest[0, 1:],
        rest[1:, 1:],
        float(cross[0, 1] / ones),
        cross[0, 2:] / ones,
        len(y) - 1 + 2,
        constant,
    )


def _evidence(fit: _Fit, jump: float, pairs: Any) -> Any:
    """Log marginal likelihood of no change, of each single one, and of each pair of them."""
    own = np.diag(fit.g)
    none = np.asarray([fit.constant - 0.5 * fit.freedom * math.log(fit.yy)])
    explained = fit.c**2 / (own + 1 / jump)
    single = fit.constant - 0.5 * np.log1p(jump * own) - 0.5 * fit.freedom * np.log(_above(fit, explained))
    a, b, d = own[pairs[0]] + 1 / jump, fit.g[pairs], own[pairs[1]] + 1 / jump
    det = np.maximum(a * d - b * b, 1e-300)
    u, v = fit.c[pairs[0]], fit.c[pairs[1]]
    both = (d * u * u - 2 * b * u * v + a * v * v) / det
    double = fit.constant - 0.5 * np.log(det * jump * jump) - 0.5 * fit.freedom * np.log(_above(fit, both))
    return np.concatenate([none, single, double])


def _above(fit: _Fit, explained: Any) -> Any:
    return np.maximum(fit.yy - explained, _LEAST_NOISE**2)


def _summary(joint: Any, fits: Sequence[Any], pairs: Any, versions: int) -> ChangePosterior:
    models = joint.sum(axis=0)
    singles = versions - 1
    at = models[1 : 1 + singles].copy()
    np.add.at(at, pairs[0], models[1 + singles :])
    np.add.at(at, pairs[1], models[1 + singles :])
    two = float(models[1 + singles :].sum())
    best_fit = int(np.argmax(joint.sum(axis=1)))
    fit, jump, share = fits[best_fit]
    kept = np.flatnonzero(models[1 + singles :] > _UNLIKELY)  # of two thousand pairs few remain
    chosen = (pairs[0][kept], pairs[1][kept])
    levels = _levels(fit, jump, chosen, versions)
    chance = np.concatenate([models[: 1 + singles], models[1 + singles + kept]])
    chance = chance / chance.sum()
    mean = chance @ levels
    apart = levels - mean
    between = (chance[:, None] * apart).T @ apart
    best = int(np.argmax(models[1:])) + 1
    order: tuple[int, ...] = (best - 1,)
    if best > singles:
        order = (int(pairs[0][best - 1 - singles]), int(pairs[1][best - 1 - singles]))
    noise = math.sqrt(_left_over(fit, jump, order) / fit.freedom)
    return ChangePosterior(tuple(map(float, at)), float(models[0]), two, order, tuple(mean), noise, share, between)


def _left_over(fit: _Fit, jump: float, changes: tuple[int, ...]) -> float:
    """The sum of squares that these changes leave."""
    at = list(changes)
    matrix = fit.g[np.ix_(at, at)] + np.eye(len(at)) / jump
    return max(fit.yy - float(fit.c[at] @ np.linalg.solve(matrix, fit.c[at])), 2 * _LEAST_NOISE**2)


def _levels(fit: _Fit, jump: float, pairs: Any, versions: int) -> Any:
    """The level of every version (columns) under every model (rows), each at its most probable jumps."""
    after = (np.arange(versions)[None, :] > np.arange(versions - 1)[:, None]).astype(float)  # change, version
    own = np.diag(fit.g) + 1 / jump
    one = fit.c / own
    single = fit.mean_y + one[:, None] * (after - fit.mean_s[:, None])
    a, b, d = own[pairs[0]], fit.g[pairs], own[pairs[1]]
    det = np.maximum(a * d - b * b, 1e-300)
    u, v = fit.c[pairs[0]], fit.c[pairs[1]]
    first, second = (d * u - b * v) / det, (a * v - b * u) / det
    double = (
        fit.mean_y
        + first[:, None] * (after - fit.mean_s[:, None])[pairs[0]]
        + second[:, None] * (after - fit.mean_s[:, None])[pairs[1]]
    )
    return np.concatenate([np.full((1, versions), fit.mean_y), single, double])


@dataclass(frozen=True, slots=True)
class Jump:
    """How much slower from a version to the next, as a share, with a 95% interval."""

    at: int
    change: float
    low: float
    high: float


def jumps(runs: Sequence[Observed], changes: Sequence[int]) -> tuple[Jump, ...]:
    """The size of each change, given that these are all: differences of the levels between them, blocks allowed for."""
    y = np.asarray([run.worse for run in runs])
    edges = sorted(changes)
    segment = np.asarray([sum(run.place > t for t in edges) for run in runs])
    columns = np.column_stack([np.ones(len(y)), *((segment > k).astype(float) for k in range(len(edges)))])
    beta, *_ = np.linalg.lstsq(columns, y, rcond=None)
    freedom = max(1, len(y) - columns.shape[1])
    residual = y - columns @ beta
    spread = math.sqrt(max(float(residual @ residual) / freedom, _LEAST_NOISE**2 / len(y)))
    covariance = np.linalg.pinv(columns.T @ columns)
    found = []
    for k, t in enumerate(edges, 1):
        low, high = interval(float(beta[k]), spread * math.sqrt(float(covariance[k, k])), freedom, 0.95)
        found.append(Jump(t, math.expm1(float(beta[k])), math.expm1(low), math.expm1(high)))
    return tuple(found)


def change_points(runs: Sequence[Observed], versions: int) -> tuple[Jump, ...]:
    """All changes of a history that is read and not searched: every version has runs of its own, of a day of its own.

    Version by version, as they came: once a change is sure, what came before it is no longer looked at, so that there
    may be any number of them.
    """
    start, at = 0, list[int]()
    for end in range(2, versions + 1):
        seen = [Observed(run.place - start, run.worse, run.block) for run in runs if start <= run.place < end]
        if end - start > 1 and (found := change_posterior(seen, end - start, _DAYS).found):
            at += [start + t for t in found]
            start = at[-1] + 1
    return jumps(runs, at) if at else ()


@dataclass(frozen=True, slots=True)
class EndToEndChange:
    """The last version's slowdown against the first, in logs: estimate, standard error, degrees of freedom; and how
    runs of one version scatter."""

    middle: float
    error: float
    freedom: int
    noise: float

    def range(self, level: float = 0.95) -> tuple[float, float, float]:
        """As shares: estimate and interval."""
        low, high = interval(self.middle, self.error, self.freedom, level)
        return math.expm1(self.middle), math.expm1(low), math.expm1(high)

    def odds_of(self, slower: float) -> float:
        """How many times more probable what was measured is if they differ by `slower` than if they do not."""
        at, none = ((self.middle - shift) / self.error for shift in (math.log1p(slower), 0.0))
        spread = math.log1p(none**2 / self.freedom) - math.log1p(at**2 / self.freedom)
        return math.exp(min(700.0, 0.5 * (self.freedom + 1) * spread))


def between_ends(runs: Sequence[Observed], last: int) -> EndToEndChange | None:
    """None before both ran twice."""
    sides = [[run.worse for run in runs if run.place == place] for place in (0, last)]
    if min(map(len, sides)) < 2:
        return None
    means = [math.fsum(side) / len(side) for side in sides]
    squares = sum((v - mean) ** 2 for side, mean in zip(sides, means, strict=True) for v in side)
    freedom = sum(map(len, sides)) - 2
    spread = math.sqrt((squares + 2 * _LEAST_NOISE**2) / (freedom + 2))
    error = spread * math.sqrt(sum(1 / len(side) for side in sides))
    return EndToEndChange(means[1] - means[0], error, freedom, math.sqrt(squares / freedom))


# when to stop

_GIVEN_UP = 0.02  # odds of the slowdown looked for against none, of the ends, at which it counts as not reproduced:
# the chance that they ever fall to that, although it is there, is no larger
# noise may have two modes, and a few runs of one mode each look like two versions without noise that differ
_FEWEST_NOISY = 16  # runs of both ends together before "not reproduced", where runs of a version scatter at all
_FEWEST_OF_A_PAIR = 6  # runs of either version of a pair before it is named, there as well
_REPRODUCED = 0.9  # probability of a change at which the search for its place begins

ENDS, SEARCH, NOT_REPRODUCED, FOUND = "ends", "search", "not-reproduced", "found"


def _runs_at(runs: Sequence[Observed], place: int) -> int:
    return sum(run.place == place for run in runs)


def next_step(
    runs: Sequence[Observed], versions: int, slower: float, cost_s: Sequence[float]
) -> tuple[str, tuple[int, int] | None]:
    """What to do next: run the ENDS, or the pair of the SEARCH; or it is over, NOT_REPRODUCED or FOUND.

    The ends are run again first: where they do not differ by `slower`, there is nothing to search for here.
    """
    ends = between_ends(runs, versions - 1)
    if ends is None:
        return ENDS, (0, versions - 1)
    posterior = change_posterior(runs, versions)
    if posterior.settled:
        thin = (t for t in posterior.found if min(_runs_at(runs, t), _runs_at(runs, t + 1)) < _FEWEST_OF_A_PAIR)
        again = next(thin, None) if posterior.noise > _LEAST_NOISE else None
        return (FOUND, None) if again is None else (SEARCH, (again, again + 1))
    searched = any(0 < run.place < versions - 1 for run in runs)
    if not searched and (ends.odds_of(slower) < _GIVEN_UP or ends.range(0.99)[2] < 0):
        enough = ends.noise <= _LEAST_NOISE or ends.freedom + 2 >= _FEWEST_NOISY
        return (NOT_REPRODUCED, None) if enough else (ENDS, (0, versions - 1))
    if searched and ends.odds_of(slower) < _GIVEN_UP and posterior.none > 0.5:
        return NOT_REPRODUCED, None
    if posterior.none > (_SURE if searched else 1 - _REPRODUCED):
        return (NOT_REPRODUCED, None) if searched else (ENDS, (0, versions - 1))
    return SEARCH, posterior.next_pair(cost_s)
