"""Runs that have not ended: how long they take, the last thing they wrote, and which are to be ended.

A run is ended for what it writes, or, where the study asks for it, for being clearly worse than the best so far. What
decides that is what the run shows while it lasts: the goal's values as it prints them, or, where the goal is the time a
run takes, the time that has passed. A run stopped so has measured nothing: the journal says `stopped-early`, it is not
ranked, and the sampler observes an estimate.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ridgeline.campaign.ledger import Ledger
from ridgeline.executors.base import started_at_s, waiting_for
from ridgeline.records.outcome import Kind, Outcome
from ridgeline.records.run import Cause, Ending, Run
from ridgeline.records.study import Study
from ridgeline.records.trial import Stage, Trial
from ridgeline.stats.short_runs import same_stretch_ratio, times_worse
from ridgeline.study.codec import (
    EarlyStop,
    Event,
    event_of,
)
from ridgeline.study.history import History, OpenRun
from ridgeline.study.logs import latest_line
from ridgeline.study.state_files import state_file
from ridgeline.workloads.base import Workload


@dataclass(frozen=True, slots=True)
class RunUnderWay:
    """`waits`: why it has not started, in words, empty where nobody has said; None once it runs.

    `elapsed_s` counts from when it started; as long as it waits, from when it was planned.
    """

    trial: Trial
    ticket: str
    elapsed_s: float
    expected_s: float | None
    last_line: str
    waits: str | None = None

    @property
    def left_s(self) -> float | None:
        """None where nothing is known, or it has not started; negative where it takes longer than its like."""
        return None if self.expected_s is None or self.waits is not None else self.expected_s - self.elapsed_s

    def as_json(self) -> dict[str, Any]:
        return {
            "trial": self.trial.number,
            "point": dict(self.trial.point),
            "ticket": self.ticket,
            "state": "running" if self.waits is None else "waiting",
            "waits_for": self.waits,
            "elapsed_s": round(self.elapsed_s, 3),
            "expected_s": self.expected_s,
            "last_line": self.last_line,
        }


def runs_under_way(history: History, ledger: Ledger, now_s: float) -> list[RunUnderWay]:
    return [_under_way(run, history.trials[run.trial], ledger, now_s) for run in history.open_runs.values()]


def _under_way(run: OpenRun, trial: Trial, ledger: Ledger, now_s: float) -> RunUnderWay:
    waits = waiting_for(run.folder)
    since_s = run.planned_s
    if waits is None and (started_s := started_at_s(run.folder)) is not None:
        since_s = max(since_s, started_s)  # the node's clock, or the disk's, may be behind ours
    elapsed_s = max(0.0, now_s - since_s)
    return RunUnderWay(trial, run.ticket, elapsed_s, ledger.expected_s(trial.point), latest_line(run.folder), waits)


def too_much_output(folder: Path, logs: Iterable[str], limit_bytes: int) -> str:
    """What is wrong where a run has written more than its limit; empty where it has not. A full disk ends everybody."""
    if sum(size for _, size in _outputs(folder, logs)) <= limit_bytes:
        return ""
    return f"wrote more than {limit_bytes / 1e6:,.10g} MB of output and was cut off; see to it, or raise job.output"


def cut_output(folder: Path, logs: Iterable[str], limit_bytes: int) -> None:
    """What a run wrote beyond its limit before it could be ended is not kept."""
    for file, size in _outputs(folder, logs):
        if size > limit_bytes:
            _cut(file, limit_bytes)


def too_much_disk(folder: Path, limit_bytes: int) -> tuple[str, Path | None]:
    """What is wrong where a run's folder takes more than its limit, and its largest file; empty where it does not."""
    total, most, largest = 0, 0, None
    for file, taken in _files_in(folder):
        total += taken
        if taken > most:
            most, largest = taken, file
    if total <= limit_bytes or largest is None:
        return "", None
    said = f"its folder took more than {limit_bytes / 1e6:,.10g} MB of disk, {most / 1e6:,.0f} of it {largest.name!r}"
    return f"{said}, which was cut off; see to it, write it to the site's scratch, or raise job.disk", largest


