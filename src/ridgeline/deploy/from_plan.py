"""A deployment file from a choice of `plan`: the settings that were simulated, limits that follow from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from ridgeline.deploy.file import service_text
from ridgeline.deploy.role_settings import RoleSetting, role_settings, role_variables
from ridgeline.serving.engine.knobs.releases import release_written
from ridgeline.serving.planner.commands import groups_of
from ridgeline.serving.planner.operating_point import Option
from ridgeline.serving.planner.pairing import Pair

# Requests that may wait in the router for each one that runs: their wait stays below one answer's time.
WAITING_SHARE = 0.25


def service_of(option: Option, model: str, name: str = "") -> dict[str, Any]:
    """What `file.service_text` writes. Sites differ: the file names none, and so stands for this machine."""
    scheme = option.scheme
    question, groups = scheme.question, groups_of(scheme)
    running = sum(unit.cap * count for unit, count in groups if unit.role != "prefill")
    size = question.cluster.node.gpus
    units = []
    for unit, count in groups:
        nodes = max(1, -(-unit.gpus // size))
        own = {"role": unit.role, "replicas": count, "nodes": nodes, "gpus": min(unit.gpus, size)}
        settings = {setting.name: setting.value for setting in role_settings(unit) if setting.value is not None}
        found = {variable.name: str(variable.value) for variable in role_variables(unit)}
        env = {"env": found} if found else {}
        units.append({**own, "settings": settings, **env})
    service: dict[str, Any] = {
        "version": 1,
        "name": name or question.model.name,
        "model": model,
        "engine": {
            "kind": question.settings.engine,
            "release": ".".join(map(str, release_written(question.settings.engine, question.settings.version))),
            "gpu": question.cluster.gpu.name,
        },
        "units": units,
        "slo": {str(slo).partition("=")[0]: slo.limit_ms for slo in question.slos},
        "expected": _expected(option),
    }
    if sum(count for _, count in groups) > 1:
        policy = {} if isinstance(scheme.shape, Pair) else {"policy": "cache_aware"}
        limits = {"most_running": running, "most_waiting": max(1, int(running * WAITING_SHARE))}
        service["router"] = {"kind": f"{question.settings.engine}-router", **policy, **limits}
    return service


def planned_text(option: Option, model: str, name: str = "") -> str:
    """The deployment file with the reason for each setting beside it."""
    service = service_of(option, model, name)
    reasons = [{"settings": role_settings(unit), "env": role_variables(unit)} for unit, _ in groups_of(option.scheme)]
    return "".join(_part(key, value, reasons) for key, value in service.items())


def _part(key: str, value: Any, reasons: Sequence[Mapping[str, Sequence[RoleSetting]]]) -> str:
    if key == "units":
        return "\n".join([*_units(value, reasons), ""])
    return service_text({key: value}) if isinstance(value, Mapping) else f"{key}: {_scalar(value)}\n"


def _units(units: Sequence[Mapping[str, Any]], reasons: Sequence[Mapping[str, Sequence[RoleSetting]]]) -> Iterator[str]:
    yield "units:"
    for unit, reasoned in zip(units, reasons, strict=True):
        for number, (key, value) in enumerate(unit.items()):
            start = "- " if number == 0 else "  "
            if key in reasoned:
                yield f"{start}{key}:"
                yield from _commented(reasoned[key])
            else:
                yield f"{start}{key}: {_scalar(value)}"


def _commented(settings: Sequence[RoleSetting]) -> Iterator[str]:
    lines = [
        f"    {'# ' if s.value is None else ''}{s.name}: {'' if s.value is None else _scalar(s.value)}"
        for s in settings
    ]
    width = max(map(len, lines))
    for line, setting in zip(lines, settings, strict=True):
        yield f"{line:<{width}}  # {setting.why}" if setting.why else line


def _scalar(value: object) -> str:
    return yaml.safe_dump(value, default_flow_style=True, width=1000).removesuffix("...\n").strip()


def _expected(option: Option) -> dict[str, Any]:
    """Figures with where nine of ten measurements lie; all of them modelled."""
    figures: dict[str, Any] = {"origin": "modelled"}
    if option.capacity_s is not None:
        figures["requests_s"] = round(option.capacity_s, 3)
    figures["interval"] = {name: [round(low, 3), round(high, 3)] for name, (low, high) in option.bounds.items()}
    return figures
