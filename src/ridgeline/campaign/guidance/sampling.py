"""The sampler of a study with its prior, and what it says about the search as a whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ridgeline.campaign.check import CheckedStudy
from ridgeline.campaign.kinds.staged import in_stages
from ridgeline.errors import RidgelineError
from ridgeline.records.expression import Expression, ExpressionError
from ridgeline.records.observation import Expectation, Observation
from ridgeline.records.space import Point, Settings, Space
from ridgeline.records.study import Study
from ridgeline.samplers.base import Prior, Sampler, sampler_class
from ridgeline.workloads.base import Workload

_FORMULA = "expect"  # the key of `search` that holds a formula

_FAULTS = (RidgelineError, ExpressionError, ValueError, ArithmeticError, LookupError, TypeError)

_Predicted = Callable[[Settings], Expectation | None]
_Sensitivities = Callable[[Settings], tuple[float, ...]]


def prior_of(study: Study, workload: Workload) -> Prior | None:
    """None where nobody expects anything. A prior that fails at a point expects nothing there."""
    if (formula := _formula(study)) is not None:
        return _StudyPrior(study, formula, called="formula")
    other = workload if workload.predicts else workload.predictor()
    if isinstance(other, str) or not other.predicts:
        return None
    bound = other.highest if study.goal.direction == "maximize" else None
    highest = None if bound is None else study.goal.score(bound)
    return _StudyPrior(study, other.expectation, other.sensitivities, highest, other.predicts)


def unpredicted(found: CheckedStudy) -> list[str]:
    """That the search starts from nothing, and why, where something could predict this kind of program."""
    study = found.study
    takes_prior = sampler_class(study.search.sampler).takes_prior
    if not takes_prior or _formula(study) is not None:
        return []
    other = found.workload.predictor()
    return [f"nothing is predicted before the first run: {other}"] if isinstance(other, str) and other else []


@dataclass(frozen=True)
class _StudyPrior(Prior):
    """What is predicted of settings, as scores of points."""

    study: Study
    predicted: _Predicted
    leaned: _Sensitivities = lambda settings: ()
    highest: float | None = None
    called: str = ""

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


def _formula(study: Study) -> _Predicted | None:
    text = study.search.options.get(_FORMULA)
    if not text:
        return None
    formula = Expression.parse(str(text)).reading(study.space.numbers)

    def predicted(settings: Settings) -> Expectation | None:
        value = formula.evaluate(settings)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return Expectation(float(value)) if is_number else None  # type: ignore[arg-type]

    return predicted


_LITTLE_LEFT = "little is left to find"


def sampler_of(found: CheckedStudy, earlier: Sequence[Observation] = ()) -> Sampler:
    """Give it what is expected of points and what `earlier` studies learned, if it listens."""
    if found.study.search.in_stages:
        return in_stages(found.study, lambda space: _informed(found, space, earlier))
    return _informed(found, found.study.space, earlier)


def _informed(found: CheckedStudy, space: Space, earlier: Sequence[Observation]) -> Sampler:
    study, search = found.study, found.study.search
    sampler = sampler_class(search.sampler)(space, search.seed, search.options, found.refusal)
    if sampler.takes_prior and (prior := prior_of(study, found.workload)) is not None:
        sampler.expect(prior)
    if earlier:
        sampler.recall(earlier)
    return sampler


def little_left(sampler: Sampler, pending: Sequence[Point]) -> str:
    """Why more trials are hardly worth their cost, as the sampler sees it; empty where they may be."""
    prospect = sampler.prospect(pending)
    return f"{_LITTLE_LEFT}: {prospect}" if prospect is not None and prospect.over else ""


def with_prospect(reason: str, sampler: Sampler, pending: Sequence[Point]) -> str:
    """Why the search ended and what more trials could bring, where the sampler can say that."""
    prospect = None if reason.startswith(_LITTLE_LEFT) else sampler.prospect(pending)
    return reason if prospect is None else f"{reason}; with more trials: {prospect}"
