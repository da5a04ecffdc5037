"""What a batch system must be able to say and to read: text in, text out. Nothing here runs a program.

`batch.BatchExecutor` runs the commands of a dialect and hands it the answers. All that is known about one batch system
is in its dialect: batch.py and its neighbours know none by name.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import AfterValidator, Field, ValidationInfo

from ridgeline.executors.base import ExecutorFactory
from ridgeline.files import is_there
from ridgeline.records.run import Cause, Ending, Job, Resources
from ridgeline.records.site import Site
from ridgeline.study.forms import FOLDER, Accepts, DefaultText, Form, OneLine, ValueUnit

BATCH_OUTPUT = "batch.out"  # where the batch system's own output of a job that we hand over goes, in the run folder


# What a site file may say under `options`: keys that only one batch system knows are in a form beside its dialect.

Made = TypeVar("Made", bound=ExecutorFactory)


def takes_options(form: type[Form]) -> Callable[[Made], Made]:
    """Says by which form the `options` of a site are read before a factory gets them."""

    def marked(factory: Made) -> Made:
        factory.form = form  # type: ignore[attr-defined]  # what the catalog looks for
        return factory

    return marked


def option(site: Site, form: type[Form], name: str) -> Any:
    """What the site says, or else the form's default."""
    return site.options.get(name, form.model_fields[name].default)


def _script(name: str, info: ValidationInfo) -> str:
    path = (info.context or {})[FOLDER] / name
    if not is_there(path) or not path.is_file():
        raise ValueError(f"{path.absolute()}: no such file; it is looked for beside the site file")
    return str(path.absolute())


_Seconds = Annotated[float, ValueUnit("seconds"), Field(ge=0)]
_Script = Annotated[OneLine, AfterValidator(_script), Accepts("the name of a file beside the site file")]


class BatchOptions(Form):
    """Options that all batch systems share."""

    mpirun: Annotated[OneLine, DefaultText("the one on the PATH")] = Field(
        default="", description="The program that starts ranks, instead of `mpirun`."
    )

    script: Annotated[_Script | None, DefaultText("one is written for each run")] = Field(
        default=None,
        description="Your own job script, run unchanged; it finds the trial's command in $RIDGELINE_COMMAND.",
    )
    exclusive: bool = Field(default=False, description="Whole nodes for each job, without neighbours.")
    walltime_slack_s: _Seconds = Field(
        default=60.0,
        description="Extra time each job asks for beyond its own limit, for modules, setup and bookkeeping.",
    )
    lost_after_s: _Seconds = Field(
        default=120.0, description="How long a job may be unknown to queue and accounting before it counts as lost."
    )
    outage_s: _Seconds = Field(
        default=900.0,
        description="How long the batch system may stay silent before the campaign stops; jobs keep running.",
    )
    stuck_after_s: _Seconds = Field(
        default=600.0, description="How long a job may wait for nodes that are out of service."
    )
    settle_s: _Seconds = Field(
        default=60.0, description="How long a finished job's files may take to show up on a network file system."
    )


@dataclass(frozen=True, slots=True)
class JobReply:
    """What a command of the batch system printed."""

    code: int
    stdout: str = ""
    stderr: str = ""


class Phase(StrEnum):
    WAITING = "waiting"
    STUCK = "stuck"  # waits for nodes that are out of service, or for a person
    HOPELESS = "hopeless"  # accepted, and can never start as it stands
    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class JobStatus:
    """What the batch system says about one job. `reason` is its own wording; `ending` is there when it ended.

    `charged_s`: from when it gave the job its nodes until it took them back. It may say so before the job has ended
    for us, while an epilog still runs.
    """

    job_id: str
    phase: Phase
    name: str = ""
    reason: str = ""
    ending: Ending | None = None
    folder: str = ""  # where the job ran, if said: job ids may be given out again
    charged_s: float | None = None
    over_walltime: bool = False  # ended for the time it had asked for, or that somebody left it


class Blame(StrEnum):
    """Whose fault a refused submission is: decides what happens next."""

    WEATHER = "weather"  # may succeed later without anybody doing anything
    UNSURE = "unsure"  # the answer was lost: the job may be in the queue
    REQUEST = "request"  # this job asks for what the site does not have; another may pass
    SITE_FILE = "site file"  # queue, account, options: nothing will pass until somebody acts


@dataclass(frozen=True, slots=True)
class Refusal:
    blame: Blame
    message: str


@dataclass(frozen=True)
class RefusalRule:
    """`advice` may name {said}, {queue}, {account} and {server}."""

    pattern: str
    blame: Blame
    advice: str = "{said}"


def overloaded(pattern: str) -> RefusalRule:
    return RefusalRule(pattern, Blame.UNSURE, "{said}; {server} is overloaded or restarting")


def down(pattern: str) -> RefusalRule:
    return RefusalRule(pattern, Blame.WEATHER, "{said}; {server} is down: the operator of the cluster restarts it")


