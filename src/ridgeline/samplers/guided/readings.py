"""How an expectation is to be read: as it stands, with its direction unknown, or not at all.

An expectation may mislead: a twin of another machine, an earlier study of another regime, a formula with a wrong sign.
Whether it does, the lessons say: each reading foretells how the told settings compare, and the one that foretold it
best is believed most. Trials are shared out by belief, so an expectation that earns trust leads alone after a few of
them, and one that misleads is left as quickly. Nothing but the lessons decides.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from enum import Enum

import numpy as np

from ridgeline.records.lesson import Prospect
from ridgeline.samplers.guided.gaussian import Array, Columns, Fit, beforehand
from ridgeline.samplers.guided.model import EITHER_WAY, STRAIGHT, Taught

WEIGHED = 60  # lessons that are weighed: of more, an even share
GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0
SLIGHT = 0.03  # a reading believed less gets no trials
WIDTHS = (1.0, 2.0)  # what the readings leave open may be so many times as wide as stated
REACHES = (0.5, 1.0, 2.0)  # and the whole surface as the expectation says it is
STRETCHES = (0.5, 2.0)  # of the usual weight of a knob
NOISE_OF_REACH, NOISE_OF_SPREAD = 0.1, 0.5  # a run's own noise, as a share of what an expectation says


class Reading(Enum):
    AS_IT_STANDS = "as it stands"
    EITHER_WAY = "either way"
    NOT_AT_ALL = "not at all"


BEFOREHAND = {Reading.AS_IT_STANDS: 0.8, Reading.EITHER_WAY: 0.1, Reading.NOT_AT_ALL: 0.1}
TEMPER = 1.0
Beliefs = dict[Reading, float]


def beliefs(seen: Taught, columns: Columns) -> Beliefs:
    """How far each reading is believed after these lessons; the sum is 1."""
    passed = np.flatnonzero(~np.isnan(seen.values))
    some = passed[np.linspace(0, len(passed) - 1, min(len(passed), WEIGHED)).round().astype(int)]
    if seen.expected is None or len(some) < 2:
        return dict(BEFOREHAND)
    heights = {
        reading: math.log(part) + TEMPER * _evidence(reading, seen, some, columns)
        for reading, part in BEFOREHAND.items()
    }
    top = max(heights.values())
    parts = {reading: math.exp(height - top) for reading, height in heights.items()}
    return {reading: part / sum(parts.values()) for reading, part in parts.items()}


def read(believed: Beliefs, trial: int) -> Reading:
    """The reading that this trial is chosen by: each has its share of any few trials in a row."""
    kept = {reading: part for reading, part in believed.items() if part >= SLIGHT}
    lot, passed = math.fmod(trial * GOLDEN, 1.0) * sum(kept.values()), 0.0
    for reading, part in kept.items():
        passed += part
        if lot < passed:
            return reading
    return max(kept, key=lambda reading: kept[reading])


def mixed(believed: Beliefs, prospect: Callable[[Reading], Prospect]) -> Prospect:
    """What is left to be found, by all readings that are believed: the most that one of them hopes for."""
    found = {reading: prospect(reading) for reading, part in believed.items() if part >= SLIGHT}
    chance = sum(believed[reading] * each.chance for reading, each in found.items())
    largest = max(found.values(), key=lambda each: each.gain)
    return replace(largest, chance=chance / sum(believed[reading] for reading in found))


def _evidence(reading: Reading, seen: Taught, some: Columns, columns: Columns) -> float:
    """Log of how likely the differences between these lessons were, over what the reading leaves open."""
    assert seen.expected is not None
    told, values = seen.expected[some], seen.values[some]
    told = told - told.mean(axis=0)
    noise = max(NOISE_OF_REACH * seen.reach, NOISE_OF_SPREAD * seen.spread) ** 2
    usual = 1.0 / (0.25 * (int(columns.max()) + 1))
    straight = reading is not Reading.NOT_AT_ALL
    mean, trust = STRAIGHT if reading is Reading.AS_IT_STANDS else EITHER_WAY
    known = (told * np.append(trust, np.ones(told.shape[1] - 1))) if straight else told[:, :0]
    off = values - mean * told[:, 0] if straight else values
    wide, widths = (seen.spread, WIDTHS) if straight else (seen.reach, REACHES)
    heights = []
    for width, stretch in itertools.product(widths, STRETCHES):
        fit = Fit(np.full(int(columns.max()) + 1, usual * stretch), (wide * width) ** 2, noise)
        heights.append(_height(off, beforehand(seen.rows[some], columns, fit) + known @ known.T))
    return float(np.logaddexp.reduce(heights)) - math.log(len(heights))


def _height(off: Array, covariance: Array) -> float:
    """Log density of these values around a level of which nothing is known."""
    factor = np.linalg.cholesky(covariance)
    white = np.linalg.solve(factor, np.stack([np.ones(len(off)), off], axis=1))
    ones, rest = white.T
    length = float(ones @ ones)
    left = float(rest @ rest) - float(ones @ rest) ** 2 / length
    return -float(np.log(np.diag(factor)).sum()) - 0.5 * math.log(length) - 0.5 * left
