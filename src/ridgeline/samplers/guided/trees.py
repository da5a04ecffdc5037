"""Extremely randomised trees: what failed together under which values, where edges are sharp.

A Gaussian process sees a slope where a program has an edge (a memory that is full, two values that exclude each other);
trees cut there. Few and small, since they only have to tell what fails.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ridgeline.samplers.guided.gaussian import Array

TREES = 20
CUTS = 6  # drawn for a node, of which the best is taken
DEEPEST = 12
DOUBT = 0.5  # a leaf is believed as if so many more lessons had come out as the rest


@dataclass
class _Tree:
    """Nodes as columns: the feature cut (-1 for a leaf), where, the two children, and the value."""

    feature: list[int] = field(default_factory=list)
    at: list[float] = field(default_factory=list)
    low: list[int] = field(default_factory=list)
    high: list[int] = field(default_factory=list)
    value: list[float] = field(default_factory=list)

    def node(self) -> int:
        for column, empty in ((self.feature, -1), (self.low, 0), (self.high, 0)):
            column.append(empty)
        for numbers in (self.at, self.value):
            numbers.append(0.0)
        return len(self.feature) - 1

    def of(self, rows: Array) -> Array:
        feature, at, value = np.array(self.feature), np.array(self.at), np.array(self.value)
        low, high = np.array(self.low), np.array(self.high)
        here = np.zeros(len(rows), dtype=np.intp)
        inside = np.flatnonzero(feature[here] >= 0)
        while inside.size:
            node = here[inside]
            here[inside] = np.where(rows[inside, feature[node]] <= at[node], low[node], high[node])
            inside = inside[feature[here[inside]] >= 0]
        found: Array = value[here]
        return found


class Trees:
    """The share of `labels` (0 or 1) that are 1 around a row."""

    def __init__(self, rows: Array, labels: Array, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self._trees = []
        for _ in range(TREES):
            tree = _Tree()
            _grow(tree, rows, labels, np.arange(len(labels)), float(labels.mean()), rng, 0)
            self._trees.append(tree)

    def at(self, rows: Array) -> Array:
        found: Array = np.mean([tree.of(rows) for tree in self._trees], axis=0)
        return found


def _grow(
    tree: _Tree, rows: Array, labels: Array, here: np.ndarray, around: float, rng: np.random.Generator, depth: int
) -> int:
    node = tree.node()
    own = labels[here]
    share = tree.value[node] = float((own.sum() + DOUBT * around) / (len(own) + DOUBT))
    if depth == DEEPEST or own.min() == own.max() or (cut := _cut(rows[here], own, rng)) is None:
        return node
    feature, at = cut
    below = rows[here, feature] <= at
    tree.feature[node], tree.at[node] = feature, at
    tree.low[node] = _grow(tree, rows, labels, here[below], share, rng, depth + 1)
    tree.high[node] = _grow(tree, rows, labels, here[~below], share, rng, depth + 1)
    return node


def _cut(rows: Array, labels: Array, rng: np.random.Generator) -> tuple[int, float] | None:
    """Of some random cuts the one that parts the labels best."""
    low, high = rows.min(axis=0), rows.max(axis=0)
    movable = np.flatnonzero(high > low)
    if not movable.size:
        return None
    features = rng.choice(movable, CUTS)
    at = low[features] + rng.random(CUTS) * (high[features] - low[features])
    below = rows[:, features] <= at
    count = below.sum(axis=0)
    ones, rest = labels @ below, len(labels) - count
    parted = ones**2 / np.maximum(count, 1) + (labels.sum() - ones) ** 2 / np.maximum(rest, 1)
    best = int(np.where((count > 0) & (rest > 0), parted, -1.0).argmax())
    return (int(features[best]), float(at[best])) if 0 < count[best] < len(labels) else None
