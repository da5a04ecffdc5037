"""The seam: a kind of campaign, that is, a question that can be asked of a study.

A question is a frozen record of plain values (what `dataclasses.asdict` gives is what the journal keeps, and the class
called with it gives the question back). Everything else a campaign of this kind needs follows from it:
- `applied_to` is the study as this campaign runs it, with its own question in words, baseline and stages;
- `agenda` says what to run next, decided from the history alone;
- `verdict_from` reads the verdict that the agenda came to back from the journal;
- `progress`, `answer` and `exhibits` are what every face shows, functions of study and history only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, ClassVar, Protocol, Self

from ridgeline import catalog
from ridgeline.campaign.agenda import Agenda
from ridgeline.campaign.check import CheckedStudy
from ridgeline.campaign.ledger import Ledger
from ridgeline.campaign.verdict import CampaignVerdict, answer_of
from ridgeline.errors import InputError, StoreError
from ridgeline.records.answer import Answer, Progress, Reference
from ridgeline.records.exhibit import Exhibits
from ridgeline.records.space import Discrete, Point
from ridgeline.records.study import Study
from ridgeline.records.trial import Stage, Trial
from ridgeline.study.codec import QuestionLine, VerdictLine
from ridgeline.study.history import History

FORMER = ("environment", "shrink")  # kinds of release 0.2


class CampaignQuestion(Protocol):
    @property
    def kind(self) -> str:
        """Its name in the catalog and in the journal."""
        ...

    reference: ClassVar[str]  # what it calls the setting that the others are held against

    def applied_to(self, study: Study) -> Study: ...

    def agenda(self, found: CheckedStudy, history: History, ledger: Ledger) -> Agenda: ...

    def verdict_from(self, line: VerdictLine) -> CampaignVerdict: ...

    def called(self, trial: Trial) -> str:
        """What a trial is for, in a word: baseline, confirm, B."""
        ...

    def progress(self, study: Study, history: History) -> Progress: ...

    def answer(self, study: Study, history: History) -> Answer: ...

    def exhibits(self, study: Study, history: History) -> Exhibits: ...


@dataclass(frozen=True, slots=True)
class KeptVerdict:
    """A verdict of which the journal keeps every field under its own name."""

    conclusion: str
    headline: str

    @property
    def recommended(self) -> Point | None:
        return None

    def details(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name not in ("conclusion", "headline")}

    @classmethod
    def from_line(cls, line: VerdictLine) -> Self:
        known = {each.name: line.details[each.name] for each in fields(cls) if each.name in line.details}
        return cls(line.conclusion, line.headline, **cls._typed(known))

    @classmethod
    def _typed(cls, known: dict[str, Any]) -> dict[str, Any]:
        """The fields with the types that JSON took from them."""
        return {name: tuple(value) if isinstance(value, list) else value for name, value in known.items()}


class RepeatedSettings:
    """What questions share that run given settings again and again and search for none."""

    __slots__ = ()

    @property
    def asked(self) -> str:
        """The question in words, which the study's own is not about."""
        raise NotImplementedError

    stage: ClassVar[str]  # the stage that progress names
    runs_called: ClassVar[str]  # a run outside blocks, in a word
    most_is_planned: ClassVar[bool] = False  # the most runs are those of a plan, not only a limit far away

    @property
    def first(self) -> Point:
        """The setting that the others are held against."""
        raise NotImplementedError

    def most(self, study: Study) -> int:
        """Most runs there will be."""
        raise NotImplementedError

    def applied_to(self, study: Study) -> Study:
        return replace(
            study,
            question=self.asked,
            baseline=self.first,
            presets=(),
            budget=replace(study.budget, trials=None),
            baseline_stage=replace(study.baseline_stage, repeats=1),
            search=replace(study.search, sampler="random", options={}, sentinel_every=0),
        )

    def called(self, trial: Trial) -> str:
        if trial.stage is Stage.WARM_UP:
            return "warm-up"
        return f"block {trial.block}" if trial.block else self.runs_called

    def progress(self, study: Study, history: History) -> Progress:
        done = len(history.ok_runs(Stage.BASELINE, Stage.SEARCH, Stage.CONFIRM))
        if history.verdict is not None:
            return Progress("finished", done, done, "runs", 0)
        most = self.most(study)
        return Progress(self.stage, done, most, "runs", max(0, most - done) if self.most_is_planned else None)


@dataclass(frozen=True, slots=True)
class FormerQuestion:
    """Of a kind that earlier releases had: what the folder says is shown, and nothing more is run."""

    kind: str
    details: Mapping[str, Any]

    reference: ClassVar[str] = "the baseline"

    def applied_to(self, study: Study) -> Study:
        sides = (self.details.get("good", {}), self.details.get("bad", {}))
        own = [Discrete(name, tuple(side[name] for side in sides), False) for name in self.details.get("variables", ())]
        return replace(study, space=replace(study.space, knobs=(*study.space.knobs, *own)))

    def agenda(self, found: CheckedStudy, history: History, ledger: Ledger) -> Agenda:
        raise InputError(
            f"{history.root}: this release has no campaigns of kind {self.kind}; what it found is shown, but only "
            "release 0.2 runs it"
        )

    def verdict_from(self, line: VerdictLine) -> KeptVerdict:
        return KeptVerdict.from_line(line)

    def called(self, trial: Trial) -> str:
        return trial.stage.text

    def progress(self, study: Study, history: History) -> Progress:
        stage = "finished" if history.verdict is not None else self.kind
        return Progress(stage, len(history.runs), None, "runs", None)

    def answer(self, study: Study, history: History) -> Answer:
        facts = {} if history.verdict is None else dict(history.verdict.details)
        return answer_of(self.kind, history.verdict, Reference(self.reference, study.baseline, None), None, facts)

    def exhibits(self, study: Study, history: History) -> Exhibits:
        return Exhibits()


def question_line(question: CampaignQuestion) -> QuestionLine:
    details: dict[str, Any] = asdict(question)  # type: ignore[call-overload]
    return QuestionLine(question.kind, {name: value for name, value in details.items() if value is not None})


def question_of(history: History) -> CampaignQuestion:
    """What the campaign in this history was asked. StoreError when its journal was edited."""
    line = history.question
    if line.kind in FORMER:
        return FormerQuestion(line.kind, line.details)
    factory = catalog.part("kinds", line.kind)
    try:
        question: CampaignQuestion = factory(**line.details)
    except (TypeError, ValueError) as error:
        raise StoreError(
            f"{history.root / 'journal.jsonl'}: its first line is not the question of a campaign of kind {line.kind} "
            f"({error}); restore a copy of the journal"
        ) from None
    return question
