"""What every kind of campaign says when it is over, and the answer that follows from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from statistics import fmean
from typing import Any, Protocol, Self

from ridgeline.records.answer import Answer, BrokenLimit, Candidate, Gain, Reference
from ridgeline.records.json_form import plain
from ridgeline.records.measurement import MODEL_SPEED_HIGH, MODEL_SPEED_LOW, Measurement
from ridgeline.records.space import Point
from ridgeline.records.study import Study
from ridgeline.records.trial import Stage
from ridgeline.stats.verdict import Comparison
from ridgeline.stats.wording import MetricText, metric_text, ratio_range, ratio_text
from ridgeline.study.codec import VerdictLine, verdict_as
from ridgeline.study.history import History
from ridgeline.workloads.base import terms_of

NOT_PROVABLE = "not_provable"  # of a verdict's details: why it does not stand by today's rules


class CampaignVerdict(Protocol):
    """A frozen record of its kind of campaign. `details` is what the journal keeps beside the two fields."""

    @property
    def conclusion(self) -> str: ...

    @property
    def headline(self) -> str: ...

    @property
    def recommended(self) -> Point | None:
        """The setting to use from now on, where there is one."""
        ...

    def details(self) -> Mapping[str, Any]: ...


class KeptVerdict:
    """A dataclass that the journal keeps field by field, and that recommends no setting."""

    __slots__ = ()

    @property
    def recommended(self) -> Point | None:
        return None

    def details(self) -> dict[str, Any]:
        return {name: value for name, value in plain(self).items() if name not in ("conclusion", "headline")}

    @classmethod
    def from_line(cls, line: VerdictLine) -> Self:
        return verdict_as(cls, line)


def answer_of(
    kind: str,
    verdict: VerdictLine | None,
    reference: Reference,
    candidate: Candidate | None,
    facts: Mapping[str, Any],
    offers: bool = True,
) -> Answer:
    """The answer of a campaign that may not be over."""
    if verdict is None:
        return Answer(kind, None, "no verdict yet", reference, candidate, facts, offers)
    paste, unproven = (str(verdict.details.get(name, "")) for name in ("paste", NOT_PROVABLE))
    known = (kind, verdict.conclusion, verdict.headline, reference, candidate, facts, offers, paste)
    return Answer(*known, unproven=unproven)


def with_figures(answer: Answer, study: Study, history: History) -> Answer:
    """The answer with what its numbers are: before and after, their unit, and whether anything was measured."""
    goal, candidate, before = goal_text(study, history), answer.candidate, answer.reference.value
    change = ""
    if candidate is not None:
        values = goal.value(candidate.value) if before is None else goal.before_after(before, candidate.value)
        change = values if candidate.gain is None else f"{values}, {candidate.gain}"
    simulated = is_simulated(study, history)
    return replace(
        answer,
        change=change,
        unit=goal.unit,
        simulated=simulated,
        broken=_broken_limits(study, history, answer),
        model_error=_model_error(history, answer) if simulated and candidate is not None else "",
    )


def _broken_limits(study: Study, history: History, answer: Answer) -> tuple[BrokenLimit, ...]:
    """Limits of the question that the setting to use does not keep, over all of its runs."""
    if answer.to_use is None:
        return ()
    found = []
    for limit in terms_of(study).limits:
        measured = _mean_of(history, answer.to_use, limit.metric)
        if measured is not None and measured > limit.most:
            most = metric_text(limit.most)
            text = f"{limit.called} {_above(measured, most)} {limit.unit} (limit {most})"
            before = _mean_of(history, answer.reference.point, limit.metric)
            found.append(BrokenLimit(limit.metric, limit.most, measured, before, text))
    return tuple(found)


def _above(measured: float, limit: str) -> str:
    """With as many digits as show that it is beyond the limit: 50.19 of 50."""
    texts = (metric_text(measured), *(f"{measured:,.{digits}g}" for digits in range(5, 12)))
    return next((text for text in texts if text != limit), f"{measured:,}")


def _mean_of(history: History, point: Point, metric: str) -> float | None:
    """Over the runs of the confirmation where there are any, else over all that passed."""
    runs = [(trial, run.metrics[metric]) for trial, run in history.ok_runs(*Stage) if metric in run.metrics]
    of_point = [(trial.stage, value) for trial, value in runs if trial.point == point]
    values = [value for stage, value in of_point if stage is Stage.CONFIRM] or [value for _, value in of_point]
    return fmean(values) if values else None


def _model_error(history: History, answer: Answer) -> str:
    """How far a simulated figure may be from a measured one, which no interval over simulated runs can show."""
    to_use = answer.reference.point if answer.to_use is None else answer.to_use
    ends = [_mean_of(history, to_use, end) for end in (MODEL_SPEED_LOW, MODEL_SPEED_HIGH)]
    if None in ends:
        return "the model's own error is not in it"
    low, high = ends
    return f"the model's own error is not in it (90%: the real speed is {low:.2f} to {high:.2f} of the predicted one)"


def goal_text(study: Study, history: History) -> MetricText:
    """How the goal is said, in the unit that its measurements carry."""
    found = _of_the_goal(study, history)
    return MetricText(study.goal.metric, "" if found is None else found.unit, study.goal.direction)


def is_simulated(study: Study, history: History) -> bool:
    found = _of_the_goal(study, history)
    return found is not None and found.origin == "modelled"


def _of_the_goal(study: Study, history: History) -> Measurement | None:
    """The first measurement of the goal: all of a study are read in the same way."""
    found = (m for run in history.runs.values() for m in run.measurements if m.metric == study.goal.metric)
    return next(found, None)


def gain_of(comparison: Comparison, goal: MetricText) -> Gain | None:
    """What fresh interleaved runs showed of one setting; without an interval where blocks are too few for one."""
    ratio, low, high = comparison.ratio, comparison.low, comparison.high
    if ratio is None:
        return None
    if low is None or high is None:
        return Gain(
            ratio, None, None, comparison.level, f"{ratio_text(ratio)}{goal.sense} (too few blocks for an interval)"
        )
    return Gain(ratio, low, high, comparison.level, _interval_text(ratio, low, high, comparison.level, goal))


def _interval_text(ratio: float, low: float, high: float, level: float, goal: MetricText) -> str:
    """'1.05x (95%: 1.03 to 1.07)'; what is the same in every block has no interval to show."""
    shown, interval = ratio_range(ratio, low, high)
    return f"{shown}{goal.sense}" if low == high else f"{shown}{goal.sense} ({level * 100:g}%: {interval})"
