"""What earlier studies learned, as an expectation: their own model, trusted less than observations of this one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ridgeline.records.observation import Observation
from ridgeline.records.space import Point, point_key
from ridgeline.samplers.guided.expected import FARTHEST_ODDS, Expected
from ridgeline.samplers.guided.feasibility import Feasibility
from ridgeline.samplers.guided.features import Features
from ridgeline.samplers.guided.gaussian import Array
from ridgeline.samplers.guided.model import ObservedData, PriorValues, Scale, ScoreModel

FEWEST = 3  # results, without which earlier studies say nothing
SPREAD = 0.1  # how far off, as a share, another node's or release's results may be here
_DISCOUNT = 0.7  # of the log odds: another node or release fails elsewhere


class Earlier:
    """Where a twin or a formula guides as well, the earlier model stands on it, as the present one does."""

    def __init__(
        self, observations: Sequence[Observation], scale: Scale, features: Features, besides: Expected | None
    ) -> None:
        self._besides = besides
        self._spread = SPREAD if scale.sign else 0.0
        points = [observation.point for observation in observations]
        rows, values = features.of(points), scale.values([observation.score for observation in observations])
        self.says_something = int((~np.isnan(values)).sum()) >= FEWEST
        if self.says_something:
            self._reach = max(float(np.nanstd(values)), 1e-9)
            keys = [point_key(point) for point in points]
            beside = None if besides is None else besides.at(keys, rows, dict(zip(keys, points, strict=True)))
            seen = ObservedData.of(rows, values, beside)
            self._scores, self._chances = ScoreModel(seen, features.columns), Feasibility(seen, features.columns)

    def at(self, keys: Sequence[str], rows: Array, asked: Mapping[str, Point]) -> PriorValues:
        beside = None if self._besides is None else self._besides.at(keys, rows, asked)
        values, odds = (None, None) if beside is None else (beside.columns, beside.odds)
        mean, _ = self._scores.at(rows, values)
        chance = np.clip(self._chances.at(rows, odds), 1e-3, 1.0 - 1e-3)
        odds = np.clip(_DISCOUNT * np.log(chance / (1.0 - chance)), -FARTHEST_ODDS, FARTHEST_ODDS)
        return PriorValues(mean, odds, self._spread, reach=self._reach)
