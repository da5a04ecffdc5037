"""Jobs on this machine, each in its own session, on its own cores, with its limits enforced."""

from __future__ import annotations

import errno
import math
import os
import platform
import resource
import select
import signal
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from pydantic import Field

from ridgeline.errors import SiteError
from ridgeline.executors import processes, script
from ridgeline.executors.base import EXIT_FILE, Activity, Executor
from ridgeline.executors.energy import ENERGY_FILE, measured_joules, meters_missing_here
from ridgeline.executors.machine import (
    FreeCores,
    MachineCounters,
    allowed_cores,
    load_between,
    machine_counters,
    pinned,
)
from ridgeline.executors.processes import CLAIM_FILE, Process, claim_script, now_s, read_claim
from ridgeline.files import write_whole
from ridgeline.records.run import QUIET_FILE, Cause, Ending, Job, Resources
from ridgeline.records.site import Site
from ridgeline.study.forms import DefaultText, Form, OneLine
from ridgeline.study.state_files import state_file, state_text

_LOOKS_PER_LIMIT = 8


class SilenceWatch:
    """Looks at a run folder a few times per limit. Any file that grows or changes counts as a sign of life."""

    def __init__(self, folder: Path, limit_s: float, *, began_before_us: bool) -> None:
        self.limit_s = limit_s
        self._folder = folder
        self._seen = _size_and_newest(folder)
        self._looked_at_s = self._changed_at_s = now_s()
        if began_before_us:
            # The time before we came counts; a file server whose clock is ahead must not make it negative
            self._changed_at_s -= max(0.0, time.time() - self._seen[1] / 1e9)

    @property
    def next_poll_s(self) -> float:
        """When to look again, on the clock of `processes.now_s`."""
        return self._looked_at_s + self.limit_s / _LOOKS_PER_LIMIT

    def reached(self) -> bool:
        now = now_s()
        if now < self.next_poll_s:
            return False
        self._looked_at_s = now
        seen = _size_and_newest(self._folder)
        if seen != self._seen:
            self._seen, self._changed_at_s = seen, now
        return now - self._changed_at_s >= self.limit_s


def note_quiet(folder: Path) -> None:
    """Write down what the run has written up to now, before it is asked to end."""
    lines = []
    for entry in os.scandir(folder):
        if entry.is_file(follow_symlinks=False):
            seen = entry.stat(follow_symlinks=False)
            lines.append(f"{seen.st_mtime_ns / 1e9:.9f} {seen.st_size} {entry.name}\n")
    write_whole(folder / QUIET_FILE, "".join(lines), survives_power_cut=False)


def _size_and_newest(folder: Path) -> tuple[int, int]:
    """Total size and latest change of all files below; links are not followed (they lead to builds and inputs)."""
    size = newest = 0
    for home, _, names in os.walk(folder):
        for name in names:
            try:
                seen = Path(home, name).lstat()
            except OSError:  # a file that was there a moment ago
                continue
            size, newest = size + seen.st_size, max(newest, seen.st_mtime_ns)
    return size, newest


STOP_FILE = "stop"
SETTLE_S = 0.05  # helpers of a launcher may need a moment after it to leave by themselves
_UNKILLABLE_S = 10.0  # a process in uninterruptible sleep may never go; then we report it and move on


