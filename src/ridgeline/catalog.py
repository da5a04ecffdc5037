"""Name -> part. A literal table, imported when a name is asked for; other people's parts come by entry points.

A plugin registers under the entry-point group `ridgeline.workloads`, `ridgeline.engines`, `ridgeline.executors`,
`ridgeline.samplers` or `ridgeline.analyzers` with the name used in study files, or under `ridgeline.kinds` with that
of a kind of campaign. An engine NAME gives two workloads, NAME-offline and NAME-serve.
"""

from __future__ import annotations

import importlib
import sys
from functools import cache
from typing import TYPE_CHECKING, Any

from ridgeline.errors import InputError, near

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

TABLE: dict[str, dict[str, str]] = {
    "workloads": {
        "command": "ridgeline.workloads.command.workload:CommandWorkload",
        "python": "ridgeline.workloads.python_function:PythonWorkload",
        "twin": "ridgeline.serving.workloads.twin.workload:TwinWorkload",
        "nwchem": "ridgeline.nwchem.workload:NwchemWorkload",
    },
    "engines": {
        "sglang": "ridgeline.serving.engines.sglang.engine:SGLANG",
        "vllm": "ridgeline.serving.engines.vllm.engine:VLLM",
    },
    "executors": {
        "local": "ridgeline.executors.local:LocalExecutor",
        "slurm": "ridgeline.executors.slurm:slurm",
        "pbs": "ridgeline.executors.pbs:pbs",
        "simulated": "ridgeline.executors.simulated:SimulatedExecutor",
    },
    "samplers": {
        "guided": "ridgeline.samplers.guided.sampler:GuidedSampler",
        "grid": "ridgeline.samplers.grid:GridSampler",
        "random": "ridgeline.samplers.random:RandomSampler",
        "tpe": "ridgeline.samplers.tpe:TpeSampler",
    },
    "kinds": {
        "search": "ridgeline.campaign.kinds.search:SearchQuestion",
        "compare": "ridgeline.campaign.kinds.compare:ComparisonQuestion",
        "edge": "ridgeline.campaign.kinds.edge:EdgeQuestion",
        "scale": "ridgeline.campaign.kinds.scale:ScalingQuestion",
        "steps": "ridgeline.campaign.kinds.steps:StepsQuestion",
        "gate": "ridgeline.campaign.kinds.gate:GateQuestion",
        "bisect": "ridgeline.campaign.kinds.bisect:BisectQuestion",
        "environment": "ridgeline.campaign.kinds.environment:EnvironmentQuestion",
        "shrink": "ridgeline.campaign.kinds.shrink:ShrinkQuestion",
    },
    "analyzers": {
        "sglang-log": "ridgeline.serving.findings.sglang_log:ANALYZER",
        "vllm-log": "ridgeline.serving.findings.vllm_log:ANALYZER",
        "nccl-log": "ridgeline.serving.findings.nccl_log:ANALYZER",
        "nwchem-out": "ridgeline.nwchem.diagnosis:ANALYZER",
        "mpip": "ridgeline.diagnose.profilers.findings:MPIP",
        "ipm": "ridgeline.diagnose.profilers.findings:IPM",
        "vtune": "ridgeline.diagnose.profilers.findings:VTUNE",
        "perf": "ridgeline.diagnose.profilers.findings:PERF",
        "nsys": "ridgeline.diagnose.profilers.gpu:NSYS",
        "nsys-sqlite": "ridgeline.diagnose.profilers.gpu:SQLITE",
        "torch-trace": "ridgeline.diagnose.profilers.gpu:TRACE",
        "batch-footer": "ridgeline.diagnose.batch:FOOTER",
        "bindings": "ridgeline.diagnose.batch:BINDINGS",
        "sacct": "ridgeline.diagnose.accounting:SACCT",
        "pbs-jobs": "ridgeline.diagnose.accounting:PBS",
        "dmon": "ridgeline.serving.findings.dmon:ANALYZER",
        "failed-job": "ridgeline.diagnose.failed_run:OUTSIDE",
        "failed-program": "ridgeline.diagnose.failed_run:OWN",
    },
}


USUAL_ENGINE = "sglang"  # meant where nobody names one

# what each engine gives: the end of the workload's name, and who makes its factory from the engine's dialect
_ENGINE_WORKLOADS = {
    "offline": "ridgeline.serving.workloads.engine.workload:offline",
    "serve": "ridgeline.serving.workloads.engine.workload:serve",
}


def workloads_of(engine: str) -> tuple[str, ...]:
    """The kinds of workload that an engine gives."""
    return tuple(f"{engine}-{ending}" for ending in _ENGINE_WORKLOADS)


def engine_of(workload: str) -> str:
    """The engine that gives this kind of workload; empty where none does."""
    return next((engine for engine in names("engines") if workload in workloads_of(engine)), "")


def names(room: str) -> list[str]:
    """Every name a study may use for this kind of part."""
    return list(origins(room))


def _plugins(room: str) -> tuple[EntryPoint, ...]:
    return _plugins_on(tuple(sys.path), room)


@cache
def _plugins_on(path: tuple[str, ...], room: str) -> tuple[EntryPoint, ...]:
    """Found once for a `path` of imports: every installed package is opened for it."""
    from importlib.metadata import entry_points  # slow to load, and help texts need none

    return tuple(entry_points(group=f"ridgeline.{room}"))


def origins(room: str) -> dict[str, str]:
    """Name -> the package it comes from, with its version where it is not ours."""
    found = dict.fromkeys(TABLE[room], "ridgeline")
    for entry in _plugins(room):
        found.setdefault(entry.name, _package(entry))
    if room == "workloads":
        for engine, package in origins("engines").items():
            found |= dict.fromkeys(workloads_of(engine), package)
    return found


def forms(room: str) -> dict[str, Any]:
    """The form of the keys that each part of a room takes, by the part's name; None where a part offers none."""
    return {name: getattr(part(room, name), "form", None) for name in names(room)}


def part(room: str, name: str) -> Any:
    """The factory registered under `name`, ours or a plugin's."""
    if name in TABLE[room]:
        return _imported(TABLE[room][name])
    for entry in _plugins(room):
        if entry.name == name:
            return _loaded(entry)
    known = names(room)
    if name in known:
        engine, _, ending = name.rpartition("-")
        return _imported(_ENGINE_WORKLOADS[ending])(part("engines", engine))
    raise InputError(f"{name!r} is not among the {room}; {near(name, known)}")


def _imported(target: str) -> Any:
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)


def _loaded(entry: EntryPoint) -> Any:
    try:
        return entry.load()
    except Exception as error:  # whatever another package does when it is imported
        why = f"{type(error).__name__}: {error}"
        raise InputError(
            f"{entry.name!r} of {_package(entry)} cannot be imported ({why}); repair or remove that package"
        ) from error


def _package(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else "a package without a name"
