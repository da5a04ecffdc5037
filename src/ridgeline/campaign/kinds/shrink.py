"""Which changes does a failure need? Fewer knobs away from the baseline, as long as it fails the same way.

Delta debugging: halves of the changes first, then finer parts and what is left without them. What earlier runs of the
study showed is not run again. Decided from the runs alone, so that a killed one goes on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from ridgeline.campaign.agenda import Agenda, NextTrial
from ridgeline.campaign.check import CheckedStudy
from ridgeline.campaign.ledger import Ledger
from ridgeline.campaign.verdict import KeptVerdict, answer_of
from ridgeline.errors import InputError
from ridgeline.records.answer import Answer, Progress, Reference
from ridgeline.records.exhibit import Exhibits, TextTable, changes
from ridgeline.records.outcome import Kind
from ridgeline.records.run import Run
from ridgeline.records.space import Point, point_key
from ridgeline.records.study import Study
from ridgeline.records.trial import Stage, Trial
from ridgeline.samplers.base import Refusal
from ridgeline.stats.wording import count
from ridgeline.study.codec import VerdictLine
from ridgeline.study.history import History

SHRUNK, NOT_REPRODUCED, UNFINISHED = "shrunk", "not-reproduced", "unfinished"


def shrink(
    changed: Sequence[str], fails: Callable[[Sequence[str]], bool | None]
) -> tuple[list[str], Sequence[str] | None]:
    """The smallest part of `changed` known to fail, and the next part to try; None: no single one can be left out.

    `fails` says of a part whether it fails in the same way; None: nobody knows yet.
    """
    current, parts = list(changed), 2
    while len(current) > 1:
        size = -(-len(current) // parts)
        pieces = [current[at : at + size] for at in range(0, len(current), size)]
        rests = [[name for name in current if name not in piece] for piece in pieces] if len(pieces) > 2 else []
        smaller = None
        for part in (*pieces, *rests):
            known = fails(part)
            if known is None:
                return current, part
            if known:
                smaller = part
                break
        if smaller is not None:
            parts = 2 if smaller in pieces else max(parts - 1, 2)
            current = smaller
        elif parts >= len(current):
            break
        else:
            parts = min(len(current), parts * 2)
    return current, None


@dataclass(frozen=True, slots=True)
class ShrinkVerdict(KeptVerdict):
    """`point` is the setting with the fewest changes that still fails; `tried` what each smaller one did."""

    conclusion: str
    headline: str
    point: Point
    tried: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class ShrinkQuestion:
    """`start` ended as `failure`; `known` are outcomes of earlier runs, by the key of their point."""

    start: Point
    failure: str
    known: Mapping[str, str] = field(default_factory=dict)

    kind: ClassVar[str] = "shrink"
    reference: ClassVar[str] = "the baseline"

    def applied_to(self, study: Study) -> Study:
        return replace(
            study,
            question="Which changes does the failure need?",
            presets=(),
            budget=replace(study.budget, trials=None),
            baseline_stage=replace(study.baseline_stage, repeats=1),
            confirm=replace(study.confirm, top=0, blocks=0),
            equivalent_within=None,
        )

    def agenda(self, found: CheckedStudy, history: History, ledger: Ledger) -> ShrinkAgenda:
        return ShrinkAgenda(found.study, history, ledger, self, found.refusal)

    def verdict_from(self, line: VerdictLine) -> ShrinkVerdict:
        return ShrinkVerdict.from_line(line)

    def called(self, trial: Trial) -> str:
        return "baseline" if trial.stage is Stage.BASELINE else "shrink"

    def progress(self, study: Study, history: History) -> Progress:
        stage = "finished" if history.verdict is not None else "shrink"
        return Progress(stage, len(history.runs), None, "runs", None)

    def answer(self, study: Study, history: History) -> Answer:
        facts = {} if history.verdict is None else dict(self.verdict_from(history.verdict).details())
        return answer_of(self.kind, history.verdict, Reference(self.reference, study.baseline, None), None, facts)

    def exhibits(self, study: Study, history: History) -> Exhibits:
        if history.verdict is None:
            return Exhibits()
        rows = self.verdict_from(history.verdict).tried
        return Exhibits(tables=(TextTable("Fewer changes", ("changed", "ended as"), rows),))


@dataclass
class ShrinkAgenda(Agenda):
    """The baseline, the failing setting once more, then what `shrink` asks for."""

    question: ShrinkQuestion
    refusal: Refusal
    out_of_budget: bool = field(default=False, init=False)

    @property
    def changed(self) -> list[str]:
        base, start = self.study.baseline, self.question.start
        return [name for name in dict.fromkeys((*base, *start)) if base.get(name) != start.get(name)]

    def fresh(self) -> NextTrial | None:
        if (first := self.baseline()) is not None:
            return first
        if not self.baseline_finished():
            return None
        if self._ended(self.question.start, here=True) is None:
            return self._try(self.question.start, "does it still fail?")
        if not self._fails(self.changed):
            return None
        smallest, part = shrink(self._fewest_known(), self._fails)
        if part is None:
            return None
        return self._try(self.point(part), f"{count(len(part), 'change')} of {len(smallest)}: {', '.join(part)}")

    def _fewest_known(self) -> list[str]:
        """What to begin with: the fewest changes of which an earlier run of the study failed in the same way."""
        base, found = self.study.baseline, self.changed
        for key, ended in self.question.known.items():
            point = json.loads(key)
            names = [name for name in self.changed if point.get(name) != base.get(name)]
            if ended == self.question.failure and len(names) < len(found) and point_key(self.point(names)) == key:
                found = names
        return found

    def _try(self, point: Point, why: str) -> NextTrial | None:
        if self.history.open_runs:
            return None  # one after the other: each decides what is next
        if not self.fits(point):
            self.out_of_budget = True
            return None
        return self.new(point, Stage.SEARCH, self.question.kind, why)

    def point(self, part: Sequence[str]) -> Point:
        """The baseline with these changes; knobs that come into being with them are as in the failing setting."""
        start, base = self.question.start, self.study.baseline
        kept = {name: start[name] for name in part if name in start}
        point = self.study.space.restrict({**base, **kept})
        gaps = {name: start[name] for name in self.study.space.missing(point) if name in start}
        return self.study.space.restrict({**point, **gaps})

    def _fails(self, part: Sequence[str]) -> bool | None:
        point = self.point(part)
        if point_key(point) == point_key(self.study.baseline) or self.study.space.missing(point):
            return False
        if len(part) < len(self.changed) and self.refusal(point):
            return False
        ended = self._ended(point)
        return None if ended is None else ended == self.question.failure

    def _ended(self, point: Point, here: bool = False) -> str | None:
        """How a run of this point ended, here or in the study's own campaign; None: it is to be run."""
        key = point_key(point)
        runs = [self.history.final_run(t) for t in self.history.trials.values() if t.key == key]
        kinds = [_kind(run) for run in runs if run is not None]
        return next((kind for kind in reversed(kinds) if kind), None if here else self.question.known.get(key))

    def conclude(self) -> ShrinkVerdict:
        failure, changed = self.question.failure, self.changed
        if not self._fails(changed):
            ended = self._ended(self.question.start, here=True) or "nothing"
            text = f"not reproduced: it had ended as {failure}, and now as {ended}"
            return ShrinkVerdict(NOT_REPRODUCED, text, self.question.start, tuple(self._tried()))
        smallest, part = shrink(self._fewest_known(), self._fails)
        point = self.point(smallest)
        what = changes(self.study.baseline, point)
        text = f"{count(len(smallest), 'change')} of {len(changed)} are enough for {failure}: {what}"
        if part is not None:
            text += "; the budget is spent before all were tried"
        conclusion = SHRUNK if part is None else UNFINISHED
        return ShrinkVerdict(conclusion, text, point, tuple(self._tried()))

    def _tried(self) -> list[tuple[str, str]]:
        done = [(t, self.history.final_run(t)) for t in self.history.trials.values() if t.stage is Stage.SEARCH]
        base = self.study.baseline
        return [(changes(base, t.point), run.outcome.brief) for t, run in done if run is not None and run.outcome]


def _kind(run: Run) -> str:
    """How it ended; nothing for what says nothing of the setting."""
    if run.outcome is None or run.outcome.kind in (Kind.CANCELLED, Kind.STOPPED_EARLY) or run.outcome.kind.retryable:
        return ""
    return run.outcome.kind.value


def shrink_question(study: Study, history: History, trial: Trial) -> ShrinkQuestion:
    """For the failure of this trial, with what the study's runs already say of settings between it and the baseline.

    InputError where there is nothing to shrink.
    """
    run = history.final_run(trial)
    failure = "" if run is None else _kind(run)
    if not failure or failure == Kind.OK.value:
        raise InputError(f"trial {trial.number} did not fail of its setting, so there is nothing to shrink")
    if trial.key == point_key(study.baseline):
        raise InputError(f"trial {trial.number} is the baseline itself: nothing is changed in it")
    known: dict[str, str] = {}
    for other in history.trials.values():
        between = all(value in (study.baseline.get(k), trial.point.get(k)) for k, value in other.point.items())
        ended = history.final_run(other)
        if between and other.stage is not Stage.SHORT and ended is not None and (kind := _kind(ended)):
            known[other.key] = kind
    return ShrinkQuestion(dict(trial.point), failure, known)