def _files_in(folder: Path) -> Iterator[tuple[Path, int]]:
    """Each file below it with the disk that it takes; no links, which lead elsewhere."""
    for home, _, names in os.walk(folder):
        for name in names:
            file = Path(home, name)
            try:
                seen = file.lstat()
            except OSError:
                continue  # removed meanwhile
            if stat.S_ISREG(seen.st_mode):
                yield file, seen.st_blocks * 512


def cut_file(file: Path, limit_bytes: int) -> None:
    """Of a file that filled the disk only the beginning is kept; not of one that has another name elsewhere."""
    try:
        seen = file.lstat()
    except OSError:
        return
    if seen.st_nlink == 1 and seen.st_size > limit_bytes:
        _cut(file, limit_bytes)


def _cut(file: Path, limit_bytes: int) -> None:
    """Only a file of the run itself: a link that the run placed here may lead to any file of the user's."""
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            return
        raise
    try:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.ftruncate(descriptor, limit_bytes)
    finally:
        os.close(descriptor)


def _outputs(folder: Path, logs: Iterable[str]) -> Iterator[tuple[Path, int]]:
    for name in sorted({"stdout", "stderr", *logs}):
        try:
            yield folder / name, (folder / name).stat().st_size
        except OSError:
            continue


def not_run(reason: str) -> Ending:
    """How a run ends that was never handed over."""
    now = round(time.time(), 3)
    return Ending(Cause.EXITED, reason=reason, started_s=now, ended_s=now)


_DISK_LOOK_S = 5.0  # between two looks at how much disk a run's folder takes
POLL_EVERY_S = 2.0  # at one run: its output is read again each time
_STARTED_FILE = "machine"  # written on the node before anything of the job runs


def cannot_be_watched(study: Study, workload: Workload) -> str:
    """Why runs of this study show nothing before their end; empty where they do."""
    if _timed(study, workload) or (workload.streams):
        return ""
    return (
        f"nothing that a run writes shows its {study.goal.metric} before the end; leave it out, or take a goal that is "
        "printed again and again (`pick: last` or `mean`), or the run's time"
    )


@dataclass
class EarlyStops:
    """Looks at runs under way. `now_s` is the clock that stamps files."""

    study: Study
    history: History
    workload: Workload
    now_s: Callable[[], float] = time.time
    _polled_s: dict[int, float] = field(default_factory=dict)  # run -> when it was read last

    def found(self, run: OpenRun) -> EarlyStop | None:
        """Why this run should be ended now; None: let it run."""
        if self.study.search.stop_early is None or self.history.trials[run.trial].stage is not Stage.SEARCH:
            return None
        now_s = self.now_s()
        if 0 <= now_s - self._polled_s.get(run.number, 0.0) < POLL_EVERY_S:
            return None
        self._polled_s[run.number] = now_s
        best = self._best()
        if best is None:
            return None
        if _timed(self.study, self.workload):
            return self._by_time(run, best, now_s)
        return self._by_values(run, best)

    def _by_time(self, run: OpenRun, best: Run, now_s: float) -> EarlyStop | None:
        began = state_file(run.folder, _STARTED_FILE)
        if began is None or best.ending.duration_s <= 0:
            return None  # still in a queue
        passed_s = now_s - began.changed_s
        what = f"it had run for {passed_s:.4g} s, and the best, #{best.trial}, took {best.ending.duration_s:.4g} s"
        return self._decided(run, best, passed_s / best.ending.duration_s, what)

    def _by_values(self, run: OpenRun, best: Run) -> EarlyStop | None:
        own = self.workload.streamed(run.folder)
        minimize = self.study.goal.direction == "minimize"
        ratio = same_stretch_ratio(own, self.workload.streamed(best.folder), minimize)
        if ratio is None:
            return None
        what = f"its {self.study.goal.metric} was {ratio:.3g} times that of the best, #{best.trial}, at the same point"
        return self._decided(run, best, ratio, what)

    def _decided(self, run: OpenRun, best: Run, ratio: float, what: str) -> EarlyStop | None:
        limit = self.study.search.stop_early
        assert limit is not None
        if times_worse(ratio, self.study.goal.direction == "minimize") < limit:
            return None
        return EarlyStop(run.number, best.number, ratio, f"{what}; not measured")

    def _best(self) -> Run | None:
        goal = self.study.goal
        runs = [run for _, run in self.history.ok_runs(Stage.BASELINE, Stage.SEARCH, Stage.SENTINEL)]
        return max(runs, key=lambda run: goal.score(run.metrics[goal.metric]), default=None)


