"""Slurm: what we say to it and how its answers read. Tested against a real Slurm 22.05."""

from __future__ import annotations

import math
import re
import shlex
import signal
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from ridgeline.executors.batch import BatchExecutor
from ridgeline.executors.batch_script import core_count, memory_bytes, walltime_minutes
from ridgeline.executors.dialect import Blame, JobReply, Phase, Refusal, Sighting
from ridgeline.executors.nodelist import expand
from ridgeline.executors.refusals import RefusalRule, judge
from ridgeline.records.run import Cause, Ending, Job
from ridgeline.records.site import Site


def slurm(site: Site) -> BatchExecutor:
    return BatchExecutor(site, Slurm())


# Fixed columns: a reason may hold blanks, commas and bars, so no separator would be safe.
_COLUMNS = {
    "JobID": 24,
    "State": 24,
    "exit_code": 12,
    "StartTime": 24,
    "EndTime": 24,
    "Name": 132,
    "NodeList": 1024,
    "Reason": 256,
}
_SQUEUE = [
    # numbers since the epoch instead of local times
    *("env", "SLURM_TIME_FORMAT=%s"),
    # --me and not -j: the controller then sends our jobs only, and an id it has forgotten is no error
    *("squeue", "--me", "--noheader", "--states=all"),
    *("-O", ",".join(f"{name}:{width}" for name, width in _COLUMNS.items())),
]
_SACCT = [
    *("env", "SLURM_TIME_FORMAT=%s", "sacct", "-X", "-n", "-P"),
    *("-o", "JobID,State,ExitCode,Start,End,NodeList,JobName,WorkDir"),
]
_SACCT_FIELDS = 8
# the completion log of sites without accounting; only its end is read, it may be years old
_JOBCOMP = (
    'file=$(scontrol show config | sed -n "s/^JobCompLoc *= *//p"); '
    'if [ -f "$file" ] && [ -r "$file" ]; then exec tail -n 20000 "$file"; fi'
)

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

_AWAY = re.compile(r"onnection refused|persist_conn|Unable to contact|Problem talking to|timed out|was ended after")
_REFUSALS = (
    RefusalRule(
        r"Socket timed out|send/recv|Zero Bytes were transmitted|Message receive failure|was ended after \d+ s",
        Blame.UNSURE,
        "{said}; slurmctld is overloaded or restarting",
    ),
    RefusalRule(
        r"Munge|authentication error|auth_g_create",
        Blame.WEATHER,
        "{said}; munge is down on this machine: its operator starts munged",
    ),
    RefusalRule(
        r"Unable to contact slurm controller|Slurm backup controller|Slurm temporarily unable|Connection refused",
        Blame.WEATHER,
        "{said}; slurmctld is down: the operator of the cluster restarts it",
    ),
    RefusalRule(
        r"MaxSubmit|submit limit|accounting/QOS policy|Resource temporarily unavailable|job count limit",
        Blame.WEATHER,
        "{said}; too many jobs are queued: lower jobs_at_once in the site file, or wait",
    ),
    RefusalRule(
        r"[Ii]nvalid partition|partition specified",
        Blame.SITE_FILE,
        "{said}; set `queue` in the site file to a partition that `sinfo` lists (now {queue})",
    ),
    RefusalRule(
        r"[Ii]nvalid account|account/partition|[Ii]nvalid (qos|QOS)|not permitted to use|group not permitted",
        Blame.SITE_FILE,
        "{said}; set `account` in the site file to one that `sacctmgr show assoc user=$USER` lists (now {account}), "
        "or ask the operator for it",
    ),
    RefusalRule(
        r"node configuration is not available|Memory specification|time limit is invalid|[Nn]ode count|"
        r"More processors requested|CPU count|generic resource|Invalid feature|Invalid node name|Invalid numeric value",
        Blame.REQUEST,
        "{said}; ask for less, or correct nodes, cores_per_node and gpus_per_node in the site file",
    ),
)


