"""The sampler of a study with its prior, and what it says about the search as a whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ridgeline import catalog
from ridgeline.campaign.check import CheckedStudy
from ridgeline.errors import RidgelineError
from ridgeline.records.expression import Expression, ExpressionError
from ridgeline.records.observation import Expectation, Observation, Prospect
from ridgeline.records.space import Point, Settings
from ridgeline.records.study import Study
from ridgeline.samplers.base import PredictsRest, Sampler, SensitivityPrior, TakesEarlierStudies, TakesPrior
from ridgeline.workloads.base import Workload

_FORMULA = "expect"  # the key of `search` that holds a formula

_FAULTS = (RidgelineError, ExpressionError, ValueError, ArithmeticError, LookupError, TypeError)

_Predicted = Callable[[Settings], Expectation | None]
_Sensitivities = Callable[[Settings], tuple[float, ...]]
_Prediction = tuple[_Predicted, _Sensitivities, float | None]  # and the highest value that any setting can have


def prior_of(study: Study, workload: Workload) -> SensitivityPrior | None:
    """None where nobody expects anything. A prior that fails at a point expects nothing there."""
    if (formula := _formula(study)) is not None:
        return _StudyPrior(study, *formula, called="formula")
    other = workload if workload.predicts else workload.predictor()
    if isinstance(other, str) or not other.predicts:
        return None
    return _StudyPrior(study, other.expectation, other.sensitivities, other.highest, called=other.predicts)


def unpredicted(found: CheckedStudy) -> list[str]:
    """That the search starts from nothing, and why, where something could predict this kind of program."""
    study = found.study
    takes_prior = issubclass(catalog.part("samplers", study.search.sampler), TakesPrior)
    if not takes_prior or _formula(study) is not None:
        return []
    other = found.workload.predictor()
    return [f"nothing is predicted before the first run: {other}"] if isinstance(other, str) and other else []


@dataclass(frozen=True)
class _StudyPrior:
    """What is predicted of settings, as scores of points."""

    study: Study
    predicted: _Predicted
    leaned: _Sensitivities
    bound: float | None = None
    called: str = ""

    @property
    def highest(self) -> float | None:
        goal = self.study.goal
        return None if self.bound is None or goal.direction != "maximize" else goal.score(self.bound)

    def __call__(self, point: Point) -> Expectation | None:
        try:
            said = self.predicted(self.study.space.settings(point))
        except _FAULTS:
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
        except _FAULTS:
            return ()


def _on_nothing(settings: Settings) -> tuple[float, ...]:
    return ()


def _formula(study: Study) -> _Prediction | None:
    text = study.search.options.get(_FORMULA)
    if not text:
        return None
    formula = Expression.parse(str(text)).reading(study.space.numbers)

    def predicted(settings: Settings) -> Expectation | None:
        value = formula.evaluate(settings)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return Expectation(float(value)) if is_number else None  # type: ignore[arg-type]

    return predicted, _on_nothing, None


_LITTLE_LEFT = "little is left to find"


def sampler_of(found: CheckedStudy, earlier: Sequence[Observation] = ()) -> Sampler:
    """Give it what is expected of points and what `earlier` studies learned, if it listens."""
    study, search = found.study, found.study.search
    make = catalog.part("samplers", search.sampler)
    sampler: Sampler = make(study.space, search.seed, search.options, found.refusal)
    if isinstance(sampler, TakesPrior) and (prior := prior_of(study, found.workload)) is not None:
        sampler.expect(prior)
    if isinstance(sampler, TakesEarlierStudies) and earlier:
        sampler.recall(earlier)
    return sampler


def little_left(sampler: Sampler, pending: Sequence[Point]) -> str:
    """Why more trials are hardly worth their cost, as the sampler sees it; empty where they may be."""
    prospect = _prospect(sampler, pending)
    return f"{_LITTLE_LEFT}: {prospect}" if prospect is not None and prospect.over else ""


def with_prospect(reason: str, sampler: Sampler, pending: Sequence[Point]) -> str:
    """Why the search ended and what more trials could bring, where the sampler can say that."""
    prospect = None if reason.startswith(_LITTLE_LEFT) else _prospect(sampler, pending)
    return reason if prospect is None else f"{reason}; with more trials: {prospect}"


def _prospect(sampler: Sampler, pending: Sequence[Point]) -> Prospect | None:
    return sampler.prospect(pending) if isinstance(sampler, PredictsRest) else None
