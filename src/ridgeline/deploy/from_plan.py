"""A deployment file from a choice of `plan`: the settings that were simulated, limits that follow from them."""

from __future__ import annotations

from typing import Any

from ridgeline.serving.planner.commands import groups_of, unit_values
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
        units.append({**own, "settings": unit_values(unit)})
    found: dict[str, Any] = {
        "version": 1,
        "name": name or question.model.name,
        "model": model,
        "engine": {
            "kind": "sglang",
            "release": ".".join(map(str, question.settings.version)),
            "gpu": question.cluster.gpu.name,
        },
        "units": units,
        "slo": {str(slo).partition("=")[0]: slo.limit_ms for slo in question.slos},
        "expected": _expected(option),
    }
    if sum(count for _, count in groups) > 1:
        policy = {} if isinstance(scheme.shape, Pair) else {"policy": "cache_aware"}
        limits = {"most_running": running, "most_waiting": max(1, int(running * WAITING_SHARE))}
        found["router"] = {"kind": "sglang-router", **policy, **limits}
    return found


def _expected(option: Option) -> dict[str, Any]:
    """Figures with where nine of ten measurements lie; all of them modelled."""
    figures: dict[str, Any] = {"origin": "modelled"}
    if option.capacity_s is not None:
        figures["requests_s"] = round(option.capacity_s, 3)
    figures["interval"] = {name: [round(low, 3), round(high, 3)] for name, (low, high) in option.bounds.items()}
    return figures
