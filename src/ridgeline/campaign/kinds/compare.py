"""Which of two settings is better? A and B in fresh, interleaved runs. As a campaign, a search of one given setting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ridgeline.campaign import confirmation, scores
from ridgeline.campaign.check import CheckedStudy
from ridgeline.campaign.confirmation import ConfirmationVerdict, disqualified, earlier_verdicts
from ridgeline.campaign.kinds.search import GivenSettings, SearchAgenda
from ridgeline.campaign.ledger import Ledger
from ridgeline.campaign.point_text import Setting, parse_point
from ridgeline.campaign.sampling import sampler_of
from ridgeline.campaign.verdict import judged_pair, judged_text, trial_of
from ridgeline.errors import InputError
from ridgeline.records.answer import Answer, Candidate, Conclusion, Reference, Standing
from ridgeline.records.exhibit import Exhibits, KindShown, TextTable, changes, side_by_side
from ridgeline.records.space import Point, point_key
from ridgeline.records.study import Study
from ridgeline.records.trial import Stage, Trial
from ridgeline.stats.verdict import Comparison, Verdict
from ridgeline.stats.wording import metric_text
from ridgeline.study.history import History

_SHORT = 60  # characters of both settings that a question has room for
_CONCLUSIONS = {
    Verdict.BETTER: Conclusion.CONFIRMED,
    Verdict.WORSE: Conclusion.WORSE,
    Verdict.NO_DIFFERENCE: Conclusion.NO_DIFFERENCE,
    Verdict.TOO_FEW_BLOCKS: Conclusion.UNCONFIRMED,
}


@dataclass(frozen=True, slots=True)
class ComparisonQuestion(GivenSettings[ConfirmationVerdict]):
    """Setting `b` against setting `a` in `blocks` blocks; as many as the study confirms with where None."""

    a: Point
    b: Point
    blocks: int | None = None

    kind: ClassVar[str] = "compare"
    reference: ClassVar[str] = "setting A"
    shown: ClassVar[KindShown] = KindShown("A and B", two=True)
    extended_by: ClassVar[tuple[str, ...]] = ("blocks",)
    standings: ClassVar[Mapping[str, Standing | None]] = {
        **dict.fromkeys(Conclusion, Standing.NOT_BETTER),
        Conclusion.CONFIRMED: None,
        Conclusion.WORSE: Standing.WORSE,
        Conclusion.UNCONFIRMED: Standing.UNDECIDED,
    }
    if_worse: ClassVar[str] = "B is worse than A; keep A"

    @property
    def given(self) -> tuple[Point, ...]:
        return (self.b,)

    def applied_to(self, study: Study) -> Study:
        first, second = changes(self.b, self.a), changes(self.a, self.b)
        named = second and len(first) + len(second) <= _SHORT
        question = f"Is {second} better than {first}?" if named else "Is setting B better than setting A?"
        return replace(GivenSettings.applied_to(self, study), question=question, baseline=self.a)

    def agenda(self, found: CheckedStudy, history: History, ledger: Ledger) -> ComparisonAgenda:
        return ComparisonAgenda(found.study, history, ledger, lambda: sampler_of(found), found.refusal)

    def called(self, trial: Trial) -> str:
        return "A" if trial.key == point_key(self.a) else "B"

    def sides(
        self, study: Study, history: History, verdict: ConfirmationVerdict | None
    ) -> tuple[Reference, Candidate | None]:
        """A and B, from the same interleaved runs once they were compared."""
        if pair := judged_pair(study, history, verdict, "setting B", "B"):
            return Reference(self.reference, self.a, pair[0], "A"), pair[1]
        a, b = (_value(study, history, point) for point in (self.a, self.b))
        trial, candidate = trial_of(history, point_key(self.b)), None
        if trial is not None and b is not None:
            candidate = Candidate("setting B", trial.number, self.b, trial.settings, b, short="B")
        return Reference(self.reference, self.a, a, "A"), candidate

    def facts(
        self, study: Study, history: History, verdict: ConfirmationVerdict | None, answer: Answer
    ) -> dict[str, Any]:
        metric, b = study.goal.metric, answer.candidate
        return {
            "a": {"point": dict(self.a), metric: answer.reference.value},
            "b": {"point": dict(self.b)} if b is None else b.as_json(metric),
        }

    def headline(self, study: Study, history: History, verdict: ConfirmationVerdict, answer: Answer) -> str:
        """Said again, with before and after: comparisons once spoke of a baseline."""
        if (judged := verdict.spoken_of) is None:
            return verdict.headline
        text = _headline(judged, judged_text(study, history, judged, "A"))
        return confirmation.with_circumstances(text, study, history, verdict)

    def exhibits(self, study: Study, history: History) -> Exhibits:
        verdict = self.found(history)
        rows = () if verdict is None else verdict.comparisons
        return Exhibits(
            tables=(self._table(study, history),),
            comparisons_title="B against A in fresh interleaved runs",
            comparisons=confirmation.compared_settings(self.a, rows),
            notes=earlier_verdicts(history),
            groups=self.groups(history),
        )

    def _table(self, study: Study, history: History) -> TextTable:
        settings = side_by_side("The two settings", ("A", "B"), self.a, self.b)
        a, b = self.sides(study, history, self.found(history))
        values = (a.value, None if b is None else b.value)
        measured = (study.goal.metric, *("" if value is None else metric_text(value) for value in values))
        return replace(settings, rows=(*settings.rows, measured))


@dataclass
class ComparisonAgenda(SearchAgenda):
    """The search of one setting, with a verdict that speaks of two: B is compared also where it looked worse."""

    even_if_worse = True

    def verdict(self) -> ConfirmationVerdict:
        study, history = self.study, self.history
        failed = disqualified(study, history)
        if failed:
            why = next(iter(failed.values()))
            return ConfirmationVerdict(
                Conclusion.NOTHING_PASSED, f"B failed when it was run again: {why}", disqualified=failed
            )
        if history.count(Stage.SEARCH) and not scores.ranking(study, history):
            return ConfirmationVerdict(Conclusion.NOTHING_PASSED, f"B did not pass: {_why_b_failed(history)}")
        blocks = confirmation.blocks_so_far(study, history)
        result = confirmation.judged_blocks(study, history, blocks)
        if not result.comparisons:
            return ConfirmationVerdict(
                Conclusion.UNCONFIRMED, "A and B were not compared: the budget left no room for it"
            )
        (found,) = result.comparisons.values()
        winner = self.study.presets[0] if found.verdict is Verdict.BETTER else None
        text = _headline(found, judged_text(study, history, found, "A"))
        return ConfirmationVerdict(_CONCLUSIONS[found.verdict], text, winner, (found,))


def _headline(found: Comparison, text: str) -> str:
    if found.verdict is Verdict.TOO_FEW_BLOCKS:
        return text
    if found.verdict is Verdict.NO_DIFFERENCE:
        return f"A and B: {text}"
    return f"B is {found.verdict.value} than A: {text}" if found.scale == "ratio" else f"B is {text}"


def _why_b_failed(history: History) -> str:
    runs = [history.final_run(trial) for trial in history.trials.values() if trial.stage is Stage.SEARCH]
    return next((str(run.outcome) for run in runs if run is not None), "it has not run")


def _value(study: Study, history: History, point: Point) -> float | None:
    """The mean of its interleaved runs; before there are any, of its first run."""
    key = point_key(point)
    value = scores.mean_value(study, history, Stage.CONFIRM, key=key)
    return scores.mean_value(study, history, *Stage, key=key) if value is None else value


def comparison(found: CheckedStudy, a: Setting, b: Setting, blocks: int | None = None) -> ComparisonQuestion:
    """The question as it is typed, or as the Python API gives it: `b` changes `a`, `a` changes the baseline."""
    first = parse_point(found, a, found.study.baseline)
    second = parse_point(found, b, first)
    if point_key(first) == point_key(second):
        raise InputError(f"both settings are {point_key(first)}; change at least one knob of B")
    return ComparisonQuestion(dict(first), dict(second), blocks)
