"""Runs a dialect: submits, asks one question for all jobs, cancels, and never takes a missing job for a finished one.

What is in a run folder beside run.sh and the program's output, as long as the run lasts (`study/state_files.py`):
- `submission`: the unique name under which the job is handed over, and its limit in seconds, written before it is;
- `ticket`: the job id, written when the batch system has answered;
- `waiting`: why the batch system has not started the job yet, as of the last poll;
- `started`, `exit`, `stopped`: written by the job itself;
- `refused`: why the batch system cannot take this request.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from ridgeline.errors import SiteError
from ridgeline.executors import batch_script, script
from ridgeline.executors.base import EXIT_FILE, STARTED_FILE, TICKET_FILE, WAITING_FILE, Executor
from ridgeline.executors.batch_script import REFUSED_FILE, SUBMISSION_FILE
from ridgeline.executors.dialect import (
    BATCH_OUTPUT,
    BatchDialect,
    BatchOptions,
    Blame,
    JobReply,
    JobStatus,
    OutputReport,
    Phase,
    option,
)
from ridgeline.executors.energy import measured_joules
from ridgeline.files import write_whole
from ridgeline.records.run import Cause, Ending, Job, Resources
from ridgeline.records.site import BATCH_METER, Site
from ridgeline.study.state_files import state_file

_WHOLE_SECONDS_S = 1.0  # batch systems tell start and end in whole seconds
# causes after which run.sh had no chance to write its exit file
_SUDDEN = (Cause.TIME_LIMIT, Cause.MEMORY_LIMIT, Cause.CANCELLED, Cause.NODE_FAILED, Cause.NEVER_STARTS, Cause.LOST)


@dataclass(frozen=True)
class Folder:
    """The small files of one run folder."""

    path: Path

    def has(self, name: str) -> bool:
        return state_file(self.path, name) is not None

    def read(self, name: str) -> str | None:
        found = state_file(self.path, name)
        return None if found is None else found.text.strip()

    def first_line(self, name: str) -> str | None:
        lines = (self.read(name) or "").splitlines()
        return lines[0] if lines else None

    def write(self, name: str, text: str) -> None:
        """In one step and on the disk before this returns: a killed controller leaves the old or the new."""
        try:
            write_whole(self.path / name, f"{text}\n")
        except OSError as error:
            raise SiteError(
                f"{self.path / name}: cannot be written ({error.strerror}); make room, then resume"
            ) from error

    def settled(self, dialect: BatchDialect, seen: JobStatus) -> bool:
        """Whether all that the job and the batch system write at the end can be seen here."""
        if seen.ending is None or (not self.has(STARTED_FILE) and seen.ending.cause in _SUDDEN):
            return True
        # listing the folder makes a network file system look again
        if self.path.is_dir():
            list(self.path.iterdir())
        no_exit_file = (
            seen.ending.cause in _SUDDEN or seen.ending.signal or seen.ending.exit_code == script.STATE_FAILED
        )
        if not no_exit_file and not self.has(EXIT_FILE):
            return False
        return not dialect.copies_output_back or self.has(BATCH_OUTPUT)


def conclude(folder: Folder, dialect: BatchDialect, seen: JobStatus | None) -> Ending:
    """The ending. Without a status the exit file must be there: it alone decides."""
    record = script.exit_record(folder.path)
    written = state_file(folder.path, BATCH_OUTPUT)
    report = OutputReport() if written is None else dialect.read_output(written.text.splitlines(keepends=True))
    stopped = batch_script.stopped(folder.path)
    ending = seen.ending if seen is not None and seen.ending is not None else Ending(Cause.EXITED)
    requeued = folder.read(batch_script.REQUEUED_FILE)
    if record is not None:
        ending = replace(
            ending,
            exit_code=record.exit_code,
            signal=record.signal,
            started_s=record.started_s or ending.started_s,
            ended_s=record.ended_s or ending.ended_s,
            elapsed_s=ending.elapsed_s if record.elapsed_s is None else record.elapsed_s,
            held_s=record.held_s,
            # the shell's own account knows one node only, the batch system's knows all
            usage={**({"cpu_s": record.cpu_s} if record.cpu_s else {}), **{k: v for k, v in ending.usage.items() if v}},
        )
    elif ending.cause is Cause.EXITED and not ending.signal and requeued is None:
        ending = _without_exit_file(folder, dialect, ending)
    if stopped is not None and ending.cause in (Cause.EXITED, Cause.LOST):
        ending = replace(ending, cause=stopped[0], reason=stopped[1])
    if ending.cause is Cause.EXITED and report.cause is not None:
        ending = replace(ending, cause=report.cause, reason=report.reason)
    if requeued is not None:
        ending = replace(ending, cause=Cause.CANCELLED, reason=requeued)
    if seen is not None and seen.over_walltime and stopped is None and (early := _cut_short(folder, seen, ending)):
        ending = replace(ending, cause=Cause.CANCELLED, reason=f"{dialect.name} {early}")
    if ending.cause is Cause.EXITED and _ended_from_outside(ending, record):
        # a server may forget that it was asked to delete a job which it had not yet seen running
        ending = replace(ending, cause=Cause.CANCELLED, reason="run.sh was asked to stop from outside the job")
    if ending.cause is Cause.CANCELLED and ending.exit_code == 0:
        # some programs print what they have when they are asked to stop, and leave with 0
        said = "; its program still ended with 0, but what it printed may be partial and does not count"
        ending = replace(ending, reason=f"{ending.reason or 'cancelled'}{said}")
    nodes = (folder.read(STARTED_FILE) or "").partition("\n")[2]
    return replace(
        ending,
        nodes=ending.nodes or dialect.node_names(nodes),
        usage={**ending.usage, **report.usage},
        charged_s=seen.charged_s if seen is not None else None,
        machines=script.machines(folder.path),
    )


def _ended_from_outside(ending: Ending, record: script.ExitRecord | None) -> bool:
    """Whether somebody outside the job ended it: nothing that run.sh starts tells run.sh itself to stop."""
    if record is None:
        return ending.signal == signal.SIGTERM  # it came before run.sh could listen for it
    return record.terminated


def _cut_short(folder: Folder, seen: JobStatus, ending: Ending) -> str:
    """What the batch system did to a job that it ended for its time before the job's own limit; empty where not.

    run.sh keeps that limit, and asks for more time than that: the setting is not to blame.
    """
    lines = (folder.read(SUBMISSION_FILE) or "").splitlines()
    lasted_s = ending.duration_s if seen.charged_s is None else seen.charged_s
    if len(lines) < 2 or lasted_s + _WHOLE_SECONDS_S >= (limit_s := float(lines[1])):
        return ""
    return (
        f"ended it after {lasted_s:.0f} s, before its own limit of {limit_s:g} s ({ending.reason}): somebody shortened "
        "its time, or a directive of the site asks for less"
    )


def _without_exit_file(folder: Folder, dialect: BatchDialect, ending: Ending) -> Ending:
    if ending.exit_code == script.STATE_FAILED:
        last = ((folder.read("stderr") or "") + "\n" + (folder.read(BATCH_OUTPUT) or "")).strip()
        said = "; ".join(last.splitlines()[-2:]) or f"run.sh could not write into {folder.path}: is its disk full?"
        return replace(ending, cause=Cause.NODE_FAILED, reason=said)
    if not folder.has(STARTED_FILE):
        why = f"{folder.path} is not visible on the compute nodes, or not writable there: put studies on a shared disk"
    else:
        why = f"{folder.path / EXIT_FILE} was not written: the disk may be full"
    said = f"{dialect.name} says it ended with {ending.exit_code}, but {why}"
    if ending.exit_code:
        return replace(ending, reason=said)
    return replace(ending, cause=Cause.LOST, exit_code=None, reason=said)


COMMAND_LIMIT_S = 120.0


def run(command: list[str], site: Site, dialect: BatchDialect, keep_open: int | None = None) -> JobReply:
    """What the command says. It inherits the descriptor `keep_open`; SiteError when there is no such command."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=COMMAND_LIMIT_S,
            # ours, without what the commands would obey before they obey the script; LC_ALL: as they are read
            env={**{name: value for name, value in os.environ.items() if not dialect.obeys(name)}, "LC_ALL": "C"},
            pass_fds=() if keep_open is None else (keep_open,),
            check=False,
        )
    except (FileNotFoundError, PermissionError):  # the latter, too, where a folder of PATH may not be searched
        raise SiteError(
            f"site {site.name}: {command[0]} is not on this machine's PATH; run ridgeline where jobs are "
            f"submitted from (a login node), or load the module of {dialect.name}"
        ) from None
    except subprocess.TimeoutExpired:
        return JobReply(124, "", f"{command[0]} was ended after {COMMAND_LIMIT_S:.0f} s without an answer")
    return JobReply(done.returncode, done.stdout, done.stderr)


