"""`ridgeline site preflight`: check a node before GPU hours are spent on it; compare several."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ridgeline.errors import InputError, SiteError
from ridgeline.serving.node import preflight as node_preflight
from ridgeline.serving.verbs import options as option

if TYPE_CHECKING:
    from ridgeline.serving.node.preflight import NodeComparison, NodeReport


def preflight(
    files: Annotated[list[Path] | None, typer.Argument(help="With --compare: the JSON of each node.")] = None,
    compare: Annotated[bool, typer.Option("--compare", help="Name the slow node among several.")] = False,
    python: Annotated[str, typer.Option(help="The engine's Python; its torch measures the GPUs.")] = "python3",
    scratch: Annotated[Path, typer.Option(help="Folder for runs and caches.")] = Path(),
    port: Annotated[list[int] | None, typer.Option(help="Port that must be free; may be repeated.")] = None,
    as_json: option.AsJson = False,
) -> None:
    """Check this node before GPU hours are spent on it: rates, memory, network, versions, ports, files, space.

    To compare nodes: srun --ntasks-per-node 1 sh -c 'ridgeline site preflight --json > $(hostname).json', then
    ridgeline site preflight --compare *.json

    Example: ridgeline site preflight --scratch . --port 30000
    """
    if compare:
        _compare(files or [], as_json)
        return
    if files:
        raise InputError("files go with --compare; without it, this node is checked")

    node = node_preflight.check_node(python, scratch.absolute(), port or ())
    print(json.dumps(node.as_json(), indent=1) if as_json else _node_text(node))
    if node.failed:
        raise SiteError(f"{node.host} is not ready: {', '.join(node.failed)} failed")


def _compare(files: list[Path], as_json: bool) -> None:
    result = node_preflight.compare_nodes(node_preflight.read_nodes(files))
    print(json.dumps(result.as_json(), indent=1) if as_json else _comparison_text(result))


def _node_text(node: NodeReport) -> str:
    width = max((len(check.name) for check in node.checks), default=0)
    lines = [f"  {check.name:<{width}}  {check.status:<5} {check.detail}" for check in node.checks]
    if node.exports:
        lines += ["", *node.exports]
    return "\n".join([node.host, *lines])


def _comparison_text(found: NodeComparison) -> str:
    lines = [f"{len(found.hosts)} nodes: {', '.join(found.hosts)}"]
    lines += [f"  {difference}" for difference in found.slow]
    if not found.rates:
        lines.append("  no rates to compare: no node measured a GPU (--python names one with torch)")
    elif not found.slow:
        lines.append(
            f"  no slow node: {', '.join(found.rates)} differ by less than {node_preflight.NOTICEABLE:.0%}, "
            "or within noise"
        )
    return "\n".join(lines + [f"  {line}" for line in (*found.mixed, *found.failed)])
