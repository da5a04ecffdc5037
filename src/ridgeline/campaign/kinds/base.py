"""The seam: a kind of campaign, that is, a question that can be asked of a study, and the agenda that answers it.

A question is a frozen record of plain values (what `dataclasses.asdict` gives is what the journal keeps, and the class
called with it gives the question back). Everything else a campaign of this kind needs follows from it:
- `applied_to` is the study as this campaign runs it, with its own question in words, baseline and stages;
- `agenda` says what to run next, decided from the history alone, so that a resumed campaign decides the same;
- `verdict_from` reads the verdict that the agenda came to back from the journal;
- `progress`, `answer` and `exhibits` are what every face shows, functions of study and history only;
- `shown` (`records.exhibit.KindShown`) says what its report shows first and leaves out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Generic, TypeVar

from ridgeline import catalog
from ridgeline.campaign.advice import baseline_failure, open_question
from ridgeline.campaign.check import CheckedStudy
from ridgeline.campaign.confirmation import ConfirmationPlan, broken, known_nodes, nodes_had_before, nodes_of_block
from ridgeline.campaign.ledger import Ledger, Reserve
from ridgeline.campaign.scores import next_baseline_placement, slow_nodes
from ridgeline.campaign.verdict import answer_of
from ridgeline.errors import InputError, SiteError, StoreError
from ridgeline.records.answer import Answer, Candidate, Progress, Reference, Standing, Use
from ridgeline.records.exhibit import Exhibits, KindShown
from ridgeline.records.observation import Proposal
from ridgeline.records.outcome import Kind
from ridgeline.records.run import Run
from ridgeline.records.space import Discrete, Point, point_key
from ridgeline.records.study import Study
from ridgeline.records.trial import PredictedRange, Stage, Trial
from ridgeline.stats.nodes import MOST_URGENT, BaselinePlacement, most_baseline_runs
from ridgeline.study.codec import KeptVerdict, QuestionLine, SetAside, VerdictLine
from ridgeline.study.history import History

_MOST_CANCELS = 5  # of one trial by others, under one controller, before somebody has to ask who does that
_FAULTS_IN_A_ROW = 3  # trials lost to the site, each after all its retries, before we stop asking it


@dataclass(frozen=True, slots=True)
class NextTrial:
    """A trial to start now. `again`: it was started before and fell to a fault of node or site."""

    trial: Trial
    again: bool = False
    avoid_nodes: tuple[str, ...] = ()
    on_nodes: tuple[str, ...] = ()


@dataclass
class Agenda(ABC):
    """`next` is asked whenever a slot is free, `conclude` when nothing runs and nothing can be started.

    Here is what all kinds of campaign share: trials that must be run again, the baseline, the budget. Each kind says
    which trials are its own (`fresh`), what a run teaches it (`teach`), and what it concludes.
    """

    study: Study
    history: History
    ledger: Ledger
    _again: list[int] = field(default_factory=list, init=False)
    _faults: int = field(default=0, init=False)
    _unanswered: Run | None = field(default=None, init=False)  # of a setting that passed, after all its retries
    _before: frozenset[int] = field(default=frozenset(), init=False)  # runs that ended under another controller

    def __post_init__(self) -> None:
        self._before = frozenset(self.history.runs)
        for run in list(self.history.runs.values()):
            self.learn(run)
        self._again = [
            number
            for number, trial in self.history.trials.items()
            if self._needs_another(self.history.final_run(trial), trial) and not self.is_open(number)
        ]
        self._faults = 0

    # what each kind decides

    @abstractmethod
    def fresh(self) -> NextTrial | None:
        """A trial that was not started before; None: nothing can be started now."""

    @abstractmethod
    def conclude(self) -> ConfirmationPlan | KeptVerdict:
        """What follows when nothing runs and nothing can be started."""

    def teach(self, trial: Trial, run: Run) -> None:  # noqa: B027  most kinds learn nothing beyond the history
        """Called with every run that counts for its trial, in the order they ended."""

    @property
    def reserve(self) -> Reserve:
        """Runs that the baseline and the search must leave room for."""
        return Reserve()

    # what people may tell it meanwhile

    def to_be_tried(self, point: Point) -> tuple[Point, str]:
        """A setting that somebody wants tried, whole; and why it cannot be, empty where it can."""
        return point, "a campaign of this kind has a fixed list of settings; start a search with `ridgeline tune`"

    @property
    def trials_limit(self) -> int | None:
        """How many search trials there may be; None: as many as time and node-hours allow."""
        return None

    def why_no_more_trials(self) -> str:
        """Why the limit of trials cannot be raised now; empty where it can."""
        return "a campaign of this kind has no trials to add to"

    def reconsider(self) -> None:  # noqa: B027  most kinds decide from the history alone
        """Called after an instruction: what was given up for lack of budget may be possible now."""

    # what a finished run means for all of them

    def learn(self, run: Run) -> None:
        """Note whether the trial must be tried again; teach what the run shows otherwise."""
        trial = self.history.trials[run.trial]
        assert run.outcome is not None
        if self._needs_another(run, trial):
            if trial.number not in self._again:
                self._again.append(trial.number)
            return
        counts = trial.number not in self.history.uncounted
        if run.outcome.was is not None and counts and run.number not in self._before:
            self._unanswered = run
            return
        lacked = self.history.build_that_lacked(trial.settings) is not None
        self._faults = self._faults + 1 if run.outcome.kind.retryable and not lacked else 0
        self.teach(trial, run)

    def _needs_another(self, run: Run | None, trial: Trial) -> bool:
        if run is None or run.outcome is None:
            return not self.is_open(trial.number)
        if run.outcome.kind is Kind.CANCELLED:
            return run.number not in self.history.instructions.cancelled
        if self.history.build_that_lacked(trial.settings) is not None:
            return False  # a program that is not there does not come by itself
        runs = self.history.runs_of[trial.number]
        if run.outcome.was is not None:
            if trial.number in self.history.uncounted:
                return False
            # whoever resumes has looked at what was in its way
            runs = [each for each in runs if each.number not in self._before]
        faults = sum(r.outcome is not None and r.outcome.kind.retryable for r in runs)
        return run.outcome.kind.retryable and faults <= self.study.job.retries

    def is_open(self, trial: int) -> bool:
        return any(run.trial == trial for run in self.history.open_runs.values())

    # what to run

    def next(self) -> NextTrial | SetAside | None:
        """A trial to start now, or a block that must be set aside first; None: nothing can be started now."""
        if self._unanswered is not None:
            raise open_question(self.study, self.history, self._unanswered)
        if self._faults >= _FAULTS_IN_A_ROW:
            raise SiteError(
                f"{self._faults} trials in a row were lost to faults of the site, each after "
                f"{self.study.job.retries} retries; have someone look at the site, then resume"
            )
        if (fallen := self._broken_block()) is not None:
            self._again = [number for number in self._again if number not in fallen.trials]
            return fallen
        if self._again:
            self._apply_cancels(self._again[0])
            return self.again(self.history.trials[self._again.pop(0)])
        return self.fresh() or self._profile()

    def _apply_cancels(self, trial: int) -> None:
        """A job that somebody cancels is run again, but not for ever."""
        here = (
            r for r in self.history.runs_of.get(trial, ()) if self.history.opening_of[r.number] == self.history.openings
        )
        cancels = [run for run in here if run.outcome is not None and run.outcome.kind is Kind.CANCELLED]
        if len(cancels) >= _MOST_CANCELS:
            raise SiteError(
                f"trial {trial} was cancelled {len(cancels)} times, and not by this campaign (last run folder "
                f"{cancels[-1].folder}: {cancels[-1].outcome}); ask at the site who does that, then resume"
            )

    def _profile(self) -> NextTrial | None:
        """A run under the study's profiler, when nothing else is to be started and nothing is disturbed."""
        if self.study.profile is None or self.history.open_runs or not self.history.reference:
            return None
        done = {trial.key for trial in self.history.trials.values() if trial.stage is Stage.PROFILE}
        for point in (self.study.baseline, *self.best()):
            if point_key(point) not in done and self.fits(point):
                return self.new(point, Stage.PROFILE, "profile")
        return None

    def best(self) -> Sequence[Point]:
        """The setting to profile beside the baseline; empty where there is none."""
        return (self.history.candidates or ())[:1]

    def _broken_block(self) -> SetAside | None:
        if self.history.candidates is None:
            return None
        flying = self.flying_blocks()
        still = (block for block in range(self.history.first_block, self.history.blocks) if block not in flying)
        fallen = (broken(self.study, self.history, block, self._again) for block in still)
        return next((found for found in fallen if found is not None), None)

    def flying_blocks(self) -> set[int | None]:
        """Blocks of which a run is under way: two at a time would disturb each other."""
        return {self.history.trials[run.trial].block for run in self.history.open_runs.values()}

    def again(self, trial: Trial) -> NextTrial:
        """A trial that is already in the journal, with where it must and must not run."""
        ended = ((run, run.outcome) for run in self.history.runs_of.get(trial.number, ()))
        bad = tuple(
            n for run, how in ended if how is not None and how.kind is Kind.NODE_FAULT for n in run.ending.nodes
        )
        if not self._pinned(trial):
            bad += self._unlucky_nodes(trial, bad)
        # one that never began, or was only stopped, goes where it was to go: a kill changes nothing
        where = BaselinePlacement(self._pinned(trial)) if bad else self._where(trial)
        avoid = (*bad, *self._slow(trial, bad), *where.avoid)
        return NextTrial(trial, again=True, avoid_nodes=avoid, on_nodes=where.nodes)

    def _unlucky_nodes(self, trial: Trial, bad: Sequence[str]) -> tuple[str, ...]:
        """Where a setting that had passed did not, as long as enough other nodes are left to try it on."""
        runs = self.history.runs_of.get(trial.number, [])
        found = dict.fromkeys(n for r in runs if r.outcome is not None and r.outcome.was for n in r.ending.nodes)
        left = self.study.site.nodes - len({*bad, *found})
        return tuple(found) if left >= self._width(trial.point) else ()

    def baseline(self) -> NextTrial | None:
        """The next run of the baseline. One that did not pass ends the campaign; a resumed one runs it again."""
        if self.history.count(Stage.SEARCH):
            return None  # that stage is over for good, and a long history need not be looked through for each trial
        tried = [trial for trial in self.history.trials.values() if trial.stage is Stage.BASELINE]
        if not tried:
            return self.new(self.study.baseline, Stage.BASELINE, "baseline")
        passed = len({trial.number for trial, _ in self.history.ok_runs(Stage.BASELINE)})
        last = tried[-1]
        run = self.history.final_run(last)
        # a stopped campaign that goes on with several slots runs its cancelled baseline again right now
        if run is None or run.outcome is None or self.is_open(last.number):
            return None
        if not passed:
            if run.number not in self._before:
                raise baseline_failure(self.study, self.history, run, run.outcome)
            return self.new(self.study.baseline, Stage.BASELINE, "baseline", "again: it had not passed")
        # a trial to compare with it is worth more than one more run of the baseline
        if len(tried) < self._repeats(tried) and self.fits(self.study.baseline, replace(self.reserve, trials=1)):
            return self.new(self.study.baseline, Stage.BASELINE, "baseline")
        return None

    def _repeats(self, tried: Sequence[Trial]) -> int:
        """How many baseline trials there are to be: what failed before the first that passed does not count."""
        first = next(iter(self.history.ok_runs(Stage.BASELINE)))[0]
        return sum(trial.number < first.number for trial in tried) + self.study.baseline_stage.repeats

    def baseline_finished(self) -> bool:
        # once search trials exist the baseline stage is over for good; before, there are only a few trials to look at
        if self.history.count(Stage.SEARCH):
            return True
        return not self.history.open_runs and all(map(self.history.final_run, self.history.trials.values()))

    def cannot_be_built(self, point: Point) -> bool:
        """A compiler or module that this point names was missing when another point was built."""
        return self.history.build_that_lacked(self.study.space.settings(point)) is not None

    def buildable(self, ask: Callable[[Sequence[Point]], Proposal | None], pending: Sequence[Point]) -> Proposal | None:
        """The first proposal that can be built; the others cost no trial."""
        passed_over: dict[str, Point] = {}
        while (proposal := ask([*pending, *passed_over.values()])) is not None and self.cannot_be_built(proposal.point):
            if point_key(proposal.point) in passed_over:
                return None
            passed_over[point_key(proposal.point)] = proposal.point
        return proposal

    def warm_up(self) -> NextTrial | None:
        """A run that does not count, where nothing has run yet and the study does not forbid it."""
        if self.history.trials or self.study.confirm.warmup == "never":
            return None
        return self.new(self.study.baseline, Stage.WARM_UP, "warm-up", "nothing has run here yet")

    def warms_up(self) -> bool:
        return any(self.history.trials[run.trial].stage is Stage.WARM_UP for run in self.history.open_runs.values())

    def fits(self, point: Point, reserve: Reserve | None = None) -> bool:
        return self.ledger.fits(point, self._width(point), reserve or Reserve())

    def new(
        self,
        point: Point,
        stage: Stage,
        proposer: str,
        why: str = "",
        block: int | None = None,
        predicted: PredictedRange | None = None,
    ) -> NextTrial:
        number, settings = len(self.history.trials) + 1, self.study.space.settings(point)
        trial = Trial(number, dict(point), settings, stage, proposer, why, block, predicted=predicted)
        where = self._where(trial)
        return NextTrial(trial, avoid_nodes=(*self._slow(trial), *where.avoid), on_nodes=where.nodes)

    def _where(self, trial: Trial) -> BaselinePlacement:
        placed = self._placement() if trial.stage in (Stage.BASELINE, Stage.SENTINEL) else BaselinePlacement()
        return placed if placed.nodes or placed.avoid else BaselinePlacement(self._pinned(trial))

    def sentinel_due(self) -> bool:
        """Every so many search trials; sooner where one more run of the baseline may show a slow node."""
        every, done = self.study.search.sentinel_every, self.history.count(Stage.SEARCH)
        if not every or not done:
            return False
        sentinels, regular = self.history.count(Stage.SENTINEL), done // every
        most = min(
            done * MOST_URGENT, regular + most_baseline_runs(self.study.site.nodes, self._width(self.study.baseline))
        )
        return sentinels < regular or (sentinels < most and sentinels < done * self._placement().urgent)

    def _placement(self) -> BaselinePlacement:
        if self.study.site.nodes < 2:
            return BaselinePlacement()
        return next_baseline_placement(self.study, self.history, self._width(self.study.baseline))

    def _width(self, point: Point) -> int:
        return self.study.job.resources(self.study.space.settings(point)).nodes

    def _slow(self, trial: Trial, bad: Sequence[str] = ()) -> tuple[str, ...]:
        """Nodes that a block of the confirmation does not begin on, as long as enough others are left: slow ones, and
        those that had more of its blocks than others. What is gained on a node counts once, however many blocks it had.
        """
        if trial.stage not in (Stage.CONFIRM, Stage.WARM_UP) or self._pinned(trial):
            return ()
        if known_nodes(self.study, self.history) < 2:
            return ()
        width = self._width(trial.point)
        slow = slow_nodes(self.study, self.history, width)
        return (*slow, *nodes_had_before(self.history, trial.block or 0, width, (*bad, *slow)))

    def _pinned(self, trial: Trial) -> tuple[str, ...]:
        """Where its block began. A batch system has other nodes until it has shown that it has none, whatever the site
        file says."""
        if trial.block is None or (self.study.site.nodes < 2 and self.study.site.batch == "local"):
            return ()
        return nodes_of_block(self.history, trial.block, self._width(trial.point))


