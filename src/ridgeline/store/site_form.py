"""The site file as forms: what every site may say, and what only one batch system knows."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationInfo

from ridgeline.forms.form import FOLDER, CountedIn, Environment, Form, Lines, Otherwise, Single, Size, Takes, Text
from ridgeline.records.launch import LAUNCHERS


class PricesForm(Form):
    """What a site's hours cost."""

    node_hour: Annotated[float | None, CountedIn("dollars"), Otherwise("not known")] = Field(
        default=None, ge=0, description="An hour of one node."
    )
    gpu_hour: Annotated[float | None, CountedIn("dollars"), Otherwise("not known")] = Field(
        default=None, ge=0, description="An hour of one GPU, where nodes have no price."
    )


class SiteForm(Form):
    """Where jobs run: one machine, or a cluster behind a batch system."""

    whose = "a site"

    version: Annotated[Literal[1], Takes("1: write 1")] = Field(default=1, description="The version of this format.")
    name: Annotated[Text, Otherwise("the file's name")] = Field(
        default="local", description="The site's name, shown in reports."
    )
    batch: Text = Field(default="local", description="Who runs jobs: local, slurm, pbs, simulated, or a plugin's.")
    queue: Annotated[Text, Otherwise("the batch system's default")] = Field(
        default="", description="The queue or partition jobs are sent to."
    )
    account: Annotated[Text, Otherwise("your default")] = Field(
        default="", description="The project or account that is charged."
    )
    nodes: Annotated[int, CountedIn("nodes")] = Field(default=1, ge=1, description="The most nodes a job may ask for.")
    cores_per_node: Annotated[int | None, CountedIn("cores"), Otherwise("unknown")] = Field(
        default=None, ge=1, description="Cores of a node; with it, a job that asks for no cores gets whole nodes."
    )
    gpus_per_node: Annotated[int, CountedIn("GPUs")] = Field(default=0, ge=0, description="GPUs of a node.")
    memory_per_node: Annotated[Size | None, Otherwise("unknown")] = Field(
        default=None, description="Memory of a node; jobs ask for it, and settings that need more are refused."
    )
    launcher: Literal[tuple(LAUNCHERS)] = Field(  # type: ignore[valid-type]  # the names are records.launch's
        default="none", description="How programs with ranks are started."
    )
    launcher_options: Annotated[Text, Otherwise("none")] = Field(
        default="", description="Further options of the launcher, as typed."
    )
    modules: Annotated[Lines, Otherwise("none")] = Field(
        default=[], description="Modules that are loaded before the command."
    )
    setup: Annotated[Lines, Otherwise("none")] = Field(default=[], description="Shell lines before the command.")
    container: Annotated[Text, Otherwise("none")] = Field(
        default="", description="An image for Apptainer or Singularity; a file beside the site file, or a full path."
    )
    container_options: Annotated[Text, Otherwise("none")] = Field(
        default="", description="Further options of `apptainer exec`, as typed."
    )
    scratch: Annotated[Text, Otherwise("none")] = Field(
        default="",
        description="A folder on the nodes: each job gets its own in it as $RIDGELINE_SCRATCH, removed at its end.",
    )
    env: Environment = Field(default={}, description="Environment of every job.")
    jobs_at_once: Annotated[int, CountedIn("jobs")] = Field(
        default=1, ge=1, description="How many jobs may be queued or running."
    )
    poll_s: Annotated[float, CountedIn("seconds")] = Field(
        default=10.0, gt=0, description="Time between two looks at the queue; one look serves all jobs."
    )
    directives: Annotated[Lines, Otherwise("none")] = Field(
        default=[], description="Lines that are added to job scripts as they are, such as `#SBATCH --exclusive`."
    )
    service_units_per_node_hour: Annotated[float | None, CountedIn("service units"), Otherwise("not counted")] = Field(
        default=None, gt=0, description="What an hour of one node is charged."
    )
    prices: PricesForm = Field(default_factory=PricesForm, description="What hours cost, for dollars a million tokens.")
    options: dict[str, Any] = Field(default={}, description="What only this batch system knows; see below.")


