"""The site file as a form: what every site may say. What only one executor knows is in that executor's own form."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from ridgeline.records.launch import CONTAINER_RUNTIMES, LAUNCHERS
from ridgeline.records.site import METERS, Prices, Site
from ridgeline.study.forms.form import (
    Accepts,
    DefaultText,
    Environment,
    FieldName,
    Form,
    Lines,
    OneLine,
    SingleLines,
    Size,
    ValueUnit,
    Variable,
)


class PricesForm(Form):
    """What hours and energy cost: gives `dollars`, `joules` and `co2_g` as metrics of any program."""

    makes = Prices

    node_hour: Annotated[float | None, ValueUnit("dollars"), DefaultText("not known")] = Field(
        ge=0, description="An hour of one node."
    )
    gpu_hour: Annotated[float | None, ValueUnit("dollars"), DefaultText("not known")] = Field(
        ge=0, description="An hour of one GPU, where nodes have no price."
    )
    kwh: Annotated[float | None, ValueUnit("dollars"), DefaultText("not known")] = Field(
        ge=0, description="A kilowatt-hour, where it is paid for beside the hours."
    )
    co2_g_per_kwh: Annotated[float | None, ValueUnit("grams"), DefaultText("not known")] = Field(
        ge=0, description="Carbon intensity: grams of CO2 for a kilowatt-hour."
    )
    node_watts: Annotated[float | None, ValueUnit("watts"), DefaultText("not known")] = Field(
        gt=0, description="Power of one node under load, where nothing measures it."
    )
    meters: Annotated[list[Literal[METERS]], Accepts(f"a list of {', '.join(METERS)}"), DefaultText("none")] = Field(  # type: ignore[valid-type]  # records.site's
        description="What measures the energy of a run: rapl (processors and DRAM), nvidia-smi (GPUs), slurm (its "
        "energy accounting, of whole nodes); of the first two also the sum.",
    )


class SiteForm(Form):
    """Where jobs run: one machine, or a cluster behind a batch system."""

    makes = Site

    whose = "a site"
    aside = frozenset({"version"})

    version: Annotated[Literal[1], Accepts("1: write 1")] = Field(default=1, description="The version of this format.")
    name: Annotated[OneLine, DefaultText("the file's name, or the batch system's")] = Field(
        description="The site's name, shown in reports."
    )
    batch: OneLine = Field(description="Who runs jobs: local, slurm, pbs, simulated, or a plugin's.")
    queue: Annotated[OneLine, DefaultText("the batch system's default")] = Field(
        description="The queue or partition jobs are sent to."
    )
    account: Annotated[OneLine, DefaultText("your default")] = Field(
        description="The project or account that is charged."
    )
    nodes: Annotated[int, ValueUnit("nodes")] = Field(ge=1, description="The most nodes a job may ask for.")
    cores_per_node: Annotated[int | None, ValueUnit("cores"), DefaultText("unknown")] = Field(
        ge=1, description="Cores of a node; when given, a job that asks for no cores gets whole nodes."
    )
    gpus_per_node: Annotated[int, ValueUnit("GPUs")] = Field(ge=0, description="GPUs of a node.")
    memory_per_node: Annotated[Size | None, FieldName("memory_bytes_per_node"), DefaultText("unknown")] = Field(
        description="Memory of a node; jobs ask for it, and settings that need more are refused."
    )
    interface: Annotated[OneLine, DefaultText("the one that leads to the job's other nodes")] = Field(
        description="The network interface by which engines on several nodes meet, such as ib0: sets "
        "GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME and the engine's own address on every node.",
    )
    launcher: Literal[tuple(LAUNCHERS)] = Field(  # type: ignore[valid-type]  # the names are records.launch's
        description="How programs with several ranks are started."
    )
    launcher_options: Annotated[OneLine, DefaultText("none")] = Field(
        description="Extra options for the launcher, as you would type them."
    )
    modules: Annotated[SingleLines, DefaultText("none")] = Field(
        description="Modules that are loaded before the command."
    )
    setup: Annotated[Lines, DefaultText("none")] = Field(description="Shell lines before the command.")
    container: Annotated[OneLine, DefaultText("none")] = Field(
        description="An image: a file beside the site file, a full path, or docker://… (for pyxis also a .sqsh file).",
    )
    container_runtime: Literal[CONTAINER_RUNTIMES] = Field(  # type: ignore[valid-type]  # records.launch's
        description="What starts the container: apptainer (or singularity), or pyxis, Slurm's plugin for enroot, which "
        "needs `batch: slurm` and `launcher: srun` or none.",
    )
    container_options: Annotated[OneLine, DefaultText("none")] = Field(
        description="Extra options for `apptainer exec`, or of pyxis for `srun`, as you would type them."
    )
    container_mounts: Annotated[SingleLines, DefaultText("none")] = Field(
        description="Paths of the node that the container sees, as PATH or HOST:INSIDE. Pyxis sees the study folder "
        "and the job's scratch by itself.",
    )
    scratch: Annotated[OneLine, DefaultText("none")] = Field(
        description="A folder on the nodes: each job gets its own in it as $RIDGELINE_SCRATCH, removed at its end.",
    )
    env: Environment = Field(description="Environment of every job.")
    secrets: Annotated[list[Variable], Accepts("a list of variables such as [HF_TOKEN]"), DefaultText("none")] = Field(
        description="Variables that hold keys or passwords: run.sh refers to them, no file holds their value.",
    )
    jobs_at_once: Annotated[int, ValueUnit("jobs")] = Field(ge=1, description="How many jobs may be queued or running.")
    poll_s: Annotated[float, ValueUnit("seconds")] = Field(
        gt=0, description="Time between polls of the queue; one poll covers all jobs."
    )
    directives: Annotated[SingleLines, DefaultText("none")] = Field(
        description="Lines that are added to job scripts as they are, such as `#SBATCH --exclusive`."
    )
    service_units_per_node_hour: Annotated[float | None, ValueUnit("service units"), DefaultText("not counted")] = (
        Field(gt=0, description="What one node-hour costs.")
    )
    prices: Annotated[PricesForm | None, DefaultText("not known")] = Field(
        default=None, description="What hours and energy cost; a study may give its own."
    )
    options: dict[str, Any] = Field(description="Keys that only this batch system has; see below.")
