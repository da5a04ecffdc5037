"""Runs that have not ended: how long they take, the last thing they wrote, and which are ended for writing too much."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ridgeline.campaign.ledger import Ledger
from ridgeline.executors.base import started_at_s, waiting_for
from ridgeline.records.run import Cause, Ending
from ridgeline.records.study import Study
from ridgeline.records.trial import Trial
from ridgeline.study.history import History, OpenRun
from ridgeline.study.state_files import latest_line


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
    found = []
    for run in history.open_runs.values():
        trial, waits, since_s = history.trials[run.trial], waiting_for(run.folder), run.planned_s
        if waits is None and (started_s := started_at_s(run.folder)) is not None:
            since_s = max(since_s, started_s)  # the node's clock, or the disk's, may be behind ours
        took_s, usual_s = max(0.0, now_s - since_s), ledger.expected_s(trial.point)
        found.append(RunUnderWay(trial, run.ticket, took_s, usual_s, latest_line(run.folder), waits))
    return found


def too_much_output(folder: Path, logs: Iterable[str], limit_bytes: int) -> str:
    """What is wrong where a run has written more than its limit; empty where it has not."""
    written = 0
    for file in _outputs(folder, logs):
        with suppress(OSError):  # not written yet
            written += file.stat().st_size
    if written <= limit_bytes:
        return ""
    return f"wrote more than {limit_bytes / 1e6:,.10g} MB of output and was cut off; see to it, or raise job.output"


def _outputs(folder: Path, logs: Iterable[str]) -> list[Path]:
    return [folder / name for name in sorted({"stdout", "stderr", *logs})]


def too_much_disk(folder: Path, limit_bytes: int) -> tuple[str, Path | None]:
    """What is wrong where a run's folder takes more than its limit, and its largest file; empty where it does not.

    Links lead elsewhere, so what is behind them does not count.
    """
    total, most, largest = 0, 0, None
    for file in (Path(home, name) for home, _, names in os.walk(folder) for name in names):
        try:
            seen = file.lstat()
        except OSError:
            continue  # removed meanwhile
        if stat.S_ISREG(seen.st_mode):
            taken = seen.st_blocks * 512
            total += taken
            if taken > most:
                most, largest = taken, file
    if total <= limit_bytes or largest is None:
        return "", None
    said = f"its folder took more than {limit_bytes / 1e6:,.10g} MB of disk, {most / 1e6:,.0f} of it {largest.name!r}"
    return f"{said}, which was cut off; see to it, write it to the site's scratch, or raise job.disk", largest


def cut_file(file: Path, limit_bytes: int) -> None:
    """Keep only the beginning of a file of the run itself: a link may lead to any file of the user's."""
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP, errno.ENXIO):  # gone, a link, a pipe
            return
        raise
    try:
        seen = os.fstat(descriptor)
        if stat.S_ISREG(seen.st_mode) and seen.st_nlink == 1 and seen.st_size > limit_bytes:
            os.ftruncate(descriptor, limit_bytes)
    finally:
        os.close(descriptor)


def not_run(reason: str) -> Ending:
    """How a run ends that was never handed over."""
    now = round(time.time(), 3)
    return Ending(Cause.EXITED, reason=reason, started_s=now, ended_s=now)


_DISK_LOOK_S = 5.0  # between two looks at how much disk a run's folder takes: all its files are asked for their size


@dataclass
class RunMonitor:
    """Ends runs that write too much: a full disk ends everybody."""

    study: Study
    logs: Sequence[str]
    _too_much: dict[int, tuple[str, Path | None]] = field(default_factory=dict)  # run -> why; the file that fills it
    _looked_s: dict[int, float] = field(default_factory=dict)  # run -> when (monotonic) its folder was last measured

    def must_end(self, run: OpenRun) -> bool:
        """Whether it is to be ended now. True once."""
        if run.number in self._too_much:
            return False
        largest, now_s = None, time.monotonic()
        excess = too_much_output(run.folder, self.logs, self.study.job.output_bytes)
        if not excess and now_s - self._looked_s.setdefault(run.number, now_s) >= _DISK_LOOK_S:
            self._looked_s[run.number] = now_s
            excess, largest = too_much_disk(run.folder, self.study.job.disk_bytes)
        if excess:
            self._too_much[run.number] = excess, largest
        return bool(excess)

    def ended(self, run: OpenRun, ending: Ending) -> Ending:
        """How it ended, given what was asked of it; what it wrote beyond its limit is not kept."""
        self._looked_s.pop(run.number, None)
        if run.number in self._too_much:
            excess, largest = self._too_much.pop(run.number)
            outputs = _outputs(run.folder, self.logs)
            for file in outputs if largest is None else [*outputs, largest]:
                cut_file(file, self.study.job.output_bytes)
            return replace(ending, cause=Cause.OUTPUT_LIMIT, reason=excess)
        if not run.folder.is_dir():
            reason = "its run folder was moved or deleted while it ran"
            return replace(ending, cause=Cause.LOST, reason=reason)
        return ending
