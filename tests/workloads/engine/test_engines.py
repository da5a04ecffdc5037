"""An engine is a dialect and a row of the catalog: nothing else knows engines by their names."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from ridgeline import catalog
from ridgeline.records.trial import Stage, Trial
from ridgeline.serving.engines.flags import EngineFlags
from ridgeline.serving.engines.releases import Flag
from ridgeline.serving.engines.sglang.engine import Sglang
from ridgeline.serving.workloads.engine.session.__main__ import Session
from tests.workloads.engine.studies import study

SRC = Path(catalog.__file__).parent


class NewDialect(Sglang):
    """An engine that nobody has heard of: flags of its own, started as SGLang is."""

    name = "newcomer"
    simulated = False
    flags = EngineFlags(  # type: ignore[assignment]
        "newcomer",
        {name: Flag(name, kind) for name, kind in (("width", "value"), ("fast", "switch"), ("load_format", "value"))},
    )


NEWCOMER = NewDialect()


@pytest.fixture
def row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(catalog.TABLE, "engines", {"newcomer": f"{__name__}:NEWCOMER"})


@pytest.mark.usefixtures("row")
@pytest.mark.parametrize("ending", ["offline", "serve"])
def test_a_row_gives_an_engine_both_workloads(tmp_path: Path, ending: str) -> None:
    kind = f"newcomer-{ending}"
    assert kind in catalog.names("workloads")
    asked = study(tmp_path, kind, {"width": [4], "fast": [True]})
    workload = catalog.part("workloads", kind)(asked)
    assert workload.problems() == []
    assert "--width 4 --fast" in workload.paste(asked.baseline)
    workload.prepare(Trial(1, asked.baseline, asked.baseline, Stage.SEARCH, "test"), tmp_path / "run")
    session = Session(tmp_path / "run", json.loads((tmp_path / "run" / "session.json").read_text()))
    assert session.dialect is NEWCOMER, "the node finds the engine by its name"
    wrong = catalog.part("workloads", kind)(study(tmp_path, kind, {"widht": [4]}))
    assert any("did you mean width?" in problem.message for problem in wrong.problems())


def compared_names(path: Path) -> list[int]:
    """Lines that compare something with an engine's name."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Compare | ast.MatchValue):
            constants = [n.value for n in ast.walk(node) if isinstance(n, ast.Constant)]
            found += [node.lineno for name in constants if name in catalog.shipped("engines")]
    return found


def test_no_module_asks_which_engine_it_is() -> None:
    asking = {str(p.relative_to(SRC)): compared_names(p) for p in (SRC / "workloads").rglob("*.py")}
    assert not {path: lines for path, lines in asking.items() if lines}


def test_what_runs_on_the_node_needs_no_pydantic() -> None:
    modules = "ridgeline.serving.workloads.engine.session.__main__, ridgeline.serving.load.bench, ridgeline.catalog"
    parts = "[ridgeline.catalog.part('engines', name) for name in ridgeline.catalog.shipped('engines')]"
    code = f"import sys, {modules}; {parts}; sys.exit('pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
