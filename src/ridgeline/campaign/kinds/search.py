"""Which setting is best? Baseline, search and sentinels, then the best ones against the baseline again, fresh and
interleaved."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeVar

from ridgeline.campaign import confirmation, scores
from ridgeline.campaign.advice import PROPOSER, Advice
from ridgeline.campaign.check import CheckedStudy
from ridgeline.campaign.confirmation import (
    ConfirmationPlan,
    ConfirmationVerdict,
    earlier_verdicts,
    next_in_block,
    why_warm_up,
)
from ridgeline.campaign.elsewhere import carried_table, kept
from ridgeline.campaign.extension import unwatched
from ridgeline.campaign.front import front_figures, front_tables
from ridgeline.campaign.kinds.base import Agenda, CampaignKind, NextTrial
from ridgeline.campaign.ledger import TRIALS_WITHOUT_BUDGET, Ledger, Reserve
from ridgeline.campaign.sampling import little_left, sampler_of, stated, with_prospect, with_range
from ridgeline.campaign.verdict import best_of_search, judged_pair, judged_text, refuted_text
from ridgeline.records.answer import Answer, Candidate, Conclusion, Progress, Reference, Use
from ridgeline.records.exhibit import Exhibits, KindShown, side_by_side
from ridgeline.records.observation import Observation, Proposal
from ridgeline.records.outcome import Kind
from ridgeline.records.run import Run
from ridgeline.records.space import Point, point_key
from ridgeline.records.study import DEFAULT_SAMPLER, Study
from ridgeline.records.trial import Stage, Trial
from ridgeline.samplers.base import Refusal, Sampler
from ridgeline.stats.verdict import Verdict
from ridgeline.stats.wording import count
from ridgeline.study.codec import KeptVerdict
from ridgeline.study.history import History

InBlocks = TypeVar("InBlocks", bound=ConfirmationVerdict)
_PERSON = "person"  # who proposed a setting that somebody asked for while the campaign ran


@dataclass
class SearchAgenda(Agenda):
    """Baseline, search and sentinels; after a `ConfirmationPlan` the blocks of the confirmation."""

    even_if_worse: ClassVar[bool] = False  # whether a setting is confirmed that looked no better than the baseline

    new_sampler: Callable[[], Sampler]
    refusal: Refusal = lambda point: None
    search_over: str = field(default="", init=False)  # why no more search trials are started
    _unteachable: dict[str, Point] = field(default_factory=dict, init=False)  # ran, taught nothing: not asked again
    _presets: dict[str, Point] = field(default_factory=dict, init=False)  # of the study, by key
    _observations: list[tuple[Point, Run | None]] = field(default_factory=list, init=False)  # None: the setting failed
    _sampler: Sampler | None = field(default=None, init=False)
    _observed_count: int = field(default=0, init=False)  # of the observations, to this sampler
    _observed_through: scores.Normalisation | None = field(default=None, init=False)  # how they compared then
    _tried: set[str] = field(default_factory=set, init=False)  # keys of trials, as far as they were looked at
    _looked_at: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._advice = Advice(self.study.space, self.refusal)
        self._presets = {point_key(preset): preset for preset in self.study.presets}
        super().__post_init__()

    @property
    def reserve(self) -> Reserve:
        return confirmation.reserve(self.study)

    def teach(self, trial: Trial, run: Run) -> None:
        assert run.outcome is not None
        kind = run.outcome.kind
        self._unteachable.pop(trial.key, None)
        if trial.stage in (Stage.BASELINE, Stage.SEARCH):
            if kind is Kind.TIMEOUT and trial.stage is Stage.SEARCH and self._limit_is_a_bound:
                self._observations.append((trial.point, run))
                self._advice.take(trial, run.outcome)
            elif kind in (Kind.OK, Kind.STOPPED_EARLY):
                self._observations.append((trial.point, run))
            elif trial.stage is Stage.BASELINE:
                pass  # run again until it passes: what it failed of was corrected since
            elif kind.caused_by_setting:
                self._observations.append((trial.point, None))
                self._advice.take(trial, run.outcome)
            else:
                self._unteachable[trial.key] = trial.point

    @property
    def _limit_is_a_bound(self) -> bool:
        """Whether a run that its time limit ended says something of the goal: it took at least that long."""
        return self.study.goal.metric == "wall_s" and self.study.goal.direction == "minimize"

    def fresh(self) -> NextTrial | None:
        if self.history.candidates is not None:
            return self._confirm()
        return self.baseline() or self._search() or self._whether_the_baseline_still_works()

    def _whether_the_baseline_still_works(self) -> NextTrial | None:
        """After a search in which nothing passed, the baseline again: was it the settings, or has the site broken?"""
        searched = self.history.count(Stage.SEARCH)
        if not self.search_over or self.history.open_runs or not searched or scores.ranking(self.study, self.history):
            return None
        last = self.history.trials[len(self.history.trials)]
        if last.stage is Stage.SENTINEL or not self.fits(self.study.baseline):
            return None
        return self.new(self.study.baseline, Stage.SENTINEL, "sentinel", "nothing passed: the settings, or the site?")

    def conclude(self) -> ConfirmationPlan | ConfirmationVerdict:
        if self.history.candidates is None:
            every = self.even_if_worse or self._asks_for_equivalence
            plan = confirmation.choose(self.study, self.history, self._affords, even_if_worse=every)
            ended = with_prospect(self.search_over, self._taught(), self._pending()) if self.search_over else ""
            return replace(plan, search_ended=ended)
        return confirmation.grounded(self.study, self.history, self.verdict())

    def _affords(self, points: Sequence[Point], blocks: int) -> bool:
        block = [(point, self._width(point)) for point in (self.study.baseline, *points)]
        warm_up = block[:1] if confirmation.warms_up(self.study) else []
        return self.ledger.affords([*warm_up, *(block * self.study.confirm.repeats)], blocks)

    def best(self) -> Sequence[Point]:
        """The winner; the best of the search where none was confirmed."""
        if self.history.candidates is None:
            return ()
        winner = self.verdict().winner if self.history.candidates else None
        ranked = [point for point, _ in scores.ranking(self.study, self.history)[:1]]
        return (winner,) if winner is not None else super().best() or ranked

    @property
    def _asks_for_equivalence(self) -> bool:
        return self.study.equivalent_within is not None and self.history.question.kind == "search"

    def verdict(self) -> ConfirmationVerdict:
        return confirmation.verdict(self.study, self.history)

    def _search(self) -> NextTrial | None:
        if not self.baseline_finished() or self.search_over:
            return None
        limit = self.trials_limit
        if limit is not None and self.history.count(Stage.SEARCH) >= limit:
            self.search_over = f"the budget is used up: {count(limit, 'trial')}"
            return None
        if self.sentinel_due() or (self.study.search.sentinel_every and unwatched(self.history)):
            if self.fits(self.study.baseline, self.reserve):
                return self.new(self.study.baseline, Stage.SENTINEL, "sentinel")
            self.search_over = "the budget has room for the confirmation only"
            return None
        return self._proposal()

    def _proposal(self) -> NextTrial | None:
        waits = self._advice.waits or self._wanted() is not None or not self._presets.keys() <= self._already_tried()
        if not waits and (why := little_left(self._taught(), self._pending())):
            self.search_over = why
            return None
        proposer, proposal = self._proposed()
        if proposal is None:
            self.search_over = "every legal point was tried"
            return None
        # without a single trial there is nothing to confirm: the first one does not have to leave room for it
        kept = self.reserve if self.history.count(Stage.SEARCH) else Reserve()
        if not self.fits(proposal.point, kept):
            # with runs in flight the estimate may still improve; without, it is final
            if not self.history.open_runs:
                self.search_over = "another run would not fit into the budget"
            return None
        predicted = stated(proposal, self.study, self.history, self._observed_through)
        why = with_range(proposal, predicted, self.study, self.history)
        return self.new(proposal.point, Stage.SEARCH, proposer, why, predicted=predicted)

    def _proposed(self) -> tuple[str, Proposal | None]:
        """By whom, and what: a person's wish, the way out of the oldest failure, the study's presets, the sampler."""
        if (wanted := self._wanted()) is not None:
            return _PERSON, Proposal(wanted, "requested by a person")
        if self._advice.waits and (advised := self._advice.next(self._already_tried())) is not None:
            return PROPOSER, advised
        for key, preset in self._presets.items():
            if key not in self._already_tried() and not self.cannot_be_built(preset):
                return "preset", Proposal(preset)
        sampler = self._taught()
        if self.trials_limit is not None:
            sampler.plan(max(1, self.trials_limit - self.history.count(Stage.SEARCH)))
        return self.study.search.sampler, self.buildable(sampler.ask, self._pending())

    def _wanted(self) -> Point | None:
        """The oldest setting that somebody asked for and that has not run yet."""
        waiting = (point for point in self.history.instructions.wanted if point_key(point) not in self._already_tried())
        return next(waiting, None)

    def to_be_tried(self, point: Point) -> tuple[Point, str]:
        if self.history.question.kind != "search":
            return super().to_be_tried(point)
        space = self.study.space
        if outside := [name for name in point if name not in space.by_name]:
            return point, f"{outside[0]} is not a knob of this study; it has {', '.join(space.by_name)}"
        for name, value in point.items():
            if not space.by_name[name].contains(value):
                return point, f"{name}={value} is outside the study's space"
        point = space.restrict({**self.study.baseline, **point})
        return point, self._why_not(point)

    def _why_not(self, point: Point) -> str:
        if gaps := self.study.space.missing(point):
            return f"{', '.join(gaps)} needs a value there as well"
        if why := self.refusal(point):
            return f"it is refused: {why}"
        if point_key(point) in self._already_tried() | {point_key(each) for each in self.history.instructions.wanted}:
            return "it was tried already, or is about to be"
        if self.history.candidates is not None or self.search_over:
            why = self.search_over or self.history.search_ended or "its best are being confirmed"
            return f"the search is over: {why}"
        waiting = sum(point_key(each) not in self._already_tried() for each in self.history.instructions.wanted)
        if self.trials_limit is not None and self.history.count(Stage.SEARCH) + waiting >= self.trials_limit:
            return f"all of the budget is used, {count(self.trials_limit, 'trial')}; extend it first"
        return ""

    @property
    def trials_limit(self) -> int | None:
        return self.ledger.search_trials if self.history.search_limit is None else self.history.search_limit

    def why_no_more_trials(self) -> str:
        if self.history.question.kind != "search":
            return super().why_no_more_trials()
        if self.history.candidates is not None:
            return (
                "the search is over and its best are being confirmed; after the verdict: `ridgeline resume --trials +N`"
            )
        return (
            "" if self.trials_limit is not None else "the study sets no limit of trials, so there is nothing to extend"
        )

    def reconsider(self) -> None:
        self.search_over = ""

    def _taught(self) -> Sampler:
        """The sampler, with every observation as scores compare now.

        When the sentinels show a change of the machine, or a node another speed, earlier observations meant something
        else: a new sampler observes all of them again, so that the answer depends on the history alone.
        """
        through, before = scores.normalisation(self.study, self.history), self._observed_through
        if self._sampler is None or before is None or before.corrects_by != through.corrects_by:
            self._sampler, self._observed_count = self._untaught(), 0
        self._observed_through = through
        for point, run in self._observations[self._observed_count :]:
            score = None if run is None else self.study.goal.score(self._value(run, through))
            node_s = None if run is None else run.ending.duration_s * run.resources.nodes
            censored = run is not None and run.outcome is not None and run.outcome.kind is Kind.TIMEOUT
            self._sampler.tell(Observation(point, score, node_s, censored))
        self._observed_count = len(self._observations)
        return self._sampler

    def _untaught(self) -> Sampler:
        return self._sampler if self._sampler is not None and self._sampler.forget() else self.new_sampler()

    def _value(self, run: Run, through: scores.Normalisation) -> float:
        """The goal as it compares; of a run that its time limit ended, the time it had taken by then; of one that an
        earlier release stopped early, an estimate by the run it was worse than."""
        if run.outcome is not None and run.outcome.kind is Kind.TIMEOUT:
            return run.ending.duration_s
        stop = self.history.early_stops.get(run.number)
        if stop is None or self.study.goal.metric in run.metrics:
            return through.value(run, self.study.goal.metric)
        return stop.ratio * through.value(self.history.runs[stop.than], self.study.goal.metric)

    def _already_tried(self) -> set[str]:
        """Keys of all trials; each is made once, which is slow."""
        while self._looked_at < len(self.history.trials):
            self._looked_at += 1
            self._tried.add(self.history.trials[self._looked_at].key)
        return self._tried

    def _pending(self) -> list[Point]:
        flying = [self.history.trials[r.trial] for r in self.history.open_runs.values()]
        return [t.point for t in flying if t.stage is Stage.SEARCH] + list(self._unteachable.values())

    def _confirm(self) -> NextTrial | None:
        flying = self.flying_blocks()
        for block in range(self.history.first_block, self.history.blocks):
            if block in flying:
                continue
            point = next_in_block(self.study, self.history, block)
            if point is None:
                continue
            if self._asks_for_equivalence and confirmation.may_stop_before(self.history, block):
                if flying - {None}:
                    return None  # a look is at whole blocks
                if confirmation.decided(self.study, self.history):
                    return None
            if not self.fits(point):
                return None
            if why := why_warm_up(self.study, self.history, block, self.ledger.clock()):
                return self.new(point, Stage.WARM_UP, "warm-up", why, block)
            return self.new(point, Stage.CONFIRM, "confirm", block=block)
        return None


@dataclass(frozen=True, slots=True)
class SearchQuestion(CampaignKind[ConfirmationVerdict]):
    """`trials` and `seed` are what the command line changes; `sampler` proposes where the study names nobody.

    `carried` are settings that a search on a stand-in found, each with its gain there (campaign/elsewhere.py): they are
    tried instead of a search. `searched` says what that search was.
    """

    trials: int | None = None
    seed: int | None = None
    sampler: str | None = None  # None in journals of earlier versions
    carried: Sequence[Mapping[str, Any]] | None = None
    searched: Mapping[str, Any] | None = None

    kind: ClassVar[str] = "search"
    shown: ClassVar[KindShown] = KindShown(searches=True)
    verdict_type: ClassVar[type[KeptVerdict]] = ConfirmationVerdict
    extended_by: ClassVar[tuple[str, ...]] = ("trials", "blocks")
    use: ClassVar[Use] = Use.CANDIDATE

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

    def progress(self, study: Study, history: History) -> Progress:
        return search_progress(study, history)

    def sides(
        self, study: Study, history: History, verdict: ConfirmationVerdict | None
    ) -> tuple[Reference, Candidate | None]:
        label, short = "the recommended setting", "best"
        if verdict is not None and verdict.winner is None and (judged := verdict.spoken_of) is not None:
            ranked = scores.ranking(study, history)
            favourite = bool(ranked) and point_key(ranked[0][0]) == judged.candidate
            label = "the best of the search" if favourite else "the nearest setting"
            short = "best" if verdict.conclusion == Conclusion.UNCONFIRMED else "nearest"
        if pair := judged_pair(study, history, verdict, label, short):
            return Reference(self.reference, study.baseline, pair[0]), pair[1]
        value = scores.mean_value(study, history, Stage.BASELINE, Stage.SENTINEL)
        nobody = verdict is not None and verdict.conclusion == Conclusion.NOTHING_PASSED
        return Reference(self.reference, study.baseline, value), None if nobody else best_of_search(study, history)

    def headline(self, study: Study, history: History, verdict: ConfirmationVerdict, answer: Answer) -> str:
        text, judged = verdict.headline, verdict.spoken_of
        alike = verdict.equivalence is not None and verdict.winner is None
        if not alike and judged is not None and judged.verdict is not Verdict.TOO_FEW_BLOCKS:
            text = judged_text(study, history, judged)
            if judged.verdict is Verdict.WORSE:
                text = f"no setting is better than the baseline; the nearest: {text}"
        if _keeps_the_baseline(study, verdict, answer) and (alike or "keep the baseline" not in text):
            text = f"{text}; keep the baseline"
        return text if alike else confirmation.with_circumstances(text, study, history, verdict)

    def answer(self, study: Study, history: History) -> Answer:
        answer, verdict = CampaignKind.answer(self, study, history), self.found(history)
        if answer.unproven:
            return answer
        if _keeps_the_baseline(study, verdict, answer):
            answer = replace(answer, use=Use.REFERENCE)
        if verdict is None:
            so_far = "; nothing so far is better than the baseline" if answer.keep else ""
            return replace(answer, headline=f"{answer.headline}{so_far}")
        if verdict.equivalence is not None:
            return answer  # where all settings are compared nobody is the favourite
        return replace(answer, refuted=refuted_text(study, history, verdict, answer.candidate))

    def exhibits(self, study: Study, history: History) -> Exhibits:
        verdict = self.found(history)
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


class GivenSettings(CampaignKind[InBlocks]):
    """What questions share that search for nothing: each given setting runs once, then all of them in every block."""

    __slots__ = ()

    verdict_type: ClassVar[type[KeptVerdict]] = ConfirmationVerdict
    blocks: int | None

    @property
    @abstractmethod
    def given(self) -> tuple[Point, ...]:
        """The settings beside the baseline."""

    def applied_to(self, study: Study) -> Study:
        return replace(
            study,
            presets=self.given,
            budget=replace(study.budget, trials=len(self.given)),
            baseline_stage=replace(study.baseline_stage, repeats=1),
            search=replace(study.search, sentinel_every=0),
            confirm=replace(study.confirm, top=len(self.given), blocks=self.blocks or study.confirm.blocks),
        )

    def progress(self, study: Study, history: History) -> Progress:
        """One that cannot run is left out of the blocks."""
        now = search_progress(study, history)
        if now.stage in (Stage.BASELINE, Stage.SEARCH):
            return replace(now, stage="first runs", done=len(history.runs), of=1 + len(study.presets), unit="runs")
        return replace(now, stage="blocks") if now.stage == Stage.CONFIRM else now


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
    done = history.count(Stage.SEARCH)
    trials = study.budget.trials if history.search_limit is None else history.search_limit
    runs_left = None
    if trials is not None:
        every = study.search.sentinel_every
        searched = trials + (trials // every if every else 0)
        runs_left = left + max(0, searched - done - history.count(Stage.SENTINEL))
    stage = Stage.SEARCH if done else Stage.BASELINE
    return Progress(stage.value, done, trials, "trials", runs_left)


def _keeps_the_baseline(study: Study, verdict: ConfirmationVerdict | None, answer: Answer) -> bool:
    """Nothing is better, or nothing but a lucky look says so. What was not judged yet may still be worth a try."""
    candidate, base = answer.candidate, answer.reference.value
    if verdict is not None and (verdict.conclusion != Conclusion.UNCONFIRMED or candidate is None):
        return verdict.conclusion != Conclusion.CONFIRMED
    if candidate is None or base is None:
        return False
    return study.goal.score(candidate.value) <= study.goal.score(base)