class _LocalJob:
    """`step` moves the job's affairs on and gives its ending when all is over; `due_s` says when to look again."""

    def __init__(
        self,
        folder: Path,
        leader: Process | None,
        *,
        limit_s: float,
        silence_limit_s: float | None,
        grace_s: float,
        is_child: bool,
    ) -> None:
        self.folder = folder
        self.cores: frozenset[int] = frozenset()
        # what the machine counted before it, where no other job of ours runs beside it
        self.alone_from: MachineCounters | None = None
        self._leader = leader
        self._is_child = is_child
        self._limit_s = limit_s
        self._silence = SilenceWatch(folder, silence_limit_s, began_before_us=not is_child) if silence_limit_s else None
        self._grace_s = grace_s
        self._mark = script.mark(folder)
        self._stop = _read_stop(folder)
        self._status: int | None = None  # wait status, of our own children
        self._usage: dict[str, float] = {}
        self._settled_at_s: float | None = None
        self._kill_at_s: float | None = None
        self._give_up_at_s = float("inf")
        self._leftovers: dict[Process, str] = {}
        self.handles: dict[Process, int] = {}  # file descriptors that become readable when the process ends
        # Linux fills a child's peak memory with that of the process it was started from; what run.sh says of its
        # command is not touched by that, and comes first
        self._peak_floor_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        if leader:
            self._listen([leader])

    @classmethod
    def resume(cls, folder: Path, *, grace_s: float) -> _LocalJob:
        """A job that this controller did not start."""
        claim = read_claim(folder)
        leader = claim.process if claim else processes.leader_of(script.mark(folder), folder / script.SCRIPT_FILE)
        while claim is None and leader and not leader.ended:  # it is about to write its claim
            time.sleep(0.005)
            claim = read_claim(folder)
        claim = claim or read_claim(folder)  # written while we looked, and ended since
        if claim and claim.host != platform.node() and script.exit_record(folder) is None:
            raise SiteError(
                f"{folder}: this run was started on {claim.host}, not on {platform.node()}; resume the study there"
            )
        if claim and claim.boot != processes.boot_id():
            leader = None
        limits = (claim.limit_s, claim.silence_limit_s) if claim else (float("inf"), None)
        job = cls(folder, leader, limit_s=limits[0], silence_limit_s=limits[1], grace_s=grace_s, is_child=False)
        job.cores = _affinity(leader) if leader else frozenset()
        return job

    def due_s(self) -> float:
        """Seconds until `step` may have something to do though no process has ended."""
        if self._leader is None or (self._leader.ended and self._settled_at_s is None):
            return 0.0
        if not self.handles:
            return 0.02  # kernels before 5.3 give no handles
        next_s = self._settled_at_s if self._kill_at_s is None else self._kill_at_s
        if next_s is None:
            next_s = min(self._deadline_s, self._silence.next_poll_s) if self._silence else self._deadline_s
        return max(0.0, min(next_s, self._give_up_at_s) - now_s())

    def step(self) -> Ending | None:
        if not self._is_over() and now_s() < self._give_up_at_s:
            self._enforce_limits()
            return None
        if self._leader and self._sweep(self._leader):
            return None
        self._listen([])
        return self._ending()

    def stop(self, cause: Cause, reason: str) -> None:
        """End the job and all it started; why is written down first, for a controller after us."""
        if self._stop is None:
            self._stop = (cause, reason)
            try:
                if cause is Cause.SILENCE:
                    note_quiet(self.folder)
                write_whole(self.folder / STOP_FILE, f"{cause}\n{reason}\n", survives_power_cut=False)
            except OSError:
                pass  # a full disk must not keep us from ending the job; this controller remembers why
        if self._leader and self._kill_at_s is None:
            self._end(processes.of_run(self._mark, self._leader), self._leader)

    @property
    def _deadline_s(self) -> float:
        return self._leader.started_at_s + self._limit_s if self._leader else 0.0

    def _is_over(self) -> bool:
        if self._leader is None or self._status is not None:
            return True
        if not self._is_child:
            return self._leader.ended
        pid, status, usage = os.wait4(self._leader.pid, os.WNOHANG)
        if pid == 0:
            return False
        claim = read_claim(self.folder)
        if claim and claim.process.pid != pid:
            # Another start of this run was first (its controller died unseen): that one is the run
            self._is_child, self._leader = False, claim.process
            self._listen([claim.process])
            return claim.process.ended
        self._status = status
        self._usage["cpu_s"] = usage.ru_utime + usage.ru_stime
        if self.alone_from is not None and (after := machine_counters()) is not None:
            self._usage |= load_between(self.alone_from, after, self._usage["cpu_s"])
        if usage.ru_maxrss > self._peak_floor_kib:
            self._usage["max_rss_bytes"] = usage.ru_maxrss * 1024.0
        return True

    def _enforce_limits(self) -> None:
        now = now_s()
        if self._kill_at_s is not None:
            if now >= self._kill_at_s and self._leader:
                self._end(processes.of_run(self._mark, self._leader), self._leader)
        elif now >= self._deadline_s:
            self.stop(Cause.TIME_LIMIT, f"ran longer than its limit of {self._limit_s:g} s")
        elif self._silence and self._silence.reached():
            self.stop(Cause.SILENCE, f"wrote nothing for {self._silence.limit_s:g} s")

    def _sweep(self, leader: Process) -> bool:
        """End what outlived the leader; True while something of it still lives."""
        living = processes.of_run(self._mark, leader)
        if not living:
            return False
        self._listen(living)
        now = now_s()
        if self._settled_at_s is None:
            self._settled_at_s = now + SETTLE_S
        if self._stop is None:
            if now < self._settled_at_s:
                return True
            self._leftovers |= {p: _shown(p) for p in living if p not in self._leftovers}
        if self._kill_at_s is None or now >= self._kill_at_s:
            self._end(living, None)
        if now >= self._give_up_at_s:
            self._leftovers |= {p: f"{_shown(p)} (does not end)" for p in living}
            return False
        return True

    def _end(self, others: list[Process], leader: Process | None) -> None:
        """Ask all to end; called again after the grace, force them: the leader last, it writes the exit file."""
        now = now_s()
        if self._kill_at_s is None:
            processes.send_signal([*others, *([leader] if leader else [])], signal.SIGTERM)
            self._give_up_at_s = now + self._grace_s + _UNKILLABLE_S
            self._kill_at_s = now + self._grace_s
        else:
            processes.send_signal(others or ([leader] if leader else []), signal.SIGKILL)
            self._kill_at_s = now + 0.2

    def _listen(self, living: list[Process]) -> None:
        # The handle of a process that has ended is always ready: kept, it would turn waiting into spinning
        for process in self.handles.keys() - set(living):
            os.close(self.handles.pop(process))
        for process in living:
            if process not in self.handles and (fd := processes.handle(process)) is not None:
                self.handles[process] = fd

    def _ending(self) -> Ending:
        record = script.exit_record(self.folder)
        status = os.waitstatus_to_exitcode(self._status) if self._status is not None else None
        exit_code, signal_number = (None, -status) if status is not None and status < 0 else (status, None)
        # on the clock of `processes.now_s`, which nobody can set
        elapsed_s = max(0.0, now_s() - self._leader.started_at_s) if self._leader else None
        if record:
            exit_code, signal_number, elapsed_s = record.exit_code, record.signal, record.elapsed_s
        cause, reason = self._stop or ((Cause.EXITED, "") if record else self._cause_without_record(status))
        started_s, ended_s = self._times(record)
        usage = self._usage
        if (claim := read_claim(self.folder)) and claim.load is not None:
            usage |= {"load_before": claim.load, "cores": float(os.cpu_count() or 1)}
        if record is not None:  # of a run that was killed the shell could not say it: the time of all of run.sh counts
            own = {"cpu_s": record.cpu_s, "max_rss_bytes": record.max_rss_bytes}
            usage |= {name: value for name, value in own.items() if value is not None}
        return Ending(
            cause,
            exit_code,
            signal_number,
            reason,
            nodes=(record.host if record else platform.node(),),
            started_s=started_s,
            ended_s=ended_s,
            leftovers=tuple(self._leftovers.values()),
            usage=usage,
            elapsed_s=elapsed_s,
            held_s=record.held_s if record else None,
            machines=script.machines(self.folder),
        )

    def _times(self, record: script.ExitRecord | None) -> tuple[float, float]:
        started_s = record.started_s if record else 0.0
        if not started_s:
            claim = state_file(self.folder, CLAIM_FILE)
            if claim is None:
                return 0.0, 0.0
            started_s = claim.changed_s
        if record:
            return started_s, max(started_s, record.ended_s)
        return started_s, time.time() if self._leader else started_s

    def _cause_without_record(self, status: int | None) -> tuple[Cause, str]:
        if status == script.STATE_FAILED:
            return Cause.NODE_FAILED, f"run.sh could not load modules or write into {self.folder}; see stderr, and df"
        if status is not None:
            return Cause.EXITED, "run.sh itself was killed" if status < 0 else "run.sh ended early; see stderr"
        claim = read_claim(self.folder)
        if claim and claim.boot != processes.boot_id():
            return Cause.NODE_FAILED, f"{claim.host} was restarted while this ran"
        if claim:
            return Cause.LOST, f"process {claim.process.pid} is gone and wrote no exit file: it was killed from outside"
        return Cause.LOST, f"{self.folder / script.SCRIPT_FILE} was never started"


