"""Fixed effects beside random ones: how large the random parts are is learned from the same values (REML).

A random part is a family of effects of which only the spread is known: those of settings, of pairs of nodes, of the
time of day. Values that such a part blurs count less, without being left out. Few values tell the spreads badly, so
an interval is the mean of those that belong to all spreads which were looked at, each by its likelihood.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ridgeline.stats.regression import LeastSquares, least_squares

# a random part's variance over that of one run's noise; settings of a search may differ by a hundred times the noise
RATIOS = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 1e3, 1e4, 1e5)
CONTRADICTED = 4.0  # units of log-likelihood below the best: spreads that are less likely count for nothing
ROUNDS = 2  # of looking along one part after the other


@dataclass(frozen=True)
class MixedFit:
    """`fits` by generalised least squares, the likeliest spreads first, with the `weights` of their likelihoods;
    `ratios` are the spreads of the first."""

    fits: tuple[LeastSquares, ...]
    weights: tuple[float, ...]
    ratios: tuple[float, ...]

    @property
    def freedom(self) -> float:
        """Of residuals, with those of the likely spreads that leave most; an interval counts with each one's own."""
        return max(fit.freedom for fit in self.fits)

    def estimable(self, contrast: Sequence[float]) -> bool:
        return self.fits[0].estimable(contrast)

    def interval(self, contrast: Sequence[float], level: float) -> tuple[float, float, float]:
        """Estimate, low, high; the estimate is that of the likeliest spreads."""
        ends = [fit.interval(contrast, level) for fit in self.fits]
        squares = [w * (high - estimate) ** 2 for w, (estimate, _, high) in zip(self.weights, ends, strict=True)]
        half = math.sqrt(math.fsum(squares) / math.fsum(self.weights))
        estimate = ends[0][0]
        return estimate, estimate - half, estimate + half

    def error(self, contrast: Sequence[float]) -> float:
        """The standard error with the likeliest spreads."""
        import numpy

        best, c = self.fits[0], numpy.asarray(contrast, dtype=float)
        return best.sigma * math.sqrt(max(0.0, float(c @ best.inverse @ c)))


def mixed(fixed: Sequence[Sequence[float]], values: Sequence[float], parts: Sequence[tuple[Any, float]]) -> MixedFit:
    """`fixed` are rows of the fixed effects; a random part is its covariance, up to a factor, and the largest of
    `RATIOS` that the factor may be.

    Noise is the same for every value. There must be more values than fixed effects that they tell apart.
    """
    import numpy

    x, y = numpy.asarray(fixed, dtype=float), numpy.asarray(values, dtype=float)
    covariances = [covariance for covariance, _ in parts]
    seen: dict[tuple[float, ...], tuple[float, LeastSquares]] = {}

    def likelihood(ratios: tuple[float, ...]) -> float:
        if ratios not in seen:
            seen[ratios] = _fitted(x, y, covariances, ratios)
        return seen[ratios][0]

    best = tuple(min(1.0, largest) for _, largest in parts)
    for _ in range(ROUNDS):
        for at, (_, largest) in enumerate(parts):
            tried = [(*best[:at], ratio, *best[at + 1 :]) for ratio in RATIOS if ratio <= largest]
            best = max(tried, key=likelihood)
    top = likelihood(best)
    others = [known for ratios, known in seen.items() if ratios != best and known[0] > top - CONTRADICTED]
    kept = [seen[best], *others]
    return MixedFit(tuple(fit for _, fit in kept), tuple(math.exp(own - top) for own, _ in kept), best)


def _fitted(x: Any, y: Any, parts: Sequence[Any], ratios: Sequence[float]) -> tuple[float, LeastSquares]:
    """The restricted log-likelihood of these ratios, and the fit that belongs to them."""
    import numpy

    covariance = numpy.eye(len(y)) + sum(ratio * part for ratio, part in zip(ratios, parts, strict=True) if ratio)
    root = numpy.linalg.cholesky(covariance)
    # numpy has no triangular solve; the inverse is needed below anyway
    whitening = numpy.linalg.inv(root)
    rows = whitening @ x
    fit = least_squares(rows, whitening @ y)
    told_apart = numpy.linalg.svd(rows, compute_uv=False)
    told_apart = told_apart[told_apart > 1e-8 * told_apart[0]]
    spread = max(fit.sigma, 1e-9)  # runs that are all the same have no likelihood
    logs = numpy.log(numpy.diag(root)).sum() + numpy.log(told_apart).sum()
    own = -float(logs) - fit.freedom * math.log(spread)
    # what is left of the freedom once random effects have taken theirs: the trace of the residual projector
    projector = whitening.T @ (whitening - rows @ (numpy.linalg.pinv(rows, rcond=1e-8) @ whitening))
    return own, replace(fit, freedom=float(numpy.trace(projector)))
