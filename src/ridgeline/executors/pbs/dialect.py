"""PBS (OpenPBS, PBS Pro): what we say to it. Formats captured from a real server."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from ridgeline.executors.batch import BatchExecutor
from ridgeline.executors.dialect import BATCH_OUTPUT, BatchDialect, Blame, JobReply, OutputReport, Refusal, Sighting
from ridgeline.executors.needs import core_count, memory_bytes, takes_whole_nodes, unknown_sizes, walltime_minutes
from ridgeline.executors.options import BatchOptions, option, takes_options
from ridgeline.executors.pbs.answers import read_footer, read_qstat
from ridgeline.executors.refusals import RefusalRule, judge
from ridgeline.records.run import Job, Resources
from ridgeline.records.site import Site
from ridgeline.study.forms.form import Accepts, DefaultText, OneLine


class PbsOptions(BatchOptions):
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


@takes_options(PbsOptions)
def pbs(site: Site) -> BatchExecutor:
    return BatchExecutor(site, Pbs())


_REFUSALS = (
    RefusalRule(
        r"Communication failure|End of File|Premature end of message|was ended after \d+ s|PBS_BATCH_RPT",
        Blame.UNSURE,
        "{said}; the PBS server is overloaded or restarting",
    ),
    RefusalRule(
        r"cannot connect to server|Connection refused|No default server|Server shutting down|server is in.*recovery",
        Blame.WEATHER,
        "{said}; the PBS server is down: the operator of the cluster restarts it",
    ),
    RefusalRule(
        r"would exceed .* limit|Maximum number of jobs|limit on jobs|exceeds? (server|queue) limit|too many jobs",
        Blame.WEATHER,
        "{said}; too many jobs are queued: lower jobs_at_once in the site file, or wait",
    ),
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
    RefusalRule(
        r"exceeds queue and/or server resource limits|violates queue and/or server resource limits|"
        r"Illegal attribute or resource value|Unknown resource|[Ii]nvalid resource|more than the maximum",
        Blame.REQUEST,
        "{said}; ask for less, or correct nodes, cores_per_node and gpus_per_node in the site file",
    ),
)

_NAME_LENGTH = 15  # of PBS before 2020, and of sites that still check it


class Pbs(BatchDialect):
    name = "pbs"
    programs: Sequence[str] = ("qsub", "qstat", "qdel", "qselect")
    job_variable = "PBS_JOBID"
    submit_folder_variable = "PBS_O_WORKDIR"
    nodes_text = 'sort -u "$PBS_NODEFILE"'
    hosts_text = 'sort -u "$PBS_NODEFILE"'
    directive = "#PBS"
    copies_output_back = True
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
            options.append(f"{option(site, PbsOptions, 'account_option')} {site.account}")
        return [f"{self.directive} {option}" for option in options]

    def pins_nodes(self, site: Site) -> bool:
        return site.options.get("request") != "plain"  # totals name no hosts

    def doubts(self, resources: Resources, site: Site) -> list[str]:
        unknown = unknown_sizes(site)
        if not resources.gpus or not unknown or (resources.cores is not None and "memory_per_node" not in unknown):
            return []
        cores = resources.cores or site.cores_per_node or resources.ranks_per_node
        return [
            f"the site does not say {' or '.join(unknown)}: PBS gives what is asked for, ncpus={cores}"
            f"{' and its default memory' if 'memory_per_node' in unknown else ''} beside {resources.gpus} GPUs; write "
            "them into the site (`pbsnodes -av` shows them)"
        ]

    def option(self, line: str) -> str:
        # many things are gathered under -l: -l walltime, -l select
        parts = re.split(r"[\s=]+", line.removeprefix(self.directive).strip(), maxsplit=2)
        return f"{parts[0]} {parts[1]}" if parts[0] in ("-l", "-W") and len(parts) > 1 else parts[0]

    def job_name(self, name: str, tag: str) -> str:
        plain = re.sub(r"[^A-Za-z0-9_.+-]", "_", name) or "ridgeline"
        if not plain[0].isalpha():
            plain = f"r{plain}"
        return f"{plain[: _NAME_LENGTH - len(tag) - 1]}-{tag}" if tag else plain[:_NAME_LENGTH]

    def submit_command(self, script: Path, name: str) -> list[str]:
        return ["qsub", "-N", name, "-j", "oe", "-o", str(script.parent / BATCH_OUTPUT), str(script)]

    def job_id(self, answer: JobReply) -> str | None:
        match = re.search(r"^(\d+(\[\])?\.\S+|\d+)$", answer.stdout, re.MULTILINE)
        return match[1] if match else None

    def refusal(self, answer: JobReply, site: Site) -> Refusal:
        return judge(_REFUSALS, "qsub", answer, site)

    def poll_command(self, job_ids: Collection[str]) -> list[str]:
        # -x: jobs that have ended too; without it qstat says 35 and forgets them
        return ["qstat", "-x", "-f", "-F", "json", *job_ids]

    def read_poll(self, answer: JobReply) -> Mapping[str, Sighting] | None:
        jobs = read_qstat(answer.stdout)
        # 153: some of the ids are unknown, 35: finished and no history is kept; the other jobs are printed all the same
        return None if not jobs and answer.code not in (0, 35, 153) else jobs

    def history_commands(self, job_ids: Collection[str]) -> list[list[str]]:
        # servers before PBS 18 do not know -F json, and print nothing with it
        return [["qstat", "-x", "-f", *job_ids]]

    def read_history(self, answer: JobReply) -> Mapping[str, Sighting] | None:
        return self.read_poll(answer)

    def find_commands(self, name: str) -> list[list[str]]:
        return [["qselect", "-x", "-N", name]]

    def read_found(self, answer: JobReply, name: str) -> list[str] | None:
        return None if answer.code != 0 else answer.stdout.split()

    def cancel_command(self, job_id: str) -> list[str]:
        return ["qdel", job_id]

    def read_output(self, lines: Iterable[str]) -> OutputReport:
        return read_footer(lines)


def _requests(job: Job, site: Site) -> list[str]:
    needs, cores = job.resources, core_count(job, site) or job.resources.ranks_per_node
    memory = memory_bytes(job, site)
    memory_mb = None if memory is None else math.ceil(memory / 2**20)
    if site.options.get("request") == "plain":
        # Gadi: totals over all nodes; the server makes chunks of whole nodes out of them
        sizes = {"ncpus": cores, "ngpus": needs.gpus or None, "mem": memory_mb}
        return [f"{name}={size * needs.nodes}{'mb' * (name == 'mem')}" for name, size in sizes.items() if size]
    chunk = f"ncpus={cores}:mpiprocs={needs.ranks_per_node}"
    chunk += f":ngpus={needs.gpus}" if needs.gpus else ""
    chunk += f":mem={memory_mb}mb" if memory_mb is not None else ""
    hosts = _hosts(job, site)
    named = "+".join(f"1:{chunk}:host={host}" for host in hosts)
    return [f"select={named or f'{needs.nodes}:{chunk}'}", *_placement(job, site)]


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
