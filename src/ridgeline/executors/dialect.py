"""What a batch system must be able to say and to read: text in, text out. Nothing here runs a program.

`batch.BatchExecutor` runs the commands of a dialect and hands it the answers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from ridgeline.records.run import Ending, Job
from ridgeline.records.site import Site


@dataclass(frozen=True, slots=True)
class JobReply:
    """What a command of the batch system printed."""

    code: int
    stdout: str = ""
    stderr: str = ""


class Phase(StrEnum):
    WAITING = "waiting"
    STUCK = "stuck"  # waits for nodes that are out of service, or for a person
    HOPELESS = "hopeless"  # accepted, and can never start as it stands
    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Sighting:
    """What the batch system says about one job. `reason` is its own wording; `ending` is there when it ended."""

    job_id: str
    phase: Phase
    name: str = ""
    reason: str = ""
    ending: Ending | None = None
    folder: str = ""  # where the job ran, if said: job ids may be given out again


class Blame(StrEnum):
    """Whose fault a refused submission is: decides what happens next."""

    WEATHER = "weather"  # may succeed later without anybody doing anything
    UNSURE = "unsure"  # the answer was lost: the job may be in the queue
    REQUEST = "request"  # this job asks for what the site does not have; another may pass
    SITE_FILE = "site file"  # queue, account, options: nothing will pass until somebody acts


@dataclass(frozen=True, slots=True)
class Refusal:
    blame: Blame
    message: str


class BatchDialect(Protocol):
    name: str
    programs: Sequence[str]  # what must be on PATH
    job_variable: str  # set in every job: its id
    nodes_text: str  # shell text that prints the job's nodes, one a line or as the batch system writes them
    directive: str  # how a line for the batch system begins in a script
    copies_output_back: bool  # the batch system's own output file appears some time after the end

    def directives(self, job: Job, site: Site) -> list[str]: ...

    def job_name(self, name: str, tag: str) -> str:
        """A name that holds the tag and that this batch system accepts."""
        ...

    def submit_command(self, script: Path, name: str) -> list[str]: ...

    def job_id(self, answer: JobReply) -> str | None:
        """The id of the job that was just accepted."""
        ...

    def refusal(self, answer: JobReply, site: Site) -> Refusal: ...

    def poll_command(self, job_ids: Collection[str]) -> list[str]:
        """One command for all jobs."""
        ...

    def read_poll(self, answer: JobReply) -> Mapping[str, Sighting] | None:
        """What is said about each job; None when the batch system is away. A job not in it is not known there."""
        ...

    def history_commands(self, job_ids: Collection[str]) -> list[list[str]]:
        """Where else to look for jobs that the poll does not know."""
        ...

    def read_history(self, answer: JobReply) -> Mapping[str, Sighting] | None:
        """None when that place is away for a while; empty when there is no such place here."""
        ...

    def find_commands(self, name: str) -> list[list[str]]:
        """Commands whose answers list jobs of this name."""
        ...

    def read_found(self, answer: JobReply, name: str) -> list[str] | None:
        """Job ids of that name; None when the batch system is away."""
        ...

    def cancel_command(self, job_id: str) -> list[str]: ...

    def node_names(self, text: str) -> tuple[str, ...]:
        """The nodes that `nodes_text` printed."""
        ...
