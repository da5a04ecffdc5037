"""What is expected of each point before it runs, joined for the sampler from whoever offers it.

A formula in the study comes first, since a person wrote it for this search; then what the workload itself predicts;
then, for a real engine on hardware that is known, the twin of the study.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ridgeline import catalog
from ridgeline.errors import RidgelineError
from ridgeline.records.expression import Expression, ExpressionError
from ridgeline.records.observation import Expectation
from ridgeline.records.space import Point, Settings
from ridgeline.records.study import Study
from ridgeline.samplers.base import SensitivityPrior
from ridgeline.workloads.base import Predicting, Sensitive, Workload

FORMULA = "expect"  # the key of `search` that holds a formula
ENGINE_ENDINGS = ("-offline", "-serve")

FAULTS = (RidgelineError, ExpressionError, ValueError, ArithmeticError, LookupError, TypeError)

Predicted = Callable[[Settings], Expectation | None]
Sensitivities = Callable[[Settings], tuple[float, ...]]


def prior_of(study: Study, workload: Workload) -> SensitivityPrior | None:
    """None where nobody expects anything. A prior that fails at a point expects nothing there."""
    tellers = (("formula", _formula(study)), (study.workload.kind, _predicting(workload)), ("twin", _twin_of(study)))
    for called, teller in tellers:
        if teller is not None:
            return _StudyOutlook(study, *teller, called)
    return None


@dataclass(frozen=True)
class _StudyOutlook:
    """What is predicted of settings, as scores of points."""

    study: Study
    predicted: Predicted
    leaned: Sensitivities
    called: str

    def __call__(self, point: Point) -> Expectation | None:
        try:
            said = self.predicted(self.study.space.settings(point))
        except FAULTS:
            return None
        if said is None or said.mean is None:
            return said
        score = self.study.goal.score
        ends = sorted(score(end) for end in (said.low, said.high) if end is not None)
        low, high = ends if len(ends) == 2 else (None, None)
        return replace(said, mean=score(said.mean), low=low, high=high)

    def sensitivities(self, point: Point) -> tuple[float, ...]:
        try:
            return self.leaned(self.study.space.settings(point))
        except FAULTS:
            return ()


def _on_nothing(settings: Settings) -> tuple[float, ...]:
    return ()


def _formula(study: Study) -> tuple[Predicted, Sensitivities] | None:
    text = study.search.options.get(FORMULA)
    if not text:
        return None
    formula = Expression.parse(str(text))

    def predicted(settings: Settings) -> Expectation | None:
        value = formula.evaluate(settings)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return Expectation(float(value)) if is_number else None  # type: ignore[arg-type]

    return predicted, _on_nothing


def _predicting(workload: object) -> tuple[Predicted, Sensitivities] | None:
    if not isinstance(workload, Predicting):
        return None
    return workload.expectation, workload.sensitivities if isinstance(workload, Sensitive) else _on_nothing


def _twin_of(study: Study) -> tuple[Predicted, Sensitivities] | None:
    """The study as the twin reads it: the keys are the same, but it must know the GPU and give the goal's metric."""
    if not study.workload.kind.endswith(ENGINE_ENDINGS):
        return None
    try:
        twin: Workload = catalog.part("workloads", "twin")(study)
        return None if twin.problems() else _predicting(twin)
    except (RidgelineError, ExpressionError, ValueError):
        return None
