"""What a batch system's records mean: jobs that failed and what they cost, idle cores, limits far too wide."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime

from ridgeline.diagnose.base import Analyzer, LogSummary, Quote, RawFinding, SummaryFigure, cited
from ridgeline.diagnose.readers.batch_footer import size_bytes
from ridgeline.diagnose.readers.lines import number, whole
from ridgeline.records.finding import Finding, Severity

# One shape for what a batch system keeps about a job, whichever it is. A field is None where it is unknown.


@dataclass(slots=True)
class _JobRecord:
    """`state` is completed, failed, timeout, memory, node-fail, cancelled, running or waiting."""

    job_id: str
    line: int
    text: str
    state: str = ""
    exit_code: int | None = None
    elapsed_s: float | None = None
    limit_s: float | None = None
    waited_s: float | None = None
    cpu_s: float | None = None
    cpus: int | None = None
    nodes: int | None = None
    node_names: str = ""
    memory_bytes: int | None = None  # the largest process or the sum, as the system counts
    memory_asked_bytes: int | None = None
    comment: str = ""
    end_line: int = 0  # where its end is recorded, if that is another line
    end_text: str = ""


def _duration_s(text: str | None) -> float | None:
    """Seconds from [days-][hours:]minutes:seconds[.fraction], as Slurm and PBS write times; None for UNLIMITED."""
    if not text or len(text) > 30:
        return None
    days, dash, clock = text.rpartition("-")
    parts = [number(part) for part in clock.split(":")]
    if not 1 <= len(parts) <= 3 or any(p is None or p < 0 for p in parts):
        return None
    if dash and (days_count := number(days)) is None:
        return None
    seconds = 0.0
    for part in parts:
        seconds = seconds * 60 + (part or 0.0)
    return seconds + (86400 * (days_count or 0.0) if dash else 0.0)


# What PBS keeps about jobs: `qstat -fx` as text or JSON, `tracejob`, and lines of its accounting files.

_PBS_JOB = re.compile(r"^(?:Job Id|Job): ?(\S{1,100})\s*$")
_JSON_JOB = re.compile(r'^\s{0,20}"(\d{1,12}(?:\[\d{0,9}\])?\.[\w.-]{1,80})"\s?:\s?\{')
_FIELD = re.compile(r"^ {4}([A-Za-z_][\w.]{1,60}) = (.{0,2000})$")
_JSON_FIELD = re.compile(r'^\s{1,40}"(\w{1,60})"\s?:\s?("(?:[^"\\]|\\.){0,2000}"|-?\d{1,18}|\{)')
_RECORD = re.compile(r"^\d\d/\d\d/\d{4} \d\d:\d\d:\d\d;E;([^;\s]{1,100});(.{0,8000})$")
_PAIR = re.compile(
    r"\b(Exit_status|resources_used\.\w{1,20}|Resource_List\.\w{1,20}|exec_host|qtime|start)=(\S{1,400})"
)
_INSIDE = ("resources_used", "Resource_List")
_OVER_MEMORY = re.compile(r"exceeded resource p?v?mem\b")


def _read_pbs_jobs(lines: Iterable[str]) -> Iterator[_JobRecord]:
    """Jobs in the order of the text, one held at a time; a field that is cut off is left out."""
    reader = _PbsReader()
    for line_number, raw in enumerate(lines, 1):
        done = reader.line(line_number, raw[:10_000])
        if done is not None:
            yield done
    if (last := reader.finished()) is not None:
        yield last


class _PbsReader:
    def __init__(self) -> None:
        self.job_id, self.begins, self.text = "", 0, ""
        self.fields: dict[str, str] = {}
        self.inside = ""
        self.end = (0, "")

    def line(self, number: int, text: str) -> _JobRecord | None:
        """The job that ended where `text` begins the next."""
        if record := _RECORD.match(text):
            done = self.finished()
            self._begin(record.group(1), number, text)
            self.fields.update(_PAIR.findall(record.group(2)))
            return done
        if (found := _PBS_JOB.match(text)) or (found := _JSON_JOB.match(text)):
            done = self.finished()
            self._begin(found.group(1), number, text)
            return done
        if not self.job_id:
            return None
        if "Exit_status" in text:
            self.end = (number, text[:2000])
        if found := _FIELD.match(text):
            self.fields[found.group(1)] = found.group(2)
        elif found := _JSON_FIELD.match(text):
            self._json(found.group(1), found.group(2))
        elif text.strip() in ("}", "},"):
            self.inside = ""
        elif "Exit_status=" in text or "resources_used." in text:  # of tracejob
            self.fields.update(_PAIR.findall(text))
        return None

    def _begin(self, job_id: str, number: int, text: str) -> None:
        self.job_id, self.begins, self.text, self.fields, self.inside = job_id, number, text[:2000], {}, ""
        self.end = (0, "")

    def _json(self, name: str, value: str) -> None:
        if value == "{":
            self.inside = name if name in _INSIDE else ""
            return
        try:
            said = str(json.loads(value))
        except ValueError:
            return
        self.fields[f"{self.inside}.{name}" if self.inside else name] = said

    def finished(self) -> _JobRecord | None:
        if not self.job_id or not self.fields:
            return None
        of, job_id = self.fields, self.job_id
        self.job_id = ""
        exit_code = whole(of.get("Exit_status"))
        elapsed = _duration_s(of.get("resources_used.walltime"))
        hosts = {h.partition("/")[0] for h in of.get("exec_host", "").split("+") if h}
        return _JobRecord(
            job_id,
            self.begins,
            self.text,
            state=_state(of, exit_code),
            exit_code=exit_code,
            elapsed_s=elapsed,
            limit_s=_duration_s(of.get("Resource_List.walltime")),
            waited_s=_waited(of),
            cpu_s=_duration_s(of.get("resources_used.cput")),
            cpus=whole(of.get("resources_used.ncpus") or of.get("Resource_List.ncpus")),
            nodes=len(hosts) or None,
            node_names=",".join(sorted(hosts))[:200],
            memory_bytes=size_bytes(of.get("resources_used.mem")),
            memory_asked_bytes=size_bytes(of.get("Resource_List.mem")),
            comment=of.get("comment", "")[:300],
            end_line=self.end[0],
            end_text=self.end[1],
        )


def _state(of: dict[str, str], exit_code: int | None) -> str:
    """A cancellation is recognised by substate 91 or the comment: its exit code differs from site to site."""
    comment = of.get("comment", "")
    if of.get("substate") == "91" or "terminated by" in comment:
        return "cancelled"
    if of.get("job_state") in ("Q", "H", "W"):
        return "waiting"
    if of.get("job_state") in ("R", "E", "B") and exit_code is None:
        return "running"
    if "exceeded resource walltime" in comment or exit_code == -29:
        return "timeout"
    if _OVER_MEMORY.search(comment) or exit_code in (-27, -28):
        return "memory"
    return "completed" if exit_code == 0 else "failed" if exit_code is not None else ""


def _waited(of: dict[str, str]) -> float | None:
    began, asked = whole(of.get("start")), whole(of.get("qtime"))
    if began is not None and asked is not None:  # accounting files count seconds
        return float(began - asked) if began >= asked else None
    try:
        form = "%a %b %d %H:%M:%S %Y"
        seconds = (datetime.strptime(of["stime"], form) - datetime.strptime(of["qtime"], form)).total_seconds()
    except (KeyError, ValueError):
        return None
    return seconds if seconds >= 0 else None


# What `sacct` prints: with -P or -p a table of bars, else columns under dashes. Steps belong to their job.

_STATES = {
    "COMPLETED": "completed",
    "FAILED": "failed",
    "TIMEOUT": "timeout",
    "DEADLINE": "timeout",
    "OUT_OF_MEMORY": "memory",
    "OUT_OF_ME": "memory",  # as a column of the usual width cuts it
    "NODE_FAIL": "node-fail",
    "BOOT_FAIL": "node-fail",
    "CANCELLED": "cancelled",
    "PREEMPTED": "cancelled",
    "RUNNING": "running",
    "PENDING": "waiting",
}
_SIZE = re.compile(r"([\d.]{1,20})([KMGTP]?)[nc]?$", re.ASCII)
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}
_JOB = re.compile(r"^\d{1,12}(?:_\S{1,20})?(?:\+\d{1,4})?(?:\.\S{1,30})?$", re.ASCII)


def _read_sacct(lines: Iterable[str]) -> Iterator[_JobRecord]:
    """Jobs in the order of the table, one held at a time; rows that are no jobs are skipped."""
    columns: list[str] = []
    spans: list[tuple[int, int]] = []
    header = ""
    job: _JobRecord | None = None
    for line_number, raw in enumerate(lines, 1):
        line = raw[:8000]
        if "JobID" in line and "State" in line:
            header, columns, spans = line, [c.strip() for c in line.split("|")] if "|" in line else [], []
        elif header and not columns and set(line.strip()) == {"-", " "}:
            spans = [found.span() for found in re.finditer(r"-+", line)][:200]
            columns = [header[a:b].strip() for a, b in spans]
        elif columns:
            cells = [line[a:b].strip() for a, b in spans] if spans else [c.strip() for c in line.split("|")]
            row = dict(zip(columns, cells, strict=False))
            if not _JOB.match(row.get("JobID", "")):
                continue
            if "." in row["JobID"] and job is not None and row["JobID"].startswith(f"{job.job_id}."):
                _add_step(job, row)
                continue
            if job is not None:
                yield job
            job = _job(row, line_number, raw)
    if job is not None:
        yield job


def _job(row: dict[str, str], line: int, text: str) -> _JobRecord:
    state = row.get("State", "").split(" ")[0].rstrip("+")
    code = row.get("ExitCode", "").partition(":")[0]
    cpus = whole(row.get("AllocCPUS") or row.get("NCPUS") or row.get("ReqCPUS"))
    nodes = whole(row.get("NNodes") or row.get("AllocNodes"))
    return _JobRecord(
        row["JobID"],
        line,
        text[:2000],
        state=_STATES.get(state, state.lower()),
        exit_code=whole(code),
        elapsed_s=_duration_s(row.get("Elapsed")),
        limit_s=_duration_s(row.get("Timelimit")),
        waited_s=_between(row.get("Submit"), row.get("Start")),
        cpu_s=_duration_s(row.get("TotalCPU")),
        cpus=cpus,
        nodes=nodes,
        node_names=row.get("NodeList", ""),
        memory_bytes=_size(row.get("MaxRSS")),
        memory_asked_bytes=_asked(row.get("ReqMem"), cpus, nodes),
        comment=row.get("Reason", ""),
    )


def _add_step(job: _JobRecord, row: dict[str, str]) -> None:
    """Memory is counted per step, and the job's own row has none."""
    memory = _size(row.get("MaxRSS"))
    if memory is not None:
        job.memory_bytes = max(job.memory_bytes or 0, memory)
    cpu_s = _duration_s(row.get("TotalCPU"))
    if cpu_s is not None and not job.cpu_s:
        job.cpu_s = cpu_s


