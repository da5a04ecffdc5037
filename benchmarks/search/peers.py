"""Other people's optimisers behind our seam, for races side by side; each needs its package in this Python.

    python -m venv PEERS && PEERS/bin/pip install smac pydantic PyYAML     (for smac)
    PYTHONPATH=src:. PEERS/bin/python -m benchmarks.search.run TABLES --samplers smac

For optuna-gp the packages are optuna, scipy and torch (its build for processors is the smaller one).
A peer may ask for a point twice; that costs it a trial, as it would a user.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.search.tpe import TpeSampler
from ridgeline import catalog
from ridgeline.records.observation import Observation, Proposal
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

    def tell(self, observation: Observation) -> None:
        from smac.runhistory.dataclasses import TrialValue

        cost = FAILED if observation.score is None else -observation.score
        self._smac.tell(self._asked["info"], TrialValue(cost=cost))


class OptunaGaussian:
    """Optuna's GPSampler (Gaussian process, log expected improvement, in torch). Times are told in logs, which a
    Gaussian process needs where they span decades; a failure is a violated constraint."""

    def __init__(self, space: Space, seed: int, options: Mapping[str, object], refusal: object) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._study = optuna.create_study(sampler=optuna.samplers.GPSampler(seed=seed, n_startup_trials=10))
        self._knobs = [knob for knob in space.knobs if isinstance(knob, Discrete)]
        self._trial: Any = None
        self._worst = 0.0

    def ask(self, pending: Sequence[Point] = ()) -> Proposal:
        self._trial = self._study.ask()
        return Proposal({knob.name: knob.values[self._index(knob)] for knob in self._knobs}, "GPSampler")

    def _index(self, knob: Discrete) -> int:
        last = len(knob.values) - 1
        if knob.ordered:
            return int(self._trial.suggest_int(knob.name, 0, last))
        return int(self._trial.suggest_categorical(knob.name, tuple(range(last + 1))))

    def tell(self, observation: Observation) -> None:
        failed = observation.score is None
        cost = self._worst if observation.score is None else math.log(-observation.score)
        self._worst = max(self._worst, cost)
        self._trial.set_constraint("failed", 1.0 if failed else 0.0)
        self._study.tell(self._trial, cost)


def made_by(name: str) -> Callable[..., Any]:
    """What makes the sampler of this name, a peer's or ours."""
    found: Callable[..., Any] = PEERS.get(name) or catalog.part("samplers", name)
    return found


PEERS: Mapping[str, Callable[..., Any]] = {"smac": Smac, "optuna-gp": OptunaGaussian, "tpe": TpeSampler}
