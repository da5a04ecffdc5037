"""A Gaussian process that adds up what single knobs do, what pairs of them do, and so on.

Its covariance is a product over the knobs of (1 + share x likeness along the knob): multiplied out, a sum over all
groups of knobs. A small share leaves a knob to act by itself, so that what was seen of it under one setting of the
others holds under all; a large one lets it interact. The process in gaussian.py has only the one group of all knobs: it
believes nothing of a setting that differs in one sensitive knob, this one still believes what the others do. Part of
the likeness is the value's own: a block of 32 threads may be fast where 24 and 40 are not, which no smooth line tells.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ridgeline.samplers.guided.gaussian import (
    JITTER,
    NOISE_AT,
    NOISE_SPREAD,
    ROOT5,
    Array,
    Columns,
    Fit,
    GaussianProcess,
    ascended,
    likelihood,
)

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

    def joint(self, places: Array) -> Array:
        places = places.astype(float)
        white = self._whiten @ self.across(places).T
        found: Array = self._covariance(places, places) - white.T @ white
        return found

    def _covariance(self, a: Array, b: Array) -> Array:
        found = np.full((len(a), len(b)), self._fit.signal, dtype=a.dtype)
        code, table = np.zeros(len(a), dtype=np.intp), np.ones((1, len(b)), dtype=a.dtype)
        for knob in range(len(self._effects.shares)):
            own = self._columns == knob
            first, place = _distinct(a[:, own])
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
        fit, squares = self._effects, _squares(a, b)
        share, own = fit.shares[knob], fit.own[knob]
        alike = (1.0 - own) * _likeness(ROOT5 * np.sqrt(fit.weights[knob] * squares)) + own * (squares < SAME)
        found: Array = ((1.0 + share * alike) / (1.0 + share)).astype(a.dtype)
        return found


def _distinct(rows: Array) -> tuple[Array, Array]:
    """Where each distinct row is first, and which of them each row is."""
    mixed = rows @ np.arange(1, rows.shape[1] + 1, dtype=rows.dtype)  # at most one column of a choice is not 0
    _, first, place = np.unique(mixed, return_index=True, return_inverse=True)
    return first, place


def _squares(a: Array, b: Array) -> Array:
    found: Array = ((a[:, None, :] - b[None, :, :]) ** 2).sum(axis=2)
    return found


def _likeness(distance: Array) -> Array:
    found: Array = (1.0 + distance * (1.0 + distance / 3.0)) * np.exp(-distance)
    return found


def fitted_effects(places: Array, values: Array, columns: Columns) -> EffectsFit:
    """The hyperparameters with the largest likelihood times prior."""
    knobs = int(columns.max()) + 1
    expected = np.append(np.repeat([_WEIGHT_AT, np.log(SHARES / knobs), _OWN_AT], knobs), [0.0, NOISE_AT])
    one, other = pairs = np.triu_indices(len(places), 1)
    apart = (places[one] - places[other]) ** 2
    squares = np.stack([apart[:, columns == knob].sum(axis=1) for knob in range(knobs)])
    best = ascended(lambda at: _posterior(at, expected, squares, pairs, values), expected)
    weights, shares, own, (signal, noise) = _unpacked(best, knobs)
    return EffectsFit(weights, float(signal), float(noise), shares, own)


def _unpacked(at: Array, knobs: int) -> tuple[Array, Array, Array, Array]:
    """Weights, shares and own parts by knob; variance of the signal and of the noise."""
    weights, shares, odds, rest = np.split(np.exp(at), [knobs, 2 * knobs, 3 * knobs])
    return weights, shares, odds / (1.0 + odds), rest


def _posterior(
    at: Array, expected: Array, squares: Array, pairs: tuple[Array, Array], values: Array
) -> tuple[float, Array]:
    """Log posterior of the hyperparameters, up to a constant, and its slope. `squares` are the squared distances along
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
    slope = np.concatenate([by_weight, by_share, by_own, by_rest])
    spread = np.append(np.ones(at.size - 1), NOISE_SPREAD)
    off = (at - expected) / spread
    return height - 0.5 * float(off @ off), slope - off / spread