def _script(name: str, info: ValidationInfo) -> str:
    path = (info.context or {})[FOLDER] / name
    if not path.is_file():
        raise ValueError(f"{path.absolute()}: no such file; it is looked for beside the site file")
    return str(path.absolute())


Seconds = Annotated[float, CountedIn("seconds"), Field(ge=0)]
Share = Annotated[float, Field(ge=0, lt=1), Takes("a share of at least 0 and below 1, such as 0.01 for 1%")]
Script = Annotated[Text, AfterValidator(_script), Takes("the name of a file beside the site file")]


class LocalOptions(Form):
    """Options of `batch: local`."""

    whose = "local"
    mpirun: Annotated[Text, Otherwise("the one on the PATH")] = Field(
        default="", description="The program that starts ranks, instead of `mpirun`."
    )


class BatchOptions(LocalOptions):
    """Options that all batch systems share."""

    script: Annotated[Script | None, Otherwise("one is written for each run")] = Field(
        default=None,
        description="Your own job script, run unchanged; it finds the trial's command in $RIDGELINE_COMMAND.",
    )
    exclusive: bool = Field(default=False, description="Whole nodes for each job, without neighbours.")
    walltime_slack_s: Seconds = Field(
        default=60.0, description="What a job asks for beyond its own limit, for modules, setup and book-keeping."
    )
    lost_after_s: Seconds = Field(
        default=120.0, description="A job that neither the queue nor accounting knows for so long is lost."
    )
    outage_s: Seconds = Field(
        default=900.0, description="How long the batch system may not answer before the campaign stops; jobs go on."
    )
    stuck_after_s: Seconds = Field(
        default=600.0, description="How long a job may wait for nodes that are out of service."
    )
    settle_s: Seconds = Field(
        default=60.0, description="How long the files of an ended job may take to be seen over a network file system."
    )


class SlurmOptions(BatchOptions):
    """Options of `batch: slurm`."""

    whose = "slurm"


class PbsOptions(BatchOptions):
    """Options of `batch: pbs`."""

    whose = "pbs"
    account_option: Text = Field(default="-P", description="The option of qsub that names the account; often -A.")
    request: Literal["select", "plain"] = Field(
        default="select",
        description="How resources are asked for: chunks with `-l select=`, or totals with `-l ncpus=` and `-l mem=`.",
    )
    hosts: Annotated[list[str], Takes("a list of node names"), Otherwise("none")] = Field(
        default=[], description="All nodes by name: PBS can avoid a faulty one only when the others are named."
    )


Speeds = Annotated[
    dict[str, Annotated[float, Field(gt=0)]], Takes("a mapping of nodes to their speed, such as {dgx002: 0.91}")
]


class SimulatedOptions(Form):
    """Options of `batch: simulated`, a cluster that is not there."""

    whose = "simulated"
    gpu: Annotated[Text, Otherwise("the study's `gpu`")] = Field(
        default="", description="The GPU of the nodes, one of `ridgeline hardware`."
    )
    fabric: Annotated[Text, Otherwise("the GPU's usual one")] = Field(
        default="", description="The network between the nodes, one of `ridgeline hardware`."
    )
    prefix: Text = Field(default="node", description="What the nodes' names begin with: node001 and so on.")
    seed: Single = Field(default=0, description="Decides everything that is drawn: speeds, scatter, mishaps.")
    spread: Share = Field(
        default=0.0, description="By how much nodes differ in speed: a standard deviation, as a share."
    )
    noise: Share = Field(default=0.0, description="By how much runs scatter: a standard deviation, as a share.")
    faults: Share = Field(default=0.0, description="The share of runs whose node dies.")
    hangs: Share = Field(default=0.0, description="The share of runs that hang.")
    slow: Speeds = Field(default={}, description="Nodes with a speed of their own; 1 is as fast as the others.")


OPTIONS: dict[str, type[Form]] = {
    "local": LocalOptions,
    "slurm": SlurmOptions,
    "pbs": PbsOptions,
    "simulated": SimulatedOptions,
}
