"""What is expected of each point before it runs, joined for the sampler from whoever offers it.

A formula in the study comes first, since a person wrote it for this search; then what the workload itself foretells;
then, for a real engine on hardware that is known, the twin of the study.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ridgeline import catalog
from ridgeline.errors import RidgelineError
from ridgeline.records.expression import Expression, ExpressionError
from ridgeline.records.lesson import Expectation
from ridgeline.records.space import Point, Settings
from ridgeline.records.study import Study
from ridgeline.samplers.base import LeaningOutlook
from ridgeline.workloads.base import Foretelling, Leaning, Workload

FORMULA = "expect"  # the key of `search` that holds a formula
ENGINE_ENDINGS = ("-offline", "-serve")

FAULTS = (RidgelineError, ExpressionError, ValueError, ArithmeticError, LookupError, TypeError)

Foretold = Callable[[Settings], Expectation | None]
Leaned = Callable[[Settings], tuple[float, ...]]


def outlook_of(study: Study, workload: Workload) -> LeaningOutlook | None:
    """None where nobody expects anything. An outlook that fails at a point expects nothing there."""
    tellers = (("formula", _formula(study)), (study.workload.kind, _foretelling(workload)), ("twin", _twin_of(study)))
    for called, teller in tellers:
        if teller is not None:
            return _StudyOutlook(study, *teller, called)
    return None


@dataclass(frozen=True)
class _StudyOutlook:
    """What is foretold of settings, as scores of points."""

    study: Study
    foretold: Foretold
    leaned: Leaned
    called: str

    def __call__(self, point: Point) -> Expectation | None:
        try:
            said = self.foretold(self.study.space.settings(point))
        except FAULTS:
            return None
        if said is None or said.mean is None:
            return said
        score = self.study.goal.score
        ends = sorted(score(end) for end in (said.low, said.high) if end is not None)
        low, high = ends if len(ends) == 2 else (None, None)
        return replace(said, mean=score(said.mean), low=low, high=high)

    def leanings(self, point: Point) -> tuple[float, ...]:
        try:
            return self.leaned(self.study.space.settings(point))
        except FAULTS:
            return ()


def _on_nothing(settings: Settings) -> tuple[float, ...]:
    return ()


def _formula(study: Study) -> tuple[Foretold, Leaned] | None:
    text = study.search.options.get(FORMULA)
    if not text:
        return None
    formula = Expression.parse(str(text))

    def foretold(settings: Settings) -> Expectation | None:
        value = formula.evaluate(settings)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return Expectation(float(value)) if is_number else None  # type: ignore[arg-type]

    return foretold, _on_nothing


def _foretelling(workload: object) -> tuple[Foretold, Leaned] | None:
    if not isinstance(workload, Foretelling):
        return None
    return workload.expectation, workload.leanings if isinstance(workload, Leaning) else _on_nothing


def _twin_of(study: Study) -> tuple[Foretold, Leaned] | None:
    """The study as the twin reads it: the keys are the same, but it must know the GPU and give the goal's metric."""
    if not study.workload.kind.endswith(ENGINE_ENDINGS):
        return None
    try:
        twin: Workload = catalog.part("workloads", "twin")(study)
        return None if twin.problems() else _foretelling(twin)
    except (RidgelineError, ExpressionError, ValueError):
        return None
