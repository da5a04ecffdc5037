"""Site files: YAML in, a Site out, or every problem with its line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from ridgeline import catalog
from ridgeline.errors import InputError, Problem, StudyError, near
from ridgeline.files import below_home, is_there
from ridgeline.records.launch import CONTAINER_RUNTIMES, LAUNCHERS, PYXIS
from ridgeline.records.site import METERS, Prices, Site
from ridgeline.study.forms import (
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
    read_form,
)
from ridgeline.study.yaml_tree import dotted, in_order_of_lines, parse_yaml, read_text

# The site file as a form: what every site may say. What only one executor knows is in that executor's own form.


_NoneUnlessSaid = Annotated[OneLine, DefaultText("none")]
_Dollars = Annotated[float | None, Field(ge=0), ValueUnit("dollars"), DefaultText("not known")]
Secrets = Annotated[list[Variable], Accepts("a list of variables such as [HF_TOKEN]"), DefaultText("none")]


class PricesForm(Form):
    """What hours and energy cost: gives `dollars`, `joules` and `co2_g` as metrics of any program."""

    makes = Prices

    node_hour: _Dollars = Field(description="An hour of one node.")
    gpu_hour: _Dollars = Field(description="An hour of one GPU, where nodes have no price.")
    kwh: _Dollars = Field(description="A kilowatt-hour, where it is paid for beside the hours.")
    co2_g_per_kwh: Annotated[float | None, ValueUnit("grams"), DefaultText("not known")] = Field(
        ge=0, description="Carbon intensity: grams of CO2 for a kilowatt-hour."
    )
    node_watts: Annotated[float | None, ValueUnit("watts"), DefaultText("not known")] = Field(
        gt=0, description="Power of one node under load, where nothing measures it."
    )
    meters: Annotated[list[Literal[METERS]], Accepts(f"a list of {', '.join(METERS)}"), DefaultText("none")] = Field(  # type: ignore[valid-type]  # records.site's
        description="What measures the energy of a run: rapl (processors and DRAM), nvml (GPUs, by their "
        "counters) or nvidia-smi (GPUs, by a sample of their power a second), ipmi (the whole node, by samples of its "
        "board controller) or slurm (its energy accounting, of whole nodes); of processors and GPUs also the sum.",
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
    launcher_options: _NoneUnlessSaid = Field(description="Extra options for the launcher, as you would type them.")
    modules: Annotated[SingleLines, DefaultText("none")] = Field(
        description="Modules that are loaded before the command."
    )
    setup: Annotated[Lines, DefaultText("none")] = Field(description="Shell lines before the command.")
    container: _NoneUnlessSaid = Field(
        description="An image: a file beside the site file, a full path, or docker://… (for pyxis also a .sqsh file).",
    )
    container_runtime: Literal[CONTAINER_RUNTIMES] = Field(  # type: ignore[valid-type]  # records.launch's
        description="What starts the container: apptainer (or singularity), or pyxis, Slurm's plugin for enroot, which "
        "needs `batch: slurm` and `launcher: srun` or none.",
    )
    container_options: _NoneUnlessSaid = Field(
        description="Extra options for `apptainer exec`, or of pyxis for `srun`, as you would type them."
    )
    container_mounts: Annotated[SingleLines, DefaultText("none")] = Field(
        description="Paths of the node that the container sees, as PATH or HOST:INSIDE. Pyxis sees the study folder "
        "and the job's scratch by itself.",
    )
    scratch: _NoneUnlessSaid = Field(
        description="A folder on the nodes: each job gets its own in it as $RIDGELINE_SCRATCH, removed at its end.",
    )
    env: Environment = Field(description="Environment of every job.")
    secrets: Secrets = Field(
        description="Variables that hold keys or passwords: run.sh refers to them, no file holds their value."
    )
    jobs_at_once: Annotated[int, ValueUnit("jobs")] = Field(ge=1, description="How many jobs may be queued or running.")
    poll_s: Annotated[float, ValueUnit("seconds")] = Field(
        gt=0, description="Time between polls of the queue; one poll covers all jobs."
    )
    submit_every_s: Annotated[float, ValueUnit("seconds")] = Field(
        ge=0,
        description="Time between two submissions to a batch system, builds included; 0: as fast as it takes them.",
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


SHIPPED = Path(__file__).parent / "sites"


def shipped_names() -> list[str]:
    """Sites and templates that come with Ridgeline."""
    return sorted(path.stem for path in SHIPPED.glob("*.yaml"))


def load_site(named: object, relative_to: Path) -> Site:
    """The site of a study: the name of a shipped one, the path of a site file, or the mapping itself.

    StudyError lists every problem. Relative paths inside a site file start at the file's folder.
    """
    if isinstance(named, Mapping):
        site, problems = read_site(named, relative_to)
        if problems:
            raise StudyError([f"{dotted(problem.where)}: {problem.message}" for problem in problems])
        return site
    path = _path(named, relative_to)
    tree = parse_yaml(read_text(path), str(path))
    plain = tree.plain(written=True)
    if not isinstance(plain, Mapping):
        raise StudyError([*tree.problems, f"{tree.name}:1: a site file is a mapping such as `batch: slurm`"])
    site, problems = read_site({"name": path.stem, **plain}, path.parent)
    if lines := [*tree.problems, *(tree.message(problem.where, problem.message) for problem in problems)]:
        raise StudyError(in_order_of_lines(lines))
    return site


def _path(named: object, relative_to: Path) -> Path:
    if not isinstance(named, str | Path) or not str(named).strip():
        raise StudyError(f"{named!r} is not a site; give a name, a path or a mapping")
    path = relative_to / below_home(str(named))
    if is_there(path) and path.is_file():
        return path
    shipped = SHIPPED / f"{named}.yaml"
    if "/" not in str(named) and is_there(shipped):
        return shipped
    if "/" in str(named) or str(named).endswith((".yaml", ".yml")):
        raise StudyError(f"{path}: no such site file; check the path, or start with `ridgeline site list`")
    raise StudyError(f"{named!r} is neither a shipped site nor a file; {near(str(named), shipped_names())}")


def read_site(given: Mapping[str, object], folder: Path) -> tuple[Site, list[Problem]]:
    """The site of a mapping as far as it could be read, and its problems. `folder` is where its files lie.

    `options` are read by the form of the executor that `batch` names. Of one that is not installed here they are taken
    as they are: a study folder can be looked at anywhere.
    """
    form, problems = read_form(SiteForm, given, folder)
    options = dict(form.options)
    if (own := form_of("executors", form.batch)) is not None:
        read, found = read_form(own, options, folder, under=("options",))
        problems += found
        options = read.model_dump(exclude_unset=True)
    if form.container_runtime == PYXIS and (form.batch != "slurm" or form.launcher not in ("srun", "none")):
        why = "pyxis is a part of Slurm, and its srun starts the ranks: write `batch: slurm` and `launcher: srun`"
        problems.append(Problem(("container_runtime",), f"{why}, or leave it out for Apptainer"))
    # a site written into a study has no file to be named after
    called = form.batch if "name" not in given and form.batch else form.name
    image = form.container
    # an image beside the site file is meant to be found from any run folder
    if image and is_there(folder / image) and (folder / image).is_file():
        image = str((folder / image).absolute())
    site: Site = form.record(name=called, container=image, options=options)
    return site, problems


def form_of(room: str, name: str) -> type[Form] | None:
    """The form of the keys of this part; None where it has none, or is not installed here."""
    try:
        form: type[Form] | None = getattr(catalog.part(room, name), "form", None)
    except InputError:  # the reason is given when something is to be run with it
        return None
    return form
