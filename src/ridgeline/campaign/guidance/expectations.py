"""What is expected of each point before it runs, joined for the sampler from whoever offers it.

A formula in the study comes first, since a person wrote it for this search; then what the workload itself foretells;
then, for a real engine on hardware that is known, the twin of the study.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ridgeline import catalog
from ridgeline.errors import RidgelineError
from ridgeline.records.expression import Expression, ExpressionError
from ridgeline.records.lesson import Expectation
from ridgeline.records.space import Point, Settings
from ridgeline.records.study import Study
from ridgeline.samplers.base import Outlook
from ridgeline.workloads.base import Foretelling, Workload

FORMULA = "expect"  # the key of `search` that holds a formula
ENGINE_ENDINGS = ("-offline", "-serve")

Foretold = Callable[[Settings], Expectation | None]


def outlook_of(study: Study, workload: Workload) -> Outlook | None:
    """None where nobody expects anything. An outlook that fails at a point expects nothing there."""
    foretold = _formula(study) or _foretelling(workload) or _twin_of(study)
    return None if foretold is None else lambda point: _in_scores(study, foretold, point)


def _in_scores(study: Study, foretold: Foretold, point: Point) -> Expectation | None:
    try:
        said = foretold(study.space.settings(point))
    except (RidgelineError, ExpressionError, ValueError, ArithmeticError, LookupError, TypeError):
        return None
    if said is None or said.mean is None:
        return said
    score = study.goal.score
    ends = sorted(score(end) for end in (said.low, said.high) if end is not None)
    low, high = ends if len(ends) == 2 else (None, None)
    return replace(said, mean=score(said.mean), low=low, high=high)


def _formula(study: Study) -> Foretold | None:
    text = study.search.options.get(FORMULA)
    if not text:
        return None
    formula = Expression.parse(str(text))

    def foretold(settings: Settings) -> Expectation | None:
        value = formula.evaluate(settings)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return Expectation(float(value)) if is_number else None  # type: ignore[arg-type]

    return foretold


def _foretelling(workload: object) -> Foretold | None:
    return workload.expectation if isinstance(workload, Foretelling) else None


def _twin_of(study: Study) -> Foretold | None:
    """The study as the twin reads it: the keys are the same, but it must know the GPU and give the goal's metric."""
    if not study.workload.kind.endswith(ENGINE_ENDINGS):
        return None
    try:
        twin: Workload = catalog.part("workloads", "twin")(study)
        return None if twin.problems() else _foretelling(twin)
    except (RidgelineError, ExpressionError, ValueError):
        return None
