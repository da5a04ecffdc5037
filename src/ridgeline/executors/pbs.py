"""PBS (OpenPBS, PBS Pro): what we say to it, and how its answers read. Formats captured from a real server."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from ridgeline.diagnose.readers.batch_text import clock_s, read_batch_footer, size_bytes
from ridgeline.executors.batch import BatchExecutor
from ridgeline.executors.dialect import (
    BATCH_OUTPUT,
    BatchDialect,
    BatchOptions,
    Blame,
    JobReply,
    JobStatus,
    OutputReport,
    Phase,
    RefusalRule,
    core_count,
    down,
    memory_mib,
    option,
    overloaded,
    takes_options,
    takes_whole_nodes,
    too_many,
    too_much,
    walltime_minutes,
    worded,
)
from ridgeline.records.run import Cause, Ending, Job
from ridgeline.records.site import Site
from ridgeline.study.forms import Accepts, DefaultText, OneLine

_NOT_ENDED = {"Q": Phase.WAITING, "H": Phase.WAITING, "W": Phase.WAITING, "T": Phase.WAITING, "S": Phase.WAITING}
_NOT_ENDED |= {"M": Phase.WAITING, "U": Phase.WAITING, "R": Phase.RUNNING, "E": Phase.RUNNING, "B": Phase.RUNNING}
_ENDED = ("F", "X", "C")

_HOPELESS = re.compile(r"Can Never Run", re.IGNORECASE)
_STUCK = re.compile(
    r"(vnode|host|node)s? .*(offline|down|unavailable)|job held, too many failed attempts", re.IGNORECASE
)
_EXCEEDED = re.compile(r"exceeded resource (\w+)|exceeded limit|walltime \d+ exceeded", re.IGNORECASE)
_TERMINATED = re.compile(r"terminated by|deleted by|delete[d]? (job )?request", re.IGNORECASE)
# why a job is queued: the comment of the server, without its beginning, and what it means to who waits
_REASONS = (
    (r"Insufficient amount of|No available resources|Not enough (free nodes|of the right)", "what it needs is in use"),
    (r"(User|Group|Project) has reached .*limit|.*would exceed .*(user|group|project)", "a limit of yours is reached"),
    (r".*(has reached .*limit|would exceed .*limit)", "a limit of the queue is reached"),
    (r"Draining system", "the nodes are kept free for a job that has waited too long"),
    (r"Queue not started|Job is not in an? .*queue", "the operator has closed the queue"),
    (r"Job is in the hold state|job held", "it is held: `qrls`, or the operator, lets it go"),
    (r".*([Dd]edicated time|[Rr]eservation|calendar)", "its nodes are kept for something else"),
)
_PREAMBLE = re.compile(r"(Not Running|Can Never Run): *", re.IGNORECASE)

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


def _read_qstat(text: str) -> dict[str, JobStatus]:
    """Job id -> what is said about it."""
    return {job_id: _seen(job_id, job) for job_id, job in _read_jobs(text).items()}


def _read_footer(lines: Iterable[str]) -> OutputReport:
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


def _read_jobs(text: str) -> dict[str, dict[str, object]]:
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


def _seen(job_id: str, job: Mapping[str, object]) -> JobStatus:
    state, comment = str(job.get("job_state", "")), str(job.get("comment", ""))
    name = str(job.get("Job_Name", ""))
    if state in _ENDED:
        ending = _ending(job, comment)
        over = ending.cause is Cause.TIME_LIMIT and "walltime" in ending.reason
        return JobStatus(job_id, Phase.ENDED, name, comment, ending, charged_s=ending.elapsed_s, over_walltime=over)
    phase = _NOT_ENDED.get(state, Phase.WAITING)
    if phase is Phase.WAITING and _HOPELESS.search(comment):
        phase = Phase.HOPELESS
    elif phase is Phase.WAITING and _STUCK.search(comment):
        phase = Phase.STUCK
    return JobStatus(job_id, phase, name, comment)


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


class _PbsOptions(BatchOptions):
    """Options of `batch: pbs`."""

    whose = "pbs"
    account_option: OneLine = Field(default="-P", description="The option of qsub that names the account; often -A.")
    request: Literal["select", "plain"] = Field(
        default="select",
        description="How resources are asked for: chunks with `-l select=`, or totals with `-l ncpus=` and `-l mem=`.",
    )
    hosts: Annotated[list[OneLine], Accepts("a list of node names"), DefaultText("none")] = Field(
        default=[], description="All nodes by name: PBS can avoid a faulty one only when the others are named."
    )


@takes_options(_PbsOptions)
def pbs(site: Site) -> BatchExecutor:
    return BatchExecutor(site, Pbs())


_REFUSALS = (
    overloaded(r"Communication failure|End of File|Premature end of message|was ended after \d+ s|PBS_BATCH_RPT"),
    down(r"cannot connect to server|Connection refused|No default server|Server shutting down|server is in.*recovery"),
    too_many(r"would exceed .* limit|Maximum number of jobs|limit on jobs|exceeds? (server|queue) limit|too many jobs"),
    RefusalRule(
        r"Unknown queue|Queue is not enabled|queue .*(not enabled|does not exist)|Route only",
        Blame.SITE_FILE,
        "{said}; set `queue` in the site file to one that `qstat -Q` lists (now {queue})",
    ),
    RefusalRule(
        r"[Pp]roject|[Aa]ccount|[Uu]nauthorized|not (a member|allowed|authorized)|insufficient (SU|budget|allocation)",
        Blame.SITE_FILE,
        "{said}; set `account` in the site file to a project you belong to (now {account}), or ask its lead for access",
    ),
    too_much(
        r"exceeds queue and/or server resource limits|violates queue and/or server resource limits|"
        r"Illegal attribute or resource value|Unknown resource|[Ii]nvalid resource|more than the maximum"
    ),
)

_NAME_LENGTH = 15  # of PBS before 2020, and of sites that still check it

# PBS_DPREFIX makes qsub pass over every #PBS line, PBS_QSTAT_* hide jobs from qstat; the others belong to a job around
# us. PBS_DEFAULT, PBS_SERVER and PBS_CONF_FILE stay: they say which server it is
_OBEYED = re.compile(
    r"PBS_(DPREFIX|QSTAT_\w+|O_\w+|ACCOUNT|ARRAY_\w+|ENVIRONMENT|JOB\w+|MOMPORT|NODE\w+|QUEUE|TASKNUM|TMPDIR)|QSUB_\w+"
)


class Pbs(BatchDialect):
    name = "pbs"
    programs: Sequence[str] = ("qsub", "qstat", "qdel", "qselect")
    job_variable = "PBS_JOBID"
    submit_folder_variable = "PBS_O_WORKDIR"
    nodes_text = 'sort -u "$PBS_NODEFILE"'
    hosts_text = 'sort -u "$PBS_NODEFILE"'
    directive = "#PBS"
    server = "the PBS server"
    shows_sizes = "pbsnodes -av"
    copies_output_back = True
    refusals = _REFUSALS
    kept_options = ("-r",)

    def directives(self, job: Job, site: Site) -> list[str]:
        minutes = walltime_minutes(job, site)
        options = [
            f"-N {self.job_name(job.name, '')}",
            # a job that PBS starts again by itself would be measured as if it had run once
            "-r n",
            f"-l walltime={minutes // 60:02d}:{minutes % 60:02d}:00",
            *(f"-l {request}" for request in _requests(job, site)),
        ]
        if site.queue:
            options.append(f"-q {site.queue}")
        if site.account:
            # Gadi and ASPIRE2A+ count by project (-P); elsewhere it is -A
            options.append(f"{option(site, _PbsOptions, 'account_option')} {site.account}")
        return [f"{self.directive} {option}" for option in options]

    def pins_nodes(self, site: Site) -> bool:
        return site.options.get("request") != "plain"  # totals name no hosts

    def option(self, line: str) -> str:
        # many things are gathered under -l: -l walltime, -l select
        parts = re.split(r"[\s=]+", line.removeprefix(self.directive).strip(), maxsplit=2)
        return f"{parts[0]} {parts[1]}" if parts[0] in ("-l", "-W") and len(parts) > 1 else parts[0]

    def job_name(self, name: str, tag: str) -> str:
        plain = re.sub(r"[^A-Za-z0-9_.+-]", "_", name) or "ridgeline"
        if not plain[0].isalpha():
            plain = f"r{plain}"
        return f"{plain[: _NAME_LENGTH - len(tag) - 1]}-{tag}" if tag else plain[:_NAME_LENGTH]

    def obeys(self, variable: str) -> bool:
        return _OBEYED.fullmatch(variable) is not None

    def submit_command(self, script: Path, name: str, job: Job) -> list[str]:
        return ["qsub", "-N", name, "-j", "oe", "-o", str(script.parent / BATCH_OUTPUT), str(script)]

    def job_id(self, answer: JobReply) -> str | None:
        match = re.search(r"^(\d+(\[\])?\.\S+|\d+)$", answer.stdout, re.MULTILINE)
        return match[1] if match else None

    def poll_command(self, job_ids: Collection[str]) -> list[str]:
        # -x: jobs that have ended too; without it qstat says 35 and forgets them
        return ["qstat", "-x", "-f", "-F", "json", *job_ids]

    def read_poll(self, answer: JobReply) -> Mapping[str, JobStatus] | None:
        jobs = _read_qstat(answer.stdout)
        # 153: some of the ids are unknown, 35: finished and no history is kept; the other jobs are printed all the same
        return None if not jobs and answer.code not in (0, 35, 153) else jobs

    def in_words(self, reason: str) -> str:
        return worded(_PREAMBLE.sub("", reason, count=1), _REASONS)

    def history_commands(self, job_ids: Collection[str]) -> list[list[str]]:
        # servers before PBS 18 do not know -F json, and print nothing with it
        return [["qstat", "-x", "-f", *job_ids]]

    def read_history(self, answer: JobReply) -> Mapping[str, JobStatus] | None:
        return self.read_poll(answer)

    def find_commands(self, name: str) -> list[list[str]]:
        return [["qselect", "-x", "-N", name]]

    def read_found(self, answer: JobReply, name: str) -> list[str] | None:
        return None if answer.code != 0 else answer.stdout.split()

    def cancel_command(self, job_id: str) -> list[str]:
        return ["qdel", job_id]

    def read_output(self, lines: Iterable[str]) -> OutputReport:
        return _read_footer(lines)


def _requests(job: Job, site: Site) -> list[str]:
    needs, cores = job.resources, core_count(job, site) or job.resources.ranks_per_node
    memory_mb = memory_mib(job, site)
    if site.options.get("request") == "plain":
        # Gadi: totals over all nodes; the server makes chunks of whole nodes out of them
        sizes = {"ncpus": cores, "ngpus": needs.gpus or None, "mem": memory_mb}
        return [f"{name}={size * needs.nodes}{'mb' * (name == 'mem')}" for name, size in sizes.items() if size]
    chunk = f"ncpus={cores}:mpiprocs={needs.ranks_per_node}:ompthreads={_threads(job, site, cores)}"
    chunk += f":ngpus={needs.gpus}" if needs.gpus else ""
    chunk += f":mem={memory_mb}mb" if memory_mb is not None else ""
    hosts = _hosts(job, site)
    named = "+".join(f"1:{chunk}:host={host}" for host in hosts)
    return [f"select={named or f'{needs.nodes}:{chunk}'}", *_placement(job, site)]


def _threads(job: Job, site: Site, cores: int) -> int:
    """Threads of a rank: as the job's environment says, else its share of the cores.

    Unless it is told, PBS sets OMP_NUM_THREADS to ncpus, whatever mpiprocs says: every rank would take the whole node.
    """
    stated = {**site.env, **job.env}.get("OMP_NUM_THREADS", "")
    return int(stated) if stated.isdecimal() and int(stated) > 0 else max(1, cores // job.resources.ranks_per_node)


def _placement(job: Job, site: Site) -> list[str]:
    """Without it PBS may put all chunks on one node, and strangers beside them."""
    sharing = ":excl" if site.options.get("exclusive") else ""
    if not sharing and takes_whole_nodes(job.resources, site):
        sharing = ":exclhost"
    if job.resources.nodes > 1:
        return [f"place=scatter{sharing}"]
    return [f"place=pack{sharing}"] if sharing else []


def _hosts(job: Job, site: Site) -> tuple[str, ...]:
    """Nodes to name. PBS has no way to exclude nodes: the others are named, where the site file lists them all."""
    if job.on_nodes:
        return job.on_nodes
    listed = site.options.get("hosts")
    if job.avoid_nodes and isinstance(listed, Sequence) and not isinstance(listed, str):
        return tuple(str(host) for host in listed if host not in job.avoid_nodes)[: job.resources.nodes]
    return ()
