"""What every kind of campaign says when it is over, and the answer that follows from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

from ridgeline.records.answer import Answer, Candidate, Gain, Reference
from ridgeline.records.measurement import Measurement
from ridgeline.records.space import Point
from ridgeline.records.study import Study
from ridgeline.stats.verdict import Comparison
from ridgeline.stats.wording import MetricText, ratio_range
from ridgeline.study.codec import VerdictLine
from ridgeline.study.history import History


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
    paste = str(verdict.details.get("paste", ""))
    return Answer(kind, verdict.conclusion, verdict.headline, reference, candidate, facts, offers, paste)


def with_figures(answer: Answer, study: Study, history: History) -> Answer:
    """The answer with what its numbers are: before and after, their unit, and whether anything was measured."""
    goal, candidate, before = goal_text(study, history), answer.candidate, answer.reference.value
    change = ""
    if candidate is not None:
        values = goal.value(candidate.value) if before is None else goal.before_after(before, candidate.value)
        change = values if candidate.gain is None else f"{values}, {candidate.gain}"
    return replace(answer, change=change, unit=goal.unit, simulated=is_simulated(study, history))


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
        return Gain(ratio, None, None, comparison.level, f"{ratio:.2f}x{goal.sense} (too few blocks for an interval)")
    return Gain(ratio, low, high, comparison.level, _interval_text(ratio, low, high, comparison.level, goal))


def _interval_text(ratio: float, low: float, high: float, level: float, goal: MetricText) -> str:
    """'1.05x (95%: 1.03 to 1.07)'; what is the same in every block has no interval to show."""
    shown, interval = ratio_range(ratio, low, high)
    return f"{shown}{goal.sense}" if low == high else f"{shown}{goal.sense} ({level * 100:g}%: {interval})"
