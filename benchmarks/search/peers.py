"""Other people's optimisers behind our seam, for races side by side; each needs its package in this Python.

    python -m venv PEERS && PEERS/bin/pip install smac pydantic PyYAML     (for smac)
    PYTHONPATH=src:. PEERS/bin/python -m benchmarks.search.run TABLES --samplers smac

A peer may ask for a point twice; that costs it a trial, as it would a user.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ridgeline.records.lesson import Lesson, Proposal
from ridgeline.records.space import Discrete, Point, Space

FAILED = 1e6  # the cost a failure is told as: neither peer knows another word for it


class Smac:
    """SMAC3's facade for hyperparameters (random forest, log expected improvement), by ask and tell."""

    def __init__(self, space: Space, seed: int, options: Mapping[str, object], refusal: object) -> None:
        from ConfigSpace import CategoricalHyperparameter, ConfigurationSpace, UniformIntegerHyperparameter
        from smac import HyperparameterOptimizationFacade, Scenario

        knobs = ConfigurationSpace(seed=seed)
        for knob in space.knobs:
            assert isinstance(knob, Discrete)
            last = len(knob.values) - 1
            made = UniformIntegerHyperparameter if knob.ordered else CategoricalHyperparameter
            knobs.add(made(knob.name, 0, last) if knob.ordered else made(knob.name, range(last + 1)))
        folder = tempfile.mkdtemp(prefix="smac-")
        scenario = Scenario(knobs, deterministic=True, n_trials=1000, seed=seed, output_directory=folder)
        design = HyperparameterOptimizationFacade.get_initial_design(scenario, n_configs=10)
        self._smac = HyperparameterOptimizationFacade(
            scenario, lambda config, seed=0: 0.0, initial_design=design, overwrite=True, logging_level=False
        )
        self._space, self._asked = space, {}

    def ask(self, pending: Sequence[Point] = ()) -> Proposal:
        info = self._smac.ask()
        point = {k.name: k.values[int(info.config[k.name])] for k in self._space.knobs if isinstance(k, Discrete)}
        self._asked = {"info": info}
        return Proposal(point, "SMAC3")

    def tell(self, lesson: Lesson) -> None:
        from smac.runhistory.dataclasses import TrialValue

        cost = FAILED if lesson.score is None else -lesson.score
        self._smac.tell(self._asked["info"], TrialValue(cost=cost))


PEERS: Mapping[str, Callable[..., Any]] = {"smac": Smac}
