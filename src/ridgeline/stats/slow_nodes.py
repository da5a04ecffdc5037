"""Which nodes are slow or fast, by the evidence: the most unlike first, then the others weighed again beside it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ridgeline.records.space import Point
from ridgeline.stats.arrays import numpy
from ridgeline.stats.contribution import KnobCoding
from ridgeline.stats.node_effect import FEWEST_RUNS, NodeEffect, NodeRun
from ridgeline.stats.student import interval

# How strongly runs speak for one node being unlike the others, as odds against all nodes being alike.
#
# Two stories of the same runs are weighed: all nodes are alike, or one of them makes its jobs slower (or faster) by a
# factor that is not known. In both a run has the level of its setting, the machine may wander, and noise has heavy
# tails, so that one disturbed run makes no slow node. The odds of a story are the chance of the runs under it over that
# under "all alike", averaged over what is not known. Looking again after every run, and placing runs by what was seen,
# does not make such odds dishonest: if all nodes are alike, they ever exceed 20 in at most one campaign of twenty.
#
# A job waits for its slowest node, so one slow node slows every job it is part of by the same factor.
#
# How fast settings are must be known only as far as it takes to compare the nodes they ran on: one that ran once says
# of its node as much as the knobs explain of it. Where they explain little, it is left out, and runs of one setting on
# several nodes decide; where they explain most, every run counts.

_TAILS = 4.0  # degrees of freedom of the noise: two runs in a hundred are beyond three of its standard deviations
_USUAL_SIZE = 0.08  # how far from its peers an unlike node is, in logs: the standard deviation over such nodes
_FAST = 0.05  # how much rarer a single fast node is than a single slow one
# what noise is thought to be before any run, in logs, and how many runs that thought is worth: where five runs are
# alike by luck, nobody should be accused for it
NOISE, WORTH = 0.015, 2.0
# how much the machine wanders over a campaign, and pairs of nodes differ: variances over the noise's, and their chances
_WANDERING = ((0.0, 0.5), (1.0, 0.3), (8.0, 0.2))
_PAIRS = ((0.0, 0.8), (0.3, 0.2))
_NONE = ((0.0, 1.0),)
_CLOSELY = 4  # stories weighed with their own idea of which runs were disturbed; the others are far behind
_ROUNDS = 5  # of finding disturbed runs
_FREE = 1e4  # a variance, over that of the noise, that leaves every setting its own level
_ROUGH = 3.0  # beyond this a setting that ran once says less of its node than a quarter of a repeat
_TAMED = 4.0  # repeats further from their median count as that far: one disturbed run must not pass for noise
_FEWEST_SETTINGS = 12  # of fewer it is not known how they spread
_NODES = 2.0  # nodes may differ too, by about the noise; otherwise a slow one would be taken for a rough space
_OWN = (1.0, 3.0, 10.0, 100.0, 1e3)  # what a setting has beyond its knobs: always something
_BORDER = 1e12  # on the diagonal beside vectors: large enough for any, and not used
_KNOBS = (0.0, 0.1, 1.0, 10.0, 100.0, 1e3)  # what one knob brings


# log speeds of runs; the covariances that they could have, the noise left out: of the levels of their settings, of the
# machine's wandering and of pairs of nodes (variances over the noise's); and the chance of each before any run
_Facts = tuple[Any, Any, Any]


@dataclass(frozen=True)
class _Effect:
    """What being on a node adds to the log speed of a job: `error` is a standard error, `freedom` that of Student."""

    mean: float
    error: float
    freedom: float

    @property
    def kept(self) -> float:
        """The share of the mean that is left when it is pulled toward none, as unlike nodes are spread."""
        return _USUAL_SIZE**2 / (_USUAL_SIZE**2 + self.error**2)

    @property
    def below(self) -> float:
        """The chance that it is below none."""
        return 0.5 * math.erfc(self.mean / max(self.error, 1e-9) / math.sqrt(2))


def _averaged(evidence: Any, chances: Any) -> tuple[float, int]:
    """The log of the mean over machines, and which is the likeliest."""
    weighted = evidence + numpy.log(chances)
    peak = float(weighted.max())
    return math.log(float(numpy.exp(weighted - peak).sum())) + peak, int(weighted.argmax())


class _Hypothesis:
    """Several machines at once under one story: which runs were disturbed is found in turn with how noisy runs are."""

    def __init__(self, speeds: Any, fixed: Any, bases: Any) -> None:
        self.speeds, self.fixed, self.bases = speeds, fixed, bases
        self.trust = numpy.ones(bases.shape[:2])  # of each run: 1 where it is like others, near 0 where it is disturbed
        self.surprise = numpy.zeros(bases.shape[:2])

    def settle(self) -> None:
        self._solve()
        self.untouched = float(self.diagonal[0].sum())
        for _ in range(_ROUNDS):
            noise = (self.residuals / self.trust) ** 2 / self.noise[:, None]
            share = 1 / self.trust - self.diagonal / self.trust**2
            self.surprise = noise + share
            self.trust = (_TAILS + 1) / (_TAILS + self.surprise)
            self._solve()

    def _solve(self) -> None:
        covariance = self.bases + numpy.eye(len(self.speeds)) * (1 / self.trust)[:, :, None]
        inverse = numpy.linalg.inv(covariance)
        turned = inverse @ self.fixed
        self.information = self.fixed.T @ turned
        self.projected = inverse - turned @ numpy.linalg.pinv(self.information, hermitian=True) @ turned.transpose(
            0, 2, 1
        )
        self.covariance = covariance
        self.residuals = self.projected @ self.speeds
        self.squares = self.residuals @ self.speeds + WORTH * NOISE**2
        self.freedom = len(self.speeds) - self.fixed.shape[1] + WORTH
        self.noise = self.squares / self.freedom
        self.diagonal = numpy.diagonal(self.projected, axis1=1, axis2=2)

    def evidence(self) -> Any:
        """The log of each machine's chance of these runs, the same constant left out for all stories."""
        _, size = numpy.linalg.slogdet(self.covariance)
        _, log_det = numpy.linalg.slogdet(self.information + 1e-12 * numpy.eye(self.fixed.shape[1]))
        return -0.5 * (size + log_det + self.freedom * numpy.log(self.squares)) + self._tails()

    def _tails(self) -> Any:
        """What trusting runs less costs: the bound on the chance under Student's noise, less that of normal noise."""
        before, after = _TAILS / 2, (_TAILS + 1) / 2
        rate = (_TAILS + self.surprise) / 2
        expected_log = _digamma(after) - numpy.log(rate)
        cost = (
            (after - before) * _digamma(after)
            - math.lgamma(after)
            + math.lgamma(before)
            + before * (numpy.log(rate) - math.log(before))
            + after * (before - rate) / rate
        )
        return (0.5 * (expected_log - numpy.log(self.trust)) - cost).sum(axis=1)

    def effect(self, at: int, column: Any, slab: float) -> _Effect:
        """Of the column that this machine's story has as unlike by `slab`."""
        projected = self.projected[at]
        precision = float(column @ projected @ column)
        score = float(column @ self.residuals[at])
        noise = float(self.noise[at])
        # the story's own covariance holds the column already: take it out again
        alone = precision / max(1 - slab * precision, 1e-9)
        mean = score / max(precision, 1e-12)
        return _Effect(mean, math.sqrt(noise / max(alone, 1e-12)), self.worth(at))

    def worth_runs(self, columns: Any) -> tuple[float, ...]:
        return tuple(numpy.einsum("ik,ij,jk->k", columns, self.projected[0], columns).tolist())

    def worth(self, at: int) -> float:
        """How many runs' worth of knowledge there is about the noise."""
        return float((self.diagonal[at] / self.trust[at]).sum())