def _shown(process: Process) -> str:
    return f"{process.pid} {processes.command_line(process.pid)}"


def _read_stop(folder: Path) -> tuple[Cause, str] | None:
    try:
        cause, _, reason = state_text(folder, STOP_FILE).partition("\n")
        return Cause(cause), reason.strip()
    except ValueError:
        return None


def _affinity(process: Process) -> frozenset[int]:
    try:
        return frozenset(os.sched_getaffinity(process.pid))
    except OSError:
        return frozenset()


_SILENCED = (signal.SIGPIPE, signal.SIGXFSZ)  # Python ignores these two, and ignored signals are inherited


# what engines build kernels with at their first use (FlashInfer, DeepGEMM, Inductor, Triton's launchers)
_COMPILERS = frozenset(
    ("ninja", "nvcc", "cicc", "ptxas", "cc1plus", "cc1", "hipcc", "clang", "clang++", "nvlink", "ld", "lld")
)
_SHELLS = ("sh", "dash", "bash")  # run.sh, and what it starts a program with
_GRACE_S = 3.0  # between asking a job to end and ending it


class LocalOptions(Form):
    """Options of `batch: local`."""

    whose = "local"
    mpirun: Annotated[OneLine, DefaultText("the one on the PATH")] = Field(
        default="", description="The program that starts ranks, instead of `mpirun`."
    )


