"""Jobs on this machine, each in its own session, on its own cores, with its limits enforced."""

from __future__ import annotations

import errno
import math
import os
import select
from collections.abc import Collection, Mapping
from pathlib import Path

from ridgeline.books import book
from ridgeline.errors import SiteError
from ridgeline.executors import processes, script
from ridgeline.executors.base import EXIT_FILE, Activity
from ridgeline.executors.claim import CLAIM_FILE, claim_script, read_claim
from ridgeline.executors.local_job import LOAD_FILE, STOP_FILE, LocalJob, note_load
from ridgeline.executors.options import LocalOptions
from ridgeline.executors.pinning import Cores, allowed_cores, pinned
from ridgeline.executors.starter import SILENCED, STARTER
from ridgeline.records.run import QUIET_FILE, Cause, Ending, Job, Resources
from ridgeline.records.site import Site

_SHELLS = ("sh", "dash", "bash")  # run.sh, and what it starts a program with
GRACE_S = 3.0  # between asking a job to end and ending it


class LocalExecutor:
    """A ticket is the run folder's path. Jobs for which no cores are free wait here until there are.

    With more than one slot each job is pinned to cores of its own; with one slot it may use the whole machine.
    """

    form = LocalOptions
    detached = False
    books = (CLAIM_FILE, script.MACHINE_FILE, EXIT_FILE, LOAD_FILE, STOP_FILE, QUIET_FILE, script.ENV_FILE)

    def __init__(self, site: Site, *, grace_s: float = GRACE_S) -> None:
        self._site = site
        self._grace_s = grace_s
        self._cores = Cores(allowed_cores(site.cores_per_node))
        self.slots = max(1, min(site.jobs_at_once, len(self._cores)))
        self._running: dict[str, LocalJob] = {}
        self._waiting: dict[str, Job] = {}
        self._ended: dict[str, Ending] = {}  # until a poll asks for it
        self._has_news = False

    def at_once(self, resources: Resources) -> int:
        """How many such jobs run beside each other; the others wait for cores."""
        each = resources.cores if resources.cores and self.slots > 1 else 1
        return max(1, min(self.slots, len(self._cores) // each))

    def script(self, job: Job) -> str:
        return script.render(job, self._site, before=claim_script(job.limit_s, job.silence_limit_s))

    def submit(self, job: Job) -> str:
        ticket, text = _ticket(job.folder), self.script(job)
        if book(job.folder, CLAIM_FILE) is not None:
            # Handed over by a controller that died so early that `find` could not see it; it is not run again
            if (job.folder / script.SCRIPT_FILE).read_text() == text:
                return ticket
            raise SiteError(f"{job.folder}: another job was already run here; give every run a folder of its own")
        script.write(job, self._site, text)
        self._waiting[ticket] = job
        self._start_waiting()
        return ticket

    def find(self, job: Job) -> str | None:
        ticket = _ticket(job.folder)
        if ticket in self._running or ticket in self._waiting or book(job.folder, CLAIM_FILE):
            return ticket
        if not (job.folder / script.SCRIPT_FILE).exists():
            return None  # nothing is started before it is there; looking through all processes takes its time
        # Handed over by a controller that died a moment ago: the process exists, its claim is not yet written
        starting = processes.leader_of(script.mark(job.folder), Path(ticket) / script.SCRIPT_FILE)
        return ticket if starting or book(job.folder, CLAIM_FILE) else None

    def poll(self, tickets: Collection[str]) -> Mapping[str, Ending]:
        # All jobs are looked at, asked for or not: limits must hold, and cores come free for those that wait
        for ticket in {**self._running, **dict.fromkeys(tickets)}:
            if ticket not in self._waiting and ticket not in self._ended and (ending := self._step(ticket)):
                self._ended[ticket] = ending
        self._start_waiting()
        self._has_news = False
        return {ticket: self._ended.pop(ticket) for ticket in tickets if ticket in self._ended}

    def cancel(self, ticket: str) -> None:
        self._has_news = True
        if self._waiting.pop(ticket, None):
            self._ended[ticket] = Ending(Cause.CANCELLED, reason="cancelled before it started")
        elif ticket not in self._ended:
            self._ended[ticket] = self._step(ticket) or self._stop(ticket)

    def wait(self, timeout_s: float) -> None:
        if not self._has_news:
            _wait_for(list(self._running.values()), timeout_s)

    def activity(self, ticket: str) -> Activity | None:
        """None where nothing of the job runs."""
        claim = read_claim(Path(ticket))
        if claim is None:
            return None
        seen = processes.work_of_run(script.mark(Path(ticket)), claim.process)
        own = [work for work in sorted(seen, key=lambda work: work.start_ticks) if work.name not in _SHELLS]
        working = own[1:] or own
        if not working:
            return None
        stopped, runnable = any(work.state in "Tt" for work in own), any(work.state == "R" for work in working)
        waited_s = sum(work.waited_s for work in working)
        return Activity(sum(work.cpu_s for work in working), stopped, runnable, waited_s)

    def _stop(self, ticket: str) -> Ending:
        self._running[ticket].stop(Cause.CANCELLED, "cancelled")
        while (ending := self._step(ticket)) is None:
            _wait_for([self._running[ticket]], math.inf)
        return ending

    def _step(self, ticket: str) -> Ending | None:
        if ticket not in self._running:
            job = LocalJob.resume(Path(ticket), grace_s=self._grace_s)
            job.cores = self._cores.note(job.cores) if self.slots > 1 else frozenset()
            self._running[ticket] = job
        ending = self._running[ticket].step()
        if ending:
            self._cores.give_back(self._running.pop(ticket).cores)
        return ending

    def _start_waiting(self) -> None:
        """Start jobs in the order they came, as far as there are cores for them."""
        for ticket, job in list(self._waiting.items()):
            cores: frozenset[int] | None = frozenset()
            if self.slots > 1:
                cores = self._cores.take(job.resources.cores or len(self._cores) // self.slots)
            if cores is None:
                return
            del self._waiting[ticket]
            try:
                self._running[ticket] = self._start(job, cores)
            except BaseException:
                self._cores.give_back(cores)
                raise

    def _start(self, job: Job, cores: frozenset[int]) -> LocalJob:
        folder = job.folder.resolve()
        environment = {**os.environ, script.MARKER: script.run_id(job.folder)}
        to_file = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        note_load(folder)
        command = ["sh", f"{folder}/{script.SCRIPT_FILE}"]
        files = [("/dev/null", os.O_RDONLY), (f"{folder}/stdout", to_file), (f"{folder}/stderr", to_file)]
        try:
            pid = STARTER.start(["/bin/sh", *command], environment, files, cores)
            own_peak = pid is not None
            if pid is None:
                with pinned(cores):
                    pid = os.posix_spawn(
                        "/bin/sh",
                        command,
                        environment,
                        file_actions=[(os.POSIX_SPAWN_OPEN, fd, *file, 0o644) for fd, file in enumerate(files)],
                        setsid=True,
                        setsigmask=[],
                        setsigdef=SILENCED,
                    )
        except OSError as error:
            transient = error.errno in (errno.EAGAIN, errno.ENOMEM)
            raise SiteError(
                f"{folder}: cannot start the job ({error.strerror}); check the folder and the process limit",
                transient=transient,
            ) from error
        return LocalJob(
            folder,
            processes.look(pid),
            limit_s=job.limit_s,
            silence_limit_s=job.silence_limit_s,
            is_child=True,
            own_peak=own_peak,
            cores=cores,
            grace_s=max(self._grace_s, job.grace_s or 0.0),
        )


def _ticket(folder: Path) -> str:
    return str(folder.resolve())


def _wait_for(jobs: list[LocalJob], timeout_s: float) -> None:
    seconds = min([timeout_s, *(job.due_s() for job in jobs)])
    poller = select.poll()
    for job in jobs:
        for fd in job.handles:
            poller.register(fd, select.POLLIN)
    poller.poll(None if math.isinf(seconds) else math.ceil(max(0.0, seconds) * 1000))