def _size(text: str | None) -> int | None:
    found = _SIZE.match(text) if text else None
    value = number(found.group(1)) if found else None
    return None if found is None or value is None else round(value * 1024 ** _POWERS[found.group(2)])


def _asked(text: str | None, cpus: int | None, nodes: int | None) -> int | None:
    """Older releases mark what is asked per core (c) or per node (n)."""
    size = _size(text)
    if size is None or not text:
        return None
    return size * (cpus or 1) if text.endswith("c") else size * (nodes or 1) if text.endswith("n") else size


def _between(first: str | None, second: str | None) -> float | None:
    try:
        seconds = (datetime.fromisoformat(second or "") - datetime.fromisoformat(first or "")).total_seconds()
    except (ValueError, TypeError):
        return None
    return seconds if seconds >= 0 else None


_LONG_S = 60.0  # shorter jobs are start-up and say nothing about their use of cores
_USED_UP = ("completed", "timeout", "failed")  # of others the processor time is missing, or taken too early
_IDLE, _NEAR, _WIDE = 0.6, 0.95, 4.0


@dataclass(slots=True)
class _Group:
    """Jobs that have something in common: how many, what they cost, and the costliest to show."""

    jobs: int = 0
    core_s: float = 0.0
    worst: _JobRecord | None = None
    worst_s: float = -1.0
    nodes: dict[str, int] = field(default_factory=dict)

    def add(self, job: _JobRecord, core_s: float) -> None:
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

    def add(self, job: _JobRecord) -> None:
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

    def _use(self, job: _JobRecord, elapsed: float, core_s: float) -> None:
        known = job.cpu_s and job.cpus and job.state in _USED_UP
        if known and job.cpu_s is not None and elapsed >= _LONG_S and job.cpu_s < _IDLE * core_s:
            self.idle_core_s += core_s - job.cpu_s
            self._into("idle", job, core_s - job.cpu_s)
        used, asked = job.memory_bytes, job.memory_asked_bytes
        if used and asked and used >= _NEAR * asked:
            self._into("near-memory", job, core_s)
        if job.state == "completed" and job.limit_s and elapsed >= _LONG_S and job.limit_s > _WIDE * elapsed:
            self._into("wide-limit", job, core_s)

    def _into(self, name: str, job: _JobRecord, cost: float) -> None:
        self.groups.setdefault(name, _Group()).add(job, cost)

    def share(self, core_s: float) -> float | None:
        return core_s / self.core_s if self.core_s > 0 else None


