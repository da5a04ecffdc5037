"""What to run next, decided from the history alone, so that a resumed campaign decides the same."""

from __future__ import annotations

from dataclasses import dataclass, field

from ridgeline.campaign import confirmation
from ridgeline.campaign.advice import PROPOSER, Advice
from ridgeline.campaign.ledger import Ledger, Reserve
from ridgeline.errors import NothingFound, SiteError
from ridgeline.records.lesson import Lesson, Proposal
from ridgeline.records.outcome import Kind
from ridgeline.records.run import Run
from ridgeline.records.space import Point, point_key
from ridgeline.records.study import Study
from ridgeline.records.trial import Stage, Trial
from ridgeline.samplers.base import Refusal, Sampler
from ridgeline.store.history import History

FAULTS_IN_A_ROW = 3  # trials lost to the site, each after all its retries, before we stop asking it


@dataclass(frozen=True, slots=True)
class Next:
    """A trial to start now. `again`: it was started before and fell to a fault of node or site."""

    trial: Trial
    again: bool = False
    avoid_nodes: tuple[str, ...] = ()
    on_nodes: tuple[str, ...] = ()


@dataclass
class Agenda:
    """`next` is asked whenever a slot is free. After `plan_confirmation` it hands out confirm trials."""

    study: Study
    history: History
    sampler: Sampler
    ledger: Ledger
    refusal: Refusal = lambda point: None
    search_over: str = ""  # why no more search trials are started
    _again: list[int] = field(default_factory=list)
    _unteachable: dict[str, Point] = field(default_factory=dict)  # ran, but taught nothing: not to be asked again
    _faults: int = 0
    _presets: dict[str, Point] = field(default_factory=dict)  # not yet tried
    _tried: set[str] | None = None  # keys of all trials; made when first needed, since it takes time with 10,000

    def __post_init__(self) -> None:
        self._advice = Advice(self.study.space, self.refusal)
        self._presets = {point_key(preset): preset for preset in self.study.presets}
        if self._presets:
            for key in self._already_tried():
                self._presets.pop(key, None)
        for run in list(self.history.runs.values()):
            self.learn(run)
        self._again = [
            number
            for number, trial in self.history.trials.items()
            if self._needs_another(self.history.final_run(trial), trial) and not self._is_open(number)
        ]
        self._faults = 0

    # what a finished run teaches

    def learn(self, run: Run) -> None:
        """Tell the sampler what this run shows, and note whether the trial must be tried again."""
        trial = self.history.trials[run.trial]
        assert run.outcome is not None
        if self._needs_another(run, trial):
            if trial.number not in self._again:
                self._again.append(trial.number)
            return
        kind = run.outcome.kind
        self._faults = self._faults + 1 if kind.retryable else 0
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

    def _needs_another(self, run: Run | None, trial: Trial) -> bool:
        if run is None or run.outcome is None:
            return not self._is_open(trial.number)
        if run.outcome.kind is Kind.CANCELLED:
            return True
        runs = self.history.runs_of[trial.number]
        faults = sum(r.outcome is not None and r.outcome.kind.retryable for r in runs)
        return run.outcome.kind.retryable and faults <= self.study.job.retries

    def _is_open(self, trial: int) -> bool:
        return any(run.trial == trial for run in self.history.open_runs.values())

    # what to run

    def next(self) -> Next | None:
        """None: nothing can be started now. Look at `done` when nothing runs either."""
        if self._faults >= FAULTS_IN_A_ROW:
            raise SiteError(
                f"{self._faults} trials in a row were lost to faults of the site, each after "
                f"{self.study.job.retries} retries; have the site looked at, then resume"
            )
        if self._again:
            return self.again(self.history.trials[self._again.pop(0)])
        return self.fresh()

    def fresh(self) -> Next | None:
        """A trial that was not started before, by stages; other kinds of campaign have other stages."""
        if self.history.candidates is not None:
            return self._confirm()
        return self._baseline() or self._search()

    def again(self, trial: Trial) -> Next:
        """A trial that is already in the journal, with where it must and must not run."""
        bad = tuple(n for r in self.history.runs_of.get(trial.number, []) for n in _faulty_nodes(r))
        return Next(trial, again=True, avoid_nodes=bad, on_nodes=self._pinned(trial))

    def _baseline(self) -> Next | None:
        stage = self.history.count(Stage.BASELINE)
        if stage == 0:
            return self._new(self.study.baseline, Stage.BASELINE, "baseline")
        trial = next(iter(self.history.trials.values()))
        first = self.history.final_run(trial)
        # a stopped campaign that goes on with several slots runs its cancelled baseline again right now
        if first is None or first.outcome is None or self._is_open(trial.number):
            return None
        if first.outcome.kind is not Kind.OK:
            raise NothingFound(
                f"the baseline itself did not pass: {first.outcome} (run folder {first.folder}); "
                "nothing can be compared with it, so nothing else was run"
            )
        if stage < self.study.baseline_stage.repeats and self._fits(self.study.baseline, searching=True):
            return self._new(self.study.baseline, Stage.BASELINE, "baseline")
        return None

    def _search(self) -> Next | None:
        if not self._baseline_finished() or self.search_over:
            return None
        done = self.history.count(Stage.SEARCH)
        limit = self.ledger.search_trials
        if limit is not None and done >= limit:
            self.search_over = f"all {limit} trials of the budget were used"
            return None
        every = self.study.search.sentinel_every
        if every and done and self.history.count(Stage.SENTINEL) < done // every:
            if self._fits(self.study.baseline, searching=True):
                return self._new(self.study.baseline, Stage.SENTINEL, "sentinel")
            self.search_over = "the budget has room for the confirmation only"
            return None
        return self._proposal()

    def _proposal(self) -> Next | None:
        proposer, proposal = self._proposed()
        if proposal is None:
            self.search_over = "every legal point was tried"
            return None
        if not self._fits(proposal.point, searching=True):
            # with runs in flight the estimate may still improve; without, it is final
            if not self.history.open_runs:
                self.search_over = "another run would not fit into the budget"
            return None
        return self._new(proposal.point, Stage.SEARCH, proposer, proposal.why)

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

    def _baseline_finished(self) -> bool:
        # once search trials exist the baseline stage is over for good; before, there are only a few trials to look at
        if self.history.count(Stage.SEARCH):
            return True
        return not self.history.open_runs and all(map(self.history.final_run, self.history.trials.values()))

    def _confirm(self) -> Next | None:
        flying = {self.history.trials[r.trial].block for r in self.history.open_runs.values()}
        for block in range(self.history.blocks):
            if block in flying:
                continue
            point = confirmation.next_in_block(self.study, self.history, block)
            if point is None:
                continue
            if not self._fits(point, searching=False):
                return None
            return self._new(point, Stage.CONFIRM, "confirm", block=block)
        return None

    def _fits(self, point: Point, searching: bool) -> bool:
        nodes = self.study.job.resources(self.study.space.settings(point)).nodes
        return self.ledger.fits(point, nodes, confirmation.reserve(self.study) if searching else Reserve())

    def _new(self, point: Point, stage: Stage, proposer: str, why: str = "", block: int | None = None) -> Next:
        self._presets.pop(point_key(point), None)
        if self._tried is not None:
            self._tried.add(point_key(point))
        number = len(self.history.trials) + 1
        trial = Trial(number, dict(point), self.study.space.settings(point), stage, proposer, why, block)
        return Next(trial, on_nodes=self._pinned(trial))

    def _pinned(self, trial: Trial) -> tuple[str, ...]:
        if trial.block is None or self.study.site.nodes < 2:
            return ()
        return confirmation.nodes_of_block(self.history, trial.block)


def _faulty_nodes(run: Run) -> tuple[str, ...]:
    return run.ending.nodes if run.outcome is not None and run.outcome.kind is Kind.NODE_FAULT else ()
