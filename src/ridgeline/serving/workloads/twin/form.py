"""The keys of the `twin` workload, and how they become its options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import Field

from ridgeline.errors import InputError, Problem
from ridgeline.records.site import Site
from ridgeline.records.study import Study
from ridgeline.serving.engines.settings import DEFAULTS, EngineSettings, parse_engine
from ridgeline.serving.hardware.cluster import Cluster, load_gpu, make_cluster
from ridgeline.serving.model.config import load_model, model_from_text
from ridgeline.serving.model.model import Model
from ridgeline.serving.traffic.requests import Slo
from ridgeline.serving.traffic.traffic import Traffic, parse_traffic
from ridgeline.serving.twin.calibration import Calibration, read_calibration
from ridgeline.serving.workloads.engine.form import ServeForm, TrafficForm
from ridgeline.serving.workloads.engine.options import placed_model, recorded_model
from ridgeline.study.forms import DefaultText, Text, ValueUnit, accepted_by, read_form


@dataclass(frozen=True, slots=True)
class TwinOptions:
    """The options as far as they could be read; those that could not are None and have a problem."""

    model: Model | None = None
    traffic: Traffic | None = None
    cluster: Cluster | None = None
    version: EngineSettings = DEFAULTS
    calibration: Calibration = field(default_factory=Calibration)
    slos: tuple[Slo, ...] = ()
    precompiled: bool = False
    problems: tuple[Problem, ...] = ()


_GPUS_PER_NODE = 8  # where the site does not say

T = TypeVar("T")


class TwinForm(ServeForm):
    """A simulated engine under the keys of a real one, so that only `kind` and `site` differ.

    Keys that only a real engine needs (where it is installed, how it is warmed up) are accepted and change nothing.
    """

    whose = "the twin"
    gpu: Annotated[Text, accepted_by(lambda name: load_gpu(name) if name else None), DefaultText("the site's")] = Field(
        default="",
        description="The GPU that is simulated, one of `ridgeline plan hardware`; the site's options may say it.",
    )
    version: Annotated[Text, DefaultText("the newest known")] = Field(
        default="", description="The engine's release whose defaults and flags count, such as 0.5.6."
    )
    concurrency: Annotated[int | None, ValueUnit("requests"), DefaultText("everything at once")] = Field(
        default=None, ge=1, description="Closed loop: so many requests at once."
    )
    rate: Annotated[float | None, ValueUnit("requests a second"), DefaultText("everything at once")] = Field(
        default=None, gt=0, description="Open loop: requests arrive at this rate, whatever the server does."
    )
    precompiled: bool = Field(
        default=False,
        description="Kernels are in the image: no run compiles them. Otherwise the first run of a layout does.",
    )
    calibration: Annotated[Text, DefaultText("none")] = Field(
        default="", description="A file beside the study that `ridgeline twin calibrate` wrote."
    )


def read_options(study: Study, engine: str, release: str = "") -> TwinOptions:
    """`release` is that of the engine where the study does not say it; else its newest."""
    form, problems = read_form(TwinForm, study.workload.options, study.folder, ("workload",))

    def tried(key: str, make: Callable[[], T]) -> T | None:
        if any(problem.where[:2] == ("workload", key) for problem in problems):
            return None
        try:
            return make()
        except InputError as error:
            # a key that is missing has no line of its own
            where = ("workload", key) if key in study.workload.options else ("workload",)
            problems.append(Problem(where, str(error)))
            return None

    version = tried("version", lambda: parse_engine(f"{engine}:{form.version or release}".rstrip(":"), DEFAULTS))
    calibration = Path(_beside(form.calibration, study.folder))
    chosen = form.gpu or study.site.options.get("gpu")
    asked = TrafficForm(dataset=form.traffic) if isinstance(form.traffic, str) else form.traffic
    return TwinOptions(
        model=tried("model", lambda: _model(form.model, study)) if form.model else None,
        cluster=tried("gpu", lambda: _cluster(chosen, study.site)),
        traffic=tried(
            "traffic",
            lambda: parse_traffic(
                _beside(asked.text, study.folder),
                requests=asked.requests,
                rate_s=form.rate,
                concurrency=form.concurrency,
                burstiness=form.burstiness,
                seed=asked.seed,
            ),
        ),
        version=version or DEFAULTS,
        slos=tuple(map(Slo.parse, form.slo)),
        precompiled=form.precompiled,
        calibration=(tried("calibration", lambda: read_calibration(calibration)) if form.calibration else None)
        or Calibration(),
        problems=tuple(problems),
    )


def _beside(name: str, folder: Path) -> str:
    """The path of a file beside the study, where there is one; else the name as it is written."""
    path = folder / name
    return str(path) if path.is_file() else name


def _model(name: str, study: Study) -> Model:
    """A config.json travels with the study; a folder, which may hold weights, stays where it is."""
    if seen := recorded_model(study.recorded):
        return model_from_text(seen.config, seen.shape)
    is_file = (study.folder / name).is_file()
    return load_model(_beside(name, study.folder) if is_file else placed_model(name, study.origin))


def _cluster(chosen: object, site: Site) -> Cluster:
    fabric = site.options.get("fabric")
    if not isinstance(chosen, str):
        raise InputError(
            "the GPU is not stated; name it as `gpu` in `workload` or in the options of the site "
            "(`ridgeline plan hardware` lists what the twin knows)"
        )
    return make_cluster(chosen, site.nodes, site.gpus_per_node or _GPUS_PER_NODE, str(fabric) if fabric else None)
