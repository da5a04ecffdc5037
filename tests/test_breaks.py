"""`scripts/mutants` breaks what it says: each break is valid Python that differs, and all kinds are there."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def breaks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("breaks", ROOT / "scripts" / "mutation" / "breaks.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["breaks"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("line", "broken"),
    [
        ("return a < b", {"(a <= b)", "(a > b)", "return None"}),
        ("return a and not b", {"(a or not b)", "(not b)", "(a)", "(b)", "return None"}),
        ("return min(a, b)", {"(max(a, b))", "(min(b, a))", "return None"}),
        ("return rows[0]", {"(rows[-1])", "(1)", "return None"}),
        ("return rows[-1]", {"(rows[0])", "(1)", "(2)", "return None"}),
        ("return sorted(a, key=b)", {"(sorted(a, key=b, reverse=True))", "(sorted(a))", "return None"}),
        ("return -a if b else c", {"(-a if not b else c)", "(a)", "return None"}),
        ("return True", {"(False)"}),
        ("raise ValueError(1 + 2)", {"pass"}),
        ("f(x)", {"pass"}),
        ("a += 2", {"pass", "a -= 2", "(3)", "(1)"}),
        ("return f'{a + 1}'", {"return None"}),
    ],
)
def test_what_a_line_may_become(breaks: ModuleType, line: str, broken: set[str]) -> None:
    source = f"class A:\n    def f(self, x: int = None) -> 'str':\n        {line}\n".encode()
    found = list(breaks.breaks("room/file.py", source))
    assert {one.text for one in found} == broken
    assert {(one.function, one.line, one.room) for one in found} == {("A.f", 3, "room")}


def test_every_break_of_a_file_is_valid_and_differs(breaks: ModuleType) -> None:
    source = (ROOT / "src/ridgeline/campaign/ledger.py").read_bytes()
    found = list(breaks.breaks("campaign/ledger.py", source))
    assert len(found) > 100
    for one in found:
        after = one.applied(source)
        assert after != source
        ast.parse(after)


def test_the_same_seed_draws_the_same_lines_and_only_of_the_rooms_asked_for() -> None:
    told = "import runpy, argparse; m = runpy.run_path('scripts/mutants', run_name='m'); " + (
        "print(*[f'{b.file}:{b.line}:{b.text}' for b in m['drawn'](argparse.Namespace("
        "room=['stats', 'api.py'], since='', sample=30, seed=SEED, table=TABLE))], sep='|')"
    )

    def drawn(seed: int, table: bool = False) -> list[str]:
        command = [sys.executable, "-c", told.replace("SEED", str(seed)).replace("TABLE", str(table))]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        return done.stdout.strip().split("|")

    first = drawn(1)
    assert len(first) >= 30 and {name.split("/")[0].split(":")[0] for name in first} <= {"stats", "api.py"}
    assert drawn(1) == first != drawn(2)
    each = [name.split("/")[0].split(":")[0] for name in drawn(1, table=True)]
    assert each.count("stats") == each.count("api.py") == 30
