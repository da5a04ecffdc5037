"""Fit a site's factors to what was measured there, with priors, so that two points do not explode.

Every observation predicts the logarithm of a time or rate from the factors. The fit minimises the squared misses, each
in units of its noise, plus the squared distance of every log-factor from zero in units of its prior spread: a factor
that no observation speaks of stays at 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ridgeline.serving.twin.calibration import UNCALIBRATED_SPREAD, Calibration
from ridgeline.serving.twin.factors import NAMES, PRIOR_SPREAD, Factors

if TYPE_CHECKING:
    from numpy import float64
    from numpy.typing import NDArray

    Array = NDArray[float64]

ITERATIONS = 6
STEP = 0.02
# A run repeated on the same machine differs by this much; a single logged step by more.
RUN_NOISE = 0.05
# How many observations the belief before any measurement is worth when the spread of new predictions is stated.
PRIOR_POINTS = 2.0
# However well the fitted points agree, a setting nobody measured is not predicted better than this.
LEAST_SPREAD = 0.04


@dataclass(frozen=True, slots=True)
class Observation:
    """`predict` gives the modelled value under some factors. `weight`: how many independent points it stands for."""

    name: str
    measured: float
    predict: Callable[[Factors], float]
    noise: float = RUN_NOISE
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class FitPoint:
    """One observation after the fit: predicted with it, and predicted by the others alone."""

    name: str
    measured: float
    predicted: float
    left_out: float  # log(measured / predicted from the others)


@dataclass(frozen=True, slots=True)
class Fit:
    calibration: Calibration
    points: tuple[FitPoint, ...]


def fit(observations: Sequence[Observation], sources: Sequence[str]) -> Fit:
    """The most plausible factors. Leave-one-out misses come from the linearised fit, without fitting again."""
    import numpy as np

    if not observations:
        raise ValueError("nothing to fit; the caller says what was wrong with its files")
    spreads = np.array([PRIOR_SPREAD[n] for n in NAMES])
    weights = np.array([math.sqrt(o.weight) / o.noise for o in observations])
    measured = np.array([math.log(o.measured) for o in observations])
    at = np.zeros(len(NAMES))
    for _ in range(ITERATIONS):
        predicted, slopes = _linearise(observations, at)
        rows = np.vstack([slopes * weights[:, None], np.diag(1 / spreads)])
        wanted = np.concatenate([(measured - predicted) * weights, -at / spreads])
        move = np.clip(np.linalg.lstsq(rows, wanted, rcond=None)[0], -0.7, 0.7)
        at = at + move
        if float(np.abs(move).max()) < 1e-3:
            break
    predicted, slopes = _linearise(observations, at)
    rows = np.vstack([slopes * weights[:, None], np.diag(1 / spreads)])
    covariance = np.linalg.inv(rows.T @ rows)
    weighted = slopes * weights[:, None]
    leverage = np.einsum("ij,jk,ik->i", weighted, covariance, weighted)
    missed = (measured - predicted) / np.maximum(1e-6, 1 - np.minimum(leverage, 1 - 1e-6))
    points = tuple(
        FitPoint(o.name, o.measured, math.exp(float(p)), float(m))
        for o, p, m in zip(observations, predicted, missed, strict=True)
    )
    return Fit(_calibration(at, points, observations, sources), points)


def _calibration(
    at: Iterable[float], points: Sequence[FitPoint], observations: Sequence[Observation], sources: Sequence[str]
) -> Calibration:
    worth = sum(o.weight for o in observations)
    misses = sum(o.weight * min(abs(p.left_out), 1.0) ** 2 for o, p in zip(observations, points, strict=True))
    spread = math.sqrt((PRIOR_POINTS * UNCALIBRATED_SPREAD**2 + misses) / (PRIOR_POINTS + worth))
    errors = sorted(abs(math.expm1(min(p.left_out, 5.0))) for p in points)
    return Calibration(
        factors=Factors(**{n: math.exp(float(v)) for n, v in zip(NAMES, at, strict=True)}),
        spread=max(LEAST_SPREAD, spread),
        points=len(points),
        sources=tuple(sources),
        leave_one_out=errors[len(errors) // 2],
    )


def _linearise(observations: Sequence[Observation], here: Array) -> tuple[Array, Array]:
    """Predicted logarithms at these log-factors, and their slopes by central differences."""
    import numpy as np

    def logs(log_factors: Array) -> Array:
        factors = Factors(**{n: math.exp(float(v)) for n, v in zip(NAMES, log_factors, strict=True)})
        return np.array([math.log(o.predict(factors)) for o in observations])

    slopes = np.empty((len(observations), len(NAMES)))
    for k in range(len(NAMES)):
        nudge = np.zeros(len(NAMES))
        nudge[k] = STEP
        slopes[:, k] = (logs(here + nudge) - logs(here - nudge)) / (2 * STEP)
    return logs(here), slopes