V = TypeVar("V", bound=KeptVerdict)
V2 = TypeVar("V2")
FORMER = ("environment", "shrink")  # kinds of release 0.2


class CampaignKind(ABC, Generic[V]):
    """What is asked, with what every face shows of it. A kind says its agenda, and what differs from what is here."""

    __slots__ = ()

    kind: ClassVar[str]  # its name in the catalog and in the journal
    verdict_type: ClassVar[type[KeptVerdict]] = KeptVerdict
    reference: ClassVar[str] = "the baseline"  # what it calls the setting that the others are held against
    shown: ClassVar[KindShown] = KindShown()
    extended_by: ClassVar[tuple[str, ...]] = ()  # trials, blocks: what more of it can go on after its verdict
    stage: ClassVar[str] = "runs"  # what progress names until there is a verdict
    use: ClassVar[Use] = Use.NEITHER  # while no candidate is confirmed
    standings: ClassVar[Mapping[str, Standing | None]] = {}  # by conclusion, of a setting that was asked about
    if_worse: ClassVar[str] = ""  # what it lacks then; empty: what the headline says

    def applied_to(self, study: Study) -> Study:
        return study

    @abstractmethod
    def agenda(self, found: CheckedStudy, history: History, ledger: Ledger) -> Agenda: ...

    def verdict_from(self, line: VerdictLine) -> V:
        return self.verdict_type.from_line(line)  # type: ignore[return-value]

    def found(self, history: History) -> V | None:
        """The verdict, once there is one."""
        return None if history.verdict is None else self.verdict_from(history.verdict)

    def called(self, trial: Trial) -> str:
        """What a trial is for, in a word: baseline, confirm, B."""
        return trial.stage.text

    def groups(self, history: History) -> dict[int, str]:
        return {trial.number: self.called(trial) for trial in history.trials.values()}

    def progress(self, study: Study, history: History) -> Progress:
        """Of a campaign that nobody can say the length of."""
        stage = "finished" if history.verdict is not None else self.stage
        return Progress(stage, len(history.runs), None, "runs", None)

    def sides(self, study: Study, history: History, verdict: V | None) -> tuple[Reference, Candidate | None]:
        """What is held against what, from the same runs."""
        return Reference(self.reference, study.baseline, None), None

    def facts(self, study: Study, history: History, verdict: V | None, answer: Answer) -> dict[str, Any]:
        """What JSON says beside the answer."""
        return {"best": None if answer.candidate is None else answer.candidate.as_json(study.goal.metric)}

    def headline(self, study: Study, history: History, verdict: V, answer: Answer) -> str:
        return verdict.headline

    def answer(self, study: Study, history: History) -> Answer:
        verdict = self.found(history)
        reference, candidate = self.sides(study, history, verdict)
        use = Use.CANDIDATE if candidate is not None and candidate.confirmed else self.use
        answer = answer_of(self.kind, history.verdict, reference, candidate, {}, use)
        answer = replace(answer, facts=self.facts(study, history, verdict, answer))
        # what cannot be proven is no question of more runs: those there are do not show what was said of them
        if verdict is None or answer.unproven:
            return answer
        shown = self.standings.get(verdict.conclusion)
        why = self.if_worse if shown is Standing.WORSE else ""
        return replace(answer, headline=self.headline(study, history, verdict, answer), shown=shown, why=why)

    def exhibits(self, study: Study, history: History) -> Exhibits:
        return Exhibits()


