"""How wide the range must be that is stated for a trial before it runs, so that nine of ten hold what is measured.

A model gives each prediction a standard deviation. That is no promise: models err where they have not looked, and the
trial was chosen because much was predicted of it, often by mistake. How far off its predictions are, in their own
standard deviations, the trials show that have run; before there are any, campaigns over other spaces do.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

LEVEL = 0.9  # share of the trials that are to lie within their range
NORMAL_90 = 1.6449  # standard deviations to each side that hold as many of a normal distribution
# How far measured values were from predicted ones elsewhere, in the model's standard deviations: quantiles 2.5%, 7.5%,
# ... 97.5% of 953 trials in 30 searches, over made-up spaces without a prior (benchmarks/search/made.py) and two hidden
# clusters by a right, a reversed and a misleading one. None is in the table of ranges of that folder's README.
ELSEWHERE = (
    *(0.03, 0.07, 0.12, 0.16, 0.23, 0.29, 0.37, 0.44, 0.52, 0.59),
    *(0.66, 0.73, 0.81, 0.91, 1.00, 1.11, 1.28, 1.48, 1.92, 2.86),
)
_WORTH = 20.0  # trials of this campaign that the errors elsewhere count as


def widening(errors: Iterable[float]) -> float:
    """Standard deviations from a predicted value to each end of its range, after these errors of earlier predictions.

    The least that holds nine of ten errors: those of this campaign, those elsewhere as `_WORTH` more, and one that is
    larger than all: the next one, of which nothing is known (split conformal prediction).
    """
    weighed = sorted(
        [*((abs(error), 1.0) for error in errors), *((error, _WORTH / len(ELSEWHERE)) for error in ELSEWHERE)]
    )
    needed = LEVEL * (math.fsum(weight for _, weight in weighed) + 1.0) - 1e-9
    for error, weight in weighed:
        needed -= weight
        if needed <= 0:
            return error
    return weighed[-1][0]
