"""Names of engines and of the two workloads that each gives: NAME-offline and NAME-serve."""

from __future__ import annotations

from typing import Any

from ridgeline import catalog

USUAL_ENGINE = "sglang"  # meant where nobody names one

# the end of the workload's name, and who makes its factory from the engine's dialect
_WORKLOADS = {
    "offline": "ridgeline.serving.workloads.engine.workload:offline",
    "serve": "ridgeline.serving.workloads.engine.workload:serve",
}


def workloads_of(engine: str) -> tuple[str, ...]:
    """The kinds of workload that an engine gives."""
    return tuple(f"{engine}-{ending}" for ending in _WORKLOADS)


def engine_of(workload: str) -> str:
    """The engine that gives this kind of workload; empty where none does."""
    return next((engine for engine in catalog.names("engines") if workload in workloads_of(engine)), "")


class EngineWorkloads:
    """A `catalog.Family`: the workloads of every engine, ours and other packages'."""

    called = "engine"

    def names(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for engine, package in catalog.origins("engines").items():
            found |= dict.fromkeys(workloads_of(engine), package)
        return found

    def part(self, name: str) -> Any:
        engine, _, ending = name.rpartition("-")
        return catalog.at(_WORKLOADS[ending])(catalog.part("engines", engine))


FAMILY = EngineWorkloads()
