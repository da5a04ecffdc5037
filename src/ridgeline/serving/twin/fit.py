"""Fit a site's factors to what was measured there, with priors, so that two points do not explode.

Every observation predicts the logarithm of a time or rate from the factors. The fit minimises the squared misses, each
in units of its noise, plus the squared distance of every log-factor from zero in units of its prior spread: a factor
that no observation speaks of stays at 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ridgeline.records.json_form import in_json, plain
from ridgeline.serving.twin.calibration import UNCALIBRATED_SPREAD, Calibration, Factors, prior_spreads

if TYPE_CHECKING:
    from numpy import float64
    from numpy.typing import NDArray

    Array = NDArray[float64]

_ITERATIONS = 6
STEP = 0.02
# Slopes hold as long as no log-factor has moved by more than this; a search ends when none moves by more than that.
NEAR, ENOUGH = 0.15, 3e-3
# A run repeated on the same machine differs by this much; a single logged step by more.
RUN_NOISE = 0.05
# A point that is off by more than this many times its noise is strange: then Student's t with so many degrees of
# freedom takes the place of the normal distribution.
_STRANGE, _DEGREES = 4.0, 3.0
# A point this far, as a logarithm, from what the others predict is named to the user.
_DOUBTED = 0.25
# The way from the priors to the fit is tried in so many equal steps.
SHARES = 10
# Points left out say little when they are few: the way ends early only from so many rows on, and only where that brings
# their misses below this share.
FEWEST, _CLEARLY = 2.5, 0.7
# How many observations the belief before any measurement is worth when the spread of new predictions is stated.
_PRIOR_POINTS = 2.0
# First tokens scatter by themselves, which their intervals hold already: so much of their misses counts for others.
_SCATTER_SHARE = 0.5
# However well the fitted points agree, a setting nobody measured is not predicted better than this.
LEAST_SPREAD = 0.04


@dataclass(frozen=True, slots=True)
class FitObservation:
    """`predict` gives the modelled value under some factors. `weight`: how many independent points it stands for.

    `phase`: a figure of one phase of a whole run, first tokens or the time between tokens.
    """

    name: str
    measured: float
    predict: Callable[[Factors], float]
    noise: float = RUN_NOISE
    weight: float = 1.0
    phase: bool = False


@dataclass(frozen=True, slots=True)
class FitPoint:
    """One observation after the fit: predicted with it, and predicted by the others alone."""

    name: str
    measured: float
    predicted: float
    left_out: float = field(metadata=in_json("left_out_log_ratio"))  # log(measured / predicted from the others)
    doubted: bool = False  # farther from what the others predict than measurements of one machine are from each other


@dataclass(frozen=True, slots=True)
class FactorUncertainty:
    """What was learned of a factor: standard deviations of its logarithm after and before.

    `alike` is the correlation of its error with that of the factor `mixed_with`: near 1 or -1 only both together are
    known.
    """

    name: str
    left: float
    believed: float
    mixed_with: str
    alike: float


@dataclass(frozen=True, slots=True)
class FactorFit:
    calibration: Calibration
    points: tuple[FitPoint, ...]
    learned: tuple[FactorUncertainty, ...] = ()
    remarks: tuple[str, ...] = ()  # what the user should know of the evidence

    def as_json(self) -> dict[str, object]:
        learned = {
            f.name: {"spread": f.left, "prior_spread": f.believed, "mixed_with": f.mixed_with} for f in self.learned
        }
        return {
            **self.calibration.as_json(),
            "fitted": plain(self.points),
            "learned": learned,
            "remarks": list(self.remarks),
        }


def fit(observations: Sequence[FitObservation], sources: Sequence[str]) -> FactorFit:
    """The most plausible factors. Leave-one-out misses come from the linearised fit, without fitting again."""
    import numpy as np

    if not observations:
        raise ValueError("nothing to fit; the caller says what was wrong with its files")
    problem = _Problem(observations)
    start = np.zeros(len(problem.names))
    priors = problem.search(start, robust=False, most=0)
    found = problem.search(start, robust=False)
    strange = float(np.abs(found.residuals).max()) > _STRANGE
    if strange or any(o.phase for o in observations):
        # runs of one site scatter more than their noise, and one point may not be of this machine as it usually is
        # (kernels compiled while it was measured): from here, and from the priors where a point is far off, look for
        # factors that let few points be far off, and keep the more plausible
        starts = (found.at, start) if strange else (found.at,)
        found = min((problem.search(here, robust=True) for here in starts), key=lambda f: f.cost)
    weighted = found.slopes * found.weights[:, None]
    rows = np.vstack([weighted, np.diag(1 / problem.spreads)])
    covariance = np.linalg.inv(rows.T @ rows).astype(float)
    leverage = np.einsum("ij,jk,ik->i", weighted, covariance, weighted)
    noise = np.array([o.noise for o in observations])
    alone = found.residuals * noise / np.maximum(1e-6, 1 - np.minimum(leverage, 1 - 1e-6))
    unfitted = priors.residuals * noise
    share = _share(alone / noise, unfitted / noise, np.array([o.weight for o in observations]))
    missed = share * alone + (1 - share) * unfitted
    after = share * found.residuals * noise + (1 - share) * unfitted
    judged = zip(observations, after, missed, strict=True)
    points = tuple(_point(o, float(miss), float(left_out)) for o, miss, left_out in judged)
    calibration = _calibration(problem.factors(share * found.at), points, observations, sources)
    return FactorFit(calibration, points, problem.learned(covariance))


def _point(of: FitObservation, miss: float, left_out: float) -> FitPoint:
    doubted = abs(left_out) > max(_DOUBTED, _STRANGE * of.noise)
    return FitPoint(of.name, of.measured, of.measured / math.exp(miss), left_out, doubted)


def _share(alone: Array, unfitted: Array, worth: Array) -> float:
    """How much of the way from the priors to the fit to go: as far as each point is predicted better by the others.

    A miss between the two ends is linear in the share. Where points contradict each other the others mislead, and the
    way ends early; of one or two rows nobody can say which is wrong. Misses are in units of noise and count in
    proportion, up to where a point is strange anyway, so that one of them does not decide for all.
    """
    import numpy as np

    def cost(share: float) -> float:
        return float((worth * np.minimum(np.abs(share * alone + (1 - share) * unfitted), _STRANGE)).sum())

    steps = [k / SHARES for k in range(SHARES, -1, -1)]
    best = min(steps, key=lambda share: round(cost(share), 9))
    return best if float(worth.sum()) >= FEWEST and cost(best) < _CLEARLY * cost(1.0) else 1.0


@dataclass(frozen=True, slots=True)
class _Found:
    """Where a search ended. Residuals are log(measured / predicted) in units of each point's noise."""

    at: Array
    cost: float
    residuals: Array
    slopes: Array
    weights: Array


