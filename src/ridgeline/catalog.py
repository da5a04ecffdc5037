"""Name -> part. A literal table, imported when a name is asked for; other people's parts come by entry points.

A plugin registers under the entry-point group `ridgeline.workloads`, `ridgeline.engines`, `ridgeline.executors`,
`ridgeline.samplers` or `ridgeline.analyzers` with the name used in study files. An engine NAME gives two workloads,
NAME-offline and NAME-serve.
"""

from __future__ import annotations

import importlib
from difflib import get_close_matches
from functools import partial
from importlib.metadata import entry_points
from typing import Any

from ridgeline.errors import InputError

TABLE: dict[str, dict[str, str]] = {
    "workloads": {
        "command": "ridgeline.workloads.command.workload:CommandWorkload",
        "twin": "ridgeline.workloads.twin.workload:TwinWorkload",
        "nwchem": "ridgeline.workloads.nwchem.workload:NwchemWorkload",
    },
    "engines": {
        "sglang": "ridgeline.workloads.engine.sglang:SGLANG",
        "vllm": "ridgeline.workloads.engine.vllm:VLLM",
    },
    "executors": {
        "local": "ridgeline.executors.local:LocalExecutor",
        "slurm": "ridgeline.executors.slurm:slurm",
        "pbs": "ridgeline.executors.pbs:pbs",
        "simulated": "ridgeline.executors.simulated:SimulatedExecutor",
    },
    "samplers": {
        "grid": "ridgeline.samplers.grid:GridSampler",
        "random": "ridgeline.samplers.random:RandomSampler",
        "tpe": "ridgeline.samplers.tpe:TpeSampler",
    },
    "analyzers": {
        "sglang-log": "ridgeline.analyzers.sglang_log:ANALYZER",
        "vllm-log": "ridgeline.analyzers.vllm_log:ANALYZER",
        "nccl-log": "ridgeline.analyzers.nccl_log:ANALYZER",
        "nwchem-out": "ridgeline.analyzers.nwchem_out:ANALYZER",
        "mpip": "ridgeline.analyzers.profiles:MPIP",
        "ipm": "ridgeline.analyzers.profiles:IPM",
        "vtune": "ridgeline.analyzers.profiles:VTUNE",
        "perf": "ridgeline.analyzers.profiles:PERF",
        "nsys": "ridgeline.analyzers.profiles:NSYS",
        "batch-footer": "ridgeline.analyzers.batch:FOOTER",
        "bindings": "ridgeline.analyzers.batch:BINDINGS",
    },
}


# what each engine gives: the end of the workload's name, and who makes it from a study and the engine's dialect
ENGINE_WORKLOADS = {
    "offline": "ridgeline.workloads.engine.workload:offline",
    "serve": "ridgeline.workloads.engine.workload:serve",
}


def names(room: str) -> list[str]:
    """Every name a study may use for this kind of part."""
    known = [*TABLE[room], *(entry.name for entry in entry_points(group=f"ridgeline.{room}"))]
    if room == "workloads":
        known += [f"{engine}-{ending}" for engine in names("engines") for ending in ENGINE_WORKLOADS]
    return known


def part(room: str, name: str) -> Any:
    """The factory registered under `name`, ours or a plugin's."""
    if name in TABLE[room]:
        return _imported(TABLE[room][name])
    for entry in entry_points(group=f"ridgeline.{room}"):
        if entry.name == name:
            return entry.load()
    known = names(room)
    if name in known:
        engine, _, ending = name.rpartition("-")
        return partial(_imported(ENGINE_WORKLOADS[ending]), dialect=part("engines", engine))
    near = get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
    raise InputError(f"{name!r} is not among the {room}; {hint}")


def _imported(target: str) -> Any:
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)