def _at_a_glance(alike: _Hypothesis, columns: Any, at: int) -> tuple[Any, list[_Effect], Any]:
    """Every story's log odds and effect, with the disturbed runs of "all alike"; and how much unlike nodes vary, over
    the noise that is left once this one is taken to be unlike."""
    projected, freedom = alike.projected[at], alike.freedom
    precision = numpy.maximum(numpy.einsum("ik,ij,jk->k", columns, projected, columns), 1e-12)
    score = columns.T @ alike.residuals[at]
    whole = float(alike.squares[at])
    noise = numpy.maximum(whole - score**2 / precision, WORTH * NOISE**2) / max(freedom - 1, 1)
    slabs = _USUAL_SIZE**2 / noise
    left = numpy.maximum(whole - slabs * score**2 / (1 + slabs * precision), whole * 1e-9)
    gain = -0.5 * numpy.log1p(slabs * precision) - 0.5 * freedom * numpy.log(left / whole)
    errors = numpy.sqrt(noise / precision)
    worth = alike.worth(at)
    effects = [_Effect(float(mean), float(error), worth) for mean, error in zip(score / precision, errors, strict=True)]
    return gain, effects, slabs


def _digamma(x: float) -> float:
    shift = 0.0
    while x < 8:
        shift -= 1 / x
        x += 1
    return shift + math.log(x) - 1 / (2 * x) - 1 / (12 * x**2) + 1 / (120 * x**4)


