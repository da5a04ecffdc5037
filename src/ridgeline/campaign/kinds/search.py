"""Which setting is best? Baseline, search, then the best ones against the baseline again, fresh and interleaved."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

from ridgeline import catalog
from ridgeline.campaign import confirmation
from ridgeline.campaign.advice import PROPOSER, Advice
from ridgeline.campaign.agenda import Agenda, Next
from ridgeline.campaign.check import CheckedStudy
from ridgeline.campaign.confirmation import NO_DIFFERENCE, ConfirmationPlan, ConfirmationVerdict
from ridgeline.campaign.ledger import Ledger, Reserve
from ridgeline.campaign.same_job import JobComparison, OnlyNewJobs
from ridgeline.campaign.verdict import answer_of
from ridgeline.records.answer import CONFIRMED, Answer, Candidate, Gain, Progress, Reference
from ridgeline.records.exhibit import Exhibits, side_by_side
from ridgeline.records.lesson import Lesson, Proposal
from ridgeline.records.outcome import Kind
from ridgeline.records.run import Run
from ridgeline.records.space import Point, point_key
from ridgeline.records.study import Study
from ridgeline.records.trial import Stage, Trial
from ridgeline.samplers.base import Refusal, Sampler
from ridgeline.stats.search_gain import search_gain
from ridgeline.store.events import VerdictLine
from ridgeline.store.history import History


@dataclass(frozen=True, slots=True)
class SearchQuestion:
    """`trials` and `seed` are what the command line changes in the study."""

    trials: int | None = None
    seed: int | None = None

    kind: ClassVar[str] = "search"
    reference: ClassVar[str] = "the baseline"

    def applied_to(self, study: Study) -> Study:
        if self.trials is not None:
            study = replace(study, budget=replace(study.budget, trials=self.trials))
        if self.seed is not None:
            study = replace(study, search=replace(study.search, seed=self.seed))
        return study

    def agenda(self, found: CheckedStudy, history: History, ledger: Ledger) -> SearchAgenda:
        refusal = OnlyNewJobs(found.refusal, JobComparison(found.study, found.workload), history)
        return SearchAgenda(found.study, history, ledger, sampler_of(found.study, refusal), refusal)

    def verdict_from(self, line: VerdictLine) -> ConfirmationVerdict:
        return ConfirmationVerdict.from_line(line)

    def called(self, trial: Trial) -> str:
        return trial.stage.value

    def progress(self, study: Study, history: History) -> Progress:
        return search_progress(study, history)

    def answer(self, study: Study, history: History) -> Answer:
        verdict = None if history.verdict is None else self.verdict_from(history.verdict)
        score = confirmation.baseline_score(study, history)
        base = None if score is None else study.goal.score(score)
        candidate = _candidate(study, history, verdict)
        return answer_of(
            self.kind,
            history.verdict,
            Reference(self.reference, study.baseline, base),
            candidate,
            {"best": None if candidate is None else candidate.as_json(study.goal.metric)},
        )

    def exhibits(self, study: Study, history: History) -> Exhibits:
        if history.verdict is None:
            return Exhibits()
        verdict = self.verdict_from(history.verdict)
        setting = None
        if verdict.winner is not None:
            setting = side_by_side("The setting", ("baseline", "now"), study.baseline, verdict.winner)
        return Exhibits(
            setting,
            comparisons_title="Confirmation: fresh interleaved runs against the baseline",
            comparisons=confirmation.compared_settings(study.baseline, verdict.comparisons),
        )


def sampler_of(study: Study, refusal: Refusal) -> Sampler:
    search = study.search
    sampler: Sampler = catalog.part("samplers", search.sampler)(study.space, search.seed, search.options, refusal)
    return sampler


@dataclass
class SearchAgenda(Agenda):
    """Baseline, search and sentinels; after a `ConfirmationPlan` the blocks of the confirmation."""

    sampler: Sampler
    refusal: Refusal = lambda point: None
    search_over: str = field(default="", init=False)  # why no more search trials are started
    _unteachable: dict[str, Point] = field(default_factory=dict, init=False)  # ran, taught nothing: not asked again
    _presets: dict[str, Point] = field(default_factory=dict, init=False)  # not yet tried
    _tried: set[str] | None = field(default=None, init=False)  # keys of all trials; made when first needed: it is slow

    def __post_init__(self) -> None:
        self._advice = Advice(self.study.space, self.refusal)
        self._presets = {point_key(preset): preset for preset in self.study.presets}
        if self._presets:
            for key in self._already_tried():
                self._presets.pop(key, None)
        super().__post_init__()

    @property
    def reserve(self) -> Reserve:
        return confirmation.reserve(self.study)

    def teach(self, trial: Trial, run: Run) -> None:
        assert run.outcome is not None
        kind = run.outcome.kind
        self._unteachable.pop(trial.key, None)
        if trial.stage in (Stage.BASELINE, Stage.SEARCH):
            if kind is Kind.OK:
                score = self.study.goal.score(run.metrics[self.study.goal.metric])
                self.sampler.tell(Lesson(trial.point, score))
            elif kind.caused_by_setting:
                self.sampler.tell(Lesson(trial.point, None))
                if trial.stage is Stage.SEARCH:
                    self._advice.take(trial, run.outcome)
            else:
                self._unteachable[trial.key] = trial.point

    def fresh(self) -> Next | None:
        if self.history.candidates is not None:
            return self._confirm()
        return self.baseline() or self._search()

    def conclude(self) -> ConfirmationPlan | ConfirmationVerdict:
        if self.history.candidates is None:
            nodes = self.study.job.resources(self.study.space.settings(self.study.baseline)).nodes
            return confirmation.choose(self.study, self.history, self.ledger.affordable_runs(nodes))
        return self.verdict()

    def verdict(self) -> ConfirmationVerdict:
        return confirmation.verdict(self.study, self.history)

    def _search(self) -> Next | None:
        if not self.baseline_finished() or self.search_over:
            return None
        done = self.history.count(Stage.SEARCH)
        limit = self.ledger.search_trials
        if limit is not None and done >= limit:
            self.search_over = f"all {limit} trials of the budget were used"
            return None
        every = self.study.search.sentinel_every
        if every and done and self.history.count(Stage.SENTINEL) < done // every:
            if self.fits(self.study.baseline, self.reserve):
                return self.new(self.study.baseline, Stage.SENTINEL, "sentinel")
            self.search_over = "the budget has room for the confirmation only"
            return None
        return self._proposal()

    def _proposal(self) -> Next | None:
        proposer, proposal = self._proposed()
        if proposal is None:
            self.search_over = "every legal point was tried"
            return None
        if not self.fits(proposal.point, self.reserve):
            # with runs in flight the estimate may still improve; without, it is final
            if not self.history.open_runs:
                self.search_over = "another run would not fit into the budget"
            return None
        return self.new(proposal.point, Stage.SEARCH, proposer, proposal.why)

    def _proposed(self) -> tuple[str, Proposal | None]:
        """By whom, and what: the way out of the oldest failure first, then the study's presets, then the sampler."""
        if self._advice.waits and (advised := self._advice.next(self._already_tried())) is not None:
            return PROPOSER, advised
        for preset in self._presets.values():
            return "preset", Proposal(preset)
        return self.study.search.sampler, self.sampler.ask(self._pending())

    def _already_tried(self) -> set[str]:
        if self._tried is None:
            self._tried = {trial.key for trial in self.history.trials.values()}
        return self._tried

    def _pending(self) -> list[Point]:
        flying = [self.history.trials[r.trial] for r in self.history.open_runs.values()]
        return [t.point for t in flying if t.stage is Stage.SEARCH] + list(self._unteachable.values())

    def _confirm(self) -> Next | None:
        flying = {self.history.trials[r.trial].block for r in self.history.open_runs.values()}
        for block in range(self.history.blocks):
            if block in flying:
                continue
            point = confirmation.next_in_block(self.study, self.history, block)
            if point is None:
                continue
            return self.new(point, Stage.CONFIRM, "confirm", block=block) if self.fits(point) else None
        return None

    def new(self, point: Point, stage: Stage, proposer: str, why: str = "", block: int | None = None) -> Next:
        self._presets.pop(point_key(point), None)
        if self._tried is not None:
            self._tried.add(point_key(point))
        return super().new(point, stage, proposer, why, block)