CampaignQuestion = CampaignKind[Any]


class RepeatedSettings(CampaignKind[V]):
    """What questions share that run given settings again and again and search for none."""

    __slots__ = ()

    runs_called: ClassVar[str]  # a run outside blocks, in a word
    most_is_planned: ClassVar[bool] = False  # the most runs are those of a plan, not only a limit far away

    points: Sequence[Point]

    @property
    @abstractmethod
    def asked(self) -> str:
        """The question in words, which the study's own is not about."""

    @property
    def first(self) -> Point:
        """The setting that the others are held against."""
        return self.points[0]

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
class FormerQuestion(CampaignKind[KeptVerdict]):
    """Of a kind that earlier releases had: what the folder says is shown, and nothing more is run."""

    kind: str  # type: ignore[misc]
    details: Mapping[str, Any]

    use: ClassVar[Use] = Use.CANDIDATE

    def applied_to(self, study: Study) -> Study:
        sides = (self.details.get("good", {}), self.details.get("bad", {}))
        own = [Discrete(name, tuple(side[name] for side in sides), False) for name in self.details.get("variables", ())]
        return replace(study, space=replace(study.space, knobs=(*study.space.knobs, *own)))

    def agenda(self, found: CheckedStudy, history: History, ledger: Ledger) -> Agenda:
        raise InputError(
            f"{history.root}: this release has no campaigns of kind {self.kind}; what it found is shown, but only "
            "release 0.2 runs it"
        )

    def facts(self, study: Study, history: History, verdict: KeptVerdict | None, answer: Answer) -> dict[str, Any]:
        return {} if history.verdict is None else dict(history.verdict.details)


def legal_points(
    found: CheckedStudy, knob: str, start: Point, values: Iterable[V2]
) -> tuple[dict[V2, Point], dict[V2, str]]:
    """The setting with each of these values of a knob, and of those that may not run the reason."""
    legal, refused = dict[V2, Point](), dict[V2, str]()
    for value in values:
        point = found.study.space.restrict({**start, knob: value})  # type: ignore[dict-item]
        if gaps := found.study.space.missing(point):
            refused[value] = f"{', '.join(gaps)} has no value there"
        elif reason := found.refusal(point):
            refused[value] = reason
        else:
            legal[value] = point
    return legal, refused


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
