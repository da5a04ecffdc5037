"""Slurm: what we say to it, and how its answers read. Tested against a real Slurm 22.05."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from pydantic import Field

from ridgeline.executors.batch import BatchExecutor
from ridgeline.executors.dialect import (
    BATCH_OUTPUT,
    BatchDialect,
    BatchOptions,
    Blame,
    JobReply,
    JobStatus,
    Phase,
    RefusalRule,
    core_count,
    down,
    memory_mib,
    overloaded,
    takes_all_gpus,
    takes_options,
    takes_whole_nodes,
    too_many,
    too_much,
    walltime_minutes,
    worded,
)
from ridgeline.records.run import Cause, Ending, Job, Resources, is_signal
from ridgeline.records.site import Site


def _expand(nodes: str) -> Iterator[str]:
    """n1, n2, gpu07 and gpu08 from `n[1-2],gpu[07-08]`."""
    for part in re.findall(r"[^,\[\]]+(?:\[[^\]]*\][^,\[\]]*)*", nodes):
        before, bracket, rest = part.partition("[")
        if not bracket:
            yield part
            continue
        inside, _, after = rest.partition("]")
        for low, high in re.findall(r"(?:^|,)(\d+)(?:-(\d+))?(?=,|$)", inside):
            for number in range(int(low), int(high or low) + 1):
                yield from _expand(f"{before}{number:0{len(low)}d}{after}")


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
_SACCT_FIELDS = ("JobID", "State", "ExitCode", "Start", "End", "NodeList", "JobName", "WorkDir")

_OVERTIME = "TIMEOUT"
_CAUSES = {
    "COMPLETED": Cause.EXITED,
    "FAILED": Cause.EXITED,
    "SPECIAL_EXIT": Cause.EXITED,
    _OVERTIME: Cause.TIME_LIMIT,
    "DEADLINE": Cause.TIME_LIMIT,
    "OUT_OF_MEMORY": Cause.MEMORY_LIMIT,
    "CANCELLED": Cause.CANCELLED,
    "REVOKED": Cause.CANCELLED,
    "NODE_FAIL": Cause.NODE_FAILED,
    "BOOT_FAIL": Cause.NODE_FAILED,
    # neither the setting nor the node is to blame: it is run again, wherever there is room
    "PREEMPTED": Cause.CANCELLED,
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


# why a job is pending: Slurm's word, and what it means to who waits
_COUNTED = r"(Jobs|Cpu|Node|Mem|Gres|GRES|TRES)\w*"
_REASONS = (
    (r"Priority", "jobs of higher priority are ahead of it"),
    (r"Resources|NodesBusy|Nodes required for job are (?!DOWN)", "the nodes it needs are busy"),
    (r"Dependency", "it waits for another job"),
    (r"BeginTime", "Slurm holds it back until its start time"),
    (r"JobHeldUser", "it is held: `scontrol release` lets it go"),
    (r"JobHeldAdmin", "it is held by the operator of the cluster, who must release it"),
    (r"AssocMaxJobsLimit|MaxJobsPerAccount", "you run as many jobs as your account may at once"),
    (r"QOSMaxJobsPer(User|Account)\w*", "you run as many jobs as the QOS allows at once"),
    (r"(Assoc|QOS)(Grp|Max)\w*(Minutes|RunMins|RunMinutes)\w*", "the time that your account may use is taken"),
    (rf"AssocGrp{_COUNTED}", "all that your account may use at once is in use"),
    (rf"AssocMax{_COUNTED}", "you use as much as your account may at once"),
    (rf"QOSGrp{_COUNTED}", "all that the QOS may use at once is in use"),
    (rf"QOSMax{_COUNTED}", "you use as much as the QOS allows at once"),
    (r"ReqNodeNotAvail", "nodes that it needs are down, drained or reserved"),
    (r"Nodes required for job are DOWN", "nodes that it needs are out of service"),
    (r"Reservation", "it waits for its reservation to begin"),
    (r"Licenses", "all licences that it needs are in use"),
    (r"Partition(Down|Inactive)", "the operator has closed the partition"),
    (r"launch failed requeued held", "it could not be started on its node, and is held for the operator"),
    (r"Cleaning|Prolog", "its nodes are being prepared"),
)


def _read_squeue(text: str) -> dict[str, JobStatus]:
    """Job id -> what is said about it. Site plugins may talk between the rows."""
    rows = (_cut(line) for line in text.splitlines())
    return {row["JobID"]: _seen_by_squeue(row) for row in rows if row["JobID"].isdecimal() and row["State"]}


def _read_history(text: str) -> dict[str, JobStatus]:
    """The same from sacct, or from the completion log. Both have a line for each start of a job: all are charged."""
    lines = text.splitlines()
    found = (_seen_by_jobcomp(line) if line.startswith("JobId=") else _seen_by_sacct(line) for line in lines)
    last: dict[str, JobStatus] = {}
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


def _seen_by_squeue(row: Mapping[str, str]) -> JobStatus:
    state, reason = row["State"], row["Reason"]
    if state in _WAITING:
        return JobStatus(row["JobID"], _waiting_phase(reason), row["Name"], reason)
    if state in _RUNNING:
        # EndTime of a job that still computes is when its limit will be
        charged_s = _charged_in_queue_s(row) if state == "COMPLETING" else None
        return JobStatus(row["JobID"], Phase.RUNNING, row["Name"], charged_s=charged_s)
    status = _whole(row["exit_code"])  # as wait(2) gives it
    ending = _ending(state, reason, status >> 8, status & 127, row["NodeList"], row["StartTime"], row["EndTime"])
    charged_s = _charged_in_queue_s(row)
    return JobStatus(
        row["JobID"], Phase.ENDED, row["Name"], reason, ending, charged_s=charged_s, over_walltime=state == _OVERTIME
    )


def _seen_by_sacct(line: str) -> JobStatus | None:
    cells = line.split("|")
    if len(cells) < len(_SACCT_FIELDS) or not cells[0].isdecimal() or not cells[1].strip():
        return None
    job_id, said, codes, start, end, nodes, name = cells[:7]
    folder = "|".join(cells[7:])
    state = said.split()[0]  # "CANCELLED by 1000"
    if state in _WAITING or state in _RUNNING:
        # a start that was followed by another is REQUEUED, and has an end
        return JobStatus(job_id, Phase.RUNNING, name, folder=folder, charged_s=_charged_s(start, end))
    ending = _ending(state, said, *_codes(codes), nodes, start, end)
    return JobStatus(job_id, Phase.ENDED, name, said, ending, folder, _charged_s(start, end), state == _OVERTIME)


def _seen_by_jobcomp(line: str) -> JobStatus | None:
    cells = dict(re.findall(r"(\w+)=(.*?)(?= \w+=|\s*$)", line))
    if not {"JobId", "JobState", "ExitCode"} <= cells.keys():
        return None
    state = cells["JobState"]
    # times are local without a zone: good for how long it took; the exit file holds better dates
    ending = _ending(state, "", *_codes(cells["ExitCode"]), cells.get("NodeList", ""), "", "")
    charged_s = _between_s(cells.get("StartTime", ""), cells.get("EndTime", ""))
    where = cells.get("WorkDir", "")
    name = cells.get("Name", "")
    return JobStatus(cells["JobId"], Phase.ENDED, name, state, ending, where, charged_s, state == _OVERTIME)


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
    if state == "PREEMPTED":
        reason = "its nodes were given to a job that goes first"
    # sacct says "CANCELLED by 1000" where squeue says the state and, apart, a reason
    said = reason if reason.startswith(state) else f"{state} ({reason})" if reason not in ("", "None") else state
    exited = cause is Cause.EXITED
    started_s = _epoch(start)
    return Ending(
        cause=cause,
        exit_code=128 + number if exited and number else code if exited else None,
        signal=number if exited and is_signal(number) else None,
        reason="" if exited and reason in ("NonZeroExitCode", "None", state, "") else f"Slurm says {said}",
        nodes=tuple(_expand(nodes)) if nodes not in ("(null)", "None assigned") else (),
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


class _SlurmOptions(BatchOptions):
    """Options of `batch: slurm`."""

    whose = "slurm"
    rank_errors: bool = Field(
        default=False,
        description="Each rank that `srun` starts writes its stderr to a file of its own, put together at the end: "
        "srun may drop what a rank wrote just before it died. Stderr is then not there to be read while the job runs.",
    )


@takes_options(_SlurmOptions)
def slurm(site: Site) -> BatchExecutor:
    return BatchExecutor(site, Slurm())


_SQUEUE = [
    # numbers since the epoch instead of local times
    *("env", "SLURM_TIME_FORMAT=%s"),
    # --me and not -j: the controller then sends our jobs only, and an id it has forgotten is no error
    *("squeue", "--me", "--noheader", "--states=all"),
    *("-O", ",".join(f"{name}:{width}" for name, width in COLUMNS.items())),
]
_SACCT = [
    # --duplicates: every start of a job that was put back into the queue
    *("env", "SLURM_TIME_FORMAT=%s", "sacct", "--duplicates", "-X", "-n", "-P"),
    *("-o", ",".join(_SACCT_FIELDS)),
]
# the completion log of sites without accounting; only its end is read, it may be years old
_JOBCOMP = (
    'file=$(scontrol show config | sed -n "s/^JobCompLoc *= *//p"); '
    'if [ -f "$file" ] && [ -r "$file" ]; then exec tail -n 20000 "$file"; fi'
)

_AWAY = re.compile(r"onnection refused|persist_conn|Unable to contact|Problem talking to|timed out|was ended after")
_REFUSALS = (
    overloaded(r"Socket timed out|send/recv|Zero Bytes were transmitted|Message receive failure|was ended after \d+ s"),
    RefusalRule(
        r"Munge|authentication error|auth_g_create",
        Blame.WEATHER,
        "{said}; munge is down on this machine: its operator starts munged",
    ),
    down(r"Unable to contact slurm controller|Slurm backup controller|Slurm temporarily unable|Connection refused"),
    too_many(r"MaxSubmit|submit limit|accounting/QOS policy|Resource temporarily unavailable|job count limit"),
    RefusalRule(
        r"[Ii]nvalid partition|partition specified",
        Blame.SITE_FILE,
        "{said}; set `queue` in the site file to a partition that `sinfo` lists (now {queue})",
    ),
    RefusalRule(
        r"group not permitted",
        Blame.SITE_FILE,
        "{said}; set `queue` in the site file to a partition that is open to one of your groups (now {queue}: "
        "`scontrol show partition` lists its AllowGroups, `id -Gn` yours), or ask the operator to add you to one",
    ),
    RefusalRule(
        r"[Ii]nvalid account|account/partition|[Ii]nvalid (qos|QOS)|not permitted to use",
        Blame.SITE_FILE,
        "{said}; set `account` in the site file to one that `sacctmgr show assoc user=$USER` lists (now {account}), "
        "or ask the operator for it",
    ),
    too_much(
        r"node configuration is not available|Memory specification|time limit is invalid|[Nn]ode count|"
        r"More processors requested|CPU count|generic resource|Invalid feature|Invalid node name|Invalid numeric value"
    ),
)


# directives have a long and a short spelling
_LONG = {"-N": "--nodes", "-p": "--partition", "-A": "--account", "-t": "--time", "-J": "--job-name", "-o": "--output"}
_LONG |= {"-D": "--chdir", "-w": "--nodelist", "-x": "--exclude", "-c": "--cpus-per-task"}


# SBATCH_PARTITION overrides the script's own line, SLURM_NTASKS of a job around us is taken for a request, SRUN_* and
# SLURM_* go on into the job and change its steps, and the others change what a query prints
_OBEYED = re.compile(r"(SBATCH|SALLOC|SRUN|SLURMD?|SQUEUE|SACCT|SCANCEL|SCONTROL|SINFO)_")
_WHERE_AND_WHO = ("SLURM_CONF", "SLURM_JWT", "SLURM_SACK_SOCKET")  # which cluster it is, and who asks


class Slurm(BatchDialect):
    name = "slurm"
    programs: Sequence[str] = ("sbatch", "squeue", "scancel", "scontrol")
    job_variable = "SLURM_JOB_ID"
    submit_folder_variable = "SLURM_SUBMIT_DIR"
    restart_variable = "SLURM_RESTART_COUNT"
    nodes_text = 'printf "%s\\n" "$SLURM_JOB_NODELIST"'
    hosts_text = 'scontrol show hostnames "$SLURM_JOB_NODELIST"'
    directive = "#SBATCH"
    server = "slurmctld"
    shows_sizes = "sinfo -No '%n %c %m %G'"
    refusals = _REFUSALS
    kept_options = ("--no-requeue",)

    def directives(self, job: Job, site: Site) -> list[str]:
        needs = job.resources
        options = [
            f"--job-name={self.job_name(job.name, '')}",
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
        whole = takes_whole_nodes(needs, site)
        if whole and needs.memory_bytes is None:
            options.append("--mem=0")  # all that the node has
        elif (memory_mb := memory_mib(job, site)) is not None:
            options.append(f"--mem={memory_mb}M")
        if whole or site.options.get("exclusive"):
            options.append("--exclusive")
        if site.queue:
            options.append(f"--partition={site.queue}")
        if site.account:
            options.append(f"--account={site.account}")
        if job.on_nodes:
            options.append(f"--nodelist={','.join(job.on_nodes)}")
        if avoid := [node for node in job.avoid_nodes if node not in job.on_nodes]:
            options.append(f"--exclude={','.join(avoid)}")
        return [f"{self.directive} {option}" for option in options]

    def doubts(self, resources: Resources, site: Site) -> list[str]:
        # a whole node needs no sizes: --exclusive and --mem=0 take all of it
        return [] if takes_all_gpus(resources, site) else super().doubts(resources, site)

    def option(self, line: str) -> str:
        first = super().option(line)
        return _LONG.get(first, first)

    def obeys(self, variable: str) -> bool:
        return _OBEYED.match(variable) is not None and variable not in _WHERE_AND_WHO

    def submit_command(self, script: Path, name: str, job: Job) -> list[str]:
        output = [
            f"--chdir={script.parent}",
            f"--output={BATCH_OUTPUT}",
            f"--error={BATCH_OUTPUT}",
            "--open-mode=truncate",
        ]
        return ["sbatch", "--parsable", f"--job-name={name}", *output, str(script)]

    def job_id(self, answer: JobReply) -> str | None:
        # --parsable prints 12 or 12;cluster; site plugins may talk before it
        match = re.search(r"^(\d+)(;\S*)?$", answer.stdout, re.MULTILINE)
        return match[1] if match else None

    def poll_command(self, job_ids: Collection[str]) -> list[str]:
        return list(_SQUEUE)

    def read_poll(self, answer: JobReply) -> Mapping[str, JobStatus] | None:
        return None if answer.code != 0 else _read_squeue(answer.stdout)

    def in_words(self, reason: str) -> str:
        return "" if reason in ("None", "(null)") else worded(reason, _REASONS)

    def history_commands(self, job_ids: Collection[str]) -> list[list[str]]:
        return [[*_SACCT, "-j", ",".join(job_ids)], ["sh", "-c", _JOBCOMP]]

    def read_history(self, answer: JobReply) -> Mapping[str, JobStatus] | None:
        if answer.code != 0 and _AWAY.search(answer.stderr):
            return None
        return _read_history(answer.stdout)

    def find_commands(self, name: str) -> list[list[str]]:
        return [[*_SQUEUE, f"--name={name}"], [*_SACCT, f"--name={name}", "-S", "now-30days"], ["sh", "-c", _JOBCOMP]]

    def read_found(self, answer: JobReply, name: str) -> list[str] | None:
        text = answer.stdout
        if answer.code != 0:
            # without accounting sacct always fails, or is not installed; that says nothing about the job
            return [] if re.search(r"accounting storage is disabled|sacct.: No such file", answer.stderr) else None
        seen = _read_history(text) if "JobId=" in text or "|" in text else _read_squeue(text)
        return [job.job_id for job in seen.values() if job.name == name]

    def cancel_command(self, job_id: str) -> list[str]:
        return ["scancel", job_id]

    def energy_command(self, job_id: str) -> list[str]:
        return ["sacct", "-n", "-P", "-j", job_id, "-o", "JobID,ConsumedEnergyRaw"]

    def read_energy(self, answer: JobReply) -> float | None:
        # every step counts its nodes as long as it lasts: the batch step contains those that it starts, and the line
        # of the job adds them all up, some twice
        steps = re.findall(r"^\d+\.[^|]*\|(\d+)$", answer.stdout, re.MULTILINE)
        most = max(map(float, steps), default=0.0)
        return most or None

    def node_names(self, text: str) -> tuple[str, ...]:
        return tuple(_expand(text.strip()))