def search_progress(study: Study, history: History) -> Progress:
    if history.candidates is None:
        planned = confirmation.runs_needed(study.confirm, study.confirm.top, study.confirm.blocks)
    else:
        planned = confirmation.runs_needed(study.confirm, len(history.candidates), history.blocks)
    left = planned - history.count(Stage.CONFIRM)
    if history.verdict is not None:
        return Progress("finished", len(history.runs), len(history.runs), "runs", 0)
    if history.candidates is not None:
        return Progress(Stage.CONFIRM.value, history.count(Stage.CONFIRM), planned, "runs", left)
    done, trials = history.count(Stage.SEARCH), study.budget.trials
    runs_left = None
    if trials is not None:
        every = study.search.sentinel_every
        searched = trials + (trials // every if every else 0)
        runs_left = left + max(0, searched - history.count(Stage.SEARCH, Stage.SENTINEL))
    stage = Stage.SEARCH if done else Stage.BASELINE
    return Progress(stage.value, done, trials, "trials", runs_left)


def _candidate(study: Study, history: History, verdict: ConfirmationVerdict | None) -> Candidate | None:
    """The confirmed winner; where none was better, the one the verdict speaks of; before, the best of the search."""
    judged = None if verdict is None else verdict.spoken_of
    if verdict is not None and judged is not None and verdict.conclusion in (CONFIRMED, NO_DIFFERENCE):
        trial = trial_of(history, judged.candidate)
        value = confirmation.mean_value(study, history, judged.candidate, Stage.CONFIRM)
        if trial is not None and value is not None:
            won = verdict.winner is not None
            label = "the setting" if won else "the nearest setting"
            gain = confirmation.confirmed_gain(judged)
            return Candidate(label, trial.number, trial.point, trial.settings, value, gain, won, "best")
    return _best_of_search(study, history)


def _best_of_search(study: Study, history: History) -> Candidate | None:
    ranked = confirmation.ranking(study, history)
    if not ranked:
        return None
    point, score = ranked[0]
    trial = trial_of(history, point_key(point))
    assert trial is not None  # it was ranked, so it ran
    gain = _search_estimate(study, history, [study.goal.score(value) for _, value in ranked])
    value = study.goal.score(score)
    return Candidate("the best of the search", trial.number, point, trial.settings, value, gain, short="best")


def _search_estimate(study: Study, history: History, tried: list[float]) -> Gain | None:
    baseline = [r.metrics[study.goal.metric] for _, r in history.ok_runs(Stage.BASELINE, Stage.SENTINEL)]
    found = search_gain(tried, baseline, study.goal.direction, study.confirm.level)
    if found is None:
        return None
    low, high = (None if v is None else 1 + v for v in (found.low, found.high))
    return Gain(1 + found.change, low, high, found.level, str(found))


def trial_of(history: History, key: str) -> Trial | None:
    """The search trial that first tried this point."""
    return next((t for t in history.trials.values() if t.key == key and t.stage is Stage.SEARCH), None)
