"""What has happened in a study so far: the journal, replayed.

The campaign, the report and the dashboard all see a study through this one view. The live campaign applies each event
right after it is on disk, so what it knows is always what a replay would know.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ridgeline.errors import StoreError
from ridgeline.records.outcome import Kind, Outcome
from ridgeline.records.run import Resources, Run
from ridgeline.records.trial import Stage, Trial
from ridgeline.study.codec import (
    Build,
    Charged,
    ConfirmationBegun,
    EarlyStop,
    Extension,
    Opened,
    QuestionLine,
    RunBegun,
    RunEnded,
    SetAside,
    Stopped,
    Submitted,
    VerdictLine,
    record_of,
)
from ridgeline.study.instructions import AppliedInstructions
from ridgeline.study.journal import read_events

_MOVES_THE_CLOCK = frozenset({"opened", "run", "ended", "instruction", "stopped"})  # kinds of events, see `_set_clock`


@dataclass(slots=True)
class OpenRun:
    """A run that was planned and has not ended. `ticket` is empty until the site has taken it."""

    number: int
    trial: int
    attempt: int
    folder: Path
    resources: Resources
    planned_s: float
    ticket: str = ""


@dataclass(frozen=True, slots=True)
class Confirmed:
    """One confirmation: its first block, its settings, and how many trials earlier ones had taken."""

    first_block: int
    candidates: tuple[Mapping[str, Any], ...]
    trials_before: int


@dataclass(eq=False)
class History:
    """Mutable only through `apply`. `root` is the study folder; run folders are resolved against it."""

    root: Path
    trials: dict[int, Trial] = field(default_factory=dict)
    runs: dict[int, Run] = field(default_factory=dict)  # ended ones, in the order they ended
    open_runs: dict[int, OpenRun] = field(default_factory=dict)
    runs_of: dict[int, list[Run]] = field(default_factory=dict)  # by trial, in the order they ended
    builds: dict[str, Build] = field(default_factory=dict)
    build_outcomes: set[Outcome] = field(default_factory=set)  # of all builds, also those that were made again
    question: QuestionLine = field(default_factory=QuestionLine)
    asked: Mapping[str, str] = field(default_factory=dict)  # fingerprints of the question, see agreement
    receipts: list[Mapping[str, Any]] = field(default_factory=list)  # machine, versions and command of each opening
    candidates: tuple[Mapping[str, Any], ...] | None = None  # points under confirmation
    search_ended: str = ""  # why no more search trials were started, and what more of them could bring
    blocks: int = 0  # planned so far; those after an extension by trials are numbered on
    confirmations: list[Confirmed] = field(default_factory=list)  # the last one is the one under way
    protocol: int = 1  # how blocks are ordered and judged: 1 in journals that do not say, see campaign/confirmation.py
    order_seed: int | None = None  # that orders of blocks are drawn from; None: the baseline begins each
    set_aside: list[SetAside] = field(default_factory=list)
    uncounted: set[int] = field(default_factory=set)  # trials of blocks that were set aside
    openings: int = 0  # how often a controller took up the campaign
    pinned_to: dict[int, tuple[str, ...]] = field(default_factory=dict)  # run -> nodes it was pinned to
    kept_off: dict[int, tuple[str, ...]] = field(default_factory=dict)  # run -> nodes that it was to avoid
    early_stops: dict[int, EarlyStop] = field(default_factory=dict)  # run -> why it was stopped
    opening_of: dict[int, int] = field(default_factory=dict)  # run -> in which of these it was started
    verdict: VerdictLine | None = None
    extensions: list[Extension] = field(default_factory=list)
    verdicts_before: list[VerdictLine] = field(default_factory=list)  # one an extension: what it found
    last_trial_before: int = 0  # the last extension
    searched_before: int = 0  # search trials at the last extension
    extensions_compared: set[int] = field(default_factory=set)  # how many there had been when blocks were run
    search_limit: int | None = None  # how many search trials there may be, once an extension says so
    stopped: Stopped | None = None
    instructions: AppliedInstructions = field(default_factory=AppliedInstructions)  # given from outside while it runs
    busy_until_s: float | None = None  # when a run last ended; None: nothing ran since it was taken up, or was built
    wall_s: float = 0.0  # time during which a controller was running and a run in flight
    node_hours: float = 0.0  # of all runs, and of builds on the site
    build_s: dict[str, float] = field(default_factory=dict)  # node-seconds of each variant, however often it was built
    uncharged: dict[str, Run | Build] = field(default_factory=dict)  # ticket -> ended run, or build, of which the batch
    # system has not said yet for how long it is charged
    last_run_number: int = 0
    reference: Mapping[str, Any] = field(default_factory=dict)  # what the first good baseline run measured
    short_reference: Mapping[str, Any] = field(default_factory=dict)  # and the first good short one, the baseline's too
    outcomes: Counter[Kind] = field(default_factory=Counter)
    _trials_in: Counter[Stage] = field(default_factory=Counter)
    _spending_since_s: float | None = None  # when the wall clock began to count; None while nothing is in flight
    _wall_before_s: float = 0.0  # what it had counted by then

    @classmethod
    def replay(cls, root: Path, events: Iterable[Mapping[str, Any]]) -> History:
        history = cls(root)
        history.apply_all(events)
        return history

    def apply_all(self, events: Iterable[Mapping[str, Any]], first_line: int = 1) -> None:
        """StoreError names the line of the first event that makes no sense; those before it are applied."""
        for number, event in enumerate(events, first_line):
            try:
                self.apply(event)
            except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError) as error:
                raise StoreError(
                    f"{self.root / 'journal.jsonl'}:{number}: this event makes no sense here ({_why(error)}); lines "
                    "were edited or the folder was written by another version. Restore a copy of the journal; "
                    f"or cut it off from line {number} on and resume: later runs are repeated"
                ) from error

    def apply(self, event: Mapping[str, Any]) -> None:
        """ValueError where the event is not whole, or cannot be at this place."""
        record = record_of(event)
        at, kind = float(event["at"]), event["event"]
        if kind == "opened":
            self._spending_since_s = None  # how long a killed controller went on is unknown
        elif self._spending_since_s is not None:
            self.wall_s = self.wall_now_s(at)
        match record:
            case Trial():
                self._plan(record)
            case RunBegun():
                self._begin(record, at)
            case Submitted():
                self._open_run(record.run).ticket = record.ticket
            case RunEnded():
                self._end(record)
                self.busy_until_s = at
            case Opened():
                self._open(record)
            case EarlyStop():
                self.early_stops[self._open_run(record.run).number] = record
            case Build():
                self._build(record)
            case Charged():
                self._charge(record)
            case ConfirmationBegun():
                self._confirm(record)
            case SetAside():
                self._set_aside(record)
            case VerdictLine():
                self.verdict = record
            case Extension():
                self._extend(record)
            case Stopped():
                self.stopped = record
            case None if kind == "instruction":
                self._apply_instruction(event)
        if kind in _MOVES_THE_CLOCK:
            self._set_clock(at)

    def _set_clock(self, at: float) -> None:
        """The wall clock counts while a controller is running and a run is in flight; not during a pause."""
        counts = self.openings > 0 and self.stopped is None and bool(self.open_runs) and not self.instructions.paused
        if not counts:
            self._spending_since_s = None
        elif self._spending_since_s is None:
            self._spending_since_s, self._wall_before_s = at, self.wall_s

    def _plan(self, trial: Trial) -> None:
        if trial.number != len(self.trials) + 1:
            raise ValueError(f"trial {trial.number} follows trial {len(self.trials)}")
        self.trials[trial.number] = trial
        self._trials_in[trial.stage] += 1
        if trial.stage is Stage.CONFIRM:
            self.extensions_compared.add(len(self.extensions))

    def _open(self, opened: Opened) -> None:
        self.question, self.asked = opened.question, opened.asked
        self.openings += 1
        self.receipts.append(opened.receipt)
        self.stopped = None
        self.busy_until_s = None
        self.instructions.take_up()
        # somebody may have installed it or loaded its module meanwhile
        self.builds = {key: build for key, build in self.builds.items() if not build.missing}

    def _build(self, build: Build) -> None:
        self.busy_until_s = None
        self.build_outcomes.add(build.outcome)
        self.builds[build.key] = build
        self._spend_on(build, build.node_s or 0.0)
        if build.estimated_s is not None:
            self.uncharged[build.ticket] = build

    def _spend_on(self, build: Build, seconds: float) -> None:
        if build.node_s is not None:  # on the site, where a build takes one node
            self.build_s[build.key] = self.build_s.get(build.key, 0.0) + seconds
        self.node_hours += seconds / 3600.0

    def _charge(self, charged: Charged) -> None:
        """What the batch system says in the end, instead of what was known when the job ended."""
        what = self.uncharged.pop(charged.ticket)
        if not isinstance(what, Run):
            self._spend_on(what, charged.seconds - (what.estimated_s or 0.0))
            return
        run = replace(self.runs[what.number], ending=replace(what.ending, charged_s=charged.seconds))
        self.node_hours += run.node_hours - what.node_hours
        self.runs[run.number] = run
        self.runs_of[run.trial] = [run if each.number == run.number else each for each in self.runs_of[run.trial]]

    def build_that_lacked(self, settings: Mapping[str, Any]) -> Build | None:
        """A build that failed because a compiler or module was not there, which these settings name too."""
        for build in self.builds.values():
            if build.missing and all(settings.get(name) == value for name, value in build.missing.items()):
                return build
        return None

    def _begin(self, begun: RunBegun, at: float) -> None:
        number = begun.run
        if begun.trial not in self.trials or number in self.runs or number in self.open_runs:
            raise ValueError(f"run {number} of trial {begun.trial} cannot begin here")
        self.last_run_number = max(self.last_run_number, number)
        self.opening_of[number] = self.openings
        if begun.on_nodes:
            self.pinned_to[number] = begun.on_nodes
        if begun.avoid_nodes:
            self.kept_off[number] = begun.avoid_nodes
        folder = self.root / begun.folder
        self.open_runs[number] = OpenRun(number, begun.trial, begun.attempt, folder, begun.resources, at)

    def _open_run(self, number: int) -> OpenRun:
        if number not in self.open_runs:
            raise ValueError(f"run {number} is not under way")
        return self.open_runs[number]

    def _end(self, ended: RunEnded) -> None:
        planned = self._open_run(ended.run)
        del self.open_runs[planned.number]
        planned_as = (planned.number, planned.trial, planned.attempt, planned.folder, planned.resources)
        run = Run(*planned_as, ended.ending, ended.outcome, ended.measurements, ended.texts)
        self.runs[run.number] = run
        self.runs_of.setdefault(run.trial, []).append(run)
        self.node_hours += run.node_hours
        if planned.ticket and run.ending.charged_s is None:
            self.uncharged[planned.ticket] = run
        if run.outcome is not None:
            self.outcomes[run.outcome.kind] += 1
            if run.outcome.kind is Kind.OK:
                self._refer_to(run, self.trials[run.trial].stage)

    def _refer_to(self, run: Run, stage: Stage) -> None:
        if stage is Stage.BASELINE and not self.reference:
            self.reference = {**run.texts, **run.metrics}
        elif stage is Stage.SHORT and not self.short_reference:
            self.short_reference = {**run.texts, **run.metrics}

    def _set_aside(self, found: SetAside) -> None:
        self.set_aside.append(found)
        self.uncounted.update(found.trials)
        for number in found.trials:
            self._trials_in[self.trials[number].stage] -= 1

    def _confirm(self, begun: ConfirmationBegun) -> None:
        """Of journals that number every confirmation from 0 only the last one counts."""
        first = begun.first_block
        if not first:
            of_blocks = (Stage.CONFIRM, Stage.WARM_UP)
            before = {number for number, trial in self.trials.items() if trial.stage in of_blocks} - self.uncounted
            self._trials_in.subtract(self.trials[number].stage for number in before)
            self.uncounted |= before
            self.set_aside, self.confirmations = [], []
        self.candidates, self.search_ended, self.blocks = begun.candidates, begun.search_ended, begun.blocks
        self.protocol, self.order_seed = begun.protocol, begun.seed
        self.confirmations.append(Confirmed(first, self.candidates, self.count(Stage.CONFIRM, Stage.WARM_UP)))

    def candidates_of(self, block: int) -> tuple[Mapping[str, Any], ...]:
        """The points under confirmation in this block."""
        return next((each.candidates for each in reversed(self.confirmations) if each.first_block <= block), ())

    @property
    def first_block(self) -> int:
        """The first block of the confirmation under way; those before it belong to earlier ones."""
        return self.confirmations[-1].first_block if self.confirmations and self.candidates is not None else self.blocks

    @property
    def blocks_begun(self) -> int:
        """Up to which block a trial that counts was started; they are begun in order."""
        blocks = [
            trial.block
            for trial in self.trials.values()
            if trial.stage is Stage.CONFIRM and trial.block is not None and trial.number not in self.uncounted
        ]
        return max(blocks, default=-1) + 1

    def _extend(self, asked: Extension) -> None:
        """More blocks join those there are. More trials may lead to other settings: blocks for them are added too.

        Blocks where there are none yet, and more room alone, are for the settings that were found: nothing is searched
        for, unless nothing was tried.
        """
        if self.verdict is None:
            raise ValueError("a campaign without a verdict cannot be extended")
        self.extensions.append(asked)
        self.instructions.extend(asked.wall_s, asked.node_hours)
        self.verdicts_before.append(self.verdict)
        self.verdict = None
        self.last_trial_before, self.searched_before = len(self.trials), self.count(Stage.SEARCH)
        if self.candidates and not asked.trials:
            self.blocks += asked.blocks
            return
        if asked.trials or self.searched_before:
            self.search_limit = self.searched_before + asked.trials
        self.candidates = None

    def _apply_instruction(self, event: Mapping[str, Any]) -> None:
        self.instructions.apply(event)
        if not event["refused"] and "search_limit" in event:
            self.search_limit = event["search_limit"]

    # what the other rooms ask

    def reference_of(self, stage: Stage) -> Mapping[str, Any]:
        """What guards compare a run of this stage with; empty before the first."""
        return self.short_reference if stage is Stage.SHORT else self.reference

    def wall_now_s(self, now_s: float) -> float:
        """Seconds with a controller running and a run in flight, up to now. Clocks may step back; this does not."""
        if self._spending_since_s is None:
            return self.wall_s
        return max(self.wall_s, self._wall_before_s + now_s - self._spending_since_s)

    @property
    def looks(self) -> int:
        """How many verdicts there have been, this one included: neither those that no new comparison stood behind nor
        those with too few blocks for any conclusion."""
        return 1 + sum(not self.extensions[number - 1].undecided for number in self.extensions_compared if number)

    def final_run(self, trial: Trial) -> Run | None:
        """The run that counts for a trial: its last one."""
        runs = self.runs_of.get(trial.number)
        return runs[-1] if runs else None

    def ok_runs(self, *stages: Stage) -> list[tuple[Trial, Run]]:
        """Runs that may be ranked, oldest first: no warm-up, none short, under a profiler or of a block set aside."""
        return self.good(self.runs.values(), *stages)

    def good(self, runs: Iterable[Run], *stages: Stage) -> list[tuple[Trial, Run]]:
        """As `ok_runs`, of these only."""
        asked = frozenset(stages) - {Stage.PROFILE, Stage.SHORT, Stage.WARM_UP}
        trials, uncounted = self.trials, self.uncounted
        return [
            (trial, run)
            for run in runs
            if run.outcome is not None
            and run.outcome.kind is Kind.OK
            and (trial := trials[run.trial]).stage in asked
            and run.trial not in uncounted
        ]

    def count(self, *stages: Stage) -> int:
        """How many trials were started for these stages, without those of blocks that were set aside."""
        return sum(self._trials_in[stage] for stage in stages)


def read_history(folder: Path) -> History:
    """The history of the study folder at this path, as far as it is on disk."""
    return History.replay(folder.resolve(), read_events(folder / "journal.jsonl"))


def _why(error: Exception) -> str:
    return f"it has no {error.args[0]!r}" if isinstance(error, KeyError) and error.args else str(error)
