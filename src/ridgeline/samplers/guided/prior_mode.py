"""How an expectation is to be read: as it stands, with its direction unknown, or not at all.

An expectation may mislead: a twin of another machine, an earlier study of another regime, a formula with a wrong sign.
Whether it does, the observations say: each mode predicts how the observed settings compare, and the one that predicted
it best is trusted most and chooses the next trial.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from enum import Enum

import numpy as np

from ridgeline.records.observation import Prospect
from ridgeline.samplers.guided.gaussian import Array, Columns, Fit, covariance_of_runs
from ridgeline.samplers.guided.model import EITHER_WAY, STRAIGHT, ObservedData

_WEIGHED = 50  # observations that are weighed: of more, an even share
NEGLIGIBLE = 0.03  # a mode with less weight does not count
_WIDTHS = (1.0, 2.0)  # what the modes leave open may be so many times as wide as stated
_REACHES = (0.5, 1.0, 2.0)  # and the whole surface as the expectation says it is
_STRETCHES = (0.5, 2.0)  # of the usual weight of a knob
NOISE_OF_REACH, NOISE_OF_SPREAD = 0.1, 0.5  # a run's own noise, as a share of what an expectation says


class PriorMode(Enum):
    AS_IT_STANDS = "as it stands"
    EITHER_WAY = "either way"
    NOT_AT_ALL = "not at all"


_PRIOR_WEIGHTS = {PriorMode.AS_IT_STANDS: 0.8, PriorMode.EITHER_WAY: 0.1, PriorMode.NOT_AT_ALL: 0.1}
ModeWeights = dict[PriorMode, float]


def mode_weights(seen: ObservedData, columns: Columns) -> ModeWeights:
    """How far each mode is trusted after these observations; the sum is 1."""
    passed = np.flatnonzero(~np.isnan(seen.values))
    some = passed[np.linspace(0, len(passed) - 1, min(len(passed), _WEIGHED)).round().astype(int)]
    if seen.expected is None or len(some) < 2:
        return dict(_PRIOR_WEIGHTS)
    heights = {mode: math.log(part) + _evidence(mode, seen, some, columns) for mode, part in _PRIOR_WEIGHTS.items()}
    top = max(heights.values())
    parts = {mode: math.exp(height - top) for mode, height in heights.items()}
    return {mode: part / sum(parts.values()) for mode, part in parts.items()}


def seen_with(mode: PriorMode, seen: ObservedData) -> ObservedData:
    """The observations with what was expected of them, as this mode takes it."""
    if mode is PriorMode.NOT_AT_ALL:
        return replace(seen, expected=None, spread=0.0)
    return replace(seen, trust=STRAIGHT if mode is PriorMode.AS_IT_STANDS else EITHER_WAY)


def mixed(weights: ModeWeights, prospect: Callable[[PriorMode], Prospect]) -> Prospect:
    """What is left to be found, by all modes with weight: the most that one of them expects."""
    found = {mode: prospect(mode) for mode, part in weights.items() if part >= NEGLIGIBLE}
    chance = sum(weights[mode] * each.chance for mode, each in found.items())
    largest = max(found.values(), key=lambda each: each.gain)
    return replace(largest, chance=chance / sum(weights[mode] for mode in found))


def _evidence(mode: PriorMode, seen: ObservedData, some: Columns, columns: Columns) -> float:
    """Log of how likely the differences between these observations were, over what the mode leaves open."""
    assert seen.expected is not None
    prior, values = seen.expected[some], seen.values[some]
    prior = prior - prior.mean(axis=0)
    noise = max(NOISE_OF_REACH * seen.reach, NOISE_OF_SPREAD * seen.spread) ** 2
    usual = 1.0 / (0.25 * (int(columns.max()) + 1))
    straight = mode is not PriorMode.NOT_AT_ALL
    mean, trust = STRAIGHT if mode is PriorMode.AS_IT_STANDS else EITHER_WAY
    known = (prior * np.append(trust, np.ones(prior.shape[1] - 1))) if straight else prior[:, :0]
    off = values - mean * prior[:, 0] if straight else values
    wide, widths = (seen.spread, _WIDTHS) if straight else (seen.reach, _REACHES)
    heights = []
    for width, stretch in itertools.product(widths, _STRETCHES):
        fit = Fit(np.full(int(columns.max()) + 1, usual * stretch), (wide * width) ** 2, noise)
        heights.append(_height(off, covariance_of_runs(seen.rows[some], columns, fit) + known @ known.T))
    return float(np.logaddexp.reduce(heights)) - math.log(len(heights))


def _height(off: Array, covariance: Array) -> float:
    """Log density of these values around a level of which nothing is known."""
    factor = np.linalg.cholesky(covariance)
    white = np.linalg.solve(factor, np.stack([np.ones(len(off)), off], axis=1))
    ones, rest = white.T
    length = float(ones @ ones)
    left = float(rest @ rest) - float(ones @ rest) ** 2 / length
    return -float(np.log(np.diag(factor)).sum()) - 0.5 * math.log(length) - 0.5 * left
