"""What PBS sites print at the end of a job's output: NCI Gadi's and NSCC ASPIRE2A+'s resource usage footers.

Labels are matched without case and in any order, since columns moved between years.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from ridgeline.readers.lines import number, whole

_STARTS = re.compile(r"Resource Usage on (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)", re.ASCII)
_PAIR = re.compile(
    r"(job ?id|project|exit status|service units|(?:ncpus|ngpus|memory|walltime) (?:requested|used)|cpu time used"
    r"|gpu utilisation|gpu memory used)\s{0,20}:\s{0,20}([^\s/]{1,80})",
    re.IGNORECASE | re.ASCII,
)
_BOTH = re.compile(
    r"(ncpus|ngpus|memory|walltime)\s{0,20}:\s{0,20}requested\(([^)]{0,40})\)[, ]{0,5}used\(([^)]{0,40})\)",
    re.IGNORECASE | re.ASCII,
)
_NODES = re.compile(r"execution nodes used:\s{0,20}(\S{1,4000})", re.IGNORECASE | re.ASCII)
_GPUS = re.compile(r"\bngpus=(\d{1,4})", re.ASCII)
_NODE = re.compile(r"\(([\w.-]{1,100})[:)]", re.ASCII)
_KILLED = re.compile(r"=>> PBS: job killed: (.{1,200})", re.ASCII)
_SIZE = re.compile(r"(\d[\d.]{0,20})\s?([kmgtp]?)i?b?$", re.IGNORECASE | re.ASCII)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}


@dataclass(frozen=True, slots=True)
class BatchFooter:
    """What the site says the job used; a field is None where the site does not print it.

    `killed` is PBS's own sentence when it ended the job for going over a limit; it can stand without a footer.
    """

    line: int
    ended: str | None = None
    job_id: str | None = None
    project: str | None = None
    exit_status: int | None = None
    service_units: float | None = None
    ncpus_requested: int | None = None
    ncpus_used: int | None = None
    cpu_s: float | None = None
    memory_requested_bytes: int | None = None
    memory_used_bytes: int | None = None
    wall_requested_s: float | None = None
    wall_used_s: float | None = None
    ngpus_requested: int | None = None
    gpu_share: float | None = None
    gpu_memory_used_bytes: int | None = None
    nodes: tuple[str, ...] = ()
    killed: str | None = None
    killed_line: int = 0


def read_batch_footer(lines: Iterable[str]) -> BatchFooter | None:
    """The last footer, or None where neither a footer nor a PBS kill message was printed."""
    found: dict[str, str] = {}
    line, ended, killed, killed_line = 0, None, None, 0
    nodes: tuple[str, ...] = ()
    for line_number, raw in enumerate(lines, 1):
        text = raw[:5000]
        if start := _STARTS.search(text):
            if killed_line < line:  # what was killed is the job of the footer before
                killed, killed_line = None, 0
            found, nodes, line, ended = {}, (), line_number, start.group(1)
        elif reason := _KILLED.search(text):
            killed, killed_line = reason.group(1).strip(), line_number
        elif ended is not None:
            for label, value in _PAIR.findall(text):
                found[label.lower().replace(" ", "")] = value
            for label, requested, used in _BOTH.findall(text):
                found[label.lower() + "requested"], found[label.lower() + "used"] = requested, used
            if listed := _NODES.search(text):
                if gpus := sum(map(int, _GPUS.findall(listed.group(1)))):
                    found.setdefault("ngpusrequested", str(gpus))
                nodes = tuple(dict.fromkeys(_NODE.findall(listed.group(1))))
    if not found and killed is None:
        return None
    footer = _footer(found, line or killed_line)
    return replace(footer, ended=ended, nodes=nodes, killed=killed, killed_line=killed_line)


def _footer(found: dict[str, str], line: int) -> BatchFooter:
    percent = number(found.get("gpuutilisation", "").rstrip("%"))
    return BatchFooter(
        line=line,
        job_id=found.get("jobid"),
        project=found.get("project"),
        exit_status=whole(found.get("exitstatus")),
        service_units=number(found.get("serviceunits")),
        ncpus_requested=whole(found.get("ncpusrequested")),
        ncpus_used=whole(found.get("ncpusused")),
        cpu_s=clock_s(found.get("cputimeused")),
        memory_requested_bytes=size_bytes(found.get("memoryrequested")),
        memory_used_bytes=size_bytes(found.get("memoryused")),
        wall_requested_s=clock_s(found.get("walltimerequested")),
        wall_used_s=clock_s(found.get("walltimeused")),
        ngpus_requested=whole(found.get("ngpusrequested")),
        gpu_share=None if percent is None else percent / 100,
        gpu_memory_used_bytes=size_bytes(found.get("gpumemoryused")),
    )


def clock_s(text: str | None) -> float | None:
    """Seconds from hours:minutes:seconds, where hours may exceed 24, or None."""
    parts = [whole(part) for part in (text or "").split(":")]
    if len(parts) != 3 or any(p is None or p < 0 for p in parts):
        return None
    hours, minutes, seconds = (p or 0 for p in parts)
    return float(hours * 3600 + minutes * 60 + seconds)


def size_bytes(text: str | None) -> int | None:
    """Bytes from PBS's 37195476kb or Gadi's 493.55GB; both mean powers of 1024."""
    found = _SIZE.match(text.strip()) if text else None
    value = number(found.group(1)) if found else None
    return None if found is None or value is None else round(value * 1024 ** _POWERS[found.group(2).lower()])
