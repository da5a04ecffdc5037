"""What a batch system's records mean: jobs that failed and what they cost, idle cores, limits far too wide."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from ridgeline.diagnose.accounting.job import JobRecord
from ridgeline.diagnose.accounting.pbs import read_pbs_jobs
from ridgeline.diagnose.accounting.slurm import read_sacct
from ridgeline.diagnose.base import Analyzer, Claimed, Portrait, PortraitFigure, Quote, cited
from ridgeline.records.finding import Finding, Severity

_LONG_S = 60.0  # shorter jobs are start-up and say nothing about their use of cores
_USED_UP = ("completed", "timeout", "failed")  # of others the processor time is missing, or taken too early
_IDLE, _NEAR, _WIDE = 0.6, 0.95, 4.0


@dataclass(slots=True)
class _Group:
    """Jobs that have something in common: how many, what they cost, and the costliest to show."""

    jobs: int = 0
    core_s: float = 0.0
    worst: JobRecord | None = None
    worst_s: float = -1.0
    nodes: dict[str, int] = field(default_factory=dict)

    def add(self, job: JobRecord, core_s: float) -> None:
        self.jobs += 1
        self.core_s += core_s
        if core_s > self.worst_s:
            self.worst, self.worst_s = job, core_s
        if len(self.nodes) < 1000 or job.node_names in self.nodes:
            self.nodes[job.node_names] = self.nodes.get(job.node_names, 0) + 1

    @property
    def quotes(self) -> tuple[Quote, ...]:
        job = self.worst
        if job is None:
            return ()
        end = (Quote(job.end_line, "", job.end_text),) if job.end_line else ()
        return (Quote(job.line, job.job_id, job.text), *end)


@dataclass(slots=True)
class _Ledger:
    """Sums over all jobs, in constant memory."""

    jobs: int = 0
    core_s: float = 0.0
    elapsed_s: float = 0.0
    waited_s: float = 0.0
    idle_core_s: float = 0.0
    groups: dict[str, _Group] = field(default_factory=dict)

    def add(self, job: JobRecord) -> None:
        elapsed, cores = job.elapsed_s or 0.0, job.cpus or 1
        core_s = elapsed * cores
        self.jobs += 1
        self.core_s += core_s
        self.elapsed_s += elapsed
        self._into("all", job, core_s)
        self._into(job.state or "unknown", job, core_s)
        if job.waited_s is not None:
            self.waited_s += job.waited_s
            self._into("waited", job, job.waited_s)
        self._use(job, elapsed, core_s)

    def _use(self, job: JobRecord, elapsed: float, core_s: float) -> None:
        known = job.cpu_s and job.cpus and job.state in _USED_UP
        if known and job.cpu_s is not None and elapsed >= _LONG_S and job.cpu_s < _IDLE * core_s:
            self.idle_core_s += core_s - job.cpu_s
            self._into("idle", job, core_s - job.cpu_s)
        used, asked = job.memory_bytes, job.memory_asked_bytes
        if used and asked and used >= _NEAR * asked:
            self._into("near-memory", job, core_s)
        if job.state == "completed" and job.limit_s and elapsed >= _LONG_S and job.limit_s > _WIDE * elapsed:
            self._into("wide-limit", job, core_s)

    def _into(self, name: str, job: JobRecord, cost: float) -> None:
        self.groups.setdefault(name, _Group()).add(job, cost)

    def share(self, core_s: float) -> float | None:
        return core_s / self.core_s if self.core_s > 0 else None


def claims(jobs: Iterable[JobRecord]) -> list[Claimed]:
    """Claims about one job or about a year of them."""
    ledger = _Ledger()
    for job in jobs:
        ledger.add(job)
    return [claim for rule in (_failed, _idle, _near_memory, _wide_limit, _overall) for claim in rule(ledger)]


def _failed(ledger: _Ledger) -> Iterator[Claimed]:
    for state, (what, advice) in _ENDINGS.items():
        group = ledger.groups.get(state)
        if group is None:
            continue
        worst = group.worst
        one = (
            f"job {worst.job_id} {what}" if worst and group.jobs == 1 else f"{group.jobs} of {ledger.jobs} jobs {what}"
        )
        code = f" (exit code {worst.exit_code})" if state == "failed" and worst and worst.exit_code else ""
        nodes = max(group.nodes, key=lambda n: group.nodes[n], default="")
        where = f" ({'most often ' if group.jobs > 1 else ''}on {nodes})" if state == "node-fail" and nodes else ""
        severity: Severity = "fault" if group.jobs == ledger.jobs else "warning"
        yield Claimed(
            f"{one}{code}{where}",
            group.quotes,
            advice,
            severity,
            share=ledger.share(group.core_s),
            key=f"jobs.{state}",
        )


_ENDINGS = {
    "timeout": (
        "ran into the time limit",
        "Ask for more time, or save and continue; what it printed before is not a complete result.",
    ),
    "memory": (
        "ran out of memory",
        "Ask for more memory, use fewer ranks on a node, or lower what the program may use.",
    ),
    "node-fail": ("lost a node", "Leave that node out (--exclude) and tell the operators; run the job again."),
    "failed": ("failed", "Read the job's own output: `ridgeline diagnose` knows many. 137 is a kill, 139 a crash."),
}


def _idle(ledger: _Ledger) -> Iterator[Claimed]:
    group = ledger.groups.get("idle")
    if group and group.worst:
        worst = group.worst
        busy = (worst.cpu_s or 0.0) / ((worst.elapsed_s or 1.0) * (worst.cpus or 1))
        yield Claimed(
            f"{group.jobs} of {ledger.jobs} jobs left cores idle; job {worst.job_id} kept its {worst.cpus} cores "
            f"{busy:.0%} busy",
            group.quotes,
            "Ask for fewer cores, start as many ranks and threads as there are cores, and look for input and waiting. "
            "GPU jobs need few cores. `ridgeline scale` shows how many pay.",
            share=ledger.share(ledger.idle_core_s),
            key="jobs.idle-cores",
        )


def _near_memory(ledger: _Ledger) -> Iterator[Claimed]:
    group = ledger.groups.get("near-memory")
    if group:
        yield Claimed(
            f"{group.jobs} of {ledger.jobs} jobs used nearly all the memory they asked for",
            group.quotes,
            "A little more and the batch system kills them: ask for more.",
            "warning",
            key="jobs.near-memory",
        )


def _wide_limit(ledger: _Ledger) -> Iterator[Claimed]:
    group = ledger.groups.get("wide-limit")
    if group and group.worst and group.worst.elapsed_s and group.worst.limit_s:
        ratio = group.worst.limit_s / group.worst.elapsed_s
        yield Claimed(
            f"{group.jobs} of {ledger.jobs} jobs asked for far more time than they used; job {group.worst.job_id} for "
            f"{ratio:.0f} times as much",
            group.quotes,
            "A closer limit lets the batch system start them earlier, in gaps between other jobs.",
            "note",
            key="jobs.wide-limit",
        )


def _overall(ledger: _Ledger) -> Iterator[Claimed]:
    whole = ledger.groups.get("all")
    if whole is None:
        return
    done = ledger.groups.get("completed", _Group()).jobs
    waited = ledger.groups.get("waited")
    wait = f", {waited.core_s / waited.jobs / 3600:.2f} h in the queue on average" if waited and waited.jobs else ""
    yield Claimed(
        f"{done} of {ledger.jobs} jobs completed; {ledger.core_s / 3600:.2f} core-hours in all{wait}",
        whole.quotes,
        "Compare before and after a change with `ridgeline diagnose --compare`.",
        "note",
        key="jobs.overall",
    )


def _portrait(read: Callable[[Iterable[str]], Iterator[JobRecord]]) -> Callable[[Iterable[str]], Portrait]:
    def portray(lines: Iterable[str]) -> Portrait:
        ledger = _Ledger()
        for job in read(lines):
            ledger.add(job)
        if not ledger.jobs:
            return Portrait()
        figures = [
            PortraitFigure("jobs", ledger.jobs),
            PortraitFigure("core-hours", ledger.core_s / 3600, "h"),
            PortraitFigure("elapsed", ledger.elapsed_s / 3600, "h"),
            PortraitFigure("waited in the queue", ledger.waited_s / 3600, "h"),
            PortraitFigure("idle core-hours", ledger.idle_core_s / 3600, "h"),
            *(
                PortraitFigure(f"jobs {state}", ledger.groups[state].jobs)
                for state in ("completed", "cancelled", *_ENDINGS)
                if state in ledger.groups
            ),
        ]
        return Portrait(tuple(figures))

    return portray


def _of(read: Callable[[Iterable[str]], Iterator[JobRecord]]) -> Callable[[str, Iterable[str]], list[Finding]]:
    return lambda source, lines: cited(source, {}, claims(read(lines)))


SACCT = Analyzer(
    "sacct",
    "table of Slurm's sacct",
    re.compile(r"^\s{0,20}JobID(?:\||\s{2,40}\S).{0,400}\bState\b"),
    _of(read_sacct),
    _portrait(read_sacct),
)
PBS = Analyzer(
    "pbs-jobs",
    "PBS qstat -fx, tracejob or accounting records",
    re.compile(
        r"^Job(?: Id)?: ?\d{1,12}\S{0,90}\s*$|^\s{0,9}\"pbs_version\""
        r"|^\d\d/\d\d/\d{4} \d\d:\d\d:\d\d;E;[^;]{1,100};.{0,300}="
    ),
    _of(read_pbs_jobs),
    _portrait(read_pbs_jobs),
)
