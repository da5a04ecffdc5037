"""A campaign that is disturbed while it runs: the stage it plays on, the faults, and the audit at its end.

A fault is aimed at a run by its number, and nothing waits for a duration: the run's job stays at a gate (or its submit
command in a wrapper) until the fault has happened. So it meets the same moment on a busy machine as on a quiet one.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from ridgeline.campaign.verify.folder import verify_folder
from ridgeline.study.history import read_history
from tests.slurm_cluster import SlurmCluster

PATIENCE_S = 240.0  # for anything that must come; a machine may be busy with other things
LEAVING_S = 60.0
STANDIN = Path(__file__).parent / "pbs_standin"
SLOTS = 4

# what a run measures follows from its setting alone, so that a disturbed campaign must find what a calm one finds
STUDY = r"""
version: 1
name: disturbed
workload:
  kind: command
  run: |
    echo start >> starts
    touch "$RIDGELINE_SCRATCH/big" here
    while [ -e "../../../../gates/$(basename "$PWD" | cut -c-4)" ]; do sleep 0.1; done
    sleep NAP
    echo "rate $((100 + {x} * 37 % 101)) u/s"
  metrics:
    rate: {regex: 'rate\s+([0-9.]+)', unit: u/s}
site: cluster.yaml
space:
  x: {from: 0, to: 9}
goal: {maximize: rate}
baseline: {x: 0}
budget: {trials: 9}
stages:
  baseline: {repeats: 1}
  search: {sampler: grid, seed: 3, sentinel_every: 0}
  confirm: {top: 1, blocks: 3, repeats: 1}
job: {limit: 600s}
"""
RUNS_OF_A_CALM_ONE = 19  # the baseline, 9 trials, 3 blocks of a warm-up and 2 runs

# $run is the number of the run that is being handed over; the lock of its folder is inherited and held meanwhile
_SUBMIT = """\
#!/bin/sh
for last; do :; done
run=$(basename "$(dirname "$last")" | cut -c-4)
hold() {{
  [ -e {faults}/$1-$run ] || return 0
  echo $$ > {faults}/$1-$run.partial; mv {faults}/$1-$run.partial {faults}/$1-$run.reached
  while [ -e {faults}/$1-$run ]; do sleep 0.05; done
}}
hold before
answer=$({program} "$@"); code=$?
hold after
printf '%s\\n' "$answer"
exit $code
"""
# it hangs while the flag is there, and then fails as it does on an overloaded server
_ASK = """\
#!/bin/sh
if [ -e {faults}/hang ]; then
  touch {faults}/hang.reached
  while [ -e {faults}/hang ]; do sleep 0.1; done
  echo {error} >&2
  exit 1
fi
{forgetful}exec {program} "$@"
"""
_HISTORY = """\
#!/bin/sh
if [ -e {faults}/history ]; then
  touch {faults}/history.reached
  echo {error} >&2
  exit 1
fi
exec {program} "$@"
"""


def until(true: Callable[[], Any], what: str, limit_s: float = PATIENCE_S) -> None:
    give_up = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < give_up, f"waited {limit_s:.0f} s in vain: {what}"
        time.sleep(0.05)


@dataclass(frozen=True)
class BookedStart:
    """One start of a job in the batch system's own books."""

    job_id: str
    folder: Path
    node_s: float


@dataclass
class BatchSystem:
    """What a stage needs of a batch system: its commands behind wrappers, and hands to disturb it."""

    name = ""
    submit, ask = "", ""
    ask_error = ""

    def site(self, scratch: Path) -> str:
        raise NotImplementedError

    @property
    def env(self) -> dict[str, str]:
        raise NotImplementedError

    def wrappers(self, faults: Path) -> dict[str, str]:
        where = {"faults": shlex.quote(str(faults))}
        submit, ask = (shlex.quote(self.program(name)) for name in (self.submit, self.ask))
        asking = {"error": shlex.quote(self.ask_error), "program": ask, "forgetful": self.forgetful(where["faults"])}
        return {
            self.submit: _SUBMIT.format(program=submit, **where),
            self.ask: _ASK.format(**asking, **where),
        }

    def forgetful(self, faults: str) -> str:
        return ""

    def program(self, name: str) -> str:
        raise NotImplementedError

    def cancel(self, job_id: str) -> None:
        raise NotImplementedError

    def idle(self, folder: Path) -> bool:
        """Whether no job of this folder is queued, running or being cleaned up."""
        raise NotImplementedError

    def books(self, folder: Path) -> list[BookedStart]:
        raise NotImplementedError

    def accounting_s(self, folder: Path) -> float | None:
        """Node-seconds by a second set of books, where there is one."""
        return None


