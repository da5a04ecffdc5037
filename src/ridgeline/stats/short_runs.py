"""What a short run says of a long one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

PRIOR_SPREAD = 0.05  # of log ratios, before anything is known, counted as much as two settings
_PRIOR_WEIGHT = 2


@dataclass(frozen=True, slots=True)
class ShortRunRatio:
    """Half the work is not half the answer: start-up, warm-up and caches weigh more in a short run, and not the same
    for every setting. So the ratio has a spread, which is what a prediction from a short run is uncertain by.

    Logs: whole = short x exp(`log_ratio`), give or take a factor of exp(`spread`); from so many settings."""

    log_ratio: float
    spread: float
    settings: int

    def whole(self, short: float) -> float:
        return short * math.exp(self.log_ratio)


def short_run_ratio(pairs: Sequence[tuple[float, float]]) -> ShortRunRatio | None:
    """From (short, whole) values of the same settings; None where there are none, or values that have no ratio."""
    if not pairs or any(short <= 0 or whole <= 0 for short, whole in pairs):
        return None
    logs = [math.log(whole / short) for short, whole in pairs]
    mean = math.fsum(logs) / len(logs)
    squares = math.fsum((log - mean) ** 2 for log in logs) + _PRIOR_WEIGHT * PRIOR_SPREAD**2
    return ShortRunRatio(mean, math.sqrt(squares / (_PRIOR_WEIGHT + len(logs) - 1)), len(logs))
