"""The sampler of a study with its prior, what it says about the search as a whole, and what it predicts of a trial.

A prediction is stated before the trial runs, with a range that the trials so far say is wide enough. It is worked out
from the journal alone: each trial's own line keeps what was predicted of it, so a resumed campaign states the same. The
sampler's choice does not depend on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, pstdev

from ridgeline.campaign.check import CheckedStudy
from ridgeline.campaign.scores import Normalisation
from ridgeline.campaign.verdict import goal_text
from ridgeline.errors import RidgelineError
from ridgeline.records.expression import Expression, ExpressionError
from ridgeline.records.observation import BEST_SO_FAR, Expectation, Observation, Proposal
from ridgeline.records.space import Point, Settings
from ridgeline.records.study import Study
from ridgeline.records.trial import PredictedRange, Stage
from ridgeline.samplers.base import Prior, Sampler, sampler_class
from ridgeline.stats.nodes import corrected
from ridgeline.stats.stated_range import LEVEL, widening
from ridgeline.stats.wording import metric_text
from ridgeline.study.history import History
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
    """Of what the search knows nothing before its runs, and why, where something could predict this kind of program."""
    study = found.study
    takes_prior = sampler_class(study.search.sampler).takes_prior
    if not takes_prior or _formula(study) is not None:
        return []
    other = found.workload.predictor()
    if isinstance(other, str):
        return [f"nothing is predicted before the first run: {other}"] if other else []
    blind = ", ".join(other.unmodelled())
    return [f"{blind}: not modelled by the {other.predicts}; there the search learns from runs alone"] if blind else []


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
    study, search = found.study, found.study.search
    sampler = sampler_class(search.sampler)(study.space, search.seed, search.options, found.refusal)
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


_LARGEST_LOG = 700.0  # beyond, a float ends


def stated(proposal: Proposal, study: Study, history: History, through: Normalisation | None) -> PredictedRange | None:
    """The prediction in the goal's unit, as the next run would measure it; None where nothing was predicted.

    The sampler predicts what the setting would measure on usual nodes, at the baseline's mean level: `through` is how
    it observed. Where the run will land nobody knows, so what nodes did to the runs so far is part of the range.
    """
    found = proposal.predicted
    if found is None:
        return None
    value, spread = study.goal.score(found.score), found.spread
    if through is not None and found.in_logs:
        value = through.as_measured(value, len(history.runs) + len(history.open_runs) + 1)
        shift, apart = _of_nodes(study, history, through)
        value, spread = value * math.exp(shift), math.hypot(spread, apart)
    reach = widening(_errors(study, history)) * spread
    if found.in_logs:
        factor = math.exp(min(reach, _LARGEST_LOG - abs(math.log(abs(value)))))
        low, high = sorted((value / factor, value * factor))
    else:
        low, high = value - reach, value + reach
    return PredictedRange(value, low, high, spread, found.in_logs)


def with_range(proposal: Proposal, predicted: PredictedRange | None, study: Study, history: History) -> str:
    """'predicted 19,900 tok/s (90%: 18,100 to 21,400); best chance to beat 19,700 tok/s per node-hour; ...'"""
    if predicted is None or proposal.predicted is None:
        return proposal.why
    text = goal_text(study, history)
    ends = f"{metric_text(predicted.low)} to {metric_text(predicted.high)}"
    to_beat = proposal.predicted.to_beat
    why = proposal.why if to_beat is None else proposal.why.replace(BEST_SO_FAR, text.value(study.goal.score(to_beat)))
    return f"predicted {text.value(predicted.value)} ({LEVEL:.0%}: {ends}); {why}"


def _of_nodes(study: Study, history: History, through: Normalisation) -> tuple[float, float]:
    """What the nodes that runs landed on did to them, in logs: the mean, and the standard deviation around it."""
    if not through.factors:
        return 0.0, 0.0
    runs = [run for _, run in history.ok_runs(Stage.BASELINE, Stage.SENTINEL, Stage.SEARCH)]
    moves = [-math.log(corrected(1.0, run.ending.nodes, through.factors)) for run in runs]
    return (fmean(moves), pstdev(moves)) if moves else (0.0, 0.0)


def _errors(study: Study, history: History) -> Iterator[float]:
    """How far off the predictions were of which a whole run has measured what became of them."""
    for trial, run in history.ok_runs(Stage.SEARCH):
        if trial.predicted is not None and study.goal.metric in run.metrics:
            yield trial.predicted.error(run.metrics[study.goal.metric])
