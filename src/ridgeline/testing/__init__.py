"""For tests, ours and those of plugin authors: stand-ins that keep the contracts, and the contracts themselves.

    site = MemorySite()
    executor = MemoryExecutor(LOCAL, site)                  # jobs take no time: the clock jumps from end to end
    workload = FunctionWorkload(study, lambda settings: ScriptedAnswer({"rate": settings["block"] ** 0.5}))

A second `MemoryExecutor` on the same `MemorySite` is a controller that came back after a crash. `FunctionWorkload` runs
on real executors too: its job prints the answer that was computed when it was prepared.
The stand-ins need nothing; `ridgeline.testing.contracts` needs pytest and Hypothesis: `pip install ridgeline[testing]`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from ridgeline.errors import Problem
from ridgeline.executors.base import Executor
from ridgeline.records.measurement import Measurement, Reading
from ridgeline.records.outcome import Signature
from ridgeline.records.run import Cause, Ending, Job, Machine, Run
from ridgeline.records.site import LOCAL, Site
from ridgeline.records.space import Settings
from ridgeline.records.study import Study
from ridgeline.records.trial import Trial
from ridgeline.workloads.base import Workload

_ANSWER_FILE = "answer.json"


@dataclass(frozen=True, slots=True)
class ScriptedAnswer:
    """What a pretended run measures, how long it takes, and how it leaves."""

    metrics: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 1.0
    exit_code: int = 0
    stderr: str = ""


Act = Callable[[Job], ScriptedAnswer]


def answer_of(job: Job) -> ScriptedAnswer:
    """What `FunctionWorkload` put into the job's folder; a job of another workload does nothing, well."""
    path = job.folder / _ANSWER_FILE
    return ScriptedAnswer(**json.loads(path.read_text())) if path.is_file() else ScriptedAnswer()


@dataclass
class MemorySite:
    """What outlives a controller: the clock, and the jobs with their dates and answers.

    Nodes are called memory, memory2 and so on; `boot` is what tells their machines from those after a restart.
    """

    now_s: float = 1_700_000_000.0
    boot: str = "first"
    jobs: dict[str, tuple[Job, float, ScriptedAnswer]] = field(default_factory=dict)
    endings: dict[str, Ending] = field(default_factory=dict)
    submitted: list[str] = field(default_factory=list)  # names, in the order they came


class MemoryExecutor(Executor):
    """Runs nothing. A job ends when the world's clock, which `wait` moves, has passed its date."""

    detached = False

    def __init__(self, site: Site = LOCAL, world: MemorySite | None = None, act: Act = answer_of) -> None:
        self.slots = site.jobs_at_once
        self.world = world if world is not None else MemorySite()
        self._act = act

    def script(self, job: Job) -> str:
        return f"#!/bin/sh\n# {job.name}\n{job.command}\n"

    def submit(self, job: Job) -> str:
        (job.folder / "run.sh").write_text(self.script(job))
        ticket = str(job.folder.resolve())
        if ticket in self.world.jobs:
            raise AssertionError(f"{job.name} was submitted twice")
        answer = self._act(job)
        self.world.jobs[ticket] = (job, self.world.now_s, answer)
        self.world.submitted.append(job.name)
        return ticket

    def find(self, job: Job) -> str | None:
        ticket = str(job.folder.resolve())
        return ticket if ticket in self.world.jobs else None

    def poll(self, tickets: Collection[str]) -> Mapping[str, Ending]:
        for ticket in tickets:
            if ticket not in self.world.endings and self.world.now_s >= self._end_s(ticket):
                self.world.endings[ticket] = self._finish(ticket)
        return {ticket: self.world.endings[ticket] for ticket in tickets if ticket in self.world.endings}

    def cancel(self, ticket: str) -> None:
        if ticket not in self.poll([ticket]):
            ending = Ending(Cause.CANCELLED, reason="cancelled", ended_s=self.world.now_s)
            self.world.endings[ticket] = self._ended(ticket, "", "", ending)

    def wait(self, timeout_s: float) -> None:
        """Move the clock to the next end, but by no more than `timeout_s`."""
        ends = [self._end_s(ticket) for ticket in self.world.jobs if ticket not in self.world.endings]
        self.world.now_s = min([self.world.now_s + timeout_s, *ends])

    def _end_s(self, ticket: str) -> float:
        job, started_s, answer = self.world.jobs[ticket]
        return started_s + min(answer.seconds, job.limit_s)

    def _finish(self, ticket: str) -> Ending:
        job, _, answer = self.world.jobs[ticket]
        ended_s, stdout = self._end_s(ticket), json.dumps(dict(answer.metrics)) + "\n"
        number = answer.exit_code - 128 if answer.exit_code > 128 else None
        ending = Ending(Cause.EXITED, exit_code=answer.exit_code, signal=number, ended_s=ended_s)
        if answer.seconds > job.limit_s:
            reason = f"ran longer than its limit of {job.limit_s:g} s"
            stdout, ending = "", Ending(Cause.TIME_LIMIT, signal=15, reason=reason, ended_s=ended_s)
        return self._ended(ticket, stdout, answer.stderr, ending)

    def _ended(self, ticket: str, stdout: str, stderr: str, ending: Ending) -> Ending:
        job, started_s, _ = self.world.jobs[ticket]
        (job.folder / "stdout").write_text(stdout)
        (job.folder / "stderr").write_text(stderr)
        nodes = job.on_nodes or tuple(f"memory{n or ''}" for n in (0, *range(2, job.resources.nodes + 1)))
        machines = tuple(Machine(node, self.world.boot) for node in nodes)
        return replace(ending, nodes=nodes, machines=machines, started_s=started_s)


class FunctionWorkload(Workload):
    """A program whose answer is a function of its settings; the same each time it is asked."""

    def __init__(
        self,
        study: Study,
        function: Callable[[Settings], ScriptedAnswer],
        *,
        signatures: tuple[Signature, ...] = (),
        refuse: Callable[[Settings], str | None] = lambda settings: None,
    ) -> None:
        self._study = study
        self._function = function
        self._refuse = refuse
        self.signatures = signatures

    def problems(self) -> list[Problem]:
        return []

    def refusal(self, settings: Settings) -> str | None:
        return self._refuse(settings)

    def prepare(self, trial: Trial, folder: Path) -> Job:
        answer = self._function(trial.settings)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _ANSWER_FILE).write_text(json.dumps(asdict(answer)))
        (folder / "says").write_text(answer.stderr)
        (folder / "metrics.json").write_text(json.dumps(dict(answer.metrics)) + "\n")
        return Job(
            name=folder.name,
            folder=folder,
            command=f"cat says >&2\ncat metrics.json\nexit {answer.exit_code}",
            resources=self._study.job.resources(trial.settings),
            limit_s=self._study.job.limit_s,
            silence_limit_s=self._study.job.silence_limit_s,
        )

    def read(self, run: Run) -> Reading:
        try:
            metrics = json.loads((run.folder / "stdout").read_text())
            return Reading(tuple(Measurement(name, float(value), "", "stdout") for name, value in metrics.items()))
        except (OSError, ValueError, AttributeError, TypeError) as error:
            return Reading(problem=f"stdout is not the answer of a function: {error}")

    def paste(self, settings: Settings) -> str:
        return " ".join(f"--{name} {value}" for name, value in settings.items() if value is not None)
