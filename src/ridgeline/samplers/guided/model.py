"""What the observations say about every point: how good it is and how sure that is, and the chance that it runs at all.

Scores of one sign are taken in logs, so that a gain is a ratio. Where something is expected of points beforehand, the
model learns the difference from it, and how much weight it deserves: score = level + trust x expected + rest.
Trust begins near 1 and is learned like the rest; an expectation whose order is wrong ends with a trust of 0 or below.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ridgeline.samplers.guided.features import Products
from ridgeline.samplers.guided.gaussian import (
    JITTER,
    Array,
    Columns,
    EffectsFit,
    EffectsProcess,
    Fit,
    GaussianProcess,
    fitted,
    fitted_effects,
)

REMEMBERED = 150  # observations the process sees: the best, the latest, and some of the rest
FITTED, EFFECTS_FITTED = 80, 50  # of them, observations that length scales are found from; where effects add up
STRAIGHT, EITHER_WAY = (1.0, 0.35), (0.0, 1.0)  # what trust in an expectation begins with, and its spread
_WORST = 4.0  # results this many times farther below the middle than the best is above count as that bad and no worse
_DOUBT = 1.0  # few observations say little about length scales: spreads grow by this over the root of their number
_FEWEST_ENDED = 3  # runs that ended by themselves, without which a bound is taken as it is
_LEVEL_SPREAD = 3.0


@dataclass(frozen=True)
class Scale:
    """Scores as the model sees them: logs of positive ones (`sign` 1) or of costs (-1), else as they are (0)."""

    sign: int

    @classmethod
    def of(cls, scores: Sequence[float]) -> Scale:
        return cls(1 if scores and min(scores) > 0 else -1 if scores and max(scores) < 0 else 0)

    def seen(self, score: float) -> float | None:
        """None where a score has no place on this scale."""
        if self.sign == 0:
            return score
        return self.sign * math.log(self.sign * score) if self.sign * score > 0 else None

    def score(self, value: float) -> float:
        """The score that is seen as this value."""
        return value if self.sign == 0 else self.sign * math.exp(self.sign * value)

    def values(self, scores: Sequence[float | None]) -> Array:
        """NaN for what failed or has no place."""
        seen = [None if score is None else self.seen(score) for score in scores]
        return np.array([math.nan if value is None else value for value in seen], dtype=float)


@dataclass(frozen=True)
class PriorValues:
    """For each row: the expected score on the scale, beside it how it would move, were each thing that it rests on one
    standard deviation off; and the log odds of passing."""

    columns: Array
    odds: Array


@dataclass(frozen=True)
class ObservedData:
    """Observations as rows: features, score on the scale (NaN where the setting failed), what was expected there."""

    rows: Array
    values: Array
    expected: Array | None = None  # on the scale, with what it leans on beside it; None: nothing is expected of any
    odds: Array | None = None  # log odds of passing that were expected
    spread: float = 0.0  # how far off the expected score may be
    reach: float = 1.0  # how far apart settings are expected to be
    trust: tuple[float, float] = STRAIGHT  # in what is expected, before the first observation; and its spread
    censored: Array | None = None  # where the value is only a bound that the truth does not exceed
    products: Products | None = None  # shown beside the rows to trees that predict what passes
    earlier: int = 0  # of the rows, the first so many are of earlier studies

    def first(self, count: int) -> ObservedData:
        """Only the first of this study's observations."""
        return self._rows(slice(0, self.earlier + count))

    @property
    def present(self) -> ObservedData:
        """Only the observations of this study."""
        return replace(self._rows(slice(self.earlier, None)), earlier=0)

    def followed_by(self, other: ObservedData) -> ObservedData:
        """These observations, then those of the other; what is said of all of them is what the other says."""

        def both(a: Array | None, b: Array | None) -> Array | None:
            return None if a is None or b is None else np.concatenate([a, b])

        return replace(
            other,
            rows=np.concatenate([self.rows, other.rows]),
            values=np.concatenate([self.values, other.values]),
            expected=both(self.expected, other.expected),
            odds=both(self.odds, other.odds),
            censored=both(self.censored, other.censored),
            earlier=len(self.values),
        )

    def _rows(self, some: slice) -> ObservedData:
        expected, odds, censored = (
            None if each is None else each[some] for each in (self.expected, self.odds, self.censored)
        )
        rows, values = self.rows[some], self.values[some]
        return replace(self, rows=rows, values=values, expected=expected, odds=odds, censored=censored)