def alike(labels: Sequence[Hashable]) -> Any:
    """1 where two labels are the same."""
    numbers = {label: number for number, label in enumerate(dict.fromkeys(labels))}
    codes = numpy.asarray([numbers[label] for label in labels])
    return (codes[:, None] == codes[None, :]).astype(float)


def _spread_of_settings(settings: Sequence[str], points: Sequence[Point], speeds: Any, columns: Any) -> Any:
    """The covariance of the levels of these runs' settings, over the noise's variance; None where a setting that ran
    once tells nothing. `columns` says which nodes (columns) each run was on."""
    if len(set(settings)) < _FEWEST_SETTINGS or not any(points):
        return None
    own, knobs = alike(settings), _alike_in_knobs(points)
    speeds = _tamed(settings, speeds)
    rest = numpy.eye(len(settings)) + _NODES * (columns @ columns.T)
    of_own, of_knobs = 3.0, 1.0
    for _ in range(2):
        of_own = _likeliest(_OWN, [rest + of_knobs * knobs + ratio * own for ratio in _OWN], speeds)
        of_knobs = _likeliest(_KNOBS, [rest + ratio * knobs + of_own * own for ratio in _KNOBS], speeds)
    return None if of_own > _ROUGH else of_knobs * knobs + of_own * own


def _tamed(settings: Sequence[str], speeds: Any) -> Any:
    labels, tamed = numpy.asarray(settings), speeds.copy()
    for setting in set(settings):
        own = labels == setting
        if own.sum() > 2:
            middle = numpy.median(speeds[own])
            reach = _TAMED * 1.4826 * numpy.median(abs(speeds[own] - middle))
            tamed[own] = numpy.clip(speeds[own], middle - reach, middle + reach)
    return tamed


def _alike_in_knobs(points: Sequence[Point]) -> Any:
    names = list(dict.fromkeys(name for point in points for name in point))
    codes = [(KnobCoding.of([point.get(name) for point in points]), name) for name in names]
    coded = numpy.asarray([[c for coding, name in codes for c in coding.code(point.get(name))] for point in points])
    coded = coded - coded.mean(axis=0)
    return coded @ coded.T


