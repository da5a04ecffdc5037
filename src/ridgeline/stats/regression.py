"""Linear least squares with a ridge, and intervals for contrasts of its coefficients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ridgeline.stats.student import interval

# A value that alone decides a coefficient leaves no residual to learn from; its error is taken as so many times larger.
ALONE = 1e-3


@dataclass(frozen=True)
class LeastSquares:
    """`freedom` is the number of residual degrees of freedom; `sigma` the residual standard deviation."""

    coefficients: Any
    inverse: Any  # (X'X + ridge)^-1
    sigma: float
    freedom: float
    jackknife: Any  # covariance of the coefficients as each value in turn is left out

    def interval(self, contrast: Sequence[float], level: float) -> tuple[float, float, float]:
        """Estimate, low, high. The wider of two errors counts: that of even noise, and that of leaving values out."""
        from ridgeline.stats.arrays import numpy

        c = numpy.asarray(contrast, dtype=float)
        estimate = float(c @ self.coefficients)
        variance = max(self.sigma**2 * float(c @ self.inverse @ c), float(c @ self.jackknife @ c))
        error = math.sqrt(max(0.0, variance))
        return estimate, *interval(estimate, error, max(1.0, self.freedom), level)


def ridge(rows: Sequence[Sequence[float]], values: Sequence[float], penalised: Sequence[bool]) -> LeastSquares:
    """The ridge is chosen by generalised cross-validation; columns not `penalised` (the mean) stay free.

    Its intervals hold where noise is uneven: a coefficient that hangs on one value is as unsure as that value.
    """
    from ridgeline.stats.arrays import numpy

    x, y = numpy.asarray(rows, dtype=float), numpy.asarray(values, dtype=float)
    penalties = numpy.diag(numpy.asarray(penalised, dtype=float))
    best: LeastSquares | None = None
    least = math.inf
    for strength in (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0):
        # a ridge is least squares with a row more for each penalised column
        solver = numpy.linalg.pinv(numpy.vstack([x, math.sqrt(strength) * penalties]))
        of_values = solver[:, : len(y)]
        coefficients = of_values @ y
        residual = y - x @ coefficients
        leverage = (x * of_values.T).sum(axis=1)
        freedom = len(y) - float(leverage.sum())
        squares = float(residual @ residual)
        score = squares / freedom**2 if freedom > 0.5 else math.inf
        if score < least or best is None:
            least = score
            left_out = residual / numpy.maximum(1.0 - leverage, ALONE)
            jackknife = (of_values * left_out**2) @ of_values.T
            sigma = math.sqrt(squares / max(freedom, 1.0))
            best = LeastSquares(coefficients, solver @ solver.T, sigma, freedom, jackknife)
    assert best is not None
    return best