class ScoreModel:
    """Universal kriging: a Gaussian process around level + trust x expected, both uncertain."""

    def __init__(self, seen: ObservedData, columns: Columns, fit: Fit | None = None, adds_up: bool = False) -> None:
        """`adds_up`: knobs are taken to act by themselves until they show that they act together."""
        passed = np.flatnonzero(~np.isnan(seen.values))
        self._adds_up = adds_up
        self._kept = passed[remembered(seen.values[passed])]
        self._earlier = int((self._kept < seen.earlier).sum())
        values = _without_the_worst(seen.values[self._kept]) if seen.expected is None else seen.values[self._kept]
        self._expected = None if seen.expected is None else seen.expected[self._kept]
        self._level = float(values.mean())
        self._middle = np.zeros(1) if self._expected is None else self._expected.mean(axis=0)
        self._trust = seen.trust
        self._unit = _unit(values, self._expected, seen.trust[0])
        standard = self._standard = (values - self._level) / self._unit
        basis = self._basis(self._expected, len(values))
        rows, self._columns = self._with_expected(seen.rows[self._kept], self._expected, columns)
        found = fit or self._fit(rows, standard, basis)
        # observations of one corner show little of how far an expectation is off elsewhere: it says so itself
        self.fit = replace(found, signal=max(found.signal, (seen.spread / self._unit) ** 2))
        process = EffectsProcess if isinstance(self.fit, EffectsFit) else GaussianProcess
        self._process: GaussianProcess = process(rows, self._columns, self.fit)  # type: ignore[arg-type]
        if seen.censored is not None:
            standard = self._beyond_bounds(rows, standard, seen.censored[self._kept])
        self._solve(standard, basis)

    def _beyond_bounds(self, rows: Array, standard: Array, bounded: Array) -> Array:
        """How far beyond its time limit a run would have gone is what the runs that ended say of it."""
        if not bounded.any() or (~bounded).sum() < _FEWEST_ENDED:
            return standard
        level = float(standard[~bounded].mean())
        ended = type(self._process)(rows[~bounded], self._columns, self.fit)
        means = level + ended.across(rows[bounded]) @ ended.solved(standard[~bounded] - level)
        found = standard.copy()
        found[bounded] = np.minimum(standard[bounded], means)
        return found

    def _basis(self, expected: Array | None, count: int) -> Array:
        ones = np.ones((count, 1))
        if expected is None:
            return ones
        return np.concatenate([ones, (expected - self._middle) / self._unit], axis=1)

    def _with_expected(self, rows: Array, expected: Array | None, columns: Columns) -> tuple[Array, Columns]:
        """What is expected is a feature too: where it errs, it errs alike for settings of which it says the same."""
        if expected is None:
            return rows, columns
        place = (expected[:, :1] - self._middle[0]) / (4.0 * self._unit)
        return np.concatenate([rows, place.astype(rows.dtype)], axis=1), np.append(columns, columns.max() + 1)

    def _fit(self, rows: Array, standard: Array, basis: Array) -> Fit:
        most = EFFECTS_FITTED if self._adds_up else FITTED
        present = evenly(self._earlier, len(standard), max(most // 2, most - self._earlier))
        some = np.append(evenly(0, self._earlier, most - len(present)), present)
        expected = basis[:, 1:]
        prior, precision = _trust_prior(expected.shape[1], self._trust)
        trust = np.linalg.solve(expected.T @ expected + np.diag(precision), expected.T @ standard + precision * prior)
        fits = fitted_effects if self._adds_up else fitted
        return fits(rows[some].astype(float), (standard - expected @ trust)[some], self._columns)

    def _solve(self, standard: Array, basis: Array) -> None:
        known, sure = _trust_prior(basis.shape[1] - 1, self._trust)
        prior, precision = np.append(0.0, known), np.diag(np.append(_LEVEL_SPREAD**-2, sure))
        solved = self._process.solved(basis)
        self._uncertain = np.linalg.inv(basis.T @ solved + precision)
        self._trusts = self._uncertain @ (solved.T @ standard + precision @ prior)
        self._dual = self._process.solved(standard - basis @ self._trusts)
        self._solved_basis = solved

    @property
    def trust(self) -> float:
        """How much weight the expectation gets: 1 as it stands, 0 none at all."""
        return float(self._trusts[1]) if len(self._trusts) > 1 else 0.0

    @property
    def count(self) -> int:
        """Results that it rests on."""
        return len(self._kept)

    def predicted(self) -> float:
        """How well each observation is predicted from all others: the sum of the log densities."""
        return float(self._process.left_out(self._dual).sum())

    def predicted_by_mean(self) -> float:
        """As `predicted`, of a model to which all settings are alike: each from mean and spread of the others."""
        values, others = self._standard, len(self._standard) - 1
        means = (values.sum() - values) / others
        squares = ((values**2).sum() - values**2) / others - means**2
        variance = np.maximum(squares, JITTER) * (others + 1) / (others - 1)
        return float(-0.5 * (np.log(variance) + (values - means) ** 2 / variance).sum())

    def at(self, rows: Array, expected: Array | None) -> tuple[Array, Array]:
        """Mean and spread of the truth, on the scale."""
        basis = self._basis(expected, len(rows))
        rows, _ = self._with_expected(rows, expected, self._columns)
        across = self._process.across(rows)
        mean = basis @ self._trusts + across @ self._dual.astype(across.dtype)
        left = basis - across @ self._solved_basis.astype(across.dtype)
        spread = np.sqrt(self._process.spread(across) ** 2 + ((left @ self._uncertain) * left).sum(axis=1))
        spread = spread * (1 + _DOUBT / math.sqrt(len(self._kept)))
        return self._level + self._unit * mean, self._unit * spread

    roughly = at

    @property
    def noise(self) -> float:
        """Standard deviation of one run around the truth, on the scale."""
        return self._unit * math.sqrt(self.fit.noise)

    @property
    def overconfidence(self) -> float:
        return self._process.overconfidence(self._dual)

    def draws(self, rows: Array, expected: Array | None, count: int, rng: np.random.Generator) -> Array:
        """Possible truths at these places, a row each."""
        mean, _ = self.at(rows, expected)
        basis = self._basis(expected, len(rows))
        rows, _ = self._with_expected(rows, expected, self._columns)
        left = basis - self._process.across(rows) @ self._solved_basis
        covariance = self._process.joint(rows) + left @ self._uncertain @ left.T
        covariance[np.diag_indices_from(covariance)] += 1e-6
        factor = np.linalg.cholesky(covariance.astype(float))
        factor = factor * (1 + _DOUBT / math.sqrt(len(self._kept)))
        return mean + self._unit * (rng.standard_normal((count, len(rows))) @ factor.T)


def _without_the_worst(values: Array) -> Array:
    """How bad the bad ones are matters little, and would stretch the scale for the good."""
    middle = float(np.median(values))
    above = max(float(values.max()) - middle, float(values.std()))  # many may share the best
    return np.maximum(values, middle - _WORST * above)


def _trust_prior(count: int, trust: tuple[float, float]) -> tuple[Array, Array]:
    """Prior means of the trust and of each sensitivity, in standard deviations, and their precisions."""
    first = np.arange(count) == 0
    return np.where(first, trust[0], 0.0), np.where(first, trust[1] ** -2, 1.0)


def _unit(values: Array, expected: Array | None, trust: float) -> float:
    if expected is None:
        return max(float(values.std()), 1e-6 * max(1.0, abs(float(values.mean()))))
    rest = values - trust * expected[:, 0]
    return max(float(np.hypot(rest.std(), 0.1)), 1e-9)


def evenly(first: int, end: int, most: int) -> Columns:
    """The numbers from `first` to before `end`; of more than `most` an even share."""
    found: Columns = np.linspace(first, end - 1, min(end - first, most)).round().astype(int)
    return found


def remembered(values: Array) -> Array:
    """Which of very many observations the process sees: the best, the latest, an even share of the rest, in order."""
    count = len(values)
    if count <= REMEMBERED:
        return np.arange(count)
    best, latest = np.argsort(-values, kind="stable")[: REMEMBERED // 2], np.arange(count)[-REMEMBERED // 4 :]
    chosen = set(best.tolist()) | set(latest.tolist())
    rest = [i for i in range(count) if i not in chosen]
    return np.array(sorted(chosen | {rest[i] for i in evenly(0, len(rest), REMEMBERED - len(chosen))}))


# Two models of the scores, each trusted as far as it predicts every observation from the others.
#
# Nobody knows beforehand whether a program's knobs act together or each by itself. A Gaussian process over all knobs at
# once is the better guide in the one case, one that adds up effects in the other; the observations so far say which,
# and where they do not, what both expect much of is tried.

TEMPERATURE = 2.0  # leave-one-out scores are of few observations: differences count by half

_FEWEST_JUDGED = 12  # results, before which it is too early to say that no knob matters
SAYS_LITTLE = 0.3  # log density gained for each observation: a spread narrower by a quarter

Fits = tuple[Fit, Fit]


class Blend:
    """As a ScoreModel, where nothing is expected beforehand."""

    trust = 0.0

    def __init__(self, seen: ObservedData, columns: Columns, fit: Fits | None = None) -> None:
        together, apart = (None, None) if fit is None else fit
        self._models = (ScoreModel(seen, columns, together), ScoreModel(seen, columns, apart, adds_up=True))
        self.fit: Fits = (self._models[0].fit, self._models[1].fit)
        heights = np.array([model.predicted() for model in self._models])
        weights = np.exp((heights - heights.max()) / TEMPERATURE)
        self.weights: Array = weights / weights.sum()
        self._heights = heights

    def at(self, rows: Array, expected: Array | None) -> tuple[Array, Array]:
        """Mean and spread of the truth, on the scale: where the models disagree, the spread is wider."""
        means, spreads = zip(*(model.at(rows, None) for model in self._models), strict=True)
        mean = np.tensordot(self.weights, np.stack(means), axes=1)
        squares = np.stack(spreads) ** 2 + (np.stack(means) - mean) ** 2
        return mean, np.sqrt(np.tensordot(self.weights, squares, axes=1))

    @property
    def says_nothing(self) -> bool:
        """Whether the knobs predict the observations hardly better than their mean does."""
        count = self._models[0].count
        gain = float(self._heights.max()) - self._models[0].predicted_by_mean() if count >= _FEWEST_JUDGED else math.inf
        return gain < SAYS_LITTLE * count

    @property
    def noise(self) -> float:
        """Standard deviation of one run around the truth, on the scale."""
        return float(np.sqrt(self.weights @ np.array([model.noise**2 for model in self._models])))

    @property
    def overconfidence(self) -> float:
        """Of the model that states too little most."""
        return max(model.overconfidence for model in self._models)

    def roughly(self, rows: Array, expected: Array | None) -> tuple[Array, Array]:
        """Which of very many places are worth a closer look: by the model with more weight."""
        return self._models[int(self.weights.argmax())].at(rows, None)

    def draws(self, rows: Array, expected: Array | None, count: int, rng: np.random.Generator) -> Array:
        """Possible truths at these places, a row each: of each model by its weight."""
        first = round(count * float(self.weights[0]))
        shares = zip(self._models, (first, count - first), strict=True)
        return np.concatenate([model.draws(rows, None, each, rng) for model, each in shares])


def score_model(seen: ObservedData, columns: Columns, fit: Fit | Fits | None = None) -> ScoreModel | Blend:
    """The model that suits: one that learns the difference from what is expected, or a blend where nothing is."""
    if seen.expected is None:
        return Blend(seen, columns, fit if isinstance(fit, tuple) else None)
    return ScoreModel(seen, columns, None if isinstance(fit, tuple) else fit)
