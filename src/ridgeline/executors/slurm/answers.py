"""How Slurm's answers read: rows of squeue and sacct, lines of the completion log."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from ridgeline.executors.dialect import Phase, Sighting
from ridgeline.executors.slurm.nodelist import expand
from ridgeline.records.run import Cause, Ending, is_signal

# Fixed columns: a reason may hold blanks, commas and bars, so no separator would be safe.
COLUMNS = {
    "JobID": 24,
    "State": 24,
    "exit_code": 12,
    "StartTime": 24,
    "EndTime": 24,
    "Name": 132,
    "NodeList": 1024,
    "Reason": 256,
    "RestartCnt": 12,
}
SACCT_FIELDS = ("JobID", "State", "ExitCode", "Start", "End", "NodeList", "JobName", "WorkDir")

_CAUSES = {
    "COMPLETED": Cause.EXITED,
    "FAILED": Cause.EXITED,
    "SPECIAL_EXIT": Cause.EXITED,
    "TIMEOUT": Cause.TIME_LIMIT,
    "DEADLINE": Cause.TIME_LIMIT,
    "OUT_OF_MEMORY": Cause.MEMORY_LIMIT,
    "CANCELLED": Cause.CANCELLED,
    "REVOKED": Cause.CANCELLED,
    "NODE_FAIL": Cause.NODE_FAILED,
    "BOOT_FAIL": Cause.NODE_FAILED,
    "PREEMPTED": Cause.NODE_FAILED,  # nobody's fault; the same setting may run again elsewhere
}
_WAITING = (
    "PENDING",
    "CONFIGURING",
    "REQUEUED",
    "REQUEUE_FED",
    "REQUEUE_HOLD",
    "RESV_DEL_HOLD",
    "SUSPENDED",
    "STOPPED",
)
# COMPLETING can last minutes while an epilog runs; the exit file says earlier that the command is over
_RUNNING = ("RUNNING", "COMPLETING", "RESIZING", "SIGNALING", "STAGE_OUT")

_HOPELESS = re.compile(
    r"PartitionConfig|PartitionTimeLimit|PartitionNodeLimit|BadConstraints|DependencyNeverSatisfied|"
    r"InvalidAccount|InvalidQOS|AccountNotAllowed|QOSNotAllowed|QOSMinCpuNotSatisfied|QOSMin\w+|QOSTimeLimit|"
    # limits of one job and used-up budgets; limits on what runs at the same time pass by waiting
    r"(Assoc|QOS)(Max|Grp)\w*(PerJob|Minutes|PerNode)\w*|AssocMax(Wall|Cpu|Node)\w*PerJob\w*|"
    r"(Job's )?(account|QOS) not (known|permitted)"
)
_STUCK = re.compile(
    r"ReqNodeNotAvail|Nodes required for job are DOWN|launch failed requeued held|PartitionDown|PartitionInactive"
)


def read_squeue(text: str) -> dict[str, Sighting]:
    """Job id -> what is said about it. Site plugins may talk between the rows."""
    rows = (_cut(line) for line in text.splitlines())
    return {row["JobID"]: _seen_by_squeue(row) for row in rows if row["JobID"].isdecimal() and row["State"]}


def read_history(text: str) -> dict[str, Sighting]:
    """The same from sacct, or from the completion log. Both have a line for each start of a job: all are charged."""
    lines = text.splitlines()
    found = (_seen_by_jobcomp(line) if line.startswith("JobId=") else _seen_by_sacct(line) for line in lines)
    last: dict[str, Sighting] = {}
    for seen in found:
        if seen is None:
            continue
        before = last.get(seen.job_id)
        if before is not None and (before.name, before.folder) == (seen.name, seen.folder):
            seen = replace(seen, charged_s=_sum_s(before.charged_s, seen.charged_s))
        last[seen.job_id] = seen
    return last


def _cut(line: str) -> dict[str, str]:
    cells, at = {}, 0
    for name, width in COLUMNS.items():
        cells[name] = line[at : at + width].strip()
        at += width
    return cells


def _seen_by_squeue(row: Mapping[str, str]) -> Sighting:
    state, reason = row["State"], row["Reason"]
    if state in _WAITING:
        return Sighting(row["JobID"], _waiting_phase(reason), row["Name"], reason)
    if state in _RUNNING:
        # EndTime of a job that still computes is when its limit will be
        charged_s = _charged_in_queue_s(row) if state == "COMPLETING" else None
        return Sighting(row["JobID"], Phase.RUNNING, row["Name"], charged_s=charged_s)
    status = _whole(row["exit_code"])  # as wait(2) gives it
    ending = _ending(state, reason, status >> 8, status & 127, row["NodeList"], row["StartTime"], row["EndTime"])
    return Sighting(row["JobID"], Phase.ENDED, row["Name"], reason, ending, charged_s=_charged_in_queue_s(row))


def _seen_by_sacct(line: str) -> Sighting | None:
    cells = line.split("|")
    if len(cells) < len(SACCT_FIELDS) or not cells[0].isdecimal() or not cells[1].strip():
        return None
    job_id, said, codes, start, end, nodes, name = cells[:7]
    folder = "|".join(cells[7:])
    state = said.split()[0]  # "CANCELLED by 1000"
    if state in _WAITING or state in _RUNNING:
        # a start that was followed by another is REQUEUED, and has an end
        return Sighting(job_id, Phase.RUNNING, name, folder=folder, charged_s=_charged_s(start, end))
    ending = _ending(state, said, *_codes(codes), nodes, start, end)
    return Sighting(job_id, Phase.ENDED, name, said, ending, folder, _charged_s(start, end))


def _seen_by_jobcomp(line: str) -> Sighting | None:
    cells = dict(re.findall(r"(\w+)=(.*?)(?= \w+=|\s*$)", line))
    if not {"JobId", "JobState", "ExitCode"} <= cells.keys():
        return None
    state = cells["JobState"]
    # times are local without a zone: good for how long it took; the exit file holds better dates
    ending = _ending(state, "", *_codes(cells["ExitCode"]), cells.get("NodeList", ""), "", "")
    charged_s = _between_s(cells.get("StartTime", ""), cells.get("EndTime", ""))
    where = cells.get("WorkDir", "")
    return Sighting(cells["JobId"], Phase.ENDED, cells.get("Name", ""), state, ending, where, charged_s)


def _codes(text: str) -> tuple[int, int]:
    """Exit code and signal, from 7:0."""
    code, _, number = text.partition(":")
    return _whole(code), _whole(number)


def _waiting_phase(reason: str) -> Phase:
    if _HOPELESS.search(reason):
        return Phase.HOPELESS
    return Phase.STUCK if _STUCK.search(reason) else Phase.WAITING


def _ending(state: str, reason: str, code: int, number: int, nodes: str, start: str, end: str) -> Ending:
    cause = _CAUSES.get(state, Cause.LOST)
    if state == "FAILED" and reason == "BadConstraints":
        cause = Cause.NEVER_STARTS
    # sacct says "CANCELLED by 1000" where squeue says the state and, apart, a reason
    said = reason if reason.startswith(state) else f"{state} ({reason})" if reason not in ("", "None") else state
    exited = cause is Cause.EXITED
    started_s = _epoch(start)
    return Ending(
        cause=cause,
        exit_code=128 + number if exited and number else code if exited else None,
        signal=number if exited and is_signal(number) else None,
        reason="" if exited and reason in ("NonZeroExitCode", "None", state, "") else f"Slurm says {said}",
        nodes=tuple(expand(nodes)) if nodes not in ("(null)", "None assigned") else (),
        started_s=started_s,
        # cancelled in the queue: Slurm tells when, but nothing ran until then
        ended_s=_epoch(end) if started_s else 0.0,
    )


def _charged_in_queue_s(row: Mapping[str, str]) -> float | None:
    """None for a job that was put back into the queue: the times of its earlier starts are in the history alone."""
    return None if _whole(row["RestartCnt"]) else _charged_s(row["StartTime"], row["EndTime"])


def _sum_s(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other


def _charged_s(start: str, end: str) -> float | None:
    """Nothing for a job that was cancelled in the queue, of which Slurm tells only when."""
    started_s, ended_s = _epoch(start), _epoch(end)
    if not ended_s:
        return None
    return max(0.0, ended_s - started_s) if started_s else 0.0


def _between_s(start: str, end: str) -> float | None:
    """From one local time to the other; None where one of them is Unknown or None."""
    try:
        return max(0.0, (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds())
    except ValueError:
        return None


def _epoch(text: str) -> float:
    return float(_whole(text))


def _whole(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 19 else 0
