"""The seam: where jobs run.

An executor is a subclass of `Executor`, made from a site (`ExecutorFactory`). A batch system needs only a dialect,
which `batch.BatchExecutor` runs. A factory with an attribute `form` (a `study.forms.Form` of the keys under `options`
in a site file; `dialect.takes_options` sets it, `dialect.option` reads a key) has them checked and completed by
editors. `script.render` writes modules, setup, environment and secrets of the site; its `scratch` is the executor's.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from ridgeline.errors import SiteError
from ridgeline.records.run import Ending, Job, Resources
from ridgeline.records.site import Site
from ridgeline.study.state_files import state_file, state_text

BY_HAND = ".by-hand-"  # between a run folder's name and a job id: the folder of a job that a person handed over again
T = TypeVar("T")
FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0  # before a site that was away is asked again

EXIT_FILE = "exit"  # written by run.sh in the run folder: exit code, start and end time, host
TICKET_FILE = "ticket"  # the job id, once a batch system has taken the job
STARTED_FILE = "started"  # written by run.sh first in a job of a batch system: job id, then the nodes
WAITING_FILE = "waiting"  # why the batch system has not started the job yet, in words, as of the last poll


def waiting_for(folder: Path) -> str | None:
    """Why a batch system has not started the job of this run folder yet, in words; empty where it has not said.

    None where the job runs or has ended, or where no batch system has it.
    """
    if state_file(folder, TICKET_FILE) is None or state_file(folder, EXIT_FILE) is not None:
        return None
    return None if state_file(folder, STARTED_FILE) is not None else state_text(folder, WAITING_FILE).strip()


def started_at_s(folder: Path) -> float | None:
    """When a batch system started the job of this run folder, as files are stamped; None where none has."""
    found = state_file(folder, STARTED_FILE)
    return None if found is None else found.changed_s


@dataclass(frozen=True, slots=True)
class Activity:
    """What the processes that a job's program started have done; of a program that started none, the program itself.

    A server's program answers HTTP, and what it started computes. `stopped`: any of them is suspended (SIGSTOP).
    `runnable`: one of them runs, or waits for a core. `waited_s` is how long their threads have waited for one so far.
    `compiles`: a compiler is among them, as engines build some kernels when they first use them.
    """

    cpu_s: float
    stopped: bool = False
    runnable: bool = False
    waited_s: float = 0.0
    compiles: bool = False


class Executor(ABC):
    """Keeps a job's `limit_s`, `silence_limit_s` and `grace_s`; where jobs outlive the controller, without it."""

    # how many jobs may be in flight: `site.jobs_at_once`, by which previews and `study verify` count, or fewer
    slots: int
    detached: bool  # jobs go on when the controller leaves; a resumed campaign polls the ticket in its journal
    pins_nodes: bool = True  # a job can be put on nodes by name
    # small files that it and run.sh keep in a run folder: those of an ended run are folded into its result.json, so it
    # reads them with `study/state_files.py`; last the one that every started run has
    state_files: Sequence[str] = ()
    waiting: Mapping[str, str] = MappingProxyType({})  # ticket -> why its job has not started yet, in words

    @abstractmethod
    def script(self, job: Job) -> str:
        """The exact text that would run; touches nothing."""

    @abstractmethod
    def submit(self, job: Job) -> str:
        """Write folder/run.sh and hand the job over; the ticket is short text that survives a restart.

        A `SiteError` stops the campaign; where it is transient the same call is made again. Several jobs may name one
        node: they queue there.
        """

    @abstractmethod
    def find(self, job: Job) -> str | None:
        """The ticket of a job that was submitted for this folder, also by a controller that died before it could write
        the ticket down; None means it was certainly never handed over."""

    @abstractmethod
    def poll(self, tickets: Collection[str]) -> Mapping[str, Ending]:
        """One question to the site for all tickets; one without an answer is still queued or running. An ended job is
        reported once its output files are complete, and a missing job is never called completed. The `nodes` of an
        ending are names that `on_nodes` may hold."""

    @abstractmethod
    def cancel(self, ticket: str) -> None:
        """End the job and everything it started; the next `poll` reports it."""

    @abstractmethod
    def wait(self, timeout_s: float) -> None:
        """Return when something may have changed, or after `timeout_s`."""

    @property
    def programs(self) -> Sequence[str]:
        """What must be on the PATH here: `ridgeline site check` looks for it."""
        return ("sh",)

    def at_once(self, resources: Resources) -> int:
        """How many jobs of such resources run beside each other."""
        return self.slots

    def doubts(self, resources: Resources) -> list[str]:
        """What is likely to go wrong with jobs that ask for such resources: `ridgeline check` shows it."""
        return []

    def turn_in_s(self) -> float:
        """How long to wait before another job may be handed over: sites don't like a hundred a minute."""
        return 0.0

    def charged(self, tickets: Collection[str], ask: bool = False) -> Mapping[str, float]:
        """Seconds for which the site charges jobs that have ended, each once and as far as it has said so; only with
        `ask` it asks the site."""
        return {}

    def activity(self, ticket: str) -> Activity | None:
        """What a job's processes have done so far; None where they cannot be seen from here."""
        return None


def with_retries(ask: Callable[[], T], check_stop: Callable[[], None], patience_s: float) -> T:
    """What the site answers; a site that is away for a while is asked again, ever more rarely.

    `check_stop` is called often meanwhile, and raises where somebody wants to leave.
    """
    deadline = time.monotonic() + patience_s
    pause_s = FIRST_PAUSE_S
    while True:
        try:
            return ask()
        except SiteError as error:
            if not error.transient or time.monotonic() > deadline:
                raise
        until = time.monotonic() + pause_s
        while time.monotonic() < until:
            check_stop()
            time.sleep(0.1)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


ExecutorFactory = Callable[[Site], Executor]