def too_many(pattern: str) -> RefusalRule:
    advice = "{said}; too many jobs are queued: lower jobs_at_once in the site file, or wait"
    return RefusalRule(pattern, Blame.WEATHER, advice)


def too_much(pattern: str) -> RefusalRule:
    advice = "{said}; ask for less, or correct nodes, cores_per_node and gpus_per_node in the site file"
    return RefusalRule(pattern, Blame.REQUEST, advice)


@dataclass(frozen=True, slots=True)
class OutputReport:
    """What the batch system itself wrote into a job's output: what was used and, where it ended the job, why."""

    usage: Mapping[str, float] = field(default_factory=dict)  # cpu_s, max_rss_bytes, service_units...
    cause: Cause | None = None
    reason: str = ""


class BatchDialect(ABC):
    """Subclass it and say what has no default here. Readers get whatever was printed, and raise for none of it."""

    name: str
    programs: Sequence[str]  # what must be on PATH
    job_variable: str  # set in every job: its id, which begins with digits
    submit_folder_variable: str = ""  # set in every job, if at all: the folder in which it was handed over
    restart_variable: str = ""  # set in a job that is started again, if at all: how many times so far
    nodes_text: str  # shell text that prints the job's nodes, one a line or as the batch system writes them
    hosts_text: str = "uname -n"  # shell text that prints the names of the job's nodes, one a line
    server: str = "the batch system"  # what takes jobs, as messages call it
    shows_sizes: str = ""  # the command that shows people what nodes have
    directive: str = "#"  # how a line for the batch system begins in a script
    copies_output_back: bool = False  # the batch system's own output file appears some time after the end
    # options, as `option` names them, that users' scripts cannot change: where output goes, no second start
    kept_options: Collection[str] = ()
    refusals: ClassVar[
        Sequence[RefusalRule]
    ] = ()  # what is said of a job that is not taken; the first that fits counts

    def directives(self, job: Job, site: Site) -> list[str]:
        """The lines that ask for what the job needs.

        Where output goes is for `submit_command` to say, if it can: a script handed over by hand must not write there.
        """
        return []

    def doubts(self, resources: Resources, site: Site) -> list[str]:
        """What is likely to go wrong with jobs that ask for this, for want of something in the site file."""
        sizes = {"cores_per_node": site.cores_per_node, "memory_per_node": site.memory_bytes_per_node}
        unknown = [name for name, size in {**sizes, "gpus_per_node": site.gpus_per_node}.items() if not size]
        if not resources.gpus or not unknown or (resources.cores is not None and site.memory_bytes_per_node):
            return []
        shown = f" (`{self.shows_sizes}` shows them)" if self.shows_sizes else ""
        return [
            f"the site does not say {' or '.join(unknown)}: beside {resources.gpus} GPUs a job may get one core and "
            f"little memory; write them into the site{shown}"
        ]

    def pins_nodes(self, site: Site) -> bool:
        """Whether a job can name the nodes it runs on."""
        return True

    def option(self, line: str) -> str:
        """What a directive sets, whichever way it is written; of two with the same option one is left out."""
        return line.removeprefix(self.directive).strip().replace("=", " ").partition(" ")[0]

    def job_name(self, name: str, tag: str) -> str:
        """A name that holds the tag and that this batch system accepts."""
        plain = re.sub(r"[^A-Za-z0-9_.+-]", "_", name)[:100] or "ridgeline"
        return f"{plain}-{tag}" if tag else plain

    def obeys(self, variable: str) -> bool:
        """Whether a command of the batch system, or one inside a job, takes this environment variable for a request.

        Such variables are left out of what the commands are given: a job is what its script says, whatever the caller
        has exported, and whether or not the controller itself runs in a job. What says where the cluster is stays.
        """
        return False

    @abstractmethod
    def submit_command(self, script: Path, name: str, job: Job) -> list[str]:
        """The batch system's own output goes to BATCH_OUTPUT beside the script.

        `job` says how many nodes it takes (`resources.nodes`), which (`on_nodes`, if any are named) and which it would
        rather not have (`avoid_nodes`): for whoever has no directives, or has to choose the nodes itself.
        """

    @abstractmethod
    def job_id(self, answer: JobReply) -> str | None:
        """The id of the job that was just accepted, as `job_variable` has it inside the job."""

    def refusal(self, answer: JobReply, site: Site) -> Refusal:
        """Why a command failed, and who is to act."""
        lines = [line.strip() for line in f"{answer.stderr}\n{answer.stdout}".splitlines() if line.strip()]
        said = "; ".join(lines[-3:]) or f"{self.programs[0]} ended with {answer.code} and said nothing"
        place = {"queue": site.queue or "not set", "account": site.account or "not set", "server": self.server}
        for rule in self.refusals:
            if re.search(rule.pattern, f"{answer.stdout}\n{answer.stderr}"):
                return Refusal(rule.blame, rule.advice.format(said=said, **place))
        return Refusal(Blame.SITE_FILE, f"{said}; ask the operator of the cluster, or correct the site file")

    @abstractmethod
    def poll_command(self, job_ids: Collection[str]) -> list[str]:
        """One command for all jobs."""

    @abstractmethod
    def read_poll(self, answer: JobReply) -> Mapping[str, JobStatus] | None:
        """What is said about each job; None when the batch system is away. A job not in it is not known there: then
        what run.sh wrote at its end decides, and without that it is lost after `lost_after_s`."""

    def in_words(self, reason: str) -> str:
        """Why a job waits, as a person says it, with the batch system's own word; empty where it gives no reason.

        A reason that is not known here is given as it stands.
        """
        return reason

    def history_commands(self, job_ids: Collection[str]) -> list[list[str]]:
        """Where else to look for jobs that the poll does not know."""
        return []

    def read_history(self, answer: JobReply) -> Mapping[str, JobStatus] | None:
        """None when that place is away for a while; empty when there is no such place here."""
        return {}

    @abstractmethod
    def find_commands(self, name: str) -> list[list[str]]:
        """Commands whose answers list jobs of this name."""

    @abstractmethod
    def read_found(self, answer: JobReply, name: str) -> list[str] | None:
        """Job ids of that name; None when the batch system is away."""

    @abstractmethod
    def cancel_command(self, job_id: str) -> list[str]:
        """What tells run.sh to stop (SIGTERM): it ends the program and all that this started."""

    def energy_command(self, job_id: str) -> list[str]:
        """What asks the accounting for the energy of a job that has ended; empty where there is none."""
        return []

    def read_energy(self, answer: JobReply) -> float | None:
        """Joules of the whole job; None where it was not counted."""
        return None

    def node_names(self, text: str) -> tuple[str, ...]:
        """The nodes that `nodes_text` printed."""
        return tuple(dict.fromkeys(text.split()))

    def read_output(self, lines: Iterable[str]) -> OutputReport:
        """What BATCH_OUTPUT says in the batch system's own words: a footer, a kill message."""
        return OutputReport()