def _timed(study: Study, workload: Workload) -> bool:
    """Whether the goal is the time of a run, to be small: then the time that passed is a bound for it."""
    return study.goal.direction == "minimize" and study.goal.metric in workload.run_times


@dataclass
class RunMonitor:
    early_stops: EarlyStops
    record: Callable[[Event], None]
    _too_much: dict[int, str] = field(default_factory=dict)  # run -> what it wrote, for which it is ended
    _too_large: dict[int, Path] = field(default_factory=dict)  # run -> the file that is the most of it, if it is one
    _looked_s: dict[int, float] = field(default_factory=dict)  # run -> when (monotonic) its folder was last measured

    def must_end(self, run: OpenRun) -> bool:
        """Whether it is to be ended now. True once: a controller that takes a run over asks `stop_recorded` first.

        An early stop is in the journal before this returns, so that nobody takes the ending for somebody's cancel.
        """
        if run.number in self._too_much or self.stop_recorded(run):
            return False
        study, workload = self.early_stops.study, self.early_stops.workload
        if excess := too_much_output(run.folder, workload.logs, study.job.output_bytes):
            self._too_much[run.number] = excess  # a full disk ends everybody
            return True
        if self._fills_the_disk(run):
            return True
        if (found := self.early_stops.found(run)) is not None:
            self.record(event_of(found))
            return True
        return False

    def _fills_the_disk(self, run: OpenRun) -> bool:
        """Looked at every few seconds: all files of a folder are asked for their size."""
        now_s = time.monotonic()
        if now_s - self._looked_s.setdefault(run.number, now_s) < _DISK_LOOK_S:
            return False
        self._looked_s[run.number] = now_s
        excess, largest = too_much_disk(run.folder, self.early_stops.study.job.disk_bytes)
        if excess and largest is not None:
            self._too_much[run.number], self._too_large[run.number] = excess, largest
        return bool(excess)

    def stop_recorded(self, run: OpenRun) -> bool:
        """Whether the journal says that it was to be stopped early."""
        return run.number in self.early_stops.history.early_stops

    def ended(self, run: OpenRun, ending: Ending) -> tuple[Ending, Outcome | None]:
        """How it ended, given what was asked of it; with an outcome where nothing it wrote can say more."""
        self._looked_s.pop(run.number, None)
        if run.number in self._too_much:
            study, workload = self.early_stops.study, self.early_stops.workload
            if (largest := self._too_large.pop(run.number, None)) is not None:
                cut_file(largest, study.job.output_bytes)
            cut_output(run.folder, workload.logs, study.job.output_bytes)
            return replace(ending, cause=Cause.OUTPUT_LIMIT, reason=self._too_much.pop(run.number)), None
        if not run.folder.is_dir():
            reason = "its run folder was moved or deleted while it ran"
            return replace(ending, cause=Cause.LOST, reason=reason), None
        if ending.cause is Cause.CANCELLED and self.stop_recorded(run):
            why = self.early_stops.history.early_stops[run.number].why
            return ending, Outcome(Kind.STOPPED_EARLY, why)
        return ending, None
