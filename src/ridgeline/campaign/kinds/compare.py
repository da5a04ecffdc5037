"""Which of two settings is better? A and B in fresh, interleaved runs. As a campaign, a search of one given setting."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from ridgeline.campaign import confirmation, scores
from ridgeline.campaign.blocks import disqualified
from ridgeline.campaign.candidates import judged_pair, judged_text, trial_of
from ridgeline.campaign.check import CheckedStudy
from ridgeline.campaign.confirmation import NO_DIFFERENCE, ConfirmationVerdict
from ridgeline.campaign.guidance.sampling import sampler_of
from ridgeline.campaign.kinds.extension import earlier_verdicts
from ridgeline.campaign.kinds.search import search_progress
from ridgeline.campaign.kinds.search_agenda import SearchAgenda
from ridgeline.campaign.ledger import Ledger
from ridgeline.campaign.point_text import Setting, parse_point
from ridgeline.campaign.verdict import NOT_PROVABLE, answer_of
from ridgeline.errors import InputError
from ridgeline.records.answer import CONFIRMED, NOTHING_PASSED, UNCONFIRMED, Answer, Candidate, Progress, Reference
from ridgeline.records.exhibit import Exhibits, TextTable, changes, side_by_side
from ridgeline.records.space import Point, point_key
from ridgeline.records.study import Study
from ridgeline.records.trial import Stage, Trial
from ridgeline.stats.verdict import Comparison, Verdict
from ridgeline.stats.wording import metric_text
from ridgeline.study.codec import VerdictLine
from ridgeline.study.history import History

_WORSE = "worse"
_SHORT = 60  # characters of both settings that a question has room for
_CONCLUSIONS = {
    Verdict.BETTER: CONFIRMED,
    Verdict.WORSE: _WORSE,
    Verdict.NO_DIFFERENCE: NO_DIFFERENCE,
    Verdict.TOO_FEW_BLOCKS: UNCONFIRMED,
}


@dataclass(frozen=True, slots=True)
class ComparisonQuestion:
    """Setting `b` against setting `a` in `blocks` blocks; as many as the study confirms with where None."""

    a: Point
    b: Point
    blocks: int | None = None

    kind: ClassVar[str] = "compare"
    reference: ClassVar[str] = "setting A"
    extended_by: ClassVar[tuple[str, ...]] = ("blocks",)

    def applied_to(self, study: Study) -> Study:
        first, second = changes(self.b, self.a), changes(self.a, self.b)
        named = second and len(first) + len(second) <= _SHORT
        return replace(
            study,
            question=f"Is {second} better than {first}?" if named else "Is setting B better than setting A?",
            baseline=self.a,
            presets=(self.b,),
            budget=replace(study.budget, trials=1),
            baseline_stage=replace(study.baseline_stage, repeats=1),
            search=replace(study.search, sentinel_every=0),
            confirm=replace(study.confirm, top=1, blocks=self.blocks or study.confirm.blocks),
        )

    def agenda(self, found: CheckedStudy, history: History, ledger: Ledger) -> ComparisonAgenda:
        refusal = found.refusal
        return ComparisonAgenda(found.study, history, ledger, lambda: sampler_of(found), refusal)

    def verdict_from(self, line: VerdictLine) -> ConfirmationVerdict:
        return ConfirmationVerdict.from_line(line)

    def called(self, trial: Trial) -> str:
        return "A" if trial.key == point_key(self.a) else "B"

    def progress(self, study: Study, history: History) -> Progress:
        now = search_progress(study, history)
        if now.stage in (Stage.BASELINE, Stage.SEARCH):
            # A and B are each run once before the blocks: a setting that cannot run needs no comparison
            return replace(now, stage="first runs", done=len(history.runs), of=2, unit="runs")
        return replace(now, stage="blocks") if now.stage == Stage.CONFIRM else now

    def answer(self, study: Study, history: History) -> Answer:
        verdict = None if history.verdict is None else self.verdict_from(history.verdict)
        a, candidate = self._pair(study, history, verdict)
        metric = study.goal.metric
        line = history.verdict
        unproven = line is not None and bool(line.details.get(NOT_PROVABLE))
        if line is not None and verdict is not None and verdict.spoken_of is not None and not unproven:
            # said anew, with before and after; and comparisons once spoke of a baseline
            text = _headline(verdict.spoken_of, judged_text(study, history, verdict.spoken_of, "A"))
            text = confirmation.with_circumstances(text, study, history, verdict)
            line = replace(line, headline=text)
        answer = answer_of(
            self.kind,
            line,
            Reference(self.reference, self.a, a, "A"),
            candidate,
            {
                "a": {"point": dict(self.a), metric: a},
                "b": {"point": dict(self.b)} if candidate is None else candidate.as_json(metric),
            },
            offers=candidate is not None and candidate.confirmed,
        )
        if verdict is None or verdict.conclusion == CONFIRMED:
            return answer
        worse = verdict.conclusion == _WORSE
        why = "B is worse than A; keep A" if worse else answer.headline
        # what cannot be proven is no question of more runs: those there are do not show what was said of them
        undecided = verdict.conclusion == UNCONFIRMED and not unproven
        return replace(answer, worse=worse, undecided=undecided, not_better=why)

    def _pair(
        self, study: Study, history: History, verdict: ConfirmationVerdict | None
    ) -> tuple[float | None, Candidate | None]:
        """A's value and B, from the same interleaved runs once they were compared."""
        judged = None if verdict is None else verdict.spoken_of
        if verdict is not None and judged is not None:
            won = verdict.conclusion == CONFIRMED
            if pair := judged_pair(study, history, judged, "setting B", won, "B"):
                return pair
        a, b = (_value(study, history, point) for point in (self.a, self.b))
        trial = trial_of(history, point_key(self.b))
        if trial is None or b is None:
            return a, None
        return a, Candidate("setting B", trial.number, self.b, trial.settings, b, short="B")

    def exhibits(self, study: Study, history: History) -> Exhibits:
        rows = () if history.verdict is None else self.verdict_from(history.verdict).comparisons
        return Exhibits(
            tables=(self._table(study, history),),
            comparisons_title="B against A in fresh interleaved runs",
            comparisons=confirmation.compared_settings(self.a, rows),
            notes=earlier_verdicts(history),
            groups={trial.number: self.called(trial) for trial in history.trials.values()},
        )

    def _table(self, study: Study, history: History) -> TextTable:
        settings = side_by_side("The two settings", ("A", "B"), self.a, self.b)
        verdict = None if history.verdict is None else self.verdict_from(history.verdict)
        a, b = self._pair(study, history, verdict)
        values = (a, None if b is None else b.value)
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
            return ConfirmationVerdict(NOTHING_PASSED, f"B failed when it was run again: {why}", disqualified=failed)
        if history.count(Stage.SEARCH) and not scores.ranking(study, history):
            return ConfirmationVerdict(NOTHING_PASSED, f"B did not pass: {_why_b_failed(history)}")
        blocks = confirmation.blocks_so_far(study, history)
        result = confirmation.judged_blocks(study, history, blocks)
        if not result.comparisons:
            return ConfirmationVerdict(UNCONFIRMED, "A and B were not compared: the budget left no room for it")
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
    value = confirmation.mean_value(study, history, key, Stage.CONFIRM)
    return confirmation.mean_value(study, history, key, *Stage) if value is None else value


def comparison(found: CheckedStudy, a: Setting, b: Setting, blocks: int | None = None) -> ComparisonQuestion:
    """The question as it is typed, or as the Python API gives it: `b` changes `a`, `a` changes the baseline."""
    first = parse_point(found, a, found.study.baseline)
    second = parse_point(found, b, first)
    if point_key(first) == point_key(second):
        raise InputError(f"both settings are {point_key(first)}; change at least one knob of B")
    return ComparisonQuestion(dict(first), dict(second), blocks)
