"""A second opinion on scores: trees, which need no smoothness, where the Gaussian process has nothing but that.

What one model will never propose, the other may: a search that takes turns is rarely stuck for long. Trees also keep
closer to what is known, and so pay fewer crashes.
"""

from __future__ import annotations

import numpy as np

from ridgeline.samplers.guided.gaussian import Array
from ridgeline.samplers.guided.model import Taught, remembered, without_the_worst
from ridgeline.samplers.guided.trees import Habit, Trees

SCORING = Habit(trees=30, cuts=4, leaf=2, doubt=0.0)
SMALLEST_SPREAD = 1e-3  # of the values' own


class ScoreTrees:
    """`best` is the best mean among what passed."""

    def __init__(self, seen: Taught) -> None:
        passed = np.flatnonzero(~np.isnan(seen.values))
        kept = passed[remembered(seen.values[passed])]
        values = without_the_worst(seen.values[kept])
        self._least = max(SMALLEST_SPREAD * float(values.std()), 1e-9)
        self._trees = Trees(seen.rows[kept], values, SCORING)
        self.best = float(self._trees.at(seen.rows[kept])[0].max())

    def at(self, rows: Array) -> tuple[Array, Array]:
        """Mean and spread of the truth, on the scale."""
        mean, spread = self._trees.at(rows)
        return mean, np.hypot(spread, self._least)
