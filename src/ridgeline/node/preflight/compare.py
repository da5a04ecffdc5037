"""Nodes beside each other: which one is slow, which one has other versions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError, ReadError
from ridgeline.node.preflight.check import NodeReport, node_from
from ridgeline.stats.nodes import NodeEffect, NodeRun, node_effects

NOTICEABLE = 0.03  # GPUs of one kind differ by a percent or two; less than this is not worth a ticket


@dataclass(frozen=True, slots=True)
class Difference:
    """One rate of one node against its peers."""

    node: str
    rate: str
    effect: NodeEffect

    def __str__(self) -> str:
        return f"{self.rate}: {self.effect}"


@dataclass(frozen=True, slots=True)
class NodeComparison:
    hosts: tuple[str, ...]
    rates: tuple[str, ...]
    slow: tuple[Difference, ...]
    mixed: tuple[str, ...]  # versions that are not the same everywhere
    failed: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        slow = [
            {"node": d.node, "rate": d.rate, "speed": d.effect.speed, "low": d.effect.low, "high": d.effect.high}
            for d in self.slow
        ]
        return {
            "nodes": list(self.hosts),
            "rates": list(self.rates),
            "slow": slow,
            "mixed": list(self.mixed),
            "failed": list(self.failed),
        }


def read_nodes(paths: Sequence[Path]) -> list[NodeReport]:
    if len(paths) < 2:
        raise InputError("a comparison needs two files or more: `ridgeline preflight --json > NODE.json` on each node")
    nodes = [_read(path) for path in paths]
    hosts = [node.host for node in nodes]
    if doubled := sorted({host for host in hosts if hosts.count(host) > 1}):
        raise InputError(f"{', '.join(doubled)} is in more than one file; give one file per node")
    return nodes


def _read(path: Path) -> NodeReport:
    try:
        return node_from(json.loads(path.read_text()))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        raise ReadError(f"{path}: {error}; write it with `ridgeline preflight --json`") from None


def compare(nodes: Sequence[NodeReport]) -> NodeComparison:
    rates = list(dict.fromkeys(check.name for node in nodes for check in node.checks if check.samples))
    slow = [difference for rate in rates for difference in _slow(nodes, rate)]
    failed = [f"{node.host}: {c.name}: {c.detail}" for node in nodes for c in node.checks if c.status == "fail"]
    return NodeComparison(
        tuple(node.host for node in nodes), tuple(rates), tuple(slow), tuple(_mixed(nodes)), tuple(failed)
    )


def _slow(nodes: Sequence[NodeReport], rate: str) -> list[Difference]:
    runs = [
        NodeRun(rate, (node.host,), value)
        for node in nodes
        for check in node.checks
        if check.name == rate
        for values in check.samples.values()
        for value in values
    ]
    effects = node_effects(runs, "maximize")
    return [
        Difference(effect.node, rate, effect)
        for effect in effects
        if effect.verdict == "slow" and effect.speed is not None and effect.speed < 1 - NOTICEABLE
    ]


def _mixed(nodes: Sequence[NodeReport]) -> list[str]:
    lines = []
    for name in dict.fromkeys(name for node in nodes for name in node.versions):
        hosts: dict[str, list[str]] = {}
        for node in nodes:
            hosts.setdefault(node.versions.get(name, "none"), []).append(node.host)
        if len(hosts) > 1:
            found = "; ".join(f"{version} on {', '.join(where)}" for version, where in hosts.items())
            lines.append(f"{name} differs: {found}")
    return lines
