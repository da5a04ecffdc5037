"""The chance that a setting runs at all, by what passed and failed, and how far predictions of it are believed."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace

import numpy as np

from ridgeline.records.observation import Observation
from ridgeline.records.space import Point, Space
from ridgeline.samplers.guided.candidates import around
from ridgeline.samplers.guided.features import Features, Products
from ridgeline.samplers.guided.gaussian import Array, Columns, GaussianProcess, fitted, normal_share
from ridgeline.samplers.guided.model import REMEMBERED, ObservedData, evenly

# Extremely randomised trees: what went together under which values, where edges are sharp.
#
# A Gaussian process sees a slope where a program has an edge (a memory that is full, two values that exclude each
# other); trees cut there. All trees grow at once, a level at a time: few observations make small trees, numpy likes
# large arrays.

DEEPEST = 12
SAME_VALUE = 1e-12  # values that differ by less are the same


TREES = 30
CUTS = 20  # random ones drawn for a node, of which the best is taken
LEAF = 1  # observations of a node that is not cut any more
SHRINKAGE = 1.0  # a node's mean is drawn towards the node above as if so many more observations had come out like it


class Trees:
    """What `values` are around a row. The same for the same rows and values."""

    def __init__(self, rows: Array, values: Array) -> None:
        # of all nodes: the feature cut (-1 for a leaf), where, the first child's number (the second follows it), and
        # the mean of what the observations there showed
        self._feature, self._at, self._child, self._value = map(
            np.concatenate, zip(*_levels(rows, values), strict=True)
        )

    def at(self, rows: Array) -> Array:
        """Mean of the trees."""
        here, row = np.tile(np.arange(TREES), len(rows)), np.repeat(np.arange(len(rows)), TREES)
        inside = np.flatnonzero(self._feature[here] >= 0)
        while inside.size:
            node = here[inside]
            above = rows[row[inside], self._feature[node]] > self._at[node]
            here[inside] = self._child[node] + above
            inside = inside[self._feature[here[inside]] >= 0]
        found: Array = self._value[here.reshape(len(rows), TREES)].mean(axis=1)
        return found


def _levels(rows: Array, values: Array) -> Iterator[tuple[Array, Array, Array, Array]]:
    """The nodes of all trees, a level at a time."""
    rng = np.random.default_rng(0)
    node, value, row = np.repeat(np.arange(TREES), len(rows)), np.tile(values, TREES), np.tile(rows, (TREES, 1))
    around, first, depth = np.full(TREES, float(values.mean())), 0, 0
    while around.size:
        size = around.size
        count, total = np.bincount(node, minlength=size), np.bincount(node, weights=value, minlength=size)
        squares = np.bincount(node, weights=value**2, minlength=size)
        variance = np.maximum(squares / count - (total / count) ** 2, 0.0)
        mean = (total + SHRINKAGE * around) / (count + SHRINKAGE)
        feature, at, parts = _cuts(node, row, value, rng)
        parts &= (variance > SAME_VALUE) & (count > LEAF) & (depth < DEEPEST)
        first, depth = first + size, depth + 1
        child = first + 2 * (np.cumsum(parts) - 1)
        yield np.where(parts, feature, -1), at, child, mean
        above = row[np.arange(len(row)), feature[node]] > at[node]
        kept = parts[node]
        node, value, row = (child[node] - first + above)[kept], value[kept], row[kept]
        around = np.repeat(mean[parts], 2)


def _cuts(node: Array, row: Array, value: Array, rng: np.random.Generator) -> tuple[Array, Array, Array]:
    """For each node, of some random cuts the one that parts its values best; and whether it parts anything."""
    order, size = np.argsort(node, kind="stable"), int(node.max()) + 1
    starts = np.searchsorted(node[order], np.arange(size))
    low, high = (ends.reduceat(row[order], starts, axis=0) for ends in (np.minimum, np.maximum))
    # a random feature among those that differ inside the node
    differs = high > low
    first = np.argsort(~differs, axis=1, kind="stable")
    lot = (rng.random((size, CUTS)) * np.maximum(differs.sum(axis=1), 1)[:, None]).astype(np.intp)
    feature = np.take_along_axis(first, lot, axis=1)
    least, most = np.take_along_axis(low, feature, axis=1), np.take_along_axis(high, feature, axis=1)
    at = least + rng.random((size, CUTS)) * (most - least)
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
_LABELS_FITTED = 40  # observations that the length scales of the chance are found from
SURE = 0.002  # chances nearer to 0 are not told apart


class ChanceModel:
    """The chance to pass: a Gaussian process over passed (1) and failed (-1), around what was expected, and trees,
    which are shown products and ratios of two knobs as well. What either doubts is doubted."""

    def __init__(self, seen: ObservedData, columns: Columns) -> None:
        passed = ~np.isnan(seen.values)
        self._all_passed = bool(passed.all())
        self._base = (passed.sum() + 1.0) / (len(passed) + 2.0)
        self._products = seen.products
        if self._all_passed:
            return
        passed, odds = passed[-REMEMBERED:], None if seen.odds is None else seen.odds[-REMEMBERED:]
        rows, self._columns = _with_odds(seen.rows[-REMEMBERED:], odds, columns)
        labels = np.where(passed, 1.0, -1.0) - self._expected_label(odds)
        some = evenly(0, len(labels), _LABELS_FITTED)
        fit = fitted(rows[some].astype(float), labels[some], self._columns)
        self._process = GaussianProcess(rows, self._columns, fit)
        self._dual = self._process.solved(labels)
        self._trees = Trees(self._shown(rows), passed.astype(float))

    def _shown(self, rows: Array) -> Array:
        return rows if self._products is None else self._products.beside(rows)

    def _expected_label(self, odds: Array | None) -> Array | float:
        if odds is None:
            return 2.0 * float(self._base) - 1.0
        found: Array = np.tanh(0.5 * odds)
        return found

    def roughly(self, rows: Array, odds: Array | None) -> Array:
        """Which of very many places are worth a closer look: cheap, without how sure it is."""
        if self._all_passed:
            return self.at(rows, odds)
        label = self._expected_label(odds)
        rows, _ = _with_odds(rows, odds, self._columns)
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
        rows, _ = _with_odds(rows, odds, self._columns)
        across = self._process.across(rows)
        spread = self._process.spread(across)
        smooth = normal_share((label + across @ self._dual) / np.sqrt(_LABEL_NOISE + spread**2))
        parted = self._trees.at(self._shown(rows))
        # the best candidate is often one of which a model is wrong: where nothing was predicted, both have to agree
        found: Array = np.clip(np.minimum(smooth, parted) if odds is None else np.sqrt(smooth * parted), SURE, 1.0)
        return found


def _with_odds(rows: Array, odds: Array | None, columns: Columns) -> tuple[Array, Columns]:
    if odds is None:
        return rows, columns
    place = 0.5 * np.tanh(0.25 * odds)
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
        self._models: list[tuple[float, ChanceModel, bool]] = []  # with the weight of each, and whether it takes odds
        if self.credit >= NEGLIGIBLE:
            self._models.append((self.credit, ChanceModel(seen, columns), True))
        if self.credit <= 1.0 - NEGLIGIBLE:
            alone = ChanceModel(replace(seen, expected=None, odds=None), columns)
            self._models.append((1.0 - self.credit, alone, False))

    def at(self, rows: Array, odds: Array | None) -> Array:
        return self._mixed(ChanceModel.at, rows, odds)

    def roughly(self, rows: Array, odds: Array | None) -> Array:
        """Which of very many places are worth a closer look: cheap, without how sure it is."""
        return self._mixed(ChanceModel.roughly, rows, odds)

    def _mixed(self, chance: Callable[..., Array], rows: Array, odds: Array | None) -> Array:
        found = [(weight, chance(model, rows, odds if takes else None)) for weight, model, takes in self._models]
        return found[0][1] if len(found) == 1 else found[0][0] * found[0][1] + found[1][0] * found[1][1]


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
