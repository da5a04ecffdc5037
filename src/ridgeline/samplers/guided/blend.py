"""Two models of the scores, each trusted as far as it predicts every observation from the others.

Nobody knows beforehand whether a program's knobs act together or each by itself. A Gaussian process over all knobs at
once is the better guide in the one case, one that adds up effects in the other; the observations so far say which,
and where they do not, what both expect much of is tried.
"""

from __future__ import annotations

import math

import numpy as np

from ridgeline.samplers.guided.gaussian import Array, Columns, Fit
from ridgeline.samplers.guided.model import ObservedData, ScoreModel

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
