"""What few trials could find on a cluster whose truth is hidden: by the twin's order, and by one who knows the physics.

Beside the physics a truth holds pairs of knobs that interact, an edge of memory and settings that hang (hidden.py). No
twin can know these, so even who knows the physics exactly has to guess. What such a one finds is a bound on what better
twins could bring, and what the twin's plain order finds is what choosing otherwise costs or brings.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np

from benchmarks.search.hidden import Cluster, Hidden
from ridgeline.records.space import Point, point_key
from ridgeline.samplers.guided.feasibility import TOO_RISKY_PREDICTED

IMAGINED = 40  # truths with the same physics, of which one who knows the physics chooses what is good on average


def best_of(hidden: Hidden, points: Sequence[Point]) -> float:
    """Log of the speed of the best of these over the best there is; minus infinity where all fail."""
    found = (hidden.truth(point) for point in points)
    return max((value for value in found if value is not None), default=-math.inf)


def by_twin(hidden: Hidden, count: int) -> Sequence[Point]:
    """The settings that the twin puts first, of those that it takes to pass; the baseline is known anyway."""
    baseline = point_key(hidden.study.study.baseline)

    def mean(point: Point) -> float:
        said = hidden.predicted[point_key(point)]
        passes = said is not None and said.mean is not None and said.chance >= TOO_RISKY_PREDICTED
        return float(said.mean) if passes and said is not None and said.mean is not None else -math.inf

    others = [point for point in hidden.legal if point_key(point) != baseline]
    return sorted(others, key=mean, reverse=True)[:count]


@cache
def by_physics(cluster: Cluster, tables: Path, physics: int, count: int) -> Sequence[Point]:
    """The settings of which the best gains most on average, over other truths with the same physics: one after the
    other, so without what the first would have shown."""
    imagined = [Hidden(cluster, tables, physics, -1 - number) for number in range(IMAGINED)]
    legal, baseline = imagined[0].legal, imagined[0].study.study.baseline
    gains = np.zeros((IMAGINED, len(legal)))
    for row, hidden in enumerate(imagined):
        level = hidden.truth(baseline)
        if level is not None:
            values = (hidden.truth(point) for point in legal)
            gains[row] = [0.0 if value is None else max(0.0, math.expm1(value - level)) for value in values]
    best = np.zeros(IMAGINED)
    chosen: list[Point] = []
    for _ in range(count):
        next_ = int(np.maximum(best[:, None], gains).mean(axis=0).argmax())
        best = np.maximum(best, gains[:, next_])
        chosen.append(legal[next_])
    return chosen