def worded(reason: str, table: Iterable[tuple[str, str]]) -> str:
    """The words of the first pattern that the reason begins with, groups filled in, and the reason itself."""
    for pattern, words in table:
        if found := re.match(pattern, reason):
            return f"{found.expand(words)} ({reason})"
    return reason


# What a job needs from a batch system: time, cores, memory. Numbers for a dialect to put into its own directives.


def walltime_minutes(job: Job, site: Site) -> int:
    """The batch system's limit: a backstop above the job's own, which run.sh keeps. Whole minutes suit them all."""
    slack_s = float(option(site, BatchOptions, "walltime_slack_s"))
    return max(1, math.ceil((job.limit_s + (job.grace_s or 0.0) + slack_s) / 60))


def core_count(job: Job, site: Site) -> int | None:
    """Cores a node; without a wish the whole node where the site file says its size, so that no neighbour disturbs.

    A job with GPUs takes the share of the node's cores that belongs to them: the others' GPUs need the rest.
    """
    if job.resources.cores is not None or site.cores_per_node is None:
        return job.resources.cores
    return max(job.resources.ranks_per_node, math.floor(site.cores_per_node * _gpu_share(job.resources, site)))


def memory_mib(job: Job, site: Site) -> int | None:
    """Memory a node; without a wish the share that belongs to its cores or GPUs, where the site file says enough."""
    wanted = job.resources.memory_bytes
    if wanted is None and site.memory_bytes_per_node:
        cores = core_count(job, site)
        shares = [min(1.0, cores / site.cores_per_node)] if cores and site.cores_per_node else []
        shares += [_gpu_share(job.resources, site)] if job.resources.gpus and site.gpus_per_node else []
        wanted = math.floor(site.memory_bytes_per_node * max(shares)) if shares else None
    return None if wanted is None else math.ceil(wanted / 2**20)


def _gpu_share(resources: Resources, site: Site) -> float:
    """The part of a node that belongs to the GPUs asked for; all of it for a job without any."""
    if not resources.gpus or not site.gpus_per_node:
        return 1.0
    return min(1.0, resources.gpus / site.gpus_per_node)


def takes_all_gpus(resources: Resources, site: Site) -> bool:
    """Whether nobody else could use a GPU of its nodes: then the whole node may as well be asked for."""
    return 0 < site.gpus_per_node <= resources.gpus


def takes_whole_nodes(resources: Resources, site: Site) -> bool:
    """Whether nobody else may run beside it: it wants no part of a node, and the site says what a whole one is.

    Asked for as a whole node and not as its cores: with hyper-threads the cores are half of its CPUs, and a neighbour
    would get the other half.
    """
    if resources.gpus:
        return takes_all_gpus(resources, site) and resources.cores is None
    return resources.cores is None and site.cores_per_node is not None
