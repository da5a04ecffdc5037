"""The chance to pass where one was predicted: trusted as far as passes and failures bear it out.

Two things may be so: what was predicted is right up to what observations correct, or it says nothing of this machine.
Every outcome was more likely under one of them. The chance is that of both, each by its weight.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from ridgeline.samplers.guided.gaussian import Array, Columns
from ridgeline.samplers.guided.model import ChanceModel, ObservedData

TOO_RISKY = 0.2  # a chance to pass below this, or far below the best one, comes last
TOO_RISKY_PREDICTED = 0.6  # the same where the chance was predicted: an edge of memory that is known is not tried out
BELIEVED = 0.9  # before the first outcome
_SLIP = 0.1  # share of outcomes that come about for reasons that nobody predicts
NEGLIGIBLE = 0.03  # what has less weight does not count


class Feasibility:
    """As a ChanceModel; `too_risky` is the chance below which a setting comes last."""

    def __init__(self, seen: ObservedData, columns: Columns) -> None:
        self.credit = 0.0 if seen.odds is None else credit(seen.odds, ~np.isnan(seen.values))
        self.too_risky = TOO_RISKY + self.credit * (TOO_RISKY_PREDICTED - TOO_RISKY)
        self._with_prior = ChanceModel(seen, columns) if self.credit >= NEGLIGIBLE else None
        alone = self.credit <= 1.0 - NEGLIGIBLE
        self._without_prior = ChanceModel(replace(seen, expected=None, odds=None), columns) if alone else None

    def at(self, rows: Array, odds: Array | None) -> Array:
        with_prior = None if self._with_prior is None else self._with_prior.at(rows, odds)
        return self._both(with_prior, None if self._without_prior is None else self._without_prior.at(rows, None))

    def roughly(self, rows: Array, odds: Array | None) -> Array:
        """Which of very many places are worth a closer look: cheap, without how sure it is."""
        with_prior = None if self._with_prior is None else self._with_prior.roughly(rows, odds)
        return self._both(with_prior, None if self._without_prior is None else self._without_prior.roughly(rows, None))

    def _both(self, with_prior: Array | None, without_prior: Array | None) -> Array:
        if with_prior is None or without_prior is None:
            found = without_prior if with_prior is None else with_prior
            assert found is not None, "one of the two always has weight"
            return found
        return self.credit * with_prior + (1.0 - self.credit) * without_prior


def credit(odds: Array, passed: Array) -> float:
    """How far predicted odds of passing are trusted after these outcomes, against one chance for all."""
    predicted = _SLIP / 2 + (1.0 - _SLIP) / (1.0 + np.exp(-odds))
    height = math.log(BELIEVED / (1.0 - BELIEVED)) + float(np.log(np.where(passed, predicted, 1.0 - predicted)).sum())
    before = np.cumsum(passed) - passed
    alike = (before + 1.0) / (np.arange(len(passed)) + 2.0)  # the share so far, with one of each added
    height -= float(np.log(np.where(passed, alike, 1.0 - alike)).sum())
    return 1.0 / (1.0 + math.exp(-min(max(height, -50.0), 50.0)))