class Slurm:
    name = "slurm"
    programs: Sequence[str] = ("sbatch", "squeue", "scancel", "scontrol")
    job_variable = "SLURM_JOB_ID"
    nodes_text = 'printf "%s\\n" "$SLURM_JOB_NODELIST"'
    directive = "#SBATCH"
    copies_output_back = False

    def directives(self, job: Job, site: Site) -> list[str]:
        needs = job.resources
        options = [
            f"--job-name={self.job_name(job.name, '')}",
            f"--chdir={shlex.quote(str(job.folder.absolute()))}",
            "--output=batch.out",
            "--open-mode=truncate",
            # a job that Slurm starts again by itself would be measured as if it had run once
            "--no-requeue",
            f"--time={walltime_minutes(job, site)}",
            f"--nodes={needs.nodes}",
            f"--ntasks-per-node={needs.ranks_per_node}",
        ]
        cores = core_count(job, site)
        if cores is not None:
            options.append(f"--cpus-per-task={max(1, cores // needs.ranks_per_node)}")
        if needs.gpus:
            options.append(f"--gres=gpu:{needs.gpus}")
        if (memory := memory_bytes(job, site)) is not None:
            options.append(f"--mem={math.ceil(memory / 2**20)}M")
        if site.queue:
            options.append(f"--partition={site.queue}")
        if site.account:
            options.append(f"--account={site.account}")
        if job.on_nodes:
            options.append(f"--nodelist={','.join(job.on_nodes)}")
        if avoid := [node for node in job.avoid_nodes if node not in job.on_nodes]:
            options.append(f"--exclude={','.join(avoid)}")
        return [f"{self.directive} {option}" for option in options]

    def job_name(self, name: str, tag: str) -> str:
        plain = re.sub(r"[^A-Za-z0-9_.+-]", "_", name)[:100] or "ridgeline"
        return f"{plain}-{tag}" if tag else plain

    def submit_command(self, script: Path, name: str) -> list[str]:
        return ["sbatch", "--parsable", f"--job-name={name}", str(script)]

    def job_id(self, answer: JobReply) -> str | None:
        # --parsable prints 12 or 12;cluster; site plugins may talk before it
        match = re.search(r"^(\d+)(;\S*)?$", answer.stdout, re.MULTILINE)
        return match[1] if match else None

    def refusal(self, answer: JobReply, site: Site) -> Refusal:
        return judge(_REFUSALS, "sbatch", answer, site)

    def poll_command(self, job_ids: Collection[str]) -> list[str]:
        return list(_SQUEUE)

    def read_poll(self, answer: JobReply) -> Mapping[str, Sighting] | None:
        if answer.code != 0:
            return None
        rows = (_cut(line) for line in answer.stdout.splitlines() if line.strip())
        return {row["JobID"]: _seen_by_squeue(row) for row in rows}

    def history_commands(self, job_ids: Collection[str]) -> list[list[str]]:
        return [[*_SACCT, "-j", ",".join(job_ids)], ["sh", "-c", _JOBCOMP]]

    def read_history(self, answer: JobReply) -> Mapping[str, Sighting] | None:
        if answer.code != 0 and _AWAY.search(answer.stderr):
            return None
        found: dict[str, Sighting] = {}
        for line in answer.stdout.splitlines():
            seen = _seen_by_jobcomp(line) if line.startswith("JobId=") else _seen_by_sacct(line)
            if seen is not None:
                found[seen.job_id] = seen
        return found

    def find_commands(self, name: str) -> list[list[str]]:
        return [[*_SQUEUE, f"--name={name}"], [*_SACCT, f"--name={name}", "-S", "now-30days"], ["sh", "-c", _JOBCOMP]]

    def read_found(self, answer: JobReply, name: str) -> list[str] | None:
        text = answer.stdout
        if answer.code != 0:
            # without accounting sacct always fails, or is not installed; that says nothing about the job
            return [] if re.search(r"accounting storage is disabled|sacct.: No such file", answer.stderr) else None
        if "JobId=" in text or "|" in text:
            return [seen.job_id for seen in (self.read_history(answer) or {}).values() if seen.name == name]
        return [seen.job_id for seen in (self.read_poll(answer) or {}).values() if seen.name == name]

    def cancel_command(self, job_id: str) -> list[str]:
        return ["scancel", job_id]

    def node_names(self, text: str) -> tuple[str, ...]:
        return tuple(expand(text.strip()))