class LocalExecutor(Executor):
    """A ticket is the run folder's path. Jobs for which no cores are free wait here until there are.

    With more than one slot each job is pinned to cores of its own; with one slot it may use the whole machine.
    """

    form = LocalOptions
    detached = False
    state_files = (
        *(CLAIM_FILE, script.MACHINE_FILE, script.USED_FILE, EXIT_FILE, ENERGY_FILE),
        *(STOP_FILE, QUIET_FILE, script.ENV_FILE),
    )

    def __init__(self, site: Site, *, grace_s: float = _GRACE_S) -> None:
        self._site = site
        self._grace_s = grace_s
        self._cores = FreeCores(allowed_cores(site.cores_per_node))
        self.slots = max(1, min(site.jobs_at_once, len(self._cores)))
        self._running: dict[str, _LocalJob] = {}
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
        ticket, text = str(job.folder.resolve()), self.script(job)
        if state_file(job.folder, CLAIM_FILE) is not None:
            # Handed over by a controller that died so early that `find` could not see it; it is not run again
            if (job.folder / script.SCRIPT_FILE).read_text() == text:
                return ticket
            raise SiteError(f"{job.folder}: another job was already run here; give every run a folder of its own")
        script.write(job, self._site, text)
        self._waiting[ticket] = job
        self._start_waiting()
        return ticket

    def find(self, job: Job) -> str | None:
        ticket = str(job.folder.resolve())
        if ticket in self._running or ticket in self._waiting or state_file(job.folder, CLAIM_FILE):
            return ticket
        if not (job.folder / script.SCRIPT_FILE).exists():
            return None  # nothing is started before it is there; looking through all processes takes its time
        # Handed over by a controller that died a moment ago: the process exists, its claim is not yet written
        starting = processes.leader_of(script.mark(job.folder), Path(ticket) / script.SCRIPT_FILE)
        return ticket if starting or state_file(job.folder, CLAIM_FILE) else None

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
        seen = processes.of_run(script.mark(Path(ticket)), claim.process)
        own = [each for each in sorted(seen, key=lambda each: each.start_ticks) if each.name not in _SHELLS]
        working = own[1:] or own
        if not working:
            return None
        stopped, runnable = any(each.state in "Tt" for each in own), any(each.state == "R" for each in working)
        waited_s = sum(processes.waited_s(each.pid) for each in working)
        compiles = any(each.name in _COMPILERS for each in working)
        return Activity(sum(each.cpu_s for each in working), stopped, runnable, waited_s, compiles)

    def _stop(self, ticket: str) -> Ending:
        self._running[ticket].stop(Cause.CANCELLED, "cancelled")
        while (ending := self._step(ticket)) is None:
            _wait_for([self._running[ticket]], math.inf)
        return ending

    def _step(self, ticket: str) -> Ending | None:
        if ticket not in self._running:
            job = _LocalJob.resume(Path(ticket), grace_s=self._grace_s)
            job.cores = self._cores.note(job.cores) if self.slots > 1 else frozenset()
            self._running[ticket] = job
        ending = self._running[ticket].step()
        if ending:
            self._cores.give_back(self._running.pop(ticket).cores)
            # the meters of a node count all that runs on it: the energy of jobs beside each other is nobody's
            meters = self._site.prices.meters if self.slots == 1 else ()
            joules = measured_joules(Path(ticket), meters, ending.duration_s)
            ending = ending if joules is None else replace(ending, usage={**ending.usage, "joules": joules})
        return ending

    def doubts(self, resources: Resources) -> list[str]:
        meters = self._site.prices.meters
        if meters and self.slots > 1:
            return [
                f"prices: meters: they count the whole machine, and {self.slots} jobs run at once; set jobs_at_once: 1"
            ]
        return [f"prices: meters: {missing}; state `node_watts` instead" for missing in meters_missing_here(meters)]

    def _start_waiting(self) -> None:
        """Start jobs in the order they came, as far as there are cores for them."""
        for ticket, job in list(self._waiting.items()):
            wanted = job.resources.cores or len(self._cores) // self.slots
            if (cores := self._cores.take(wanted) if self.slots > 1 else frozenset()) is None:
                return
            del self._waiting[ticket]
            try:
                self._running[ticket] = self._start(job, cores)
            except BaseException:
                self._cores.give_back(cores)
                raise

    def _start(self, job: Job, cores: frozenset[int]) -> _LocalJob:
        folder = job.folder.resolve()
        environment = {**os.environ, script.MARKER: script.run_id(job.folder)}
        to_file = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        alone_from = machine_counters() if self.slots == 1 else None
        files = [("/dev/null", os.O_RDONLY), (f"{folder}/stdout", to_file), (f"{folder}/stderr", to_file)]
        try:
            with pinned(cores):
                pid = os.posix_spawn(
                    "/bin/sh",
                    ["sh", f"{folder}/{script.SCRIPT_FILE}"],
                    environment,
                    file_actions=[(os.POSIX_SPAWN_OPEN, fd, *file, 0o644) for fd, file in enumerate(files)],
                    setsid=True,
                    setsigmask=[],
                    setsigdef=_SILENCED,
                )
        except OSError as error:
            transient = error.errno in (errno.EAGAIN, errno.ENOMEM)
            raise SiteError(
                f"{folder}: cannot start the job ({error.strerror}); check the folder and the process limit",
                transient=transient,
            ) from error
        started = _LocalJob(
            folder,
            processes.find_process(pid),
            limit_s=job.limit_s,
            silence_limit_s=job.silence_limit_s,
            grace_s=max(self._grace_s, job.grace_s or 0.0),
            is_child=True,
        )
        started.cores, started.alone_from = cores, alone_from
        return started


def _wait_for(jobs: list[_LocalJob], timeout_s: float) -> None:
    seconds = min([timeout_s, *(job.due_s() for job in jobs)])
    poller = select.poll()
    for job in jobs:
        for fd in job.handles.values():
            poller.register(fd, select.POLLIN)
    poller.poll(None if math.isinf(seconds) else math.ceil(max(0.0, seconds) * 1000))
