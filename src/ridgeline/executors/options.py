"""What a site file may say under `options`, as forms: what this machine and all batch systems share.

Keys that only one of them knows are in a form of its own, beside its dialect.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, Field, ValidationInfo

from ridgeline.executors.base import ExecutorFactory
from ridgeline.files import is_there
from ridgeline.records.site import Site
from ridgeline.study.forms import FOLDER, Accepts, DefaultText, Form, OneLine, ValueUnit

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


class LocalOptions(Form):
    """Options of `batch: local`."""

    whose = "local"
    mpirun: Annotated[OneLine, DefaultText("the one on the PATH")] = Field(
        default="", description="The program that starts ranks, instead of `mpirun`."
    )


class BatchOptions(LocalOptions):
    """Options that all batch systems share."""

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
