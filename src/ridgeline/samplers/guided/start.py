"""The first trials, before a model of scores means anything: far from each other, but not where others failed.

Where nearly everything fails they stay one step away from what passed."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence

import numpy as np

from ridgeline.records.observation import Observation
from ridgeline.records.space import Point, Space
from ridgeline.samplers.guided.candidates import around
from ridgeline.samplers.guided.features import Features
from ridgeline.samplers.guided.gaussian import Array
from ridgeline.samplers.guided.model import ChanceModel, ObservedData
from ridgeline.samplers.guided.products import Products

CAUTION = 3.0  # as for later trials: the chance to pass counts so many times over


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
    if not near:
        return None
    features = Features(space)
    return near[int(_chances(space, features, observations, features.of(near)).argmax())]


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


def careful_start(
    space: Space, observations: Sequence[Observation], pending: Sequence[Point], candidates: Sequence[Point]
) -> Point:
    """Of these candidates the one with the largest distance to all trials so far x chance to pass.

    Half of a space may fail: the first failures and passes already say in which half to look around.
    """
    features = Features(space)
    tried = features.of([*(observation.point for observation in observations), *pending])
    offered = features.of(candidates)
    chance = _chances(space, features, observations, offered)
    distance = np.sqrt(((offered[:, None, :] - tried[None, :, :]) ** 2).sum(axis=2)).min(axis=1)
    return candidates[int((np.log(distance + 1e-9) + CAUTION * np.log(chance)).argmax())]


def _chances(space: Space, features: Features, observations: Sequence[Observation], rows: Array) -> Array:
    outcomes = np.array([np.nan if observation.score is None else 0.0 for observation in observations])
    observed = features.of([observation.point for observation in observations])
    seen = ObservedData(observed, outcomes, None, None, products=Products(space, features))
    return ChanceModel(seen, features.columns).at(rows, None)