@dataclass
class SlurmSystem(BatchSystem):
    cluster: SlurmCluster
    name = "Slurm"
    submit, ask = "sbatch", "squeue"
    ask_error = "slurm_load_jobs error: Socket timed out on send/recv operation"
    # as slurmdbd that is away makes it
    history_error = "sacct: error: slurm_persist_conn_open_without_init: failed to open persistent connection: refused"

    def site(self, scratch: Path) -> str:
        return (
            # whole nodes: a node that goes down takes one run with it, and not one that another fault is aimed at
            f"batch: slurm\nqueue: debug\nnodes: 4\ncores_per_node: 2\njobs_at_once: {SLOTS}\npoll_s: 0.3\n"
            f"scratch: {scratch}\n"
            "options: {stuck_after_s: 240}\n"
        )

    @property
    def env(self) -> dict[str, str]:
        return self.cluster.env

    def wrappers(self, faults: Path) -> dict[str, str]:
        sacct = _HISTORY.format(
            faults=shlex.quote(str(faults)), error=shlex.quote(self.history_error), program=self.program("sacct")
        )
        return {**super().wrappers(faults), "sacct": sacct}

    def program(self, name: str) -> str:
        found = shutil.which(name)
        assert found is not None, f"{name} is not installed"
        return found

    def cancel(self, job_id: str) -> None:
        self.cluster.run("scancel", job_id)

    def state(self, job_id: str) -> str:
        return self.cluster.run("squeue", "-h", "--states=all", "-j", job_id, "-o", "%T", check=False).stdout.strip()

    def idle(self, folder: Path) -> bool:
        listed = self.cluster.run("squeue", "-h", "-o", "%Z", check=False)
        return listed.returncode == 0 and f"{folder}/" not in listed.stdout

    def books(self, folder: Path) -> list[BookedStart]:
        """The completion log. A job that was put back into the queue has a line for each start."""
        found = []
        for line in self.cluster.jobcomp.read_text().splitlines():
            cells = dict(re.findall(r"(\w+)=(\S*)", line))
            if not cells.get("WorkDir", "").startswith(f"{folder}/"):
                continue
            start, end = cells["StartTime"], cells["EndTime"]
            ran = "Unknown" not in (start, end)
            took_s = (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds() if ran else 0.0
            found.append(BookedStart(cells["JobId"], Path(cells["WorkDir"]), took_s * int(cells["NodeCnt"])))
        return found

    def accounting_s(self, folder: Path) -> float | None:
        if not self.cluster.accounting:
            return None
        asked = ("sacct", "--duplicates", "-X", "-n", "-P", "-S", "now-1day", "-o", "JobID,ElapsedRaw,NNodes,WorkDir")

        def rows() -> list[list[str]]:
            cells = [line.split("|", 3) for line in self.cluster.run(*asked).stdout.splitlines()]
            return [row for row in cells if row[3].startswith(f"{folder}/")]

        starts = sum(start.folder.is_dir() for start in self.books(folder))
        until(lambda: len(rows()) >= starts, "slurmdbd has every start")
        return float(sum(int(row[1]) * int(row[2]) for row in rows()))


@dataclass
class PbsSystem(BatchSystem):
    """The stand-in: words, exit codes and JSON of a real server, jobs on this machine."""

    state: Path
    name = "PBS stand-in"
    submit, ask = "qsub", "qstat"
    ask_error = "qstat: cannot connect to server vm (errno=15010)"

    def site(self, scratch: Path) -> str:
        return f"batch: pbs\nqueue: workq\nnodes: 4\njobs_at_once: {SLOTS}\npoll_s: 0.3\nscratch: {scratch}\n"

    @property
    def env(self) -> dict[str, str]:
        return {"PBS_STANDIN": str(self.state), "PATH": f"{STANDIN}{os.pathsep}{os.environ['PATH']}"}

    def forgetful(self, faults: str) -> str:
        return f"[ ! -e {faults}/history ] || {{ touch {faults}/history.reached; export PBS_STANDIN_HISTORY=0; }}\n"

    def program(self, name: str) -> str:
        return str(STANDIN / name)

    def cancel(self, job_id: str) -> None:
        subprocess.run([self.program("qdel"), job_id], env={**os.environ, **self.env}, check=True)

    def _jobs(self, folder: Path) -> dict[str, dict[str, Any]]:
        jobs = {file.name.removesuffix(".json"): json.loads(file.read_text()) for file in self.state.glob("*.vm.json")}
        return {name: job for name, job in jobs.items() if str(job["script"]).startswith(f"{folder}/")}

    def idle(self, folder: Path) -> bool:
        return all(job["job_state"] == "F" for job in self._jobs(folder).values())

    def books(self, folder: Path) -> list[BookedStart]:
        found = []
        for name, job in self._jobs(folder).items():
            hours, minutes, seconds = job.get("resources_used", {}).get("walltime", "0:0:0").split(":")
            took_s = 3600 * int(hours) + 60 * int(minutes) + int(seconds)
            found.append(BookedStart(name, Path(job["script"]).parent, float(took_s)))
        return found


@dataclass
class Stage:
    """One campaign in a folder of its own, its controller, and the faults that are still to come."""

    folder: Path
    system: BatchSystem
    faults: Sequence[tuple[int, str]] = ()  # (run, kind of fault), by run
    nap_s: float = 0.3  # how long a run takes
    controller: subprocess.Popen[bytes] | None = None
    hit: list[tuple[int, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name in ("gates", "faults", "bin", "scratch"):
            (self.folder / name).mkdir(parents=True)
        (self.folder / "study.yaml").write_text(STUDY.replace("NAP", f"{self.nap_s:g}"))
        (self.folder / "cluster.yaml").write_text(self.system.site(self.folder / "scratch"))
        for name, text in self.system.wrappers(self.folder / "faults").items():
            (self.folder / "bin" / name).write_text(text)
            (self.folder / "bin" / name).chmod(0o755)
        for run, kind in self.faults:
            flag = self.folder / (f"faults/{HOLDS[kind]}-{run:04d}" if kind in HOLDS else f"gates/{run:04d}")
            flag.touch()

    @property
    def study(self) -> Path:
        return self.folder / "studies/disturbed"

    @property
    def environment(self) -> dict[str, str]:
        merged = {**os.environ, **self.system.env}
        return {**merged, "PATH": f"{self.folder / 'bin'}{os.pathsep}{merged['PATH']}"}

    def journal(self) -> list[dict[str, Any]]:
        """Its whole lines; the last one may be under way, or cut off by a kill."""
        file = self.study / "journal.jsonl"
        text = file.read_text() if file.exists() else ""
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def events(self, what: str) -> list[dict[str, Any]]:
        return [event for event in self.journal() if event["event"] == what]

    # the controller

    def ridgeline(self, *words: str) -> subprocess.Popen[bytes]:
        with (self.folder / "controller.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "ridgeline", *words],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def start(self) -> None:
        self.controller = self.ridgeline("tune", "study.yaml")

    def kill(self) -> None:
        assert self.controller is not None
        self.controller.send_signal(signal.SIGKILL)
        self.controller.wait()

    def resume(self) -> None:
        before = len(self.events("opened"))
        self.controller = self.ridgeline("resume", "studies/disturbed")
        self.wait(lambda: len(self.events("opened")) > before, "the next controller takes the campaign up")

    def wait(self, true: Callable[[], Any], what: str) -> None:
        """For something that only happens while a controller is at work."""

        def happened() -> Any:
            found = true()
            left = None if found or self.controller is None else self.controller.poll()
            assert left is None or true(), f"the controller left ({left}): {what}\n{self.told()}"
            return found

        until(happened, what)

    def told(self) -> str:
        return (self.folder / "controller.log").read_text(errors="replace")[-3000:]

    def finish(self) -> None:
        """To the verdict, and until the batch system has closed its books; then the ledger is brought up to date."""
        assert self.controller is not None
        assert self.controller.wait(PATIENCE_S) == 0, self.told()
        until(lambda: self.system.idle(self.study), "the batch system is done with all jobs")
        assert self.ridgeline("resume", "studies/disturbed").wait(PATIENCE_S) == 0, self.told()

    def leave(self) -> None:
        """After a failure: no controller and no job stays."""
        for gate in (*(self.folder / "gates").iterdir(), *(self.folder / "faults").iterdir()):
            gate.unlink(missing_ok=True)
        if self.controller is not None and self.controller.poll() is None:
            self.kill()
        if self.study.exists():
            until(lambda: self.system.idle(self.study), "the jobs that were left end")

    def play(self) -> None:
        """The whole campaign with all its faults, in the order of the runs they are aimed at."""
        try:
            self.start()
            for run, kind in self.faults:
                FAULTS[kind](self, run)
                self.hit.append((run, kind))
            self.finish()
        except BaseException:
            self.leave()
            raise

    # the run that a fault is aimed at

    def run_folder(self, run: int) -> Path | None:
        return next((self.study / "runs").glob(f"{run:04d}-*"), None)

    def at_gate(self, run: int) -> Path:
        """The folder of the run, once its program runs and waits."""

        def here() -> Path | None:
            assert run not in {e["run"] for e in self.events("ended")}, f"run {run} ended before its gate"
            found = self.run_folder(run)
            return found if found is not None and (found / "here").exists() else None

        self.wait(here, f"run {run} gets to its gate")
        found = here()
        assert found is not None
        # its controller has the answer of the submit command: other faults are aimed at the time before
        self.wait(lambda: run in {e["run"] for e in self.events("submitted")}, f"run {run} is in the journal")
        return found

    def open_gate(self, run: int) -> None:
        (self.folder / f"gates/{run:04d}").unlink()

    def job_of(self, run: int) -> str:
        return next(str(e["ticket"]).split()[0] for e in self.events("submitted") if e["run"] == run)

    def held(self, where: str, run: int) -> int:
        """The process id of the submit command of this run, once it waits in its wrapper."""
        reached = self.folder / f"faults/{where}-{run:04d}.reached"
        self.wait(reached.exists, f"run {run} is being handed over")
        return int(reached.read_text())

    def let_go(self, where: str, run: int) -> None:
        (self.folder / f"faults/{where}-{run:04d}").unlink()

    def flag(self, name: str) -> Path:
        return self.folder / "faults" / name


# the faults


def killed_while_it_runs(stage: Stage, run: int) -> None:
    stage.at_gate(run)
    stage.kill()
    stage.resume()
    stage.open_gate(run)


def killed_and_it_ends_alone(stage: Stage, run: int) -> None:
    folder = stage.at_gate(run)
    stage.kill()
    stage.open_gate(run)
    until((folder / "exit").exists, f"run {run} ends without a controller")
    stage.resume()


def killed_before_the_answer(stage: Stage, run: int) -> None:
    """The batch system has taken the job; nobody has read its id."""
    stage.held("after", run)
    stage.kill()
    stage.resume()
    stage.let_go("after", run)


def killed_before_the_submission(stage: Stage, run: int) -> None:
    """The submit command of the dead controller hands the job over while the next controller looks for it."""
    stage.held("before", run)
    stage.kill()
    stage.resume()
    time.sleep(2)  # one that did not wait for that command would have looked in vain by now
    stage.let_go("before", run)


def killed_with_its_submission(stage: Stage, run: int) -> None:
    """Nothing was handed over, and the next controller cannot know that before accounting is back."""
    command = stage.held("before", run)
    stage.kill()
    os.kill(command, signal.SIGKILL)
    stage.let_go("before", run)
    stage.flag("history").touch()
    stage.resume()
    if isinstance(stage.system, SlurmSystem):
        stage.wait(stage.flag("history.reached").exists, "accounting is asked")
    stage.flag("history").unlink()


def cancelled(stage: Stage, run: int) -> None:
    stage.at_gate(run)
    stage.system.cancel(stage.job_of(run))
    stage.open_gate(run)


def requeued(stage: Stage, run: int) -> None:
    """As an administrator does it, although the job asks for none."""
    stage.at_gate(run)
    cluster, job = _slurm(stage).cluster, stage.job_of(run)
    cluster.run("scontrol", "update", f"JobId={job}", "Requeue=1")
    cluster.run("scontrol", "requeue", job)
    stage.open_gate(run)


def server_restarted(stage: Stage, run: int) -> None:
    """The run ends while nobody answers."""
    folder = stage.at_gate(run)
    system = stage.system
    if isinstance(system, SlurmSystem):
        system.cluster.stop_controller()
    else:
        (_pbs(stage).state / "down").touch()
    stage.open_gate(run)
    until((folder / "exit").exists, f"run {run} ends while the server is away")
    if isinstance(system, SlurmSystem):
        system.cluster.start_controller()
    else:
        (_pbs(stage).state / "down").unlink()


def daemon_restarted(stage: Stage, run: int) -> None:
    """slurmd of the run's node, under the running job."""
    node = _node(stage.at_gate(run))
    cluster = _slurm(stage).cluster
    cluster.end(f"slurmd-{node}")
    cluster.start_node(node)
    until(lambda: cluster.pid(f"slurmd-{node}"), f"slurmd of {node} is back")
    stage.open_gate(run)


def node_down(stage: Stage, run: int) -> None:
    node, system, job = _node(stage.at_gate(run)), _slurm(stage), stage.job_of(run)
    system.cluster.run("scontrol", "update", f"nodename={node}", "state=down", "reason=fire")
    until(lambda: system.state(job) != "RUNNING", f"job {job} falls with its node")
    # it may be back by itself, since its daemon is well
    system.cluster.run("scontrol", "update", f"nodename={node}", "state=resume", check=False)
    stage.open_gate(run)


def queue_hangs(stage: Stage, run: int) -> None:
    """The run ends while the question has no answer; then the question fails."""
    folder = stage.at_gate(run)
    stage.flag("hang").touch()
    stage.wait(stage.flag("hang.reached").exists, "the queue is asked")
    stage.open_gate(run)
    until((folder / "exit").exists, f"run {run} ends while the queue hangs")
    time.sleep(2)
    stage.flag("hang").unlink()
    stage.flag("hang.reached").unlink()


def history_off(stage: Stage, run: int) -> None:
    """The server forgets every job at its end: what the run wrote down must do."""
    folder = stage.at_gate(run)
    stage.flag("history").touch()
    stage.open_gate(run)
    until((folder / "exit").exists, f"run {run} ends while there is no history")
    stage.wait(lambda: run in {e["run"] for e in stage.events("ended")}, f"run {run} is judged")
    stage.flag("history").unlink()


FAULTS: Mapping[str, Callable[[Stage, int], None]] = {
    "controller killed, job runs on": killed_while_it_runs,
    "controller killed, job ends alone": killed_and_it_ends_alone,
    "controller killed before the job's id is read": killed_before_the_answer,
    "controller killed as it submits": killed_before_the_submission,
    "controller and submission killed, accounting off": killed_with_its_submission,
    "job cancelled": cancelled,
    "job requeued": requeued,
    "server restarted": server_restarted,
    "slurmd restarted": daemon_restarted,
    "node down": node_down,
    "queue hangs": queue_hangs,
    "no job history": history_off,
}
# faults that hit a run as it is handed over: where its submit command is held
HOLDS = {
    "controller killed before the job's id is read": "after",
    "controller killed as it submits": "before",
    "controller and submission killed, accounting off": "before",
}
# faults during which the controller must go on: none of HOLDS may hold it meanwhile
NEEDS_CONTROLLER = ("queue hangs", "no job history")
ON_SLURM = tuple(kind for kind in FAULTS if kind != "no job history")
ON_PBS = tuple(kind for kind in FAULTS if kind not in ("job requeued", "slurmd restarted", "node down"))


def _slurm(stage: Stage) -> SlurmSystem:
    assert isinstance(stage.system, SlurmSystem)
    return stage.system


def _pbs(stage: Stage) -> PbsSystem:
    assert isinstance(stage.system, PbsSystem)
    return stage.system


def _node(folder: Path) -> str:
    return (folder / "started").read_text().split()[1]


# the audit


@dataclass(frozen=True)
class Audit:
    """What a finished campaign left behind, beside the batch system's own books."""

    lost: tuple[str, ...]
    twice: tuple[str, ...]
    verified: bool
    ledger_s: float
    books_s: float
    answer: Mapping[str, Any]
    left: tuple[str, ...]
    runs: int
    accounting_s: float | None = None  # as `sacct` has it, where there is accounting

    @property
    def clean(self) -> bool:
        return self.verified and not (self.lost or self.twice or self.left) and self.ledger_error <= 0.02

    @property
    def ledger_error(self) -> float:
        return abs(self.ledger_s - self.books_s) / self.books_s if self.books_s else 0.0


def audit(stage: Stage) -> Audit:
    journal, books = stage.journal(), stage.system.books(stage.study)
    verdict = next(event["verdict"] for event in journal if event["event"] == "verdict")
    # blocks that a kill cut in two are run again, and named
    answer = {name: value for name, value in verdict.items() if name != "repeated"}
    return Audit(
        lost=tuple(_lost(stage, journal, books)),
        twice=tuple(_twice(stage, journal, books)),
        verified=verify_folder(stage.study).holds,
        ledger_s=read_history(stage.study).node_hours * 3600,
        books_s=sum(start.node_s for start in books),
        answer=answer,
        left=tuple(_left(stage)),
        runs=sum(event["event"] == "run" for event in journal),
        accounting_s=stage.system.accounting_s(stage.study),
    )


def _lost(stage: Stage, journal: Sequence[Mapping[str, Any]], books: Sequence[BookedStart]) -> list[str]:
    """Runs without an end, results that are not there or not the setting's, trials that came to nothing."""
    ended = {event["run"]: event for event in journal if event["event"] == "ended"}
    trials = {event["trial"]: event["point"] for event in journal if event["event"] == "trial"}
    given_up = {trial for event in journal if event["event"] == "set-aside" for trial in event["trials"]}
    runs = [event for event in journal if event["event"] == "run"]
    booked = {start.folder for start in books}
    found = [f"run {run['run']} has no end" for run in runs if run["run"] not in ended]
    found += [f"run {run['run']} has no job" for run in runs if stage.study / run["folder"] not in booked]
    passed = set()
    for run in (run for run in runs if run["run"] in ended):
        folder, end = stage.study / run["folder"], ended[run["run"]]
        if not (folder / "result.json").is_file():
            found.append(f"run {run['run']} has no result.json")
        if end["outcome"]["kind"] == "ok":
            passed.add(run["trial"])
            rates = [row[1] for row in end["measurements"] if row[0] == "rate"]
            if rates != [100 + trials[run["trial"]]["x"] * 37 % 101]:
                found.append(f"run {run['run']} measured {rates}")
    return found + [f"trial {number} has no result" for number in trials if number not in passed | given_up]


def _twice(stage: Stage, journal: Sequence[Mapping[str, Any]], books: Sequence[BookedStart]) -> list[str]:
    """Two jobs or two starts of the program for one run, two ends of it, jobs that the journal does not know."""
    tickets = {tuple(event["ticket"].split(" ", 1)) for event in journal if event["event"] == "submitted"}
    jobs = {(start.job_id, str(start.folder)) for start in books}
    found = [f"{folder} was submitted {n} times" for folder, n in Counter(f for _, f in jobs).items() if n > 1]
    found += [f"job {job} of {folder} is not in the journal" for job, folder in jobs - tickets]
    found += [f"job {job} of {folder} is not in the books" for job, folder in tickets - jobs]
    ends = Counter(event["run"] for event in journal if event["event"] == "ended")
    found += [f"run {run} ended {n} times" for run, n in ends.items() if n > 1]
    for file in stage.study.glob("runs/*/starts"):
        if (n := len(file.read_text().splitlines())) > 1:
            found.append(f"{file.parent.name}: its program was started {n} times")
    return found


def _left(stage: Stage) -> list[str]:
    """Scratch, and processes that are in a folder of this campaign; those that are just leaving get the time to."""
    give_up = time.monotonic() + LEAVING_S
    while (found := [*(stage.folder / "scratch").iterdir(), *_processes(stage.folder)]) and time.monotonic() < give_up:
        time.sleep(0.2)
    return [str(path) for path in found]


def _processes(folder: Path) -> list[Path]:
    def inside(process: Path) -> bool:
        try:
            return folder in (process / "cwd").readlink().parents
        except OSError:  # it has ended, or is the kernel's
            return False

    return [process for process in Path("/proc").iterdir() if process.name.isdigit() and inside(process)]
