"""House rules: who may import whom, which names are not used, how large things may grow."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src" / "ridgeline"

BASES = {"workloads.base", "executors.base", "samplers.base", "analyzers.base"}
# room -> rooms it may import; a dotted name is one module of a room
ALLOWED: dict[str, set[str]] = {
    "dashboard": {"report", "store", "records"},
    "report": {"stats", "store", "records"},
    "campaign": {"store", "stats", "catalog", "records", *BASES},
    "workloads": {"serving", "readers", "records"},
    "samplers": {"serving", "stats", "records"},
    "analyzers": {"readers", "stats", "records"},
    "executors": {"readers", "records"},
    "serving": {"readers", "stats", "records"},
    "store": {"records"},
    "stats": {"records"},
    "readers": {"records"},
    "records": set(),
    "catalog": set(),
    "errors": set(),
}
ANYTHING = {"cli", "testing", "__main__", "__init__"}
OPEN_TO_ALL = {"errors"}
JUNK = {"utils", "helpers", "common", "misc", "core", "manager", "handler", "info", "data"}


def modules() -> list[Path]:
    return sorted(p for p in SRC.rglob("*.py"))


def room_of(path: Path) -> str:
    relative = path.relative_to(SRC)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def own_imports(path: Path) -> Iterator[tuple[int, str]]:
    """Every ridgeline module this file imports, as a dotted name without the package; also inside functions."""
    package = path.relative_to(SRC.parent).with_suffix("").parts[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            names = [f"{module}.{alias.name}" for alias in node.names] if module.startswith("ridgeline") else []
        else:
            continue
        for name in names:
            if name.startswith("ridgeline.") and name != "ridgeline.__version__":
                yield node.lineno, name.removeprefix("ridgeline.")


def permitted(room: str, imported: str) -> bool:
    target = imported.split(".")[0]
    if room in ANYTHING or target == room or target in OPEN_TO_ALL:
        return True
    return any(imported == rule or imported.startswith(f"{rule}.") for rule in ALLOWED[room])


def test_every_room_has_a_rule() -> None:
    assert {room_of(p) for p in modules()} <= ALLOWED.keys() | ANYTHING


def test_rooms_import_only_what_the_house_allows() -> None:
    broken = [
        f"{path.relative_to(ROOT)}:{line}: {room_of(path)} may not import ridgeline.{name}"
        for path in modules()
        for line, name in own_imports(path)
        if not permitted(room_of(path), name)
    ]
    assert not broken, "\n".join(broken)


def test_the_rule_would_catch_a_breach() -> None:
    assert not permitted("records", "store.journal")
    assert not permitted("campaign", "samplers.tpe")
    assert permitted("campaign", "samplers.base.Sampler")


def test_no_import_cycles_between_rooms() -> None:
    graph: dict[str, set[str]] = {}
    for path in modules():
        room = room_of(path)
        if room not in ANYTHING:
            targets = {name.split(".")[0] for _, name in own_imports(path)} - {room}
            graph.setdefault(room, set()).update(targets)
    waiting = dict(graph)
    while waiting:
        free = [room for room, targets in waiting.items() if not targets & waiting.keys()]
        assert free, f"rooms import each other in a circle: {sorted(waiting)}"
        for room in free:
            del waiting[room]


def test_no_junk_drawers() -> None:
    assert not [p for p in SRC.rglob("*") if p.stem in JUNK or p.stem.startswith("base_")]


def test_every_verb_exists_in_a_file_of_its_own() -> None:
    from ridgeline.cli.main import VERBS, verb_named

    for verb, (target, line) in VERBS.items():
        assert callable(verb_named(verb)), target
        assert line.endswith("."), f"{verb}: the help line is a sentence"


def test_every_part_of_the_catalog_can_be_imported() -> None:
    from ridgeline import catalog

    for room, table in catalog.TABLE.items():
        for name in table:
            assert catalog.part(room, name) is not None, f"{room}.{name}"


@pytest.mark.parametrize("heavy", ["optuna", "scipy", "plotly", "numpy", "typer", "rich", "pydantic"])
def test_the_overview_imports_nothing_heavy(heavy: str) -> None:
    code = f"import sys; from ridgeline.cli.main import overview; overview(); sys.exit({heavy!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