@contextmanager
def submitting(path: Path) -> Iterator[int]:
    """Held by whoever submits for a run folder, and by the submit command itself as long as it lives."""
    with path.open() as file:
        give_up_s = time.monotonic() + COMMAND_LIMIT_S
        while not _locked(file.fileno()):
            if time.monotonic() > give_up_s:
                raise SiteError(f"{path}: another process is still submitting this run; end it first", transient=True)
            time.sleep(0.1)
        yield file.fileno()


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # file systems without locks (Lustre without its flock option): the ticket file must do
    return True


# When (monotonic) this process last handed a job over, by batch system: runs and builds have executors of their own
_submitted_s: dict[str, float] = {}
_REFUSED = "refused"  # stands for the job id in the ticket of a request the batch system did not take

_CHARGE_QUESTIONS, _CHARGE_PAUSE_S = 3, 1.0  # at the end of a campaign, about jobs whose charge is not known yet
_LOOKS_PER_QUESTION = 4  # into the run folders, which costs the file system a little and the batch system nothing


@dataclass
class _Watch:
    """What is remembered about one ticket between polls."""

    job_id: str
    folder: Folder
    since: dict[str, float] = field(default_factory=dict)  # when something was first seen, by what

    def held(self, what: str, now_s: float) -> float:
        """For how long `what` has been the case."""
        return now_s - self.since.setdefault(what, now_s)

    def passed(self, *what: str) -> None:
        for name in what:
            self.since.pop(name, None)


