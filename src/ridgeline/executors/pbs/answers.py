"""How PBS's answers read: jobs as qstat prints them, and what stands at the end of a job's output."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping

from ridgeline.executors.dialect import OutputReport, Phase, Sighting
from ridgeline.readers.batch_footer import clock_s, read_batch_footer, size_bytes
from ridgeline.records.run import Cause, Ending

_NOT_ENDED = {"Q": Phase.WAITING, "H": Phase.WAITING, "W": Phase.WAITING, "T": Phase.WAITING, "S": Phase.WAITING}
_NOT_ENDED |= {"M": Phase.WAITING, "U": Phase.WAITING, "R": Phase.RUNNING, "E": Phase.RUNNING, "B": Phase.RUNNING}
_ENDED = ("F", "X", "C")

_HOPELESS = re.compile(r"Can Never Run", re.IGNORECASE)
_STUCK = re.compile(
    r"(vnode|host|node)s? .*(offline|down|unavailable)|job held, too many failed attempts", re.IGNORECASE
)
_EXCEEDED = re.compile(r"exceeded resource (\w+)|exceeded limit|walltime \d+ exceeded", re.IGNORECASE)
_TERMINATED = re.compile(r"terminated by|deleted by|delete[d]? (job )?request", re.IGNORECASE)
# Negative exit codes are PBS's own, not the program's
_OWN_CODES = {
    -29: (Cause.TIME_LIMIT, "over its walltime"),
    -28: (Cause.MEMORY_LIMIT, "over its vmem"),
    -27: (Cause.MEMORY_LIMIT, "over its mem"),
    -26: (Cause.TIME_LIMIT, "over its cput"),
    -25: (Cause.TIME_LIMIT, "over its ncpus"),
    -24: (Cause.NODE_FAILED, "PBS could not start it on a node again"),
}
_DELETED_SUBSTATE = "91"
_USAGE = {
    "service_units": "service_units",
    "cpu_s": "cpu_s",
    "memory_used_bytes": "max_rss_bytes",
    "wall_used_s": "wall_s",
    "gpu_share": "gpu_share",
    "gpu_memory_used_bytes": "gpu_memory_bytes",
}


def read_qstat(text: str) -> dict[str, Sighting]:
    """Job id -> what is said about it."""
    return {job_id: _seen(job_id, job) for job_id, job in read_jobs(text).items()}


def read_footer(lines: Iterable[str]) -> OutputReport:
    """What Gadi, ASPIRE2A+ and other sites print at the end, and PBS's own sentence when it killed the job."""
    footer = read_batch_footer(lines)
    if footer is None:
        return OutputReport()
    values = {ours: getattr(footer, theirs) for theirs, ours in _USAGE.items()}
    usage = {name: float(value) for name, value in values.items() if value is not None}
    if not footer.killed:
        return OutputReport(usage)
    cause = Cause.MEMORY_LIMIT if re.search(r"\bp?v?mem(ory)?\b", footer.killed, re.IGNORECASE) else Cause.TIME_LIMIT
    return OutputReport(usage, cause, f"PBS: {footer.killed}")


def read_jobs(text: str) -> dict[str, dict[str, object]]:
    """Job id -> attributes, from `qstat -f` in JSON or in its own format."""
    start, own = text.find("{"), _OWN_FORMAT.search(text)
    # values of its own format may well hold a brace: a shell function in the environment, a resource
    if start < 0 or (own is not None and own.start() < start):
        return dict(_own_format(text))
    try:
        # strict=False: environment variables of jobs come with raw tabs and newlines in them
        jobs = json.loads(text[start:], strict=False).get("Jobs", {})
    except (json.JSONDecodeError, RecursionError):
        return dict(_salvaged(text)) or dict(_own_format(text))
    return {job_id: job for job_id, job in jobs.items() if isinstance(job, dict)} if isinstance(jobs, dict) else {}


_OWN_FORMAT = re.compile(r"^Job Id: ", re.MULTILINE)
_ATTRIBUTE = re.compile(
    r'"(job_state|substate|comment|Exit_status|Job_Name|exec_host|stime|obittime)":\s*("[^"]*"|-?\d+)'
)


