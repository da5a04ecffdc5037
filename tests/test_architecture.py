"""House rules: who may import whom, and which names are not used."""

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
    "deploy": {"serving", "stats", "store", "catalog", "forms", "executors.base", "records"},
    # a run's own files say what the journal does not: requests and queue over time, power
    "report": {"stats", "store", "readers", "records"},
    # the table of how programs fail: a signal, or an exit code that no line explains, is looked up there too
    "campaign": {"store", "stats", "catalog", "forms", "records", "readers.failures", *BASES},
    # the session on a node knows its engine by name only, and the catalog is where names become parts
    "workloads": {"serving", "readers", "forms", "records", "catalog"},
    "samplers": {"serving", "stats", "forms", "records"},
    "analyzers": {"readers", "stats", "records"},
    "executors": {"readers", "forms", "records"},
    "serving": {"readers", "stats", "records"},
    # a site file is read by the form of the executor it names
    "store": {"forms", "records", "catalog"},
    "forms": {"records"},
    "stats": {"records"},
    "readers": {"records"},
    "records": set(),
    "books": set(),
    "catalog": set(),
    "errors": set(),
    "files": set(),
    "matching": set(),
    "ports": set(),
}
# the wings of serving from the ground up: each imports only those before it
WINGS = ("model", "hardware", "engine", "traffic", "twin", "load", "planner", "node")
ANYTHING = {"cli", "api", "testing", "__main__", "__init__"}
OPEN_TO_ALL = {"books", "errors", "files", "matching", "ports"}
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


def wing_breach(path: Path, imported: str) -> bool:
    """Whether a module of a wing of serving imports a wing above its own; twin and load do not see each other."""
    here, there = path.relative_to(SRC).parts, imported.split(".")
    if here[0] != "serving" or there[0] != "serving" or len(here) < 3 or here[1] == there[1]:
        return False
    if there[1] not in WINGS:
        return True  # a module of serving that lies in no wing
    return WINGS.index(there[1]) > WINGS.index(here[1]) or {here[1], there[1]} == {"twin", "load"}


def test_wings_of_serving_import_only_downwards() -> None:
    broken = [
        f"{path.relative_to(ROOT)}:{line}: the wing {path.relative_to(SRC).parts[1]} may not import ridgeline.{name}"
        for path in modules()
        for line, name in own_imports(path)
        if wing_breach(path, name)
    ]
    assert not broken, "\n".join(broken)


def test_the_rule_of_wings_would_catch_a_breach() -> None:
    assert wing_breach(SRC / "serving/engine/memory.py", "serving.twin.simulate.simulate")
    assert wing_breach(SRC / "serving/load/bench.py", "serving.twin.simulate.simulate")
    assert not wing_breach(SRC / "serving/planner/planner.py", "serving.twin.simulate.simulate")


def test_serving_is_all_wings() -> None:
    folder = SRC / "serving"
    assert {p.name for p in folder.iterdir() if p.is_dir() and p.name != "__pycache__"} == set(WINGS)
    assert [p.name for p in folder.glob("*.py")] == ["__init__.py"]


def module_graph() -> dict[str, set[str]]:
    """Module -> modules it imports, imports inside functions and for type checking included."""
    names = {".".join(p.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__"): p for p in modules()}
    graph: dict[str, set[str]] = {}
    for name, path in names.items():
        imported = [target for _, target in own_imports(path)]
        # `from a.b import c`: c is a module of a.b, or a name inside the module a.b
        graph[name] = {t if t in names else t.rpartition(".")[0] for t in imported} & names.keys() - {name}
    return graph


def circle(graph: dict[str, set[str]]) -> list[str]:
    """What is left when everything that imports nothing of the rest is taken away, again and again."""
    waiting = dict(graph)
    while free := [name for name, targets in waiting.items() if not targets & waiting.keys()]:
        for name in free:
            del waiting[name]
    return sorted(waiting)


def test_no_import_cycles_between_rooms_or_inside_them() -> None:
    assert circle(module_graph()) == []


def test_a_circle_would_be_found() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == ["a", "b", "c"]


def test_a_prefix_is_not_used_for_a_folder() -> None:
    """Three files of one folder that begin with the same word are a folder that has not been made yet."""
    shared: dict[tuple[Path, str], list[str]] = {}
    for path in modules():
        if path.stem.strip("_") == path.stem:
            shared.setdefault((path.parent, path.stem.split("_")[0]), []).append(path.name)
    assert not {f"{folder}: {first}": files for (folder, first), files in shared.items() if len(files) > 2}


def test_one_class_name_has_one_meaning() -> None:
    where: dict[str, list[str]] = {}
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                where.setdefault(node.name, []).append(str(path.relative_to(SRC)))
    assert not {name: places for name, places in where.items() if len(places) > 1}


def test_one_module_says_which_name_was_meant() -> None:
    assert [str(p.relative_to(SRC)) for p in modules() if "difflib" in p.read_text()] == ["errors.py"]


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


@pytest.mark.parametrize("heavy", ["optuna", "scipy", "numpy", "typer", "rich", "pydantic"])
def test_the_overview_imports_nothing_heavy(heavy: str) -> None:
    code = f"import sys; from ridgeline.cli.main import overview; overview(); sys.exit({heavy!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("program", ["ridgeline.workloads.engine.session.main", "ridgeline.workloads.twin.player"])
def test_what_runs_on_a_node_imports_nothing_heavy(program: str) -> None:
    heavy = {"pydantic", "yaml", "optuna", "scipy", "typer", "rich"}
    code = f"import sys, {program}; print(*({heavy!r} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == []
