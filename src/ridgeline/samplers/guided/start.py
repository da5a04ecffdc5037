"""The first trials, before a model of scores means anything: spread over the space, but not where others failed.

Where nearly everything fails they stay one step away from what passed."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence

import numpy as np

from ridgeline.records.observation import Observation
from ridgeline.records.space import Point, Space
from ridgeline.samplers.guided.candidates import around
from ridgeline.samplers.guided.features import Features
from ridgeline.samplers.guided.model import ChanceModel, ObservedData
from ridgeline.samplers.guided.products import Products


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