def _cut(line: str) -> dict[str, str]:
    cells, at = {}, 0
    for name, width in _COLUMNS.items():
        cells[name] = line[at : at + width].strip()
        at += width
    return cells


def _seen_by_squeue(row: Mapping[str, str]) -> Sighting:
    state, reason = row["State"], row["Reason"]
    if state in _WAITING:
        return Sighting(row["JobID"], _waiting_phase(reason), row["Name"], reason)
    if state in _RUNNING:
        return Sighting(row["JobID"], Phase.RUNNING, row["Name"])
    status = int(row["exit_code"] or 0)  # as wait(2) gives it
    ending = _ending(state, reason, status >> 8, status & 127, row["NodeList"], row["StartTime"], row["EndTime"])
    return Sighting(row["JobID"], Phase.ENDED, row["Name"], reason, ending)


def _seen_by_sacct(line: str) -> Sighting | None:
    cells = line.split("|")
    if len(cells) < _SACCT_FIELDS or not cells[0].isdigit():
        return None
    job_id, said, codes, start, end, nodes, name = cells[:7]
    folder = "|".join(cells[7:])
    state = said.split()[0]  # "CANCELLED by 1000"
    if state in _WAITING or state in _RUNNING:
        return Sighting(job_id, Phase.RUNNING, name, folder=folder)
    code, _, number = codes.partition(":")
    return Sighting(
        job_id,
        Phase.ENDED,
        name,
        said,
        _ending(state, said, int(code or 0), int(number or 0), nodes, start, end),
        folder,
    )


def _seen_by_jobcomp(line: str) -> Sighting | None:
    cells = dict(re.findall(r"(\w+)=(.*?)(?= \w+=|\s*$)", line))
    if not {"JobId", "JobState", "ExitCode"} <= cells.keys():
        return None
    code, _, number = cells["ExitCode"].partition(":")
    state = cells["JobState"]
    # times are local without a zone; the exit file holds better ones
    ending = _ending(state, "", int(code or 0), int(number or 0), cells.get("NodeList", ""), "", "")
    return Sighting(cells["JobId"], Phase.ENDED, cells.get("Name", ""), state, ending, cells.get("WorkDir", ""))


def _waiting_phase(reason: str) -> Phase:
    if _HOPELESS.search(reason):
        return Phase.HOPELESS
    return Phase.STUCK if _STUCK.search(reason) else Phase.WAITING


def _ending(state: str, reason: str, code: int, number: int, nodes: str, start: str, end: str) -> Ending:
    cause = _CAUSES.get(state, Cause.LOST)
    if state == "FAILED" and reason == "BadConstraints":
        cause = Cause.NEVER_STARTS
    # sacct says "CANCELLED by 1000" where squeue says the state and, apart, a reason
    words = reason if reason.startswith(state) else f"{state} ({reason})" if reason not in ("", "None") else state
    told = f"Slurm says {words}"
    exited = cause is Cause.EXITED
    return Ending(
        cause=cause,
        exit_code=128 + number if exited and number else code if exited else None,
        signal=number if exited and number in set(signal.Signals) else None,
        reason="" if exited and reason in ("NonZeroExitCode", "None", state, "") else told,
        nodes=tuple(expand(nodes)) if nodes not in ("(null)", "None assigned") else (),
        started_s=_epoch(start),
        ended_s=_epoch(end),
    )


def _epoch(text: str) -> float:
    return float(text) if re.fullmatch(r"\d+", text) else 0.0
