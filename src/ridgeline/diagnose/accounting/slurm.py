"""What `sacct` prints: with -P or -p a table of bars, else columns under dashes. Steps belong to their job."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import datetime

from ridgeline.diagnose.accounting.job import JobRecord, duration_s
from ridgeline.readers.lines import number, whole

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


def read_sacct(lines: Iterable[str]) -> Iterator[JobRecord]:
    """Jobs in the order of the table, one held at a time; rows that are no jobs are skipped."""
    columns: list[str] = []
    spans: list[tuple[int, int]] = []
    header = ""
    job: JobRecord | None = None
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


def _job(row: dict[str, str], line: int, text: str) -> JobRecord:
    state = row.get("State", "").split(" ")[0].rstrip("+")
    code = row.get("ExitCode", "").partition(":")[0]
    cpus = whole(row.get("AllocCPUS") or row.get("NCPUS") or row.get("ReqCPUS"))
    nodes = whole(row.get("NNodes") or row.get("AllocNodes"))
    return JobRecord(
        row["JobID"],
        line,
        text[:2000],
        state=_STATES.get(state, state.lower()),
        exit_code=whole(code),
        elapsed_s=duration_s(row.get("Elapsed")),
        limit_s=duration_s(row.get("Timelimit")),
        waited_s=_between(row.get("Submit"), row.get("Start")),
        cpu_s=duration_s(row.get("TotalCPU")),
        cpus=cpus,
        nodes=nodes,
        node_names=row.get("NodeList", ""),
        memory_bytes=_size(row.get("MaxRSS")),
        memory_asked_bytes=_asked(row.get("ReqMem"), cpus, nodes),
        comment=row.get("Reason", ""),
    )


def _add_step(job: JobRecord, row: dict[str, str]) -> None:
    """Memory is counted per step, and the job's own row has none."""
    memory = _size(row.get("MaxRSS"))
    if memory is not None:
        job.memory_bytes = max(job.memory_bytes or 0, memory)
    cpu_s = duration_s(row.get("TotalCPU"))
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
