"""House rules: who may import whom, and which names are not used."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

from ridgeline.serving.engines.names import engine_of, workloads_of

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src" / "ridgeline"

# From the top down: a room imports rooms of the floors below its own, never one beside it or above.
CORE: tuple[set[str], ...] = (
    {"__main__", "__init__", "api", "cli", "testing"},
    {"report", "campaign"},
    {"workloads", "executors", "samplers", "diagnose"},
    {"study", "diagnose.readers"},
    {"stats"},
    {"records"},
    {"catalog"},
    {"errors", "files"},
)
# A wing stands on the core and sees no other wing. Its own rooms, from the top down:
WINGS: dict[str, tuple[set[str], ...]] = {
    "serving": (
        {"wing", "api", "verbs"},
        {"service", "workloads", "findings", "figures"},
        {"node"},
        {"planner"},
        {"twin", "load"},
        {"traffic"},
        {"engines"},
        {"hardware"},
        {"model"},
        {"metrics", "ports"},
    ),
    "nwchem": (
        {"wing"},
        {"workload", "diagnosis", "figures"},
        {"start"},
        {"input", "output"},
        {"form", "failures"},
        {"metrics"},
    ),
}
# Parts that exchange for one another: other rooms of the core see their base alone, and the catalog is where names
# become parts.
ADAPTERS = {"workloads", "executors", "samplers", "diagnose"}
ANYTHING = CORE[0]
# the package's own face: for type checkers alone, since it takes what wings bring from the catalog
FACE = ("__init__", "serving.api")
# words of programs that the core has nothing to do with
PROGRAMS = re.compile(
    r"sglang|vllm|nwchem|hartree|deepseek|llama|qwen|\bkv\b|kv[_ ]?cache|\bttft\b|\bitl\b|tensor.parallel|\bmoe\b|"
    r"speculative|prefill",
    re.IGNORECASE,
)
JUNK = {"utils", "helpers", "common", "misc", "core", "manager", "handler", "info", "data"}


def modules() -> list[Path]:
    return sorted(p for p in SRC.rglob("*.py"))


def wing_of(dotted: str) -> str:
    """The wing that a module is of; empty for the core."""
    first = dotted.partition(".")[0]
    return first if first in WINGS else ""


def room_of(dotted: str) -> str:
    """Within its wing, or within the core."""
    wing = wing_of(dotted)
    inside = dotted.removeprefix(f"{wing}.") if wing else dotted
    if inside.startswith("diagnose.readers"):
        return "diagnose.readers"
    return inside.partition(".")[0]


def name_of(path: Path) -> str:
    relative = path.relative_to(SRC).with_suffix("")
    return ".".join(relative.parts)


@cache
def parsed(path: Path) -> tuple[list[ast.Import | ast.ImportFrom], list[str]]:
    """The imports of a file and the names of its classes, also inside functions."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    imports = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    return imports, [node.name for node in nodes if isinstance(node, ast.ClassDef)]


def own_imports(path: Path) -> Iterator[tuple[int, str]]:
    """Every ridgeline module this file imports, as a dotted name without the package; also inside functions."""
    package = path.relative_to(SRC.parent).with_suffix("").parts[:-1]
    for node in parsed(path)[0]:
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            names = [f"{module}.{alias.name}" for alias in node.names] if module.startswith("ridgeline") else []
        for name in names:
            if name.startswith("ridgeline.") and name != "ridgeline.__version__":
                yield node.lineno, name.removeprefix("ridgeline.")


def floor(wing: str, room: str) -> int:
    floors = WINGS[wing] if wing else CORE
    return next(number for number, rooms in enumerate(floors) if room in rooms)


def permitted(importer: str, imported: str) -> bool:
    """Whether one module may import another; both as dotted names without the package."""
    wing, other = wing_of(importer), wing_of(imported)
    if wing != other:
        return not other or (importer, imported.rpartition(".")[0]) == FACE
    room, target = room_of(importer), room_of(imported)
    if room == target or target == "__init__" or (not wing and room in ANYTHING):
        return True
    if not wing and target in ADAPTERS:
        return imported.split(".")[1:2] == ["base"] and room in ("campaign", "report")
    return floor(wing, target) > floor(wing, room)


def test_every_room_is_on_a_floor() -> None:
    for path in modules():
        name = name_of(path)
        rooms = set().union(*(WINGS[wing] if (wing := wing_of(name)) else CORE))
        assert room_of(name) in rooms | {"__init__"}, name


def test_rooms_import_downwards_only() -> None:
    broken = [
        f"{path.relative_to(ROOT)}:{line}: {name_of(path)} may not import ridgeline.{name}"
        for path in modules()
        for line, name in own_imports(path)
        if not permitted(name_of(path), name)
    ]
    assert not broken, "\n".join(broken)


def test_the_rule_would_catch_a_breach() -> None:
    assert not permitted("records.run", "study.journal")
    assert not permitted("serving.engines.base", "serving.twin.simulate.simulate")
    assert not permitted("serving.load.bench", "serving.twin.simulate.simulate")
    assert not permitted("campaign.check", "samplers.tpe")
    assert not permitted("campaign.check", "serving.engines.base")
    assert not permitted("cli.main", "nwchem.workload")
    assert not permitted("nwchem.workload", "serving.metrics")
    assert permitted("campaign.check", "samplers.base.Sampler")
    assert permitted("serving.planner.study", "serving.twin.simulate.simulate")
    assert permitted("nwchem.workload", "workloads.base.Workload")