def _watch_of(ticket: str) -> _Watch:
    job_id, _, folder = ticket.partition(" ")
    return _Watch(job_id, Folder(Path(folder)))


class BatchExecutor(Executor):
    """`waiting` holds, per ticket, why the batch system has not started it yet, as of the last poll."""

    detached = True
    state_files = (
        SUBMISSION_FILE,
        *batch_script.LEFT_BY_RUN_SH,
        TICKET_FILE,
        WAITING_FILE,
        REFUSED_FILE,
        BATCH_OUTPUT,
        script.ENV_FILE,
    )

    def __init__(self, site: Site, dialect: BatchDialect) -> None:
        self.site, self.dialect = site, dialect
        self.slots = site.jobs_at_once
        self.pins_nodes = dialect.pins_nodes(site)
        self.waiting: dict[str, str] = {}
        self.questions = 0  # commands that asked the batch system about jobs
        self._watched: dict[str, _Watch] = {}
        self._asked_s = 0.0  # monotonic; the last question
        self._looked_s = 0.0  # monotonic; the last look into all run folders
        self._away_since_s: float | None = None
        self._cancelled: set[str] = set()
        self._charged_s: dict[str, float] = {}  # job id -> what the batch system has said it is charged for

    @property
    def programs(self) -> Sequence[str]:
        return self.dialect.programs

    def doubts(self, resources: Resources) -> list[str]:
        return self.dialect.doubts(resources, self.site)

    # handing over

    def script(self, job: Job) -> str:
        return batch_script.render(job, self.site, self.dialect)

    def submit(self, job: Job) -> str:
        files = Folder(job.folder.absolute())
        if files.has(TICKET_FILE):
            raise SiteError(f"{job.folder}: a job was already run here; give every run a folder of its own")
        # handed over without a ticket: an earlier attempt got no answer, or its controller died
        if files.has(SUBMISSION_FILE) and (ticket := self.find(job)) is not None:
            return ticket
        batch_script.stage_user_script(job, self.site)
        answer = self._hand_over(files, job)
        if answer.code != 0 and job.avoid_nodes and self.dialect.refusal(answer, self.site).blame is Blame.REQUEST:
            # to avoid nodes is a wish, and a queue may have no others
            answer = self._hand_over(files, replace(job, avoid_nodes=()))
        job_id = self.dialect.job_id(answer) if answer.code == 0 else None
        if job_id is None:
            return self._refused(files, answer)
        return self._accepted(files, job_id)

    def turn_in_s(self) -> float:
        last_s = _submitted_s.get(self.dialect.name)
        return 0.0 if last_s is None else max(0.0, last_s + self.site.submit_every_s - time.monotonic())

    def _hand_over(self, files: Folder, job: Job) -> JobReply:
        time.sleep(self.turn_in_s())
        script.write(job, self.site, self.script(job))
        name = self.dialect.job_name(job.name, secrets.token_hex(4))
        files.write(SUBMISSION_FILE, f"{name}\n{job.limit_s:g}")
        with submitting(files.path / SUBMISSION_FILE) as lock:
            _submitted_s[self.dialect.name] = time.monotonic()
            return self._run(self.dialect.submit_command(files.path / script.SCRIPT_FILE, name, job), keep_open=lock)

    def _accepted(self, files: Folder, job_id: str) -> str:
        files.write(TICKET_FILE, job_id)
        return f"{job_id} {files.path}"

    def _refused(self, files: Folder, answer: JobReply) -> str:
        refusal = self.dialect.refusal(answer, self.site)
        if refusal.blame is Blame.REQUEST:
            files.write(REFUSED_FILE, refusal.message)
            return self._accepted(files, _REFUSED)
        if refusal.blame is not Blame.UNSURE:
            (files.path / SUBMISSION_FILE).unlink(missing_ok=True)
        transient = refusal.blame in (Blame.WEATHER, Blame.UNSURE)
        what = "could not take the job now" if transient else "refused the job"
        raise SiteError(f"site {self.site.name}: {self.dialect.name} {what}: {refusal.message}", transient=transient)

    def find(self, job: Job) -> str | None:
        files = Folder(job.folder.absolute())
        name = files.first_line(SUBMISSION_FILE)
        if name is None:
            return None
        with submitting(files.path / SUBMISSION_FILE):
            pass  # a submit command of a dead controller may still be talking; it holds the lock until it ends
        known = files.read(TICKET_FILE) or files.first_line(STARTED_FILE)
        if known is not None:
            return self._accepted(files, known)
        for command in self.dialect.find_commands(name):
            found = self.dialect.read_found(self._run(command), name)
            if found is None:
                raise SiteError(
                    f"site {self.site.name}: {command[0]} did not answer, so {name} may or may not have been "
                    "submitted; try again when the batch system is back",
                    transient=True,
                )
            if found:
                return self._accepted(files, found[-1])
        return None

    def cancel(self, ticket: str) -> None:
        self._cancelled.add(ticket)
        if (away := self._try_cancel(ticket)) is not None:
            raise SiteError(f"site {self.site.name}: {ticket} was not cancelled: {away}", transient=True)

    def _try_cancel(self, ticket: str) -> str | None:
        """Why the batch system could not be reached. A job that ended meanwhile is no error: the next poll says how."""
        watch = self._watch(ticket)
        if watch.job_id == _REFUSED:
            return None
        answer = self._run(self.dialect.cancel_command(watch.job_id))
        self._asked_s = 0.0
        refusal = self.dialect.refusal(answer, self.site) if answer.code != 0 else None
        return refusal.message if refusal and refusal.blame in (Blame.WEATHER, Blame.UNSURE) else None

    # watching

    def wait(self, timeout_s: float) -> None:
        next_question_s = self._asked_s + self.site.poll_s - time.monotonic()
        time.sleep(max(0.0, min(timeout_s, max(next_question_s, 0.02))))

    def poll(self, tickets: Collection[str]) -> Mapping[str, Ending]:
        endings: dict[str, Ending] = {}
        now_s = time.monotonic()
        question_due = now_s - self._asked_s >= self.site.poll_s
        if question_due or now_s - self._looked_s >= self.site.poll_s / _LOOKS_PER_QUESTION:
            endings |= {t: ending for t in tickets if (ending := self._by_folder_alone(t)) is not None}
            self._looked_s = time.monotonic()
        open_tickets = [ticket for ticket in tickets if ticket not in endings]
        if question_due and open_tickets:
            endings |= self._by_question(open_tickets)
        for ticket in endings:
            self._watched.pop(ticket, None)
            self.waiting.pop(ticket, None)
        return {ticket: self._with_energy(ticket, ending) for ticket, ending in endings.items()}

    def _with_energy(self, ticket: str, ending: Ending) -> Ending:
        meters, watch = self.site.prices.meters, _watch_of(ticket)
        if not meters or ending.cause is not Cause.EXITED:
            return ending
        joules = measured_joules(watch.folder.path, meters, ending.duration_s)
        command = self.dialect.energy_command(watch.job_id) if BATCH_METER in meters else []
        for attempt in range(_CHARGE_QUESTIONS if command else 0):
            if attempt:
                time.sleep(_CHARGE_PAUSE_S)  # accounting may need a moment to see that a job is over
            if (joules := self.dialect.read_energy(self._run(command))) is not None:
                break
        return ending if joules is None else replace(ending, usage={**ending.usage, "joules": joules})

    def _by_folder_alone(self, ticket: str) -> Ending | None:
        """What needs no question: a request that was refused, a job that wrote down a normal end."""
        watch = self._watch(ticket)
        if watch.job_id == _REFUSED:
            reason = watch.folder.read(REFUSED_FILE) or "refused by the batch system"
            return Ending(Cause.NEVER_STARTS, reason=reason, charged_s=0.0)
        record = script.exit_record(watch.folder.path)
        # terminated or killed: the batch system knows why. Output to be copied back: it knows when
        if record is None or record.terminated or self.dialect.copies_output_back or ticket in self._cancelled:
            return None
        if record.signal is not None and batch_script.stopped(watch.folder.path) is None:
            return None
        return conclude(watch.folder, self.dialect, None)

    def _by_question(self, tickets: Collection[str]) -> dict[str, Ending]:
        watches = {ticket: self._watch(ticket) for ticket in tickets}
        answer, statuses = self._question(list(watches.values()))
        if statuses is None:
            self._away(answer)
            return {}
        self._away_since_s = None
        missing = {t: w for t, w in watches.items() if w.job_id not in statuses}
        elsewhere = self._elsewhere(missing)
        if elsewhere is None:
            # part of the history is away: the time in which a job is nowhere to be seen does not count now
            for watch in missing.values():
                watch.passed("missing")
        statuses = {**(elsewhere or {}), **statuses}
        found = {t: self._poll_one(t, watch, statuses.get(watch.job_id)) for t, watch in watches.items()}
        return {ticket: ending for ticket, ending in found.items() if ending is not None}

    def _question(self, watches: Collection[_Watch]) -> tuple[JobReply, Mapping[str, JobStatus] | None]:
        """One command for all of them; None: no answer."""
        self.questions += 1
        answer = self._run(self.dialect.poll_command([watch.job_id for watch in watches]))
        self._asked_s = time.monotonic()
        statuses = self.dialect.read_poll(answer)
        self._charge(statuses or {})
        return answer, statuses

    def _charge(self, statuses: Mapping[str, JobStatus]) -> None:
        self._charged_s |= {job: seen.charged_s for job, seen in statuses.items() if seen.charged_s is not None}

    def charged(self, tickets: Collection[str], ask: bool = False) -> Mapping[str, float]:
        watches = {ticket: _watch_of(ticket) for ticket in tickets}
        for attempt in range(_CHARGE_QUESTIONS if ask else 0):
            open_ones = {t: w for t, w in watches.items() if w.job_id not in self._charged_s}
            if not open_ones:
                break
            if attempt:
                time.sleep(_CHARGE_PAUSE_S)  # it may need a moment to see that a job which wrote its exit file is over
            _, statuses = self._question(list(open_ones.values()))
            if statuses is not None:
                in_history = {t: w for t, w in open_ones.items() if _unreported(statuses.get(w.job_id))}
                self._charge(self._elsewhere(in_history) or {})
        return {t: self._charged_s.pop(w.job_id) for t, w in watches.items() if w.job_id in self._charged_s}

    def _poll_one(self, ticket: str, watch: _Watch, seen: JobStatus | None) -> Ending | None:
        now_s = time.monotonic()
        if seen is None:
            return self._missing(watch, now_s)
        watch.passed("missing", *(phase for phase in (Phase.STUCK, Phase.HOPELESS) if phase is not seen.phase))
        self._note_waiting(ticket, watch, seen)
        if seen.phase is Phase.ENDED:
            settled = watch.folder.settled(self.dialect, seen)
            late = not settled and watch.held("settling", now_s) >= self._limit_s("settle_s")
            return conclude(watch.folder, self.dialect, seen) if settled or late else None
        waits, begun = seen.phase is not Phase.RUNNING, watch.folder.has(STARTED_FILE)
        if waits and begun and watch.held("requeued", now_s) > 0:
            # seen twice in a row: the first time it may have started since the batch system was asked
            text = f"{self.dialect.name} put job {watch.job_id} back into the queue after it had started"
            return self._give_up(ticket, Cause.CANCELLED, text)
        if seen.phase is Phase.HOPELESS and watch.held(Phase.HOPELESS, now_s) > 0:
            # seen twice in a row: for a moment after a change of nodes the same reason may show on a healthy job
            text = f"{self.dialect.name} took it but says: {seen.reason}; ask for less, or for another queue or account"
            return self._give_up(ticket, Cause.NEVER_STARTS, text)
        if seen.phase is Phase.STUCK and watch.held(Phase.STUCK, now_s) >= self._limit_s("stuck_after_s"):
            held = f"{self.dialect.name} says: {seen.reason}; the operator must bring these nodes back, or avoid them"
            return self._give_up(ticket, Cause.NODE_FAILED, held)
        return None

    def _note_waiting(self, ticket: str, watch: _Watch, seen: JobStatus) -> None:
        """Also for those who look at the run folder from elsewhere."""
        if seen.phase in (Phase.RUNNING, Phase.ENDED):
            self.waiting.pop(ticket, None)
            return
        why = self.dialect.in_words(seen.reason)
        if self.waiting.get(ticket) != why:
            self.waiting[ticket] = why
            if not watch.folder.has(STARTED_FILE):
                # nobody is stopped for want of it: where it cannot be written, whoever looks sees that the job waits
                with suppress(OSError):
                    write_whole(watch.folder.path / WAITING_FILE, f"{why}\n", survives_power_cut=False)

    def _missing(self, watch: _Watch, now_s: float) -> Ending | None:
        """Not in the queue, not in any history: the exit file decides; without it the job is lost, not completed."""
        if script.exit_record(watch.folder.path) is not None:
            return conclude(watch.folder, self.dialect, None)
        if watch.held("missing", now_s) < self._limit_s("lost_after_s"):
            return None
        return Ending(
            Cause.LOST,
            reason=f"{self.dialect.name} no longer knows job {watch.job_id}, neither in its queue nor in its "
            f"history, and {watch.folder.path / EXIT_FILE} was not written",
        )

    def _give_up(self, ticket: str, cause: Cause, reason: str) -> Ending | None:
        """None while the batch system cannot be asked to drop the job: it would stay in the queue behind our back."""
        if self._try_cancel(ticket) is not None:
            return None
        watch = self._watch(ticket)
        return conclude(
            watch.folder, self.dialect, JobStatus(watch.job_id, Phase.ENDED, ending=Ending(cause, reason=reason))
        )

    def _elsewhere(self, missing: Mapping[str, _Watch]) -> dict[str, JobStatus] | None:
        """Jobs that the queue has forgotten, from accounting and logs; None when one of these is away for a while."""
        found: dict[str, JobStatus] = {}
        wanted = {watch.job_id: str(watch.folder.path) for watch in missing.values()}
        for command in self.dialect.history_commands(list(wanted)) if wanted else ():
            answer = self.dialect.read_history(self._run(command))
            if answer is None:
                return None
            for job_id, seen in answer.items():
                # ids are given out again after a reinstallation of the cluster: the folder must be the same
                if job_id in wanted and seen.folder in ("", wanted[job_id]):
                    found.setdefault(job_id, seen)
        return found

    def _away(self, answer: JobReply) -> None:
        """No answer is no news; jobs go on without us. Only a long absence is an error."""
        now_s = time.monotonic()
        self._away_since_s = now_s if self._away_since_s is None else self._away_since_s
        if now_s - self._away_since_s >= self._limit_s("outage_s"):
            said = self.dialect.refusal(answer, self.site).message
            raise SiteError(
                f"site {self.site.name}: no answer from {self.dialect.name} for {now_s - self._away_since_s:.0f} s: "
                f"{said}; jobs may still run: `ridgeline resume` when it is back",
                transient=True,
            )

    # commands

    def _watch(self, ticket: str) -> _Watch:
        return self._watched.setdefault(ticket, _watch_of(ticket))

    def _limit_s(self, name: str) -> float:
        return float(option(self.site, BatchOptions, name))

    def _run(self, command: list[str], keep_open: int | None = None) -> JobReply:
        return run(command, self.site, self.dialect, keep_open)


def _unreported(seen: JobStatus | None) -> bool:
    """Whether only the history can tell what a job is charged: the queue has forgotten it, or knows its last start."""
    return seen is None or (seen.phase is Phase.ENDED and seen.charged_s is None)
