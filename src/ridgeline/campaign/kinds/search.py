"""Which setting is best? Baseline, search, then the best ones against the baseline again, fresh and interleaved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ridgeline.campaign import confirmation, scores
from ridgeline.campaign.candidates import best_of_search, judged_pair, judged_text, refuted_text
from ridgeline.campaign.carried import carried_table
from ridgeline.campaign.check import CheckedStudy
from ridgeline.campaign.confirmation import ConfirmationVerdict
from ridgeline.campaign.front import front_figures, front_tables
from ridgeline.campaign.guidance.sampling import sampler_of
from ridgeline.campaign.guidance.warm_start import kept
from ridgeline.campaign.kinds.extension import earlier_verdicts
from ridgeline.campaign.kinds.search_agenda import SearchAgenda
from ridgeline.campaign.ledger import TRIALS_WITHOUT_BUDGET, Ledger
from ridgeline.campaign.short_trials import ShortTrials
from ridgeline.campaign.verdict import answer_of
from ridgeline.records.answer import CONFIRMED, NOTHING_PASSED, UNCONFIRMED, Answer, Candidate, Progress, Reference
from ridgeline.records.exhibit import Exhibits, KindShown, side_by_side
from ridgeline.records.space import point_key
from ridgeline.records.study import DEFAULT_SAMPLER, Study
from ridgeline.records.trial import Stage, Trial
from ridgeline.stats.verdict import Verdict
from ridgeline.study.codec import VerdictLine
from ridgeline.study.history import History


@dataclass(frozen=True, slots=True)
class SearchQuestion:
    """`trials` and `seed` are what the command line changes; `sampler` proposes where the study names nobody.

    `carried` are settings that a search on a stand-in found, each with its gain there (campaign/carried.py): they are
    tried instead of a search. `searched` says what that search was.
    """

    trials: int | None = None
    seed: int | None = None
    sampler: str | None = None  # None in journals of earlier versions
    carried: Sequence[Mapping[str, Any]] | None = None
    searched: Mapping[str, Any] | None = None

    kind: ClassVar[str] = "search"
    reference: ClassVar[str] = "the baseline"
    shown: ClassVar[KindShown] = KindShown(searches=True)
    extended_by: ClassVar[tuple[str, ...]] = ("trials", "blocks")

    def applied_to(self, study: Study) -> Study:
        if self.trials is not None:
            study = replace(study, budget=replace(study.budget, trials=self.trials))
        if self.carried is not None:
            points = tuple(dict(each["point"]) for each in self.carried)
            study = replace(study, presets=points, budget=replace(study.budget, trials=len(points)))
        if self.seed is not None:
            study = replace(study, search=replace(study.search, seed=self.seed))
        if study.equivalent_within is not None:
            # a statement about all settings needs all of them in the blocks, not the best few
            every = study.budget.trials or TRIALS_WITHOUT_BUDGET
            study = replace(study, confirm=replace(study.confirm, top=every))
        if study.search.sampler == DEFAULT_SAMPLER and not study.search.named:
            study = replace(study, search=replace(study.search, sampler=self.sampler or DEFAULT_SAMPLER))
        return study

    def agenda(self, found: CheckedStudy, history: History, ledger: Ledger) -> SearchAgenda:
        return SearchAgenda(found.study, history, ledger, lambda: sampler_of(found, kept(history.root)), found.refusal)

    def verdict_from(self, line: VerdictLine) -> ConfirmationVerdict:
        return ConfirmationVerdict.from_line(line)

    def called(self, trial: Trial) -> str:
        return trial.stage.text

    def progress(self, study: Study, history: History) -> Progress:
        return search_progress(study, history)

    def answer(self, study: Study, history: History) -> Answer:
        verdict = None if history.verdict is None else self.verdict_from(history.verdict)
        base, candidate = _pair(study, history, verdict)
        facts = {"best": None if candidate is None else candidate.as_json(study.goal.metric)}
        reference = Reference(self.reference, study.baseline, base)
        answer = answer_of(self.kind, history.verdict, reference, candidate, facts)
        keep = _keeps_the_baseline(study, verdict, base, candidate)
        if answer.unproven:
            return answer
        if verdict is None:
            text = f"{answer.headline}; nothing so far is better than the baseline" if keep else answer.headline
            return replace(answer, headline=text, keep=keep, offers=not keep)
        return replace(
            answer,
            headline=_headline(study, history, verdict, keep),
            keep=keep,
            offers=not keep,
            # where all settings are compared nobody is the favourite
            refuted=""
            if verdict.equivalence is not None
            else refuted_text(study, history, verdict, None if candidate is None else candidate.point),
        )

    def exhibits(self, study: Study, history: History) -> Exhibits:
        verdict = None if history.verdict is None else self.verdict_from(history.verdict)
        tables = front_tables(study, history)
        if self.carried is not None and self.searched is not None:
            judged = () if verdict is None else verdict.comparisons
            tables = (carried_table(self.carried, self.searched, study, history, judged), *tables)
        ended = (f"search ended: {history.search_ended}",) if history.search_ended else ()
        notes = (*ended, *earlier_verdicts(history))
        chosen = None if verdict is None else verdict.winner
        figures = front_figures(study, history, chosen)
        if verdict is None:
            return Exhibits(tables=tables, figures=figures, notes=notes)
        setting = None
        if verdict.winner is not None:
            setting = side_by_side("The setting", ("baseline", "now"), study.baseline, verdict.winner)
        if verdict.equivalence is not None:
            tables = (*tables, confirmation.equivalence_table(study, history, verdict))
        return Exhibits(
            setting,
            tables,
            figures,
            comparisons_title="Confirmation: fresh interleaved runs against the baseline",
            comparisons=confirmation.compared_settings(study.baseline, verdict.comparisons),
            notes=notes,
        )


def search_progress(study: Study, history: History) -> Progress:
    if history.candidates is None:
        planned = confirmation.runs_needed(study, study.confirm.top, study.confirm.blocks)
    else:
        fresh = history.blocks - history.first_block
        planned = confirmation.runs_needed(study, len(history.candidates), fresh)
    done_before = history.confirmations[-1].trials_before if history.confirmations else 0
    compared = 0 if history.candidates is None else history.count(Stage.CONFIRM, Stage.WARM_UP) - done_before
    left = max(0, planned - compared)
    if history.verdict is not None:
        return Progress("finished", len(history.runs), len(history.runs), "runs", 0)
    if history.candidates is not None:
        return Progress(Stage.CONFIRM.value, compared, planned, "runs", left)
    short = ShortTrials(study, history)
    done = short.settings_tried if short else history.count(Stage.SEARCH)
    trials = study.budget.trials if history.search_limit is None else history.search_limit
    runs_left = None
    if trials is not None:
        every = study.search.sentinel_every
        searched = trials + (trials // every if every else 0)
        runs_left = left + max(0, searched - done - history.count(Stage.SENTINEL))
    stage = Stage.SEARCH if done else Stage.BASELINE
    return Progress(stage.value, done, trials, "trials", runs_left)


def _pair(study: Study, history: History, verdict: ConfirmationVerdict | None) -> tuple[float | None, Candidate | None]:
    """The baseline's value and the setting the answer speaks of, from the same runs: once fresh runs were compared
    only theirs count, whatever the search had seen."""
    judged = None if verdict is None else verdict.spoken_of
    if verdict is not None and judged is not None:
        won = verdict.winner is not None
        ranked = scores.ranking(study, history)
        favourite = bool(ranked) and point_key(ranked[0][0]) == judged.candidate
        label = "the setting" if won else "the best of the search" if favourite else "the nearest setting"
        short = "best" if verdict.conclusion in (CONFIRMED, UNCONFIRMED) else "nearest"
        if pair := judged_pair(study, history, judged, label, won, short):
            return pair
    score = scores.baseline_score(study, history)
    nobody = verdict is not None and verdict.conclusion == NOTHING_PASSED
    return None if score is None else study.goal.score(score), None if nobody else best_of_search(study, history)


def _keeps_the_baseline(
    study: Study, verdict: ConfirmationVerdict | None, base: float | None, candidate: Candidate | None
) -> bool:
    """Nothing is better, or nothing but a lucky look says so. What was not judged yet may still be worth a try."""
    if verdict is not None and (verdict.conclusion != UNCONFIRMED or candidate is None):
        return verdict.conclusion != CONFIRMED
    if candidate is None or base is None:
        return False
    return study.goal.score(candidate.value) <= study.goal.score(base)


def _headline(study: Study, history: History, verdict: ConfirmationVerdict, keep: bool) -> str:
    if verdict.equivalence is not None and verdict.winner is None:
        return f"{verdict.headline}; keep the baseline" if keep else verdict.headline
    text, judged = verdict.headline, verdict.spoken_of
    if judged is not None and judged.verdict is not Verdict.TOO_FEW_BLOCKS:
        text = judged_text(study, history, judged)
        if judged.verdict is Verdict.WORSE:
            text = f"no setting is better than the baseline; the nearest: {text}"
    text = f"{text}; keep the baseline" if keep and "keep the baseline" not in text else text
    return confirmation.with_circumstances(text, study, history, verdict)