def _likeliest(ratios: Sequence[float], covariances: Sequence[Any], speeds: Any) -> float:
    """By restricted likelihood, a common mean left open."""
    count = len(speeds)
    bordered = numpy.zeros((len(covariances), count + 2, count + 2))
    bordered[:, :count, :count] = covariances
    # below the Cholesky factor of a matrix bordered with vectors stand their solutions: no inverse is needed
    bordered[:, count, :count], bordered[:, count + 1, :count] = 1.0, speeds
    bordered[:, count, count] = bordered[:, count + 1, count + 1] = _BORDER
    factor = numpy.linalg.cholesky(bordered)
    size = 2 * numpy.log(numpy.diagonal(factor, axis1=1, axis2=2)[:, :count]).sum(axis=1)
    ones, turned = factor[:, count, :count], factor[:, count + 1, :count]
    weights = (ones**2).sum(axis=1)
    squares = (turned**2).sum(axis=1) - (ones * turned).sum(axis=1) ** 2 / weights
    squares = numpy.maximum(squares, 1e-12)
    own = -0.5 * (size + numpy.log(weights) + (count - 1) * numpy.log(squares))
    return ratios[int(own.argmax())]


_FEWEST_FREEDOM = 4  # residual degrees of freedom
_MARGIN = 1.5  # on odds, since they are computed with the likeliest spreads and bounds instead of all there could be
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
        weighing = _Weighing(facts, used, [name for name in names if name not in decided], decided)
        found |= {name: weighing.judged(found[name]) for name in names if name not in decided}
        if (fresh := weighing.decide(found)) is None:
            break
        decided[fresh.node] = fresh
    for name, effect in decided.items() if len(decided) > 1 else ():
        # how slow the first one was estimated while the second was still among its peers
        again = _Weighing(facts, used, [name], decided).judged(effect)
        decided[name] = replace(again, verdict=effect.verdict)
    return tuple((found | decided).values())


def _facts(runs: Sequence[NodeRun], names: Sequence[str], sign: float) -> tuple[_Facts, list[NodeRun]]:
    """What the runs say of nodes, and the runs that say it: all, or those of repeated settings."""

    def speeds(of: Sequence[NodeRun]) -> Any:
        return numpy.asarray([sign * math.log(run.value) for run in of])

    on = numpy.asarray([[float(name in run.nodes) for name in names] for run in runs])
    used, points = list(runs), [dict(run.point) for run in runs]
    levels = _spread_of_settings([run.setting for run in runs], points, speeds(runs), on)
    if levels is None:
        times = Counter(run.setting for run in runs)
        used = [run for run in runs if times[run.setting] > 1]
        levels = _FREE * alike([run.setting for run in used])
    places = numpy.asarray([run.place for run in used], dtype=float)
    length = float(numpy.ptp(places)) if used else 0.0
    # a walk without direction: steps and trends are both like it
    walk = numpy.minimum.outer(places - places.min(), places - places.min()) / length if length else None
    pairs = alike([frozenset(run.nodes) for run in used]) if any(len(run.nodes) > 1 for run in used) else None
    machines = [
        (levels + wander * (0.0 if walk is None else walk) + share * (0.0 if pairs is None else pairs), a * b)
        for wander, a in (_WANDERING if walk is not None else _NONE)
        for share, b in (_PAIRS if pairs is not None else _NONE)
    ]
    covariances, chances = (numpy.asarray(each) for each in zip(*machines, strict=True))
    return (speeds(used), covariances, chances), used


def _seen(name: str, runs: Sequence[NodeRun], decided: Mapping[str, NodeEffect]) -> tuple[bool, ...]:
    """The runs in which something is seen of this node: beside a slower one the job waits for that."""
    own = decided[name].speed if name in decided else None
    slower = {
        node
        for node, effect in decided.items()
        if effect.verdict == "slow" and node != name and (own is None or effect.speed is None or effect.speed < own)
    }
    return tuple(name in run.nodes and not slower & set(run.nodes) for run in runs)


