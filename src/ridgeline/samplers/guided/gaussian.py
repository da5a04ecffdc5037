"""A Gaussian process over encoded points: what was measured, carried to what was not, with how sure that is.

Matérn 5/2 with one length scale per knob, found by the marginal likelihood under priors that keep few observations from
saying much. Length scales are expected to grow with the number of knobs, so that forty knobs are not forty independent
riddles. Everything is deterministic: a fixed start, a fixed number of steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from threadpoolctl import ThreadpoolController

from ridgeline.stats.stated_range import NORMAL_90

Array = npt.NDArray[Any]
Columns = npt.NDArray[np.intp]

_STEPS = 30  # of the ascent; beyond, the answer no longer changes visibly
FIRST_STEP, LARGEST_STEP, SMALLEST_STEP = 0.3, 1.0, 1e-3
ROOT5 = 5.0**0.5
JITTER = 1e-6
_SCALE_SPREAD = 1.0  # of the log of a knob's weight around its prior
NOISE_AT, NOISE_SPREAD = float(np.log(0.03)), 1.5  # log of the noise variance, where the values have variance 1


_F = TypeVar("_F", bound=Callable[..., object])
# BLAS uses one thread in such a function: to hand matrices of a hundred rows to several costs more than it saves
on_one_thread: Callable[[_F], _F] = ThreadpoolController().wrap(limits=1, user_api="blas")


@dataclass(frozen=True)
class Fit:
    """What the likelihood found: weights of squared differences by knob, variance of the signal and of the noise."""

    weights: Array
    signal: float
    noise: float


class GaussianProcess:
    """`columns[j]` is the knob of feature j. Values should have mean about 0 and variance about 1."""

    def __init__(self, places: Array, columns: Columns, fit: Fit) -> None:
        self._scale = np.sqrt(fit.weights[columns])
        self._places, self._fit = places * self._scale, fit
        self._places = self._places.astype(float)
        covariance = covariance_of_runs(places, columns, fit)
        self._whiten = np.linalg.inv(np.linalg.cholesky(covariance))  # small; one product then serves all candidates

    def solved(self, values: Array) -> Array:
        """The inverse of the covariance times these values."""
        found: Array = self._whiten.T @ (self._whiten @ values)
        return found

    def left_out(self, dual: Array) -> Array:
        """Log density of every value given all others, up to a constant; `dual` is that of the values."""
        precision = (self._whiten**2).sum(axis=0)
        found: Array = 0.5 * (np.log(precision) - dual**2 / precision)
        return found

    def overconfidence(self, dual: Array) -> float:
        """By how much wider the stated spreads have to be so that nine of ten values lie where all others put them."""
        errors = np.abs(dual) / np.sqrt((self._whiten**2).sum(axis=0))
        return max(1.0, float(np.quantile(errors, 0.9)) / NORMAL_90)

    def across(self, places: Array) -> Array:
        """Covariance of each place with each that was measured."""
        # in the precision of the places: of thousands of candidates it is half, which is twice as fast
        scale, known = self._scale.astype(places.dtype), self._places.astype(places.dtype)
        found: Array = places.dtype.type(self._fit.signal) * _matern(_distances(places * scale, known))
        return found

    def carried(self, places: Array, values: Array) -> Array:
        """Values where it was measured, carried to these places."""
        across = self.across(places)
        found: Array = across @ self.solved(values).astype(across.dtype)
        return found

    def spread(self, across: Array) -> Array:
        """Standard deviation of the truth, without the noise of a run, from a row of `across` for each place."""
        explained = ((across @ self._whiten.T.astype(across.dtype)) ** 2).sum(axis=1)
        found: Array = np.sqrt(np.maximum(self._fit.signal - explained, 1e-9 * self._fit.signal))
        return found

    def joint(self, places: Array) -> Array:
        """Covariance of the truth between these places, given what was measured."""
        places = places.astype(float)
        white = self._whiten @ self.across(places).T
        found: Array = self._among(places) - white.T @ white
        return found

    def _among(self, places: Array) -> Array:
        return _covariance(places, self._scale, self._fit.signal)


def _covariance(places: Array, scale: Array, signal: float) -> Array:
    scaled = (places * scale).astype(float)
    found: Array = signal * _matern(_distances(scaled, scaled))
    return found


def covariance_of_runs(places: Array, columns: Columns, fit: Fit) -> Array:
    """Covariance of what runs at these places show, before any is known."""
    found = _covariance(places, np.sqrt(fit.weights[columns]), fit.signal)
    found[np.diag_indices_from(found)] += fit.noise + JITTER
    return found


def _matern(distance: Array) -> Array:
    falling: Array = np.exp(-distance)
    rising = distance / distance.dtype.type(3.0)
    rising += 1.0
    rising *= distance
    rising += 1.0
    falling *= rising
    return falling


def _distances(a: Array, b: Array) -> Array:
    """Root 5 times the distance of each row of one from each of the other."""
    found: Array = a @ b.T
    found *= -2.0
    found += (a**2).sum(axis=1)[:, None]
    found += (b**2).sum(axis=1)[None, :]
    np.maximum(found, 0.0, out=found)
    np.sqrt(found, out=found)
    found *= ROOT5
    return found


def fitted(places: Array, values: Array, columns: Columns) -> Fit:
    """The hyperparameters with the largest likelihood times prior."""
    knobs = int(columns.max()) + 1
    # a squared length scale of a quarter of the cube's squared diagonal
    expected = np.array([-np.log(0.25 * knobs)] * knobs + [0.0, NOISE_AT])
    spread = np.array([_SCALE_SPREAD] * knobs + [1.0, NOISE_SPREAD])
    best = ascended(lambda at: _height(at, places, values, columns), expected, spread)
    return Fit(np.exp(best[:knobs]), float(np.exp(best[knobs])), float(np.exp(best[knobs + 1])))


def ascended(likelihood: Callable[[Array], tuple[float, Array]], expected: Array, spread: Array) -> Array:
    """Where the likelihood, which gives its height and slope, times a normal prior is highest; ascent by the signs of
    the slope (Rprop)."""
    at, best, best_height = expected.copy(), expected, -np.inf
    step, before = np.full(at.size, FIRST_STEP), np.zeros(at.size)
    for _ in range(_STEPS):
        height, slope = likelihood(at)
        off = (at - expected) / spread
        height, slope = height - 0.5 * float(off @ off), slope - off / spread
        if height > best_height:
            best, best_height = at.copy(), height
        same = np.sign(slope) * np.sign(before)
        factor = np.where(same > 0, 1.2, np.where(same < 0, 0.5, 1.0))
        step = np.clip(step * factor, SMALLEST_STEP, LARGEST_STEP)
        before = np.where(same < 0, 0.0, slope)
        at = at + np.sign(before) * step
    return best


def likelihood(covariance: Array, values: Array) -> tuple[float, Array]:
    """Log density of the values, up to a constant, and twice its slope along each entry of the covariance."""
    factor = np.linalg.cholesky(covariance)
    whiten = np.linalg.inv(factor)
    inverse = whiten.T @ whiten
    dual = inverse @ values
    height = -0.5 * float(values @ dual) - float(np.log(np.diag(factor)).sum())
    pull = np.outer(dual, dual) - inverse
    return height, pull


def _height(at: Array, places: Array, values: Array, columns: Columns) -> tuple[float, Array]:
    """Log likelihood of the hyperparameters, up to a constant, and its slope."""
    knobs = at.size - 2
    weights, signal, noise = np.exp(at[:knobs]), float(np.exp(at[knobs])), float(np.exp(at[knobs + 1]))
    scaled = places * np.sqrt(weights[columns])
    distance = _distances(scaled, scaled)
    kernel = signal * _matern(distance)
    covariance = kernel.copy()
    covariance[np.diag_indices_from(covariance)] += noise + JITTER
    height, pull = likelihood(covariance, values)
    # slope of the kernel along a knob's weight: this times the squared difference there
    bent = pull * (-(5.0 / 6.0) * signal * (1.0 + distance) * np.exp(-distance))
    by_column = 2.0 * (bent.sum(axis=1) @ places**2) - 2.0 * np.einsum("ij,ij->j", places, bent @ places)
    by_knob = np.bincount(columns, weights=by_column, minlength=knobs) * weights
    return height, 0.5 * np.concatenate([by_knob, [(pull * kernel).sum(), np.trace(pull) * noise]])


# A Gaussian process that adds up what single knobs do, what pairs of them do, and so on.
#
# Its covariance is a product over the knobs of (1 + share x likeness along the knob): multiplied out, a sum over all
# groups of knobs. A small share leaves a knob to act by itself, so that what was seen of it under one setting of the
# others holds under all; a large one lets it interact. The process above has only the one group of all knobs: it
# believes nothing of a setting that differs in one sensitive knob, this one still believes what the others do. Part of
# the likeness is the value's own: a block of 32 threads may be fast where 24 and 40 are not, which no smooth line
# tells.

_WEIGHT_AT = float(np.log(4.0))  # log of a knob's weight: alike within half of its range
SHARES = 2.0  # all shares together: single knobs then count as much as pairs
_OWN_AT = -2.5  # log odds of the part of the likeness that only equal values have
SAME = 1e-9  # squared distance of equal values
TABLE = 400  # rows of a table that several knobs are looked up in together


@dataclass(frozen=True)
class EffectsFit(Fit):
    """By knob, beside the weight: the share, and the part of the likeness that only equal values have."""

    shares: Array
    own: Array


class EffectsProcess(GaussianProcess):
    """As a GaussianProcess, for knobs with few values each: likeness is looked up, not worked out point by point."""

    def __init__(self, places: Array, columns: Columns, fit: EffectsFit) -> None:
        self._columns, self._effects, self._fit, self._known = columns, fit, fit, places
        covariance = self._covariance(places.astype(float), places.astype(float))
        covariance[np.diag_indices_from(covariance)] += fit.noise + JITTER
        self._whiten = np.linalg.inv(np.linalg.cholesky(covariance))

    def across(self, places: Array) -> Array:
        return self._covariance(places, self._known.astype(places.dtype))

    def _among(self, places: Array) -> Array:
        return self._covariance(places, places)

    def _covariance(self, a: Array, b: Array) -> Array:
        found = np.full((len(a), len(b)), self._fit.signal, dtype=a.dtype)
        code, table = np.zeros(len(a), dtype=np.intp), np.ones((1, len(b)), dtype=a.dtype)
        for knob in range(len(self._effects.shares)):
            own = self._columns == knob
            # distinct rows: at most one column of a choice is not 0
            mixed = a[:, own] @ np.arange(1, own.sum() + 1, dtype=a.dtype)
            _, first, place = np.unique(mixed, return_index=True, return_inverse=True)
            factor = self._factor(knob, a[first][:, own], b[:, own])
            if len(table) * len(factor) > TABLE:
                found *= table[code]
                code, table = place, factor
            else:
                code = code * len(factor) + place
                table = (table[:, None, :] * factor[None, :, :]).reshape(-1, len(b))
        found *= table[code]
        return found

    def _factor(self, knob: int, a: Array, b: Array) -> Array:
        fit, squares = self._effects, ((a[:, None, :] - b[None, :, :]) ** 2).sum(axis=2)
        share, own = fit.shares[knob], fit.own[knob]
        alike = (1.0 - own) * _matern(ROOT5 * np.sqrt(fit.weights[knob] * squares)) + own * (squares < SAME)
        found: Array = ((1.0 + share * alike) / (1.0 + share)).astype(a.dtype)
        return found


def fitted_effects(places: Array, values: Array, columns: Columns) -> EffectsFit:
    """The hyperparameters with the largest likelihood times prior."""
    knobs = int(columns.max()) + 1
    expected = np.append(np.repeat([_WEIGHT_AT, np.log(SHARES / knobs), _OWN_AT], knobs), [0.0, NOISE_AT])
    one, other = pairs = np.triu_indices(len(places), 1)
    apart = (places[one] - places[other]) ** 2
    squares = np.stack([apart[:, columns == knob].sum(axis=1) for knob in range(knobs)])
    spread = np.append(np.ones(expected.size - 1), NOISE_SPREAD)
    best = ascended(lambda at: _effects_height(at, squares, pairs, values), expected, spread)
    weights, shares, own, (signal, noise) = _unpacked(best, knobs)
    return EffectsFit(weights, float(signal), float(noise), shares, own)


def _unpacked(at: Array, knobs: int) -> tuple[Array, Array, Array, Array]:
    """Weights, shares and own parts by knob; variance of the signal and of the noise."""
    weights, shares, odds, rest = np.split(np.exp(at), [knobs, 2 * knobs, 3 * knobs])
    return weights, shares, odds / (1.0 + odds), rest


def _effects_height(at: Array, squares: Array, pairs: tuple[Array, Array], values: Array) -> tuple[float, Array]:
    """Log likelihood of the hyperparameters, up to a constant, and its slope. `squares` are the squared distances along
    each knob of the `pairs` of observations, each pair once: with itself an observation has no distance."""
    unpacked = _unpacked(at, len(squares))
    weights, shares, own = (each[:, None] for each in unpacked[:3])
    signal, noise = unpacked[3]
    distance, same = ROOT5 * np.sqrt(weights * squares), squares < SAME
    falling = np.exp(-distance)
    smooth = (1.0 + distance * (1.0 + distance / 3.0)) * falling
    alike = (1.0 - own) * smooth + own * same
    factors = (1.0 + shares * alike) / (1.0 + shares)
    kernel = signal * factors.prod(axis=0)
    covariance = np.diag(np.full(len(values), signal + noise + JITTER))
    covariance[pairs] = covariance[pairs[::-1]] = kernel
    height, pull = likelihood(covariance, values)
    pulled = pull[pairs] * kernel
    rest = pulled / factors * (shares / (1.0 + shares))  # of each slope, all but that of the likeness
    by_weight = (rest * (own - 1.0) * (distance**2 / 6.0) * (1.0 + distance) * falling).sum(axis=1)
    by_share = (rest * (alike - 1.0) / (1.0 + shares)).sum(axis=1)
    by_own = (rest * own * (1.0 - own) * (same - smooth)).sum(axis=1)
    trace = float(np.trace(pull))
    by_rest = [pulled.sum() + 0.5 * trace * signal, 0.5 * trace * noise]
    return height, np.concatenate([by_weight, by_share, by_own, by_rest])


# How much better than the best a point may be.

FARTHEST = -8.0  # standard deviations; beyond, the difference of two tiny numbers would be noise
_erfc = np.vectorize(math.erfc, otypes=[float])


def normal_share(z: Array) -> Array:
    """The share of a normal distribution below z."""
    found: Array = 0.5 * _erfc(-np.clip(z, -30.0, 30.0) / math.sqrt(2.0))
    return found


def log_expected_improvement(mean: Array, spread: Array, best: float) -> Array:
    """Log of the expected gain over `best`, finite however too_risky a point is."""
    z = (mean - best) / spread
    near = np.maximum(z, FARTHEST)
    density = np.exp(-0.5 * near**2) / math.sqrt(2.0 * math.pi)
    expected = np.log(np.maximum(density + near * normal_share(near), 1e-300))
    found: Array = np.log(spread) + expected - 0.5 * (z**2 - near**2)
    return found
