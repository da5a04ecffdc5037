"""A deployment file from the answer of a campaign on an engine or its twin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ridgeline import catalog
from ridgeline.errors import InputError
from ridgeline.records.expression import Value
from ridgeline.records.study import Study
from ridgeline.service.servers import server_of

_SIZES = ("nodes", "gpus_per_node", "gpus")


def service_of_answer(study: Study, settings: Mapping[str, Value], change: str) -> dict[str, Any]:
    """`settings` are those to use; `change` is what they brought. InputError where the program is not a server."""
    kind, _, _ = study.workload.kind.partition("-")
    if kind not in (*catalog.names("engines"), "twin"):
        raise InputError(
            f"{study.name} tunes {study.workload.kind}, which is not a server; deploy takes the answer of a study of "
            f"{', '.join(catalog.names('engines'))} or twin"
        )
    options = study.workload.options
    flags = server_of(kind).flags
    resources = study.job.resources(settings)
    # a knob that does not exist at this setting is None
    known = {name: value for name, value in settings.items() if value is not None and flags.knows(name)}
    chosen = {**_flags(options), **known}
    engine: dict[str, Any] = {"kind": server_of(kind).name}
    if gpu := options.get("gpu"):
        engine["gpu"] = str(gpu)
    return {
        "version": 1,
        "name": study.name,
        "model": str(options.get("model", "")),
        "engine": engine,
        "units": [
            {
                "replicas": 1,
                "nodes": resources.nodes,
                "gpus": resources.gpus,
                "settings": {name: value for name, value in chosen.items() if name not in _SIZES},
            }
        ],
        "expected": {"origin": "simulated" if kind == "twin" else "measured", "change": change},
    }


def _flags(options: Mapping[str, Any]) -> dict[str, Value]:
    """What the study gives the engine beside its knobs."""
    given = options.get("flags")
    return dict(given) if isinstance(given, Mapping) else {}
