"""How a batch job ended: what the batch system says, what the job wrote down, what its output ends with."""

from __future__ import annotations

import signal
from dataclasses import dataclass, replace
from pathlib import Path

from ridgeline.books import book
from ridgeline.errors import SiteError
from ridgeline.executors import batch_script, script
from ridgeline.executors.base import EXIT_FILE
from ridgeline.executors.dialect import BATCH_OUTPUT, BatchDialect, OutputReport, Sighting
from ridgeline.files import write_whole
from ridgeline.records.run import Cause, Ending

# causes after which run.sh had no chance to write its exit file
_SUDDEN = (Cause.TIME_LIMIT, Cause.MEMORY_LIMIT, Cause.CANCELLED, Cause.NODE_FAILED, Cause.NEVER_STARTS, Cause.LOST)


@dataclass(frozen=True)
class Folder:
    """The small files of one run folder."""

    path: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", self.path.absolute())

    def has(self, name: str) -> bool:
        return book(self.path, name) is not None

    def read(self, name: str) -> str | None:
        found = book(self.path, name)
        return None if found is None else found.text.strip()

    def first_line(self, name: str) -> str | None:
        lines = (self.read(name) or "").splitlines()
        return lines[0] if lines else None

    def clear(self, *names: str) -> None:
        for name in names:
            (self.path / name).unlink(missing_ok=True)

    def write(self, name: str, text: str) -> None:
        """In one step and on the disk before this returns: a killed controller leaves the old or the new."""
        try:
            write_whole(self.path / name, f"{text}\n")
        except OSError as error:
            raise SiteError(
                f"{self.path / name}: cannot be written ({error.strerror}); make room, then resume"
            ) from error

    def settled(self, dialect: BatchDialect, seen: Sighting) -> bool:
        """Whether all that the job and the batch system write at the end can be seen here."""
        if seen.ending is None or (not self.has(batch_script.STARTED_FILE) and seen.ending.cause in _SUDDEN):
            return True
        # listing the folder makes a network file system look again
        if self.path.is_dir():
            list(self.path.iterdir())
        exit_due = seen.ending.cause not in _SUDDEN and seen.ending.signal is None and not _broke_books(seen.ending)
        if exit_due and not self.has(EXIT_FILE):
            return False
        return not dialect.copies_output_back or self.has(BATCH_OUTPUT)


def conclude(folder: Folder, dialect: BatchDialect, seen: Sighting | None) -> Ending:
    """The ending. Without a sighting the exit file must be there: it alone decides."""
    record = script.exit_record(folder.path)
    report = _report(folder, dialect)
    stopped = batch_script.stopped(folder.path)
    ending = seen.ending if seen is not None and seen.ending is not None else Ending(Cause.EXITED)
    requeued = folder.read(batch_script.REQUEUED_FILE)
    if record is not None:
        ending = replace(
            ending,
            started_s=record.started_s or ending.started_s,
            ended_s=record.ended_s or ending.ended_s,
            elapsed_s=ending.elapsed_s if record.elapsed_s is None else record.elapsed_s,
            held_s=record.held_s,
            # the shell's own account knows one node only, the batch system's knows all
            usage={**({"cpu_s": record.cpu_s} if record.cpu_s else {}), **{k: v for k, v in ending.usage.items() if v}},
        )
        ending = replace(ending, exit_code=record.exit_code, signal=record.signal)
    elif ending.cause is Cause.EXITED and not ending.signal and requeued is None:
        ending = _without_exit_file(folder, dialect, ending)
    if stopped is not None and ending.cause in (Cause.EXITED, Cause.LOST):
        ending = replace(ending, cause=stopped[0], reason=stopped[1])
    if ending.cause is Cause.EXITED and report.cause is not None:
        ending = replace(ending, cause=report.cause, reason=report.reason)
    if requeued is not None:
        ending = replace(ending, cause=Cause.CANCELLED, reason=requeued)
    if ending.cause is Cause.EXITED and _ended_from_outside(ending, record):
        # a server may forget that it was asked to delete a job which it had not yet seen running
        ending = replace(ending, cause=Cause.CANCELLED, reason="run.sh was asked to stop from outside the job")
    if ending.cause is Cause.CANCELLED and ending.exit_code == 0:
        # some programs print what they have when they are asked to stop, and leave with 0
        said = "; its program still ended with 0, but what it printed may be partial and does not count"
        ending = replace(ending, reason=f"{ending.reason or 'cancelled'}{said}")
    return replace(
        ending,
        nodes=ending.nodes or _nodes(folder, dialect),
        usage={**ending.usage, **report.usage},
        charged_s=seen.charged_s if seen is not None else None,
        machines=script.machines(folder.path),
    )


def _ended_from_outside(ending: Ending, record: script.ExitRecord | None) -> bool:
    """Whether somebody outside the job ended it: nothing that run.sh starts tells run.sh itself to stop."""
    if record is None:
        return ending.signal == signal.SIGTERM  # it came before run.sh could listen for it
    return record.terminated


def _broke_books(ending: Ending) -> bool:
    return ending.exit_code == script.BOOKS_FAILED


def _without_exit_file(folder: Folder, dialect: BatchDialect, ending: Ending) -> Ending:
    if _broke_books(ending):
        last = ((folder.read("stderr") or "") + "\n" + (folder.read(BATCH_OUTPUT) or "")).strip()
        said = "; ".join(last.splitlines()[-2:]) or f"run.sh could not write into {folder.path}: is its disk full?"
        return replace(ending, cause=Cause.NODE_FAILED, reason=said)
    if not folder.has(batch_script.STARTED_FILE):
        why = f"{folder.path} is not visible on the compute nodes, or not writable there: put studies on a shared disk"
    else:
        why = f"{folder.path / EXIT_FILE} was not written: the disk may be full"
    said = f"{dialect.name} says it ended with {ending.exit_code}, but {why}"
    if ending.exit_code:
        return replace(ending, reason=said)
    return replace(ending, cause=Cause.LOST, exit_code=None, reason=said)


def _nodes(folder: Folder, dialect: BatchDialect) -> tuple[str, ...]:
    lines = (folder.read(batch_script.STARTED_FILE) or "").splitlines()
    return dialect.node_names("\n".join(lines[1:]))


def _report(folder: Folder, dialect: BatchDialect) -> OutputReport:
    found = book(folder.path, BATCH_OUTPUT)
    return OutputReport() if found is None else dialect.read_output(found.text.splitlines(keepends=True))
