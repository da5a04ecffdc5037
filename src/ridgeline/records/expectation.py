"""What is expected of a setting before it runs: by a twin, a user's formula, or an earlier study."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Expectation:
    """`mean` of the goal and 90% interval `low` to `high`, in the goal's unit; None where only the chance is known.

    `chance` is that of passing at all; `node_s` the node-seconds a run is expected to take.
    """

    mean: float | None = None
    low: float | None = None
    high: float | None = None
    chance: float = 1.0
    node_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("mean", "low", "high", "node_s"):
            value = getattr(self, name)
            if value is not None and not math.isfinite(value):
                raise ValueError(f"{name} of an expectation is {value}, not a number")
        if not 0.0 <= self.chance <= 1.0:
            raise ValueError(f"a chance of {self.chance}; it lies between 0 and 1")
