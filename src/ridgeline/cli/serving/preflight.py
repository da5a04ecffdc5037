"""`ridgeline preflight`: check a node before GPU hours are spent on it; compare several."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ridgeline.cli.serving import options as option
from ridgeline.errors import InputError, SiteError


def preflight(
    files: Annotated[list[Path] | None, typer.Argument(help="With --compare: the JSON of each node.")] = None,
    compare: Annotated[bool, typer.Option("--compare", help="Name the slow node among several.")] = False,
    python: Annotated[str, typer.Option(help="The engine's Python; its torch measures the GPUs.")] = "python3",
    scratch: Annotated[Path, typer.Option(help="Folder for runs and caches.")] = Path(),
    port: Annotated[list[int] | None, typer.Option(help="Port that must be free; may be repeated.")] = None,
    as_json: option.AsJson = False,
) -> None:
    """Check this node before GPU hours are spent on it: rates, memory, network, versions, ports, files, space.

    To compare nodes: srun --ntasks-per-node 1 sh -c 'ridgeline preflight --json > $(hostname).json', then
    ridgeline preflight --compare *.json

    Example: ridgeline preflight --scratch . --port 30000
    """
    if compare:
        _compare(files or [], as_json)
        return
    if files:
        raise InputError("files go with --compare; without it, this node is checked")
    from ridgeline.cli.text.serving.preflight import node_text
    from ridgeline.node.preflight.run import preflight as run_checks

    node = run_checks(python, scratch.absolute(), port or ())
    print(json.dumps(node.as_json(), indent=1) if as_json else node_text(node))
    if node.failed:
        raise SiteError(f"{node.host} is not ready: {', '.join(node.failed)} failed")


def _compare(files: list[Path], as_json: bool) -> None:
    from ridgeline.cli.text.serving.preflight import comparison_text
    from ridgeline.node.preflight.compare import compare, read_nodes

    result = compare(read_nodes(files))
    print(json.dumps(result.as_json(), indent=1) if as_json else comparison_text(result))
