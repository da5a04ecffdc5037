"""How much better than the best a point may be."""

from __future__ import annotations

import math

import numpy as np

from ridgeline.samplers.guided.gaussian import Array

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
