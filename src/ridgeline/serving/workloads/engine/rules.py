"""Settings an engine certainly refuses, found before anything starts. A risk is not refused: it may be the optimum."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from ridgeline.errors import InputError
from ridgeline.records.expression import Value
from ridgeline.records.run import Resources
from ridgeline.records.site import Site
from ridgeline.serving.engines.base import ServingEngine
from ridgeline.serving.engines.deployment import Deployment
from ridgeline.serving.engines.install import Install
from ridgeline.serving.engines.layout_rules import layout_problems
from ridgeline.serving.engines.memory import STARTUP_OOM, plan_memory
from ridgeline.serving.engines.releases import NEWEST, Version
from ridgeline.serving.engines.settings import DEFAULTS, EngineSettings, layout_of, model_of, role_of, settings_of
from ridgeline.serving.hardware.cluster import Gpu, load_gpu, make_cluster
from ridgeline.serving.model.config import load_model, model_from_text
from ridgeline.serving.model.model import Model
from ridgeline.serving.workloads.engine.options import EngineOptions


def refusal(
    dialect: ServingEngine,
    options: EngineOptions,
    install: Install,
    values: Mapping[str, Value],
    version: Version,
    asked: Resources,
    site: Site,
) -> str | None:
    """Why this setting, under our names, cannot start; None where nothing is certain."""
    model = known_model(options)
    if (reason := dialect.refusal(model, values, install, version)) is not None:
        return reason
    try:
        layout = layout_of(values, asked.nodes, asked.gpus or site.gpus_per_node)
        settings = settings_of(values, _settings_base(version)) if dialect.simulated else EngineSettings()
    except InputError as error:
        return str(error)
    gpu = _gpu(options.gpu)
    if model is None:
        return None
    if problems := layout_problems(model, layout, gpu, settings, role_of(values)):
        return str(problems[0])
    if gpu is None or not dialect.simulated:
        return None
    plan = plan_memory(model_of(model, values), gpu, layout, settings, role_of(values))
    return f"cannot start: {plan.reason}" if plan.verdict == STARTUP_OOM else None


def _expected_deployment(
    options: EngineOptions, values: Mapping[str, Value], version: Version, asked: Resources, site: Site
) -> Deployment | None:
    """What the twin would simulate for these settings; None where model or GPU are not known here.

    InputError says which value the engine would not take.
    """
    model, gpu = known_model(options), _gpu(options.gpu)
    if model is None or gpu is None:
        return None
    layout = layout_of(values, asked.nodes, asked.gpus or site.gpus_per_node)
    cluster = make_cluster(gpu, layout.nodes, layout.gpus_per_node)
    return Deployment(model_of(model, values), cluster, layout, settings_of(values, _settings_base(version)))


def predicted_tok_s(
    options: EngineOptions, values: Mapping[str, Value], version: Version, asked: Resources, site: Site, *, paced: bool
) -> float | None:
    """What the twin expects of the engine, said before it runs; None where it cannot know model and GPU."""
    from ridgeline.serving.twin.simulate import simulate

    try:
        deployment = _expected_deployment(options, values, version, asked, site)
        if deployment is None:
            return None
        return simulate(deployment, options.load.recipe(paced=paced)).summary.total_tok_s
    except InputError:  # a memory plan that cannot start is one of these
        return None


def _settings_base(version: Version) -> EngineSettings:
    """The defaults of a release."""
    return DEFAULTS if version == NEWEST else EngineSettings(version=version)


def known_model(options: EngineOptions) -> Model | None:
    """None where its shape cannot be read here."""
    return _model(options.shape or options.model, options.config)


@lru_cache(maxsize=16)
def _model(name: str, recorded: str) -> Model | None:
    """The model's shape where it can be read here; an engine may know names and paths that this machine does not."""
    try:
        return model_from_text(recorded, name) if recorded else load_model(name)
    except (InputError, ValueError):
        return None


@lru_cache(maxsize=16)
def _gpu(name: str) -> Gpu | None:
    if not name:
        return None
    try:
        return load_gpu(name)
    except InputError:
        return None
