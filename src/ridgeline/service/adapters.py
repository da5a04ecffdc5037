"""Network adapters of the nodes, as `preflight` recorded them there: which NCCL may use, and which carry KV."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ridgeline.errors import StudyError
from ridgeline.node.preflight.check import NodeReport, node_from
from ridgeline.service.servers import server_of
from ridgeline.service.service import Service, ServiceUnit

HCA = "NCCL_IB_HCA"


def with_adapters(service: Service, records: Sequence[str], folder: Path) -> Service:
    """What a unit says itself stays. StudyError where a record cannot be read, or nodes differ."""
    named = {f"{path}": _hca_of(path) for path in _files(records, folder)}
    if len(set(named.values())) > 1:
        seen = "; ".join(f"{path}: {hca or 'none'}" for path, hca in named.items())
        raise StudyError(
            f"preflight: nodes have different adapters ({seen}); name {HCA} and disaggregation_ib_device in the units"
        )
    hca = next(iter(named.values()), "") or service.site.env.get(HCA, "")
    return replace(service, units=tuple(_with(unit, hca, service) for unit in service.units)) if hca else service


def _with(unit: ServiceUnit, hca: str, service: Service) -> ServiceUnit:
    split = unit.role != "both"
    env = {HCA: hca, **unit.env} if split or unit.nodes > 1 else unit.env
    # nixl finds its own way; between servers of one node nothing leaves it
    knob = server_of(service.engine).device_knob
    by_port = split and knob and unit.settings.get("disaggregation_transfer_backend") != "nixl"
    devices = ",".join(dict.fromkeys(name.partition(":")[0] for name in hca.lstrip("=").split(",")))
    return replace(unit, env=env, settings={knob: devices, **unit.settings} if by_port else unit.settings)


def _files(records: Sequence[str], folder: Path) -> list[Path]:
    found = []
    for text in records:
        paths = sorted(folder.glob(text)) if "*" in text else [folder / text]
        if not paths:
            raise StudyError(
                f"preflight: {text} names no file; write them with `ridgeline preflight --json > NODE.json`"
            )
        found += paths
    return found


def _hca_of(path: Path) -> str:
    try:
        report: NodeReport = node_from(json.loads(path.read_text()))
    except (OSError, ValueError) as error:
        raise StudyError(
            f"preflight: {path}: {error}; write it with `ridgeline preflight --json > {path.name}`"
        ) from None
    lines = (re.fullmatch(rf"export {HCA}='?([^']*)'?", line) for line in report.exports)
    return next((line[1] for line in lines if line), "")
