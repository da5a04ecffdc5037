"""The loop that joins agenda, workload and executor, whatever the kind of campaign; journaled step by step.

Each act is first a line on disk. A controller killed between two lines is repaired by replay: a planned run is looked
for at the site and adopted, or handed over if it never was.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from ridgeline.campaign.builds import Builder
from ridgeline.campaign.confirmation import ConfirmationPlan
from ridgeline.campaign.instruction_handler import CANCELLED, InstructionHandler
from ridgeline.campaign.judge import judge, misplaced, reading_of, without_blame
from ridgeline.campaign.kinds.base import Agenda, CampaignQuestion, NextTrial, question_line
from ridgeline.campaign.ledger import Ledger
from ridgeline.campaign.machine import controller
from ridgeline.campaign.point_text import pasted
from ridgeline.campaign.task import forbidden_job, nodes_for, write_compliance
from ridgeline.campaign.under_way import RunMonitor, not_run
from ridgeline.errors import NothingFound, StoreError
from ridgeline.executors.base import Executor, with_retries
from ridgeline.files import is_there
from ridgeline.records.guard import TextGuard
from ridgeline.records.measurement import Reading
from ridgeline.records.outcome import Kind, Outcome
from ridgeline.records.run import Ending, Job, Run
from ridgeline.records.secrets import masked
from ridgeline.records.study import Study
from ridgeline.records.trial import Trial
from ridgeline.stats.compare import PROTOCOL
from ridgeline.study.codec import (
    Build,
    Charged,
    ConfirmationBegun,
    Event,
    KeptVerdict,
    RunBegun,
    RunEnded,
    SetAside,
    Stopped,
    Submitted,
    VerdictLine,
    event_of,
    opened_event,
)
from ridgeline.study.grant import BATCH_SYSTEM, MEASURED, GrantUsedUp, read_grant, reserve, settle
from ridgeline.study.history import History, OpenRun
from ridgeline.study.journal import Journal, failure
from ridgeline.study.state_files import put_away, write_result
from ridgeline.workloads.base import Workload

T = TypeVar("T")

_BUILD = "build "  # before the key of a variant: what a grant has it as
_LONGEST_WAIT_S = 0.5  # between two looks at Ctrl-C
_CANCEL_PATIENCE_S = 30.0
_LINGERING_S = 60.0  # a batch system may add to its own output for a while after the job wrote its exit file
_SUBMIT_PATIENCE_S = 900.0  # how long a site that is away is asked again before the campaign stops


class Interrupted(Exception):  # noqa: N818  asked for, not an error
    """The user asked to stop; everything is on disk."""


@dataclass
class Campaign:
    """One controller's work on a study folder. `run` returns when there is a verdict."""

    question: CampaignQuestion
    study: Study  # as the question asks it
    workload: Workload
    executor: Executor
    journal: Journal
    history: History
    agenda: Agenda
    ledger: Ledger
    builder: Builder | None = None
    on_change: Callable[[Campaign], None] = lambda campaign: None
    stop_requested: Callable[[], bool] = lambda: False
    _flying: dict[str, int] = field(default_factory=dict)  # ticket -> run number
    _unbuilt: dict[int, NextTrial] = field(default_factory=dict)  # runs whose program is not built yet
    _unpaid: dict[int, Job] = field(default_factory=dict)  # runs that wait for what others of ours have reserved
    _has_room: bool = False  # a run has ended since builds were last tried: what it had reserved may pay for one
    _unfolded: deque[tuple[float, Path]] = field(default_factory=deque)  # when (monotonic) to fold whose state files

    def __post_init__(self) -> None:
        # what the study itself reads or searches by such a name stays a file
        own = {*self.workload.logs, *(guard.file for guard in self.study.guards if isinstance(guard, TextGuard))}
        self._state_files = tuple(name for name in self.executor.state_files if name not in own)
        self._paid_as = str(self.history.root)
        self._run_monitor = RunMonitor(self.study, self.workload.logs)

    def run(self) -> KeptVerdict:
        """The verdict, as the journal holds it. Raises Interrupted, NothingFound, SiteError (of which
        OpenQuestion) or StoreError."""
        opened_by = controller(self.study, self.workload)
        self.record(opened_event(opened_by, question_line(self.question), self.history.asked))
        try:
            self._pay()
            self._adopt()
            handler = InstructionHandler(self.history, self.agenda, self.ledger, self.executor, self.record)
            handler.take_up()
            while self.history.verdict is None:
                handler.handle()
                self.check_stop()
                self.journal.require_in_place()
                self._watch_running()
                changed = self._start_what_fits() | self._collect_builds() | self._collect()
                self._settle()
                self._fold()
                if changed:
                    continue
                if self._flying or self._unbuilt:
                    awaited = self.executor if self._flying or self.builder is None else self.builder.executor
                    awaited.wait(_LONGEST_WAIT_S)
                elif self.history.instructions.paused:
                    time.sleep(_LONGEST_WAIT_S)
                else:
                    self._next_stage()
            handler.finish()
            self._settle(ask=True)
            self._fold(at_once=True)
        except OSError as error:
            trouble = failure(Path(error.filename or self.history.root), self.history.root, error)
            self._leave(trouble)
            raise trouble from error
        except BaseException as error:
            self._leave(error)
            raise
        self.record(event_of(Stopped("finished")))
        write_compliance(self.study, self.history.root, self.workload)
        verdict: KeptVerdict = self.question.verdict_from(self.history.verdict)
        return verdict

    def record(self, event: Event) -> None:
        """On disk first, then in mind."""
        event = {"at": round(time.time(), 3), **event}
        self.journal.append(event)
        self.history.apply(event)
        self.on_change(self)

    def _adopt(self) -> None:
        """Runs planned when the last controller ended: still running, finished meanwhile, or never handed over.

        Of runs that had ended, the state files that it did not come to fold.
        """
        for run in self.history.runs.values():
            if self._state_files and is_there(run.folder / self._state_files[-1]):
                self._fold_later(run.folder)
        for planned in list(self.history.open_runs.values()):
            trial = self.history.trials[planned.trial]
            job = self._prepare(trial, planned.folder)
            if isinstance(job, Job) and (ticket := self._ticket_of(planned, job)):
                if not planned.ticket:  # it was handed over by a controller that did not live to note it down
                    self.record(event_of(Submitted(planned.number, ticket)))
                self._flying[ticket] = planned.number
            elif planned.number in self.history.instructions.cancelled:
                self._close(planned, not_run(CANCELLED.reason), Reading(), CANCELLED)
            else:
                self._go_on(planned, job, replace(self.agenda.again(trial), on_nodes=self._pinned(planned.number)))

    def _ticket_of(self, planned: OpenRun, job: Job) -> str | None:
        if planned.ticket and self.executor.detached:
            return planned.ticket
        return self.with_retries(lambda: self.executor.find(job))

    # starting

    def _start_what_fits(self) -> bool:
        for number in list(self._unpaid):
            self._submit(number, self._unpaid.pop(number))
        if self._unpaid:
            return False
        started, slots = False, 0 if self.history.instructions.paused else self.executor.slots
        while len(self._flying) + len(self._unbuilt) < slots and (step := self.agenda.next()) is not None:
            if isinstance(step, SetAside):
                self.record(event_of(step))
            else:
                self._start(step)
            started = True
        return started

    def _start(self, step: NextTrial) -> None:
        trial = step.trial
        if not step.again:
            self.record(event_of(trial))
        number = self.history.last_run_number + 1
        attempt = len(self.history.runs_of.get(trial.number, ())) + 1
        folder = Path("runs") / f"{number:04d}-{trial.label}"
        job = self._prepare(trial, self.history.root / folder)
        planned = job
        if planned is None and self.builder is not None:
            # what it will ask for does not depend on what is built
            as_built = replace(trial, build=self.builder.folder_of(trial.settings))
            planned = self.workload.prepare(as_built, self.history.root / folder)
        resources = planned.resources if isinstance(planned, Job) else self.study.job.resources(trial.settings)
        on_nodes = step.on_nodes
        if self.study.task is not None:
            on_nodes = nodes_for(self.study.task, number, resources.nodes, on_nodes, step.avoid_nodes)
        on_nodes = on_nodes if self.executor.pins_nodes else ()
        begun = RunBegun(number, trial.number, attempt, folder.as_posix(), resources, on_nodes, step.avoid_nodes)
        self.record(event_of(begun))
        self._go_on(self.history.open_runs[number], job, replace(step, on_nodes=on_nodes))

    def _prepare(self, trial: Trial, folder: Path) -> Job | Outcome | None:
        """The job in its folder, or why its build failed; None while it is being built."""
        folder.mkdir(parents=True, exist_ok=True)
        if self.builder is not None:
            try:
                built = self.builder.ensure(trial.settings)
            except GrantUsedUp:
                if not self._flying and not self.builder.is_building:
                    raise
                built = None  # what we have under way may leave some of what it has reserved
            if not isinstance(built, Path):
                return built
            trial = replace(trial, build=built)
        job = self.study.completed(self.workload.prepare(trial, folder), trial.settings)
        return forbidden_job(self.study, self.workload, job, trial.settings) or job

    def _go_on(self, planned: OpenRun, job: Job | Outcome | None, step: NextTrial) -> None:
        if job is None:
            self._unbuilt[planned.number] = step
        elif isinstance(job, Outcome):
            self._close(planned, not_run(job.reason), Reading(), job)
        else:
            self._submit(planned.number, replace(job, on_nodes=step.on_nodes, avoid_nodes=step.avoid_nodes))

    def _collect_builds(self) -> bool:
        if self.builder is None:
            return False
        if self.builder.collect():
            self._pay_builds()
        elif not self._has_room:
            return False
        self._has_room = False
        for number, step in list(self._unbuilt.items()):
            planned = self.history.open_runs[number]
            job = self._prepare(step.trial, planned.folder)
            if job is not None:
                del self._unbuilt[number]
                self._go_on(planned, job, step)
        return True

    def _pinned(self, number: int) -> tuple[str, ...]:
        return self.history.pinned_to.get(number, ())

    def _submit(self, number: int, job: Job) -> None:
        """Hand it over, once the grant has room for the most that it may take; what we have under way may make some."""
        if self.study.grant is not None:
            try:
                reserve(self.study.grant, self._paid_as, number, job.resources.nodes * job.limit_s / 3600.0)
            except GrantUsedUp:
                if not self._flying:
                    raise
                self._unpaid[number] = job
                return
        while (pause_s := self.executor.turn_in_s()) > 0:
            self.check_stop()
            self._watch_running()
            time.sleep(min(pause_s, _LONGEST_WAIT_S))
        ticket = self.with_retries(lambda: self.executor.submit(job))
        self.record(event_of(Submitted(number, ticket)))
        self._flying[ticket] = number

    def reserve_build(self, key: str, node_hours: float) -> None:
        if self.study.grant is not None:
            reserve(self.study.grant, self._paid_as, f"{_BUILD}{key}", node_hours)

    def _pay_builds(self) -> None:
        """Settle with the grant what builds on the site took, however often one was made."""
        if self.study.grant is None:
            return
        estimated = {build.key for build in self.history.uncharged.values() if isinstance(build, Build)}
        for name in read_grant(self.study.grant).unsettled(self._paid_as):
            key = str(name).removeprefix(_BUILD)
            if isinstance(name, str) and key in self.history.build_s:
                source = MEASURED if key in estimated else BATCH_SYSTEM
                settle(self.study.grant, self._paid_as, name, self.history.build_s[key] / 3600.0, source)

    def _pay(self, number: int | None = None) -> None:
        """Settle with the grant what this run took, as far as it is known, or all that ended while nobody settled."""
        if self.study.grant is None:
            return
        if number is None:
            self._pay_builds()
        numbers = [number] if number is not None else read_grant(self.study.grant).unsettled(self._paid_as)
        for run in (self.history.runs[number] for number in numbers if number in self.history.runs):
            source = MEASURED if run.ending.charged_s is None else BATCH_SYSTEM
            settle(self.study.grant, self._paid_as, run.number, run.node_hours, source)

    def with_retries(self, ask: Callable[[], T]) -> T:
        return with_retries(ask, self.check_stop, _SUBMIT_PATIENCE_S)

    def check_stop(self) -> None:
        if self.stop_requested() or self.history.instructions.stopping:
            raise Interrupted

    # ending

    def _collect(self) -> bool:
        endings = self.executor.poll(list(self._flying)) if self._flying else {}
        for ticket, ending in endings.items():
            self._finish(ticket, ending)
        return bool(endings)

    def _settle(self, ask: bool = False) -> None:
        """What the site charges for jobs that have ended, once it says so: the exit file says earlier that one has."""
        if not self.history.uncharged:
            return
        for ticket, seconds in self.executor.charged(list(self.history.uncharged), ask).items():
            ended = self.history.uncharged[ticket]
            self.record(event_of(Charged(ticket, seconds)))
            if isinstance(ended, Run):
                self._pay(ended.number)
            else:
                self._pay_builds()

    def _watch_running(self) -> None:
        for ticket, number in self._flying.items():
            if self._run_monitor.must_end(self.history.open_runs[number]):
                self.executor.cancel(ticket)

    def _finish(self, ticket: str, ending: Ending) -> None:
        self.journal.require_in_place()  # what is not there would be judged as not written
        number = self._flying.pop(ticket)
        self._has_room = True
        planned = self.history.open_runs[number]
        ending = self._run_monitor.ended(planned, ending)
        trial = self.history.trials[planned.trial]
        run = Run(number, planned.trial, planned.attempt, planned.folder, planned.resources, ending)
        reading = reading_of(self.workload, run, self.study)
        if not reading.unverified:
            reading = replace(reading, unverified=misplaced(ending, planned.resources.nodes, self._pinned(number)))
        reference = self.history.reference_of(trial.stage)
        outcome = judge(run, reading, self.workload, self.study, trial.settings, reference)
        self._close(planned, ending, reading, CANCELLED if number in self.history.instructions.cancelled else outcome)

    def _close(self, planned: OpenRun, ending: Ending, reading: Reading, outcome: Outcome) -> None:
        trial = self.history.trials[planned.trial]
        outcome = without_blame(outcome, self.study, self.history, trial, planned.number)
        shown = tuple(map(masked, ending.leftovers))
        ending = replace(ending, leftovers=shown, reason=masked(ending.reason))
        event = event_of(RunEnded(planned.number, ending, outcome, reading.measurements, reading.texts))
        fields = {name: value for name, value in event.items() if name != "event"}
        write_result(planned.folder, {"settings": dict(trial.settings), **fields}, self._state_files)
        self.record(event)
        if self.executor.detached:
            self._fold_later(planned.folder)
        else:
            put_away(planned.folder, self._state_files)
        self._pay(planned.number)
        run = self.history.runs[planned.number]
        self.ledger.learn(run)
        self.agenda.learn(run)

    def _fold_later(self, folder: Path) -> None:
        self._unfolded.append((time.monotonic() + (_LINGERING_S if self.executor.detached else 0.0), folder))

    def _fold(self, at_once: bool = False) -> None:
        """The state files of runs that have ended, once nobody adds to them."""
        while self._unfolded and (at_once or self._unfolded[0][0] <= time.monotonic()):
            put_away(self._unfolded.popleft()[1], self._state_files)

    # stages

    def _next_stage(self) -> None:
        """Nothing runs and nothing can be started: the agenda plans the confirmation, or comes to the verdict."""
        found = self.agenda.conclude()
        if isinstance(found, ConfirmationPlan):
            before = self.history.blocks
            blocks, seed = before + found.blocks, self.study.search.seed
            begun = ConfirmationBegun(tuple(found.candidates), blocks, PROTOCOL, seed, before, found.search_ended)
            self.record(event_of(begun))
            return
        details = dict(found.details())
        if found.recommended is not None:
            # as a person types it, for the report: a pure function of the journal
            details["paste"] = pasted(self.study, self.workload, found.recommended)
        self.record(event_of(VerdictLine(str(found.conclusion), found.headline, details)))

    # leaving

    def _leave(self, error: BaseException) -> None:
        """Stop what would go on without us; jobs of a batch system go on and are found again by resume."""
        reason = "interrupted" if isinstance(error, Interrupted | KeyboardInterrupt) else str(error)
        try:
            if self.builder is not None:
                self.builder.leave()
            if not self.executor.detached:
                self._cancel_all()
            self._settle(ask=isinstance(error, NothingFound))
            self.record(event_of(Stopped(reason)))
        except (StoreError, OSError) as second:
            # the disk is full, say: the first error is what the user must act on, this one is only its echo
            error.add_note(str(second))

    def _cancel_all(self) -> None:
        for ticket in self._flying:
            self.executor.cancel(ticket)
        deadline = time.monotonic() + _CANCEL_PATIENCE_S
        while self._flying and time.monotonic() < deadline:
            for ticket, ending in self.executor.poll(list(self._flying)).items():
                planned = self.history.open_runs[self._flying.pop(ticket)]
                if self.journal.in_place:
                    self._close(planned, ending, Reading(), Outcome(Kind.CANCELLED, "the study was stopped"))
            if self._flying:
                self.executor.wait(0.1)