def _claims(jobs: Iterable[_JobRecord]) -> list[RawFinding]:
    """Claims about one job or about a year of them."""
    ledger = _Ledger()
    for job in jobs:
        ledger.add(job)
    return [claim for rule in (_failed, _idle, _near_memory, _wide_limit, _overall) for claim in rule(ledger)]


def _failed(ledger: _Ledger) -> Iterator[RawFinding]:
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
        yield RawFinding(
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


def _idle(ledger: _Ledger) -> Iterator[RawFinding]:
    group = ledger.groups.get("idle")
    if group and group.worst:
        worst = group.worst
        busy = (worst.cpu_s or 0.0) / ((worst.elapsed_s or 1.0) * (worst.cpus or 1))
        yield RawFinding(
            f"{group.jobs} of {ledger.jobs} jobs left cores idle; job {worst.job_id} kept its {worst.cpus} cores "
            f"{busy:.0%} busy",
            group.quotes,
            "Ask for fewer cores, start as many ranks and threads as there are cores, and look for input and waiting. "
            "GPU jobs need few cores. `ridgeline study scale` shows how many pay.",
            share=ledger.share(ledger.idle_core_s),
            key="jobs.idle-cores",
        )


def _near_memory(ledger: _Ledger) -> Iterator[RawFinding]:
    group = ledger.groups.get("near-memory")
    if group:
        yield RawFinding(
            f"{group.jobs} of {ledger.jobs} jobs used nearly all the memory they asked for",
            group.quotes,
            "A little more and the batch system kills them: ask for more.",
            "warning",
            key="jobs.near-memory",
        )


def _wide_limit(ledger: _Ledger) -> Iterator[RawFinding]:
    group = ledger.groups.get("wide-limit")
    if group and group.worst and group.worst.elapsed_s and group.worst.limit_s:
        ratio = group.worst.limit_s / group.worst.elapsed_s
        yield RawFinding(
            f"{group.jobs} of {ledger.jobs} jobs asked for far more time than they used; job {group.worst.job_id} for "
            f"{ratio:.0f} times as much",
            group.quotes,
            "A closer limit lets the batch system start them earlier, in gaps between other jobs.",
            "note",
            key="jobs.wide-limit",
        )


def _overall(ledger: _Ledger) -> Iterator[RawFinding]:
    whole = ledger.groups.get("all")
    if whole is None:
        return
    done = ledger.groups.get("completed", _Group()).jobs
    waited = ledger.groups.get("waited")
    wait = f", {waited.core_s / waited.jobs / 3600:.2f} h in the queue on average" if waited and waited.jobs else ""
    yield RawFinding(
        f"{done} of {ledger.jobs} jobs completed; {ledger.core_s / 3600:.2f} core-hours in all{wait}",
        whole.quotes,
        "Compare before and after a change with `ridgeline diagnose --compare`.",
        "note",
        key="jobs.overall",
    )


def _summary(read: Callable[[Iterable[str]], Iterator[_JobRecord]]) -> Callable[[Iterable[str]], LogSummary]:
    def portray(lines: Iterable[str]) -> LogSummary:
        ledger = _Ledger()
        for job in read(lines):
            ledger.add(job)
        if not ledger.jobs:
            return LogSummary()
        figures = [
            SummaryFigure("jobs", ledger.jobs),
            SummaryFigure("core-hours", ledger.core_s / 3600, "h"),
            SummaryFigure("elapsed", ledger.elapsed_s / 3600, "h"),
            SummaryFigure("waited in the queue", ledger.waited_s / 3600, "h"),
            SummaryFigure("idle core-hours", ledger.idle_core_s / 3600, "h"),
            *(
                SummaryFigure(f"jobs {state}", ledger.groups[state].jobs)
                for state in ("completed", "cancelled", *_ENDINGS)
                if state in ledger.groups
            ),
        ]
        return LogSummary(tuple(figures))

    return portray


def _of(read: Callable[[Iterable[str]], Iterator[_JobRecord]]) -> Callable[[str, Iterable[str]], list[Finding]]:
    return lambda source, lines: cited(source, {}, _claims(read(lines)))


SACCT = Analyzer(
    "sacct",
    "table of Slurm's sacct",
    re.compile(r"^\s{0,20}JobID(?:\||\s{2,40}\S).{0,400}\bState\b"),
    _of(_read_sacct),
    _summary(_read_sacct),
)
PBS = Analyzer(
    "pbs-jobs",
    "PBS qstat -fx, tracejob or accounting records",
    re.compile(
        r"^Job(?: Id)?: ?\d{1,12}\S{0,90}\s*$|^\s{0,9}\"pbs_version\""
        r"|^\d\d/\d\d/\d{4} \d\d:\d\d:\d\d;E;[^;]{1,100};.{0,300}="
    ),
    _of(_read_pbs_jobs),
    _summary(_read_pbs_jobs),
)