class _Problem:
    """Observations with the factors they are asked about; one that is believed to be exactly 1 is not."""

    def __init__(self, observations: Sequence[FitObservation]) -> None:
        import numpy as np

        self._observations = observations
        believed = prior_spreads(phases=any(o.phase for o in observations))
        self.names = list(believed)
        self.spreads: Array = np.array(list(believed.values()))
        self._slopes: tuple[Array, Array] | None = None

    def factors(self, at: Array) -> Factors:
        return Factors(**{n: math.exp(float(v)) for n, v in zip(self.names, at, strict=True)})

    def learned(self, covariance: Array) -> tuple[FactorUncertainty, ...]:
        import numpy as np

        left = np.sqrt(np.diag(covariance))
        alike = covariance / np.outer(left, left)
        np.fill_diagonal(alike, 0.0)
        closest = np.abs(alike).argmax(axis=1)
        return tuple(
            FactorUncertainty(
                name, float(left[k]), float(self.spreads[k]), self.names[closest[k]], float(alike[k, closest[k]])
            )
            for k, name in enumerate(self.names)
        )

    def search(self, start: Array, *, robust: bool, most: int = _ITERATIONS) -> _Found:
        """Gauss-Newton from `start`. `robust` takes misses to follow Student's t: a strange point pulls little."""
        import numpy as np

        noise = np.array([o.noise for o in self._observations])
        worth = np.array([o.weight for o in self._observations])
        measured = np.array([math.log(o.measured) for o in self._observations])
        at, last = start, False
        for step in range(most + 1):
            predicted, slopes = self._linearised(at)
            residuals = (measured - predicted) / noise
            trust = (_DEGREES + 1) / (_DEGREES + residuals**2) if robust else np.ones_like(residuals)
            weights = np.sqrt(worth * trust) / noise
            if last or step == most:
                break
            rows = np.vstack([slopes * weights[:, None], np.diag(1 / self.spreads)])
            wanted = np.concatenate([(measured - predicted) * weights, -at / self.spreads])
            move = np.clip(np.linalg.lstsq(rows, wanted, rcond=None)[0], -0.7, 0.7)
            at = at + move
            last = float(np.abs(move).max()) < ENOUGH
        strange = (_DEGREES + 1) * np.log1p(residuals**2 / _DEGREES) if robust else residuals**2
        cost = float((worth * strange).sum() + ((at / self.spreads) ** 2).sum())
        return _Found(at, cost, residuals, slopes, weights)

    def _linearised(self, here: Array) -> tuple[Array, Array]:
        """Predicted logarithms at these log-factors, and slopes near them: each is many simulations of every run."""
        import numpy as np

        if self._slopes is None or float(np.abs(self._slopes[0] - here).max()) > NEAR:
            nudges = STEP * np.eye(len(self.names))
            each = [(self._logs(here + n) - self._logs(here - n)) / (2 * STEP) for n in nudges]
            self._slopes = (here, np.stack(each, axis=1))
        return self._logs(here), self._slopes[1]

    def _logs(self, at: Array) -> Array:
        import numpy as np

        factors = self.factors(at)
        return np.array([math.log(o.predict(factors)) for o in self._observations])


def _calibration(
    factors: Factors, points: Sequence[FitPoint], observations: Sequence[FitObservation], sources: Sequence[str]
) -> Calibration:
    worth = sum(o.weight for o in observations)
    misses = sum(o.weight * _counted(o, p) ** 2 for o, p in zip(observations, points, strict=True))
    spread = math.sqrt((_PRIOR_POINTS * UNCALIBRATED_SPREAD**2 + misses) / (_PRIOR_POINTS + worth))
    errors = sorted(abs(math.expm1(min(p.left_out, 5.0))) for p in points)
    return Calibration(
        factors=factors,
        spread=max(LEAST_SPREAD, spread),
        points=len(points),
        sources=tuple(sources),
        leave_one_out=errors[len(errors) // 2],
    )


def _counted(of: FitObservation, point: FitPoint) -> float:
    scatters = of.phase and of.noise > RUN_NOISE
    return min(abs(point.left_out), 1.0) * (_SCATTER_SHARE if scatters else 1.0)
