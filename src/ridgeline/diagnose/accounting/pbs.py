"""What PBS keeps about jobs: `qstat -fx` as text or JSON, `tracejob`, and lines of its accounting files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from datetime import datetime

from ridgeline.diagnose.accounting.job import JobRecord, duration_s
from ridgeline.readers.batch_footer import size_bytes
from ridgeline.readers.lines import whole

_JOB = re.compile(r"^(?:Job Id|Job): ?(\S{1,100})\s*$")
_JSON_JOB = re.compile(r'^\s{0,20}"(\d{1,12}(?:\[\d{0,9}\])?\.[\w.-]{1,80})"\s?:\s?\{')
_FIELD = re.compile(r"^ {4}([A-Za-z_][\w.]{1,60}) = (.{0,2000})$")
_JSON_FIELD = re.compile(r'^\s{1,40}"(\w{1,60})"\s?:\s?("(?:[^"\\]|\\.){0,2000}"|-?\d{1,18}|\{)')
_RECORD = re.compile(r"^\d\d/\d\d/\d{4} \d\d:\d\d:\d\d;E;([^;\s]{1,100});(.{0,8000})$")
_PAIR = re.compile(
    r"\b(Exit_status|resources_used\.\w{1,20}|Resource_List\.\w{1,20}|exec_host|qtime|start)=(\S{1,400})"
)
_INSIDE = ("resources_used", "Resource_List")
_OVER_MEMORY = re.compile(r"exceeded resource p?v?mem\b")


def read_pbs_jobs(lines: Iterable[str]) -> Iterator[JobRecord]:
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

    def line(self, number: int, text: str) -> JobRecord | None:
        """The job that ended where `text` begins the next."""
        if record := _RECORD.match(text):
            done = self.finished()
            self._begin(record.group(1), number, text)
            self.fields.update(_PAIR.findall(record.group(2)))
            return done
        if (found := _JOB.match(text)) or (found := _JSON_JOB.match(text)):
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

    def finished(self) -> JobRecord | None:
        if not self.job_id or not self.fields:
            return None
        of, job_id = self.fields, self.job_id
        self.job_id = ""
        exit_code = whole(of.get("Exit_status"))
        elapsed = duration_s(of.get("resources_used.walltime"))
        hosts = {h.partition("/")[0] for h in of.get("exec_host", "").split("+") if h}
        return JobRecord(
            job_id,
            self.begins,
            self.text,
            state=_state(of, exit_code),
            exit_code=exit_code,
            elapsed_s=elapsed,
            limit_s=duration_s(of.get("Resource_List.walltime")),
            waited_s=_waited(of),
            cpu_s=duration_s(of.get("resources_used.cput")),
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
    """A cancellation is told by substate 91 or the comment: its exit code differs from site to site."""
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