def _salvaged(text: str) -> Iterator[tuple[str, dict[str, object]]]:
    """Servers print environment values with unescaped quotes, which is no JSON; what we need stands beside them."""
    for block in re.split(r'(?="\d+(?:\[\])?\.[\w.-]+":\s*\{)', text)[1:]:
        job_id = block[1 : block.index('"', 1)]
        yield job_id, {name: value.strip('"') for name, value in _ATTRIBUTE.findall(block)}


def _own_format(text: str) -> Iterator[tuple[str, dict[str, object]]]:
    for block in _OWN_FORMAT.split(text)[1:]:
        # long values go on in lines that begin with a tab
        lines = re.sub(r"\n\t", "", block).splitlines() or [""]
        job: dict[str, object] = {}
        used: dict[str, object] = {}
        for line in lines[1:]:
            name, separator, value = line.strip().partition(" = ")
            if separator and name.startswith("resources_used."):
                used[name.removeprefix("resources_used.")] = value
            elif separator:
                job[name] = value
        yield lines[0].strip(), {**job, "resources_used": used}


def _seen(job_id: str, job: Mapping[str, object]) -> Sighting:
    state, comment = str(job.get("job_state", "")), str(job.get("comment", ""))
    name = str(job.get("Job_Name", ""))
    if state in _ENDED:
        ending = _ending(job, comment)
        return Sighting(job_id, Phase.ENDED, name, comment, ending, charged_s=ending.elapsed_s)
    phase = _NOT_ENDED.get(state, Phase.WAITING)
    if phase is Phase.WAITING and _HOPELESS.search(comment):
        phase = Phase.HOPELESS
    elif phase is Phase.WAITING and _STUCK.search(comment):
        phase = Phase.STUCK
    return Sighting(job_id, phase, name, comment)


def _ending(job: Mapping[str, object], comment: str) -> Ending:
    code = _whole(job.get("Exit_status"))
    cause, reason = _cause(str(job.get("substate", "")), code, comment)
    exited = cause is Cause.EXITED
    # PBS reports death by signal n as 256 + n, the shell as 128 + n
    number = code - 256 if exited and code is not None and 256 < code < 256 + 65 else None
    usage = _usage(job.get("resources_used"))
    return Ending(
        cause=cause,
        exit_code=(128 + number if number else code) if exited else None,
        signal=number,
        reason=reason,
        nodes=tuple(dict.fromkeys(re.findall(r"([\w.-]+)/\d", str(job.get("exec_host", ""))))),
        usage=usage,
        elapsed_s=usage.get("wall_s"),  # not there for a job that was deleted before it began
    )


def _cause(substate: str, code: int | None, comment: str) -> tuple[Cause, str]:
    if substate == _DELETED_SUBSTATE or _TERMINATED.search(comment):
        # never by the exit code: one server says 0, another 271, a third 265
        return Cause.CANCELLED, f"PBS says: {comment}"
    if exceeded := _EXCEEDED.search(comment):
        memory = (exceeded[1] or "") in ("mem", "vmem", "pmem", "pvmem")
        return (Cause.MEMORY_LIMIT if memory else Cause.TIME_LIMIT), f"PBS says: {comment}"
    if code is None:
        return Cause.LOST, f"PBS says it finished, without an exit status: {comment}"
    if code < 0:
        cause, what = _OWN_CODES.get(code, (Cause.NODE_FAILED, "PBS could not start or finish it"))
        return cause, f"PBS exit status {code} ({what}): {comment}"
    return Cause.EXITED, ""


def _usage(used: object) -> dict[str, float]:
    if not isinstance(used, Mapping):
        return {}
    values = {
        "cpu_s": clock_s(str(used.get("cput", ""))),
        "wall_s": clock_s(str(used.get("walltime", ""))),
        "max_rss_bytes": size_bytes(str(used.get("mem", ""))),
    }
    return {name: float(value) for name, value in values.items() if value is not None}


def _whole(value: object) -> int | None:
    text = str(value)
    return int(text) if re.fullmatch(r"-?\d+", text) else None
