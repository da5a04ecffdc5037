"""What a trial costs, as far as the observations show: cheap trials are worth a try that dear ones are not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ridgeline.records.observation import Observation
from ridgeline.samplers.guided.gaussian import Array

FEWEST = 5  # observations with a cost, before which all cost the same
CALM = 3.0  # features count as if so many more observations had shown no effect
WIDEST = 3.0  # times the usual cost, or a part of it: beyond, a straight line says little


def relative_cost(observations: Sequence[Observation], told: Array, rows: Array) -> Array:
    """Expected node-seconds of each row against the usual ones; a straight line through the logs, shrunk."""
    known = [
        i
        for i, observation in enumerate(observations)
        if observation.node_s and observation.node_s > 0 and observation.score is not None
    ]
    if len(known) < FEWEST:
        return np.ones(len(rows))
    logs = np.log([float(observations[i].node_s or 1.0) for i in known])
    middle = told[known].mean(axis=0)
    off = (told[known] - middle).astype(float)
    slope = np.linalg.solve(off.T @ off + CALM * np.eye(off.shape[1]), off.T @ (logs - logs.mean()))
    found: Array = np.clip(np.exp((rows - middle) @ slope), 1.0 / WIDEST, WIDEST)
    return found