def test_the_core_has_no_word_of_a_program() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in modules()
        if not wing_of(name_of(path))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if PROGRAMS.search(line)
    ]
    assert not found, "\n".join(found)


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
        for name in parsed(path)[1]:
            if not name.startswith("_"):
                where.setdefault(name, []).append(str(path.relative_to(SRC)))
    assert not {name: places for name, places in where.items() if len(places) > 1}


def hidden_types(body: Sequence[ast.stmt], private: set[str]) -> Iterator[tuple[int, str]]:
    """Public functions and methods of public classes that take or return one of the private classes."""
    for node in body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from hidden_types(node.body, private)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
            arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
            annotations = filter(None, (node.returns, *(argument.annotation for argument in arguments)))
            names = {part.id for each in annotations for part in ast.walk(each) if isinstance(part, ast.Name)}
            yield from ((node.lineno, f"{node.name}: {name}") for name in sorted(names & private))


def test_what_a_public_function_takes_and_returns_is_public() -> None:
    found = []
    for path in modules():
        tree = ast.parse(path.read_text())
        private = {node.name for node in tree.body if isinstance(node, ast.ClassDef) and node.name.startswith("_")}
        found += [f"{path.relative_to(SRC)}:{line}: {what}" for line, what in hidden_types(tree.body, private)]
    assert not found, "\n".join(found)


def test_a_hidden_type_would_be_found() -> None:
    assert list(hidden_types(ast.parse("def read() -> list[_Claim]: ...").body, {"_Claim"}))
    assert list(hidden_types(ast.parse("class A:\n    def read(self, claim: _Claim) -> int: ...").body, {"_Claim"}))
    assert not list(hidden_types(ast.parse("def _read() -> _Claim: ...").body, {"_Claim"}))


def test_one_module_says_which_name_was_meant() -> None:
    assert [str(p.relative_to(SRC)) for p in modules() if "difflib" in p.read_text()] == ["errors.py"]


# Where an engine's name is not a question to its home.
ENGINES_NAMED = {
    "serving/wing.py": "the table of names",
    "serving/node/gpu_probe.py": "names of packages, to list their versions",
    "serving/node/preflight.py": "names of packages whose versions do not go together",
    "serving/service/form.py": "a deployment file may name only engines that the routers know",
    "serving/service/routers.py": "which engines each router can stand in front of",
}


def test_no_room_asks_for_an_engine_by_its_name() -> None:
    from ridgeline import catalog

    names = {name for engine in catalog.shipped("engines") for name in (engine, *workloads_of(engine))}
    found = {
        str(path.relative_to(SRC))
        for path in modules()
        if room_of(name_of(path)) != "engines"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and node.value in names
    }
    assert found == ENGINES_NAMED.keys()


def test_no_junk_drawers() -> None:
    assert not [p for p in SRC.rglob("*") if p.stem in JUNK or p.stem.startswith("base_")]


def test_every_verb_exists_in_a_file_of_its_own() -> None:
    from ridgeline.cli.main import all_commands, all_groups, commands

    assert all(callable(command) for _, command in commands())
    lines = {**all_groups(), **{verb: line for verb, (_, line) in all_commands().items()}}
    assert not [name for name, line in lines.items() if not line.endswith((".", "?"))], "the line of help is a sentence"


def test_every_part_of_the_catalog_can_be_imported() -> None:
    from ridgeline import catalog

    for room in (*catalog.TABLE, "engines"):
        for name in catalog.names(room):
            assert catalog.part(room, name) is not None, f"{room}.{name}"


def test_a_kind_of_workload_is_known_as_its_engine_s() -> None:
    from ridgeline import catalog

    assert [engine_of(kind) for kind in workloads_of("vllm")] == ["vllm", "vllm"]
    assert {kind for engine in catalog.names("engines") for kind in workloads_of(engine)} < set(
        catalog.names("workloads")
    )
    assert engine_of("nwchem") == engine_of("tidepool-serve") == engine_of("vllm") == ""


@pytest.mark.parametrize("heavy", ["optuna", "scipy", "numpy", "typer", "rich", "pydantic"])
def test_the_overview_imports_nothing_heavy(heavy: str) -> None:
    code = f"import sys; from ridgeline.cli.main import overview; overview(); sys.exit({heavy!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    "program", ["ridgeline.serving.workloads.engine.session.main", "ridgeline.serving.workloads.twin.player"]
)
def test_what_runs_on_a_node_imports_nothing_heavy(program: str) -> None:
    heavy = {"pydantic", "yaml", "optuna", "scipy", "typer", "rich"}
    code = f"import sys, {program}; print(*({heavy!r} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == []


def test_the_player_of_simulated_runs_imports_next_to_nothing() -> None:
    """A campaign starts it a hundred times, and these take longer to import than a play."""
    slow = {"json", "re", "pathlib", "typing", "dataclasses"}
    where = SRC / "serving" / "workloads" / "twin"
    code = f"import sys; sys.path.insert(0, {str(where)!r}); import player; print(*({slow!r} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-IS", "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == []
