"""The first trials, before a model of scores means anything: far from each other, but not where others failed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ridgeline.records.observation import Observation
from ridgeline.records.space import Point, Space
from ridgeline.samplers.guided.features import Features
from ridgeline.samplers.guided.model import ChanceModel, Taught
from ridgeline.samplers.guided.products import Products

CAUTION = 3.0  # as for later trials: the chance to pass counts so many times over


def careful_start(
    space: Space, observations: Sequence[Observation], pending: Sequence[Point], candidates: Sequence[Point]
) -> Point:
    """Of these candidates the one with the largest distance to all trials so far x chance to pass.

    Half of a space may fail: the first failures and passes already say in which half to look around.
    """
    features = Features(space)
    told, offered = (
        features.of([*(observation.point for observation in observations), *pending]),
        features.of(candidates),
    )
    outcomes = np.array([np.nan if observation.score is None else 0.0 for observation in observations])
    seen = Taught(told[: len(observations)], outcomes, None, None, products=Products(space, features))
    chance = ChanceModel(seen, features.columns).at(offered, None)
    distance = np.sqrt(((offered[:, None, :] - told[None, :, :]) ** 2).sum(axis=2)).min(axis=1)
    return candidates[int((np.log(distance + 1e-9) + CAUTION * np.log(chance)).argmax())]
