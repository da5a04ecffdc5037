"""The chance to pass where one was predicted: believed as far as passes and failures bear it out.

Two things may be so: what was predicted is right up to what observations correct, or it says nothing of this machine.
Every outcome was more likely under one of them. The chance is that of both, each as far as it is believed.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from ridgeline.samplers.guided.gaussian import Array, Columns
from ridgeline.samplers.guided.model import ChanceModel, Taught

HOPELESS = 0.2  # a chance to pass below this, or far below the best one, comes last
PREDICTED_HOPELESS = 0.6  # the same where the chance was predicted: an edge of memory that is known is not tried out
BELIEVED = 0.9  # before the first outcome
SLIP = 0.1  # share of outcomes that come about for reasons that nobody predicts
SLIGHT = 0.03  # what is believed less does not count


class Feasibility:
    """As a ChanceModel; `hopeless` is the chance below which a setting comes last."""

    def __init__(self, seen: Taught, columns: Columns) -> None:
        self.credit = 0.0 if seen.odds is None else credit(seen.odds, ~np.isnan(seen.values))
        self.hopeless = HOPELESS + self.credit * (PREDICTED_HOPELESS - HOPELESS)
        self._told = ChanceModel(seen, columns) if self.credit >= SLIGHT else None
        alone = self.credit <= 1.0 - SLIGHT
        self._untold = ChanceModel(replace(seen, expected=None, odds=None), columns) if alone else None

    def at(self, rows: Array, odds: Array | None) -> Array:
        told = None if self._told is None else self._told.at(rows, odds)
        return self._both(told, None if self._untold is None else self._untold.at(rows, None))

    def roughly(self, rows: Array, odds: Array | None) -> Array:
        """Which of very many places are worth a closer look: cheap, without how sure it is."""
        told = None if self._told is None else self._told.roughly(rows, odds)
        return self._both(told, None if self._untold is None else self._untold.roughly(rows, None))

    def _both(self, told: Array | None, untold: Array | None) -> Array:
        if told is None or untold is None:
            found = untold if told is None else told
            assert found is not None, "one of the two is always believed"
            return found
        return self.credit * told + (1.0 - self.credit) * untold


def credit(odds: Array, passed: Array) -> float:
    """How far predicted odds of passing are believed after these outcomes, against one chance for all."""
    predicted = SLIP / 2 + (1.0 - SLIP) / (1.0 + np.exp(-odds))
    height = math.log(BELIEVED / (1.0 - BELIEVED)) + float(np.log(np.where(passed, predicted, 1.0 - predicted)).sum())
    before = np.cumsum(passed) - passed
    alike = (before + 1.0) / (np.arange(len(passed)) + 2.0)  # the share so far, with one of each added
    height -= float(np.log(np.where(passed, alike, 1.0 - alike)).sum())
    return 1.0 / (1.0 + math.exp(-min(max(height, -50.0), 50.0)))