class _Weighing:
    """Odds of the nodes `names`, beside those that are `decided` already and whose effects stay in every story: that
    each is slow, and fast, against all being alike. Nodes with the same runs are decided together only."""

    def __init__(
        self, facts: _Facts, used: Sequence[NodeRun], names: Sequence[str], decided: Mapping[str, NodeEffect]
    ) -> None:
        groups: dict[tuple[bool, ...], list[str]] = {}
        for name in names:
            groups.setdefault(_seen(name, used, decided), []).append(name)
        others = [_seen(name, used, decided) for name in decided if name not in names]
        self._groups, self._runs, self._all_runs = [*groups.values()], [*map(sum, groups)], len(used)
        speeds, machines, chances = facts
        known = numpy.asarray(others, dtype=float).reshape(len(others), len(used)).T
        columns = numpy.asarray([*groups], dtype=float).T
        fixed = numpy.column_stack([numpy.ones(len(speeds)), known])
        same = _Hypothesis(speeds, fixed, machines)
        same.settle()
        none, likeliest = _averaged(same.evidence(), chances)
        gain, effects, slabs = _at_a_glance(same, columns, likeliest)
        for at in sorted(range(columns.shape[1]), key=lambda at: -gain[at])[:_CLOSELY]:
            column = columns[:, at]
            story = _Hypothesis(speeds, fixed, machines + slabs[at] * numpy.multiply.outer(column, column))
            story.settle()
            own, likeliest = _averaged(story.evidence(), chances)
            gain[at], effects[at] = own - none, story.effect(likeliest, column, slabs[at])
        odds = [(math.exp(min(float(g), 50.0)), effect.below) for g, effect in zip(gain, effects, strict=True)]
        self._slow = [2 * each * side for each, side in odds]
        self._fast = [2 * _FAST * each * (1 - side) for each, side in odds]
        self._effects = effects
        self._freedom = same.untouched - 1  # of residuals, where one node is unlike
        self._worth_runs = same.worth_runs(columns)  # how many runs' worth the runs tell of each

    def judged(self, plain: NodeEffect) -> NodeEffect:
        """With what the odds say, short of naming it."""
        at = next(at for at, group in enumerate(self._groups) if plain.node in group)
        together = tuple(node for node in self._groups[at] if node != plain.node)
        effect = self._effects[at]
        count = sum(map(len, self._groups))
        whole = 1 + self._all_odds() / count
        either = (self._slow[at] + self._fast[at]) / count / whole
        known = replace(plain, together=together, chance=self._slow[at] / count / whole)
        enough = min(plain.runs, self._all_runs - self._runs[at]) >= FEWEST_RUNS
        if together or not enough or effect.error <= 0 or not self._separated(at):
            return known
        speed = math.exp(effect.mean)
        low, high = interval(effect.mean, effect.error, max(1.0, math.floor(effect.freedom)), plain.level, math.exp)
        likely = math.exp(either * effect.mean * effect.kept)
        return replace(known, verdict="usual", speed=speed, low=low, high=high, likely=likely)

    def decide(self, found: Mapping[str, NodeEffect]) -> NodeEffect | None:
        """The most unlike node, where there is no doubt that there is one and which."""
        count, whole = sum(map(len, self._groups)), self._all_odds()
        sides = (("slow", self._slow), ("fast", self._fast))
        odds, at, word = max((odds[at], at, word) for word, odds in sides for at in range(len(self._groups)))
        effect = found[self._groups[at][0]]
        doubt = 1 - effect.level
        if effect.verdict != "usual" or effect.low is None or effect.high is None or self._runs[at] < FEWEST_RUNS:
            return None
        if whole * doubt < _MARGIN * count or odds < effect.level * whole or effect.low <= 1 <= effect.high:
            return None
        return replace(effect, verdict="slow" if word == "slow" else "fast")

    def _all_odds(self) -> float:
        each = zip(self._groups, self._slow, self._fast, strict=True)
        return math.fsum(len(group) * (slow + fast) for group, slow, fast in each)

    def _separated(self, at: int) -> bool:
        return self._worth_runs[at] > _LEAST_WORTH and round(self._freedom, 2) >= _FEWEST_FREEDOM
