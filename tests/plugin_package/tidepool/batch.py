"""`tide`: a batch system of one machine. Its dialect is all that Ridgeline needs to know about it."""

import re
import sys
from collections.abc import Collection, Mapping
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
    option,
    takes_options,
    walltime_minutes,
)
from ridgeline.records.run import Cause, Ending, Job
from ridgeline.records.site import Site

_QUEUE = [sys.executable, "-m", "tidepool.queue"]  # sbatch, squeue and scancel in one
_REFUSALS = [
    RefusalRule("no such queue", Blame.SITE_FILE, "{said}; tide has one queue: leave `queue` out (now {queue})")
]
_ROW = re.compile(r"^(\d+) (waiting|running|exited|cancelled) (-?\d+) (\S+)$", re.MULTILINE)


class TideOptions(BatchOptions):
    """Options of `batch: tide`: those that all batch systems share, and its own."""

    whose = "tide"
    nice: int = Field(default=0, ge=0, le=19, description="By how much its jobs give way to other programs.")


@takes_options(TideOptions)
def tide(site: Site) -> BatchExecutor:
    return BatchExecutor(site, Tide())


class Tide(BatchDialect):
    name = "tide"
    programs = (sys.executable,)
    job_variable = "TIDE_JOB"
    nodes_text = "uname -n"
    directive = "#TIDE"
    refusals = _REFUSALS
    kept_options = ("output",)

    def directives(self, job: Job, site: Site) -> list[str]:
        options = {"output": job.folder.absolute() / BATCH_OUTPUT, "minutes": walltime_minutes(job, site)}
        options["nice"] = option(site, TideOptions, "nice")
        queue = {"queue": site.queue} if site.queue else {}
        return [f"{self.directive} {name}={value}" for name, value in {**options, **queue}.items()]

    def submit_command(self, script: Path, name: str, job: Job) -> list[str]:
        return [*_QUEUE, "submit", str(script), name]

    def job_id(self, answer: JobReply) -> str | None:
        found = re.search(r"^(\d+)$", answer.stdout, re.MULTILINE)
        return found[1] if found else None

    def poll_command(self, job_ids: Collection[str]) -> list[str]:
        return [*_QUEUE, "list"]

    def read_poll(self, answer: JobReply) -> Mapping[str, JobStatus] | None:
        if answer.code != 0:
            return None
        return {row[0]: _seen(*row) for row in _ROW.findall(answer.stdout)}

    def find_commands(self, name: str) -> list[list[str]]:
        return [[*_QUEUE, "list"]]

    def read_found(self, answer: JobReply, name: str) -> list[str] | None:
        seen = self.read_poll(answer)
        return None if seen is None else [job_id for job_id, job in seen.items() if job.name == name]

    def cancel_command(self, job_id: str) -> list[str]:
        return [*_QUEUE, "cancel", job_id]


def _seen(job_id: str, state: str, code: str, name: str) -> JobStatus:
    if state in ("waiting", "running"):
        return JobStatus(job_id, Phase(state), name)
    if state == "cancelled":
        return JobStatus(job_id, Phase.ENDED, name, ending=Ending(Cause.CANCELLED, reason="tide says cancelled"))
    return JobStatus(job_id, Phase.ENDED, name, ending=Ending(Cause.EXITED, exit_code=int(code)))
