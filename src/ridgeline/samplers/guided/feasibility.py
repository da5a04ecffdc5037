"""The chance that a setting runs at all, by what passed and failed, and how far predictions of it are believed."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ridgeline.records.observation import Observation
from ridgeline.records.space import Point, Space
from ridgeline.samplers.guided.candidates import around
from ridgeline.samplers.guided.features import Features, Products
from ridgeline.samplers.guided.gaussian import Array, Columns, GaussianProcess, fitted, normal_share
from ridgeline.samplers.guided.model import REMEMBERED, ObservedData

# Extremely randomised trees: what went together under which values, where edges are sharp.
#
# A Gaussian process sees a slope where a program has an edge (a memory that is full, two values that exclude each
# other); trees cut there. All trees grow at once, a level at a time: few observations make small trees, numpy likes
# large arrays.

DEEPEST = 12
SAME_VALUE = 1e-12  # values that differ by less are the same


@dataclass(frozen=True)
class TreeOptions:
    """How trees grow: how many; random cuts drawn for a node, of which the best is taken; observations of a node that
    is not cut any more; and the shrinkage: a node's mean is drawn
    towards the node above as if so many more observations had come out like it."""

    trees: int
    cuts: int
    leaf: int
    shrinkage: float


@dataclass(frozen=True)
class _Level:
    """The nodes of one level of all trees: the feature cut (-1 for a leaf), where, the first child's number among all
    nodes (the second follows it), and the mean and variance of what the observations there showed."""

    feature: Array
    at: Array
    child: Array
    value: Array
    variance: Array


class Trees:
    """What `values` are around a row. The same for the same rows and values."""

    def __init__(self, rows: Array, values: Array, options: TreeOptions) -> None:
        levels = _levels(rows, values, options, np.random.default_rng(0))
        self._options = options
        self._feature = np.concatenate([level.feature for level in levels])
        self._at = np.concatenate([level.at for level in levels])
        self._child = np.concatenate([level.child for level in levels])
        self._value = np.concatenate([level.value for level in levels])
        self._variance = np.concatenate([level.variance for level in levels])

    def at(self, rows: Array) -> tuple[Array, Array]:
        """Mean of the trees, and how far they and the observations in their leaves are apart."""
        leaves = self._leaves(rows)
        values = self._value[leaves]
        return values.mean(axis=1), np.sqrt(values.var(axis=1) + self._variance[leaves].mean(axis=1))

    def _leaves(self, rows: Array) -> Array:
        trees = self._options.trees
        here, row = np.tile(np.arange(trees), len(rows)), np.repeat(np.arange(len(rows)), trees)
        inside = np.flatnonzero(self._feature[here] >= 0)
        while inside.size:
            node = here[inside]
            above = rows[row[inside], self._feature[node]] > self._at[node]
            here[inside] = self._child[node] + above
            inside = inside[self._feature[here[inside]] >= 0]
        found: Array = here.reshape(len(rows), trees)
        return found


def _levels(rows: Array, values: Array, options: TreeOptions, rng: np.random.Generator) -> list[_Level]:
    trees = options.trees
    node, value, row = np.repeat(np.arange(trees), len(rows)), np.tile(values, trees), np.tile(rows, (trees, 1))
    around, first = np.full(trees, float(values.mean())), 0
    levels: list[_Level] = []
    while around.size:
        size = around.size
        count, total = np.bincount(node, minlength=size), np.bincount(node, weights=value, minlength=size)
        squares = np.bincount(node, weights=value**2, minlength=size)
        variance = np.maximum(squares / count - (total / count) ** 2, 0.0)
        mean = (total + options.shrinkage * around) / (count + options.shrinkage)
        feature, at, parts = _cuts(node, row, value, options.cuts, rng)
        parts &= (variance > SAME_VALUE) & (count > options.leaf) & (len(levels) < DEEPEST)
        first += size
        child = first + 2 * (np.cumsum(parts) - 1)
        levels.append(_Level(np.where(parts, feature, -1), at, child, mean, variance))
        above = row[np.arange(len(row)), feature[node]] > at[node]
        kept = parts[node]
        node, value, row = (child[node] - first + above)[kept], value[kept], row[kept]
        around = np.repeat(mean[parts], 2)
    return levels


def _cuts(node: Array, row: Array, value: Array, cuts: int, rng: np.random.Generator) -> tuple[Array, Array, Array]:
    """For each node, of some random cuts the one that parts its values best; and whether it parts anything."""
    order, size = np.argsort(node, kind="stable"), int(node.max()) + 1
    starts = np.searchsorted(node[order], np.arange(size))
    low, high = (ends.reduceat(row[order], starts, axis=0) for ends in (np.minimum, np.maximum))
    # a random feature among those that differ inside the node
    differs = high > low
    first = np.argsort(~differs, axis=1, kind="stable")
    lot = (rng.random((size, cuts)) * np.maximum(differs.sum(axis=1), 1)[:, None]).astype(np.intp)
    feature = np.take_along_axis(first, lot, axis=1)
    least, most = np.take_along_axis(low, feature, axis=1), np.take_along_axis(high, feature, axis=1)
    at = least + rng.random((size, cuts)) * (most - least)
    below = row[np.arange(len(row))[:, None], feature[node]] <= at[node]
    count, total = _sums(below, node, size), _sums(below * value[:, None], node, size)
    rest, others = np.bincount(node, minlength=size)[:, None] - count, _sums(value[:, None], node, size) - total
    parted = total**2 / np.maximum(count, 1) + others**2 / np.maximum(rest, 1)
    parted = np.where((count > 0) & (rest > 0), parted, -1.0)
    best, every = parted.argmax(axis=1), np.arange(size)
    return feature[every, best], at[every, best], parted[every, best] >= 0.0


def _sums(columns: Array, node: Array, size: int) -> Array:
    """Sum of each column by node."""
    return np.stack([np.bincount(node, weights=column, minlength=size) for column in columns.T], axis=1)


_LABEL_NOISE = 0.1
_PASSING = TreeOptions(trees=30, cuts=20, leaf=1, shrinkage=1.0)  # trees that tell what passes
_LABELS_FITTED = 40  # observations that the length scales of the chance are found from
SURE = 0.002  # chances nearer to 0 are not told apart


class ChanceModel:
    """The chance to pass: a Gaussian process over passed (1) and failed (-1), around what was expected, and trees,
    which are shown products and ratios of two knobs as well. What either doubts is doubted."""

    def __init__(self, seen: ObservedData, columns: Columns) -> None:
        passed = ~np.isnan(seen.values)
        self._all_passed = bool(passed.all())
        self._kept = np.arange(len(passed))[-REMEMBERED:]
        self._base = (passed.sum() + 1.0) / (len(passed) + 2.0)
        self._products = seen.products
        if self._all_passed:
            return
        rows, self._columns = _with_odds(seen.rows[self._kept], seen.odds, self._kept, columns)
        labels = np.where(passed, 1.0, -1.0)[self._kept] - self._expected_label(seen.odds, self._kept)
        some = np.linspace(0, len(labels) - 1, min(len(labels), _LABELS_FITTED)).round().astype(int)
        fit = fitted(rows[some].astype(float), labels[some], self._columns)
        self._process = GaussianProcess(rows, self._columns, fit)
        self._dual = self._process.solved(labels)
        self._trees = Trees(self._shown(rows), passed[self._kept].astype(float), _PASSING)

    def _shown(self, rows: Array) -> Array:
        return rows if self._products is None else self._products.beside(rows)

    def _expected_label(self, odds: Array | None, some: Columns | slice = slice(None)) -> Array | float:
        if odds is None:
            return 2.0 * float(self._base) - 1.0
        found: Array = np.tanh(0.5 * odds[some])
        return found

    def roughly(self, rows: Array, odds: Array | None) -> Array:
        """Which of very many places are worth a closer look: cheap, without how sure it is."""
        if self._all_passed:
            return self.at(rows, odds)
        label = self._expected_label(odds)
        rows, _ = _with_odds(rows, odds, slice(None), self._columns)
        z = (label + self._process.across(rows) @ self._dual) / math.sqrt(_LABEL_NOISE + 0.25)
        rough = 0.5 + 0.5 * np.tanh(0.8 * z)  # about the share of a normal distribution below z, and much quicker
        found: Array = np.clip(rough, SURE, 1.0)
        return found

    def at(self, rows: Array, odds: Array | None) -> Array:
        label = self._expected_label(odds)
        if self._all_passed:
            chance = np.ones(len(rows)) if odds is None else 0.5 * (1.0 + label)
            sure: Array = np.clip(chance, SURE, 1.0)
            return sure
        rows, _ = _with_odds(rows, odds, slice(None), self._columns)
        across = self._process.across(rows)
        spread = self._process.spread(across)
        smooth = normal_share((label + across @ self._dual) / np.sqrt(_LABEL_NOISE + spread**2))
        parted = self._trees.at(self._shown(rows))[0]
        # the best candidate is often one of which a model is wrong: where nothing was predicted, both have to agree
        found: Array = np.clip(np.minimum(smooth, parted) if odds is None else np.sqrt(smooth * parted), SURE, 1.0)
        return found


def _with_odds(rows: Array, odds: Array | None, some: Columns | slice, columns: Columns) -> tuple[Array, Columns]:
    if odds is None:
        return rows, columns
    place = 0.5 * np.tanh(0.25 * odds[some])
    return np.concatenate([rows, place[:, None].astype(rows.dtype)], axis=1), np.append(columns, columns.max() + 1)


# The chance to pass where one was predicted: trusted as far as passes and failures bear it out.
#
# Two things may be so: what was predicted is right up to what observations correct, or it says nothing of this machine.
# Every outcome was more likely under one of them. The chance is that of both, each by its weight.

TOO_RISKY = 0.2  # a chance to pass below this, or far below the best one, comes last
TOO_RISKY_PREDICTED = 0.6  # the same where the chance was predicted: an edge of memory that is known is not tried out
BELIEVED = 0.9  # before the first outcome
_SLIP = 0.1  # share of outcomes that come about for reasons that nobody predicts
NEGLIGIBLE = 0.03  # what has less weight does not count


class Feasibility:
    """As a ChanceModel; `too_risky` is the chance below which a setting comes last."""

    def __init__(self, seen: ObservedData, columns: Columns) -> None:
        self.credit = 0.0 if seen.odds is None else credit(seen.odds, ~np.isnan(seen.values))
        self.too_risky = TOO_RISKY + self.credit * (TOO_RISKY_PREDICTED - TOO_RISKY)
        self._with_prior = ChanceModel(seen, columns) if self.credit >= NEGLIGIBLE else None
        alone = self.credit <= 1.0 - NEGLIGIBLE
        self._without_prior = ChanceModel(replace(seen, expected=None, odds=None), columns) if alone else None

    def at(self, rows: Array, odds: Array | None) -> Array:
        with_prior = None if self._with_prior is None else self._with_prior.at(rows, odds)
        return self._both(with_prior, None if self._without_prior is None else self._without_prior.at(rows, None))

    def roughly(self, rows: Array, odds: Array | None) -> Array:
        """Which of very many places are worth a closer look: cheap, without how sure it is."""
        with_prior = None if self._with_prior is None else self._with_prior.roughly(rows, odds)
        return self._both(with_prior, None if self._without_prior is None else self._without_prior.roughly(rows, None))

    def _both(self, with_prior: Array | None, without_prior: Array | None) -> Array:
        if with_prior is None or without_prior is None:
            found = without_prior if with_prior is None else with_prior
            assert found is not None, "one of the two always has weight"
            return found
        return self.credit * with_prior + (1.0 - self.credit) * without_prior


def credit(odds: Array, passed: Array) -> float:
    """How far predicted odds of passing are trusted after these outcomes, against one chance for all."""
    predicted = _SLIP / 2 + (1.0 - _SLIP) / (1.0 + np.exp(-odds))
    height = math.log(BELIEVED / (1.0 - BELIEVED)) + float(np.log(np.where(passed, predicted, 1.0 - predicted)).sum())
    before = np.cumsum(passed) - passed
    alike = (before + 1.0) / (np.arange(len(passed)) + 2.0)  # the share so far, with one of each added
    height -= float(np.log(np.where(passed, alike, 1.0 - alike)).sum())
    return 1.0 / (1.0 + math.exp(-min(max(height, -50.0), 50.0)))


# The first trials, before a model of scores means anything: spread over the space, but not where others failed.
#
# Where nearly everything fails they stay one step away from what passed.


def next_to_passing(
    space: Space,
    observations: Sequence[Observation],
    taken: Collection[str],
    legal: Callable[[Point], bool],
    rng: random.Random,
) -> Point | None:
    """Of the settings one or two knobs away from those that passed, the likeliest to pass; None where none is left."""
    passed = [observation.point for observation in observations if observation.score is not None]
    near = [point for point in around(space, passed, rng, taken).values() if legal(point)]
    return likeliest(space, observations, near) if near else None


def in_common(space: Space, failed: Sequence[Point], passed: Sequence[Point]) -> str:
    """The values that all settings that failed share and none that passed has: 'threads 64, pinning off'."""
    shared = [
        f"{knob.name} {value}"
        for knob in space.knobs
        if knob.count != 1
        and len(values := {str(point.get(knob.name)) for point in failed}) == 1
        and (value := next(iter(values))) not in {str(point.get(knob.name)) for point in passed}
    ]
    return ", ".join(shared)


def likeliest(space: Space, observations: Sequence[Observation], candidates: Sequence[Point]) -> Point:
    """Of these candidates the likeliest to pass, by what passed and failed so far.

    They should be few, the next of a sequence: what is picked out of many no longer fills the space.
    """
    features = Features(space)
    outcomes = np.array([np.nan if observation.score is None else 0.0 for observation in observations])
    observed = features.of([observation.point for observation in observations])
    seen = ObservedData(observed, outcomes, None, None, products=Products(space, features))
    return candidates[int(ChanceModel(seen, features.columns).at(features.of(candidates), None).argmax())]
