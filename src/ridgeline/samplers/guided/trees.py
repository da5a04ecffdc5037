"""Extremely randomised trees: what went together under which values, where edges are sharp.

A Gaussian process sees a slope where a program has an edge (a memory that is full, two values that exclude each other);
trees cut there. All trees grow at once, a level at a time: few observations make small trees, numpy likes large arrays.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ridgeline.samplers.guided.gaussian import Array

DEEPEST = 12
SAME = 1e-12  # values that differ by less are the same


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
        parts &= (variance > SAME) & (count > options.leaf) & (len(levels) < DEEPEST)
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
