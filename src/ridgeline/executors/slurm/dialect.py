"""Slurm: what we say to it. Tested against a real Slurm 22.05."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from pydantic import Field

from ridgeline.executors.batch import BatchExecutor
from ridgeline.executors.dialect import BATCH_OUTPUT, BatchDialect, Blame, JobReply, Refusal, Sighting
from ridgeline.executors.needs import (
    core_count,
    memory_bytes,
    takes_all_gpus,
    takes_whole_nodes,
    unknown_sizes,
    walltime_minutes,
)
from ridgeline.executors.options import BatchOptions, takes_options
from ridgeline.executors.refusals import RefusalRule, judge
from ridgeline.executors.slurm.answers import COLUMNS, SACCT_FIELDS, read_history, read_squeue
from ridgeline.executors.slurm.nodelist import expand
from ridgeline.records.run import Job, Resources
from ridgeline.records.site import Site


class SlurmOptions(BatchOptions):
    """Options of `batch: slurm`."""

    whose = "slurm"
    rank_errors: bool = Field(
        default=False,
        description="Each rank that `srun` starts writes its stderr to a file of its own, put together at the end: "
        "srun may drop what a rank wrote just before it died. Stderr is then not there to be read while the job runs.",
    )


@takes_options(SlurmOptions)
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
    *("-o", ",".join(SACCT_FIELDS)),
]
# the completion log of sites without accounting; only its end is read, it may be years old
_JOBCOMP = (
    'file=$(scontrol show config | sed -n "s/^JobCompLoc *= *//p"); '
    'if [ -f "$file" ] && [ -r "$file" ]; then exec tail -n 20000 "$file"; fi'
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


# directives have a long and a short spelling
_LONG = {"-N": "--nodes", "-p": "--partition", "-A": "--account", "-t": "--time", "-J": "--job-name", "-o": "--output"}
_LONG |= {"-D": "--chdir", "-w": "--nodelist", "-x": "--exclude", "-c": "--cpus-per-task"}


class Slurm(BatchDialect):
    name = "slurm"
    programs: Sequence[str] = ("sbatch", "squeue", "scancel", "scontrol")
    job_variable = "SLURM_JOB_ID"
    submit_folder_variable = "SLURM_SUBMIT_DIR"
    nodes_text = 'printf "%s\\n" "$SLURM_JOB_NODELIST"'
    hosts_text = 'scontrol show hostnames "$SLURM_JOB_NODELIST"'
    directive = "#SBATCH"
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
        elif (memory := memory_bytes(job, site)) is not None:
            options.append(f"--mem={math.ceil(memory / 2**20)}M")
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
        unknown = unknown_sizes(site)
        if not resources.gpus or not unknown or takes_all_gpus(resources, site):
            return []  # a whole node needs no sizes: --exclusive and --mem=0 take all of it
        if resources.cores is not None and "memory_per_node" not in unknown:
            return []
        return [
            f"the site does not say {' or '.join(unknown)}: with {resources.gpus} of a node's GPUs a job gets Slurm's "
            "default cores and memory, often one core; write them into the site (`sinfo -No '%n %c %m %G'` shows them)"
        ]

    def option(self, line: str) -> str:
        first = super().option(line)
        return _LONG.get(first, first)

    def obeys(self, variable: str) -> bool:
        # sbatch takes SLURM_NTASKS of the job around it for a request; SLURM_CONF says where the cluster is
        return variable.startswith("SLURM_") and variable != "SLURM_CONF"

    def job_name(self, name: str, tag: str) -> str:
        plain = re.sub(r"[^A-Za-z0-9_.+-]", "_", name)[:100] or "ridgeline"
        return f"{plain}-{tag}" if tag else plain

    def submit_command(self, script: Path, name: str) -> list[str]:
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

    def refusal(self, answer: JobReply, site: Site) -> Refusal:
        return judge(_REFUSALS, "sbatch", answer, site)

    def poll_command(self, job_ids: Collection[str]) -> list[str]:
        return list(_SQUEUE)

    def read_poll(self, answer: JobReply) -> Mapping[str, Sighting] | None:
        return None if answer.code != 0 else read_squeue(answer.stdout)

    def history_commands(self, job_ids: Collection[str]) -> list[list[str]]:
        return [[*_SACCT, "-j", ",".join(job_ids)], ["sh", "-c", _JOBCOMP]]

    def read_history(self, answer: JobReply) -> Mapping[str, Sighting] | None:
        if answer.code != 0 and _AWAY.search(answer.stderr):
            return None
        return read_history(answer.stdout)

    def find_commands(self, name: str) -> list[list[str]]:
        return [[*_SQUEUE, f"--name={name}"], [*_SACCT, f"--name={name}", "-S", "now-30days"], ["sh", "-c", _JOBCOMP]]

    def read_found(self, answer: JobReply, name: str) -> list[str] | None:
        text = answer.stdout
        if answer.code != 0:
            # without accounting sacct always fails, or is not installed; that says nothing about the job
            return [] if re.search(r"accounting storage is disabled|sacct.: No such file", answer.stderr) else None
        seen = read_history(text) if "JobId=" in text or "|" in text else read_squeue(text)
        return [sighting.job_id for sighting in seen.values() if sighting.name == name]

    def cancel_command(self, job_id: str) -> list[str]:
        return ["scancel", job_id]

    def node_names(self, text: str) -> tuple[str, ...]:
        return tuple(expand(text.strip()))
