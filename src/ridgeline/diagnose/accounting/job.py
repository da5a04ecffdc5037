"""One shape for what a batch system keeps about a job, whichever it is. A field is None where it is unknown."""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline.readers.lines import number


@dataclass(slots=True)
class JobRecord:
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
    end_line: int = 0  # where its end is told, if that is another line
    end_text: str = ""


def duration_s(text: str | None) -> float | None:
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
