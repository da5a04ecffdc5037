"""The notebook and the Python guide run as they stand, cell by cell, in a fresh Python and an empty folder."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run_in(folder: Path, code: str) -> str:
    # as a file: a function that is tuned must have a source, as a notebook's cells have
    (folder / "cells.py").write_text(code)
    done = subprocess.run([sys.executable, "cells.py"], cwd=folder, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_notebook_runs(tmp_path: Path) -> None:
    notebook = json.loads((ROOT / "examples/08-notebook/tune-a-function.ipynb").read_text())
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] for cell in notebook["cells"] if cell["cell_type"] == "code"), "it is kept executed"
    said = run_in(tmp_path, "\n".join([*cells, "print(len(found.runs), found.verify().mismatches)"]))
    assert said.startswith("blur: ")
    assert said.split()[-1] == "[]"


def test_the_guide_runs(tmp_path: Path) -> None:
    first, loop, _, served = re.findall(r"```python\n(.*?)```", (ROOT / "docs/guides/python.md").read_text(), re.DOTALL)
    twin = [line for line in served.splitlines() if "http://" not in line]
    said = run_in(tmp_path, "\n".join([first, loop, *twin, "print(found.best, found.figures.keys())"]))
    assert "run 1, baseline: ok, rate" in said


# as a kernel runs cells: each is compiled under a name of its own, and its lines are known to linecache alone
_KERNEL = """\
import linecache
import ridgeline

def cell(number, source):
    name = f"/tmp/ipykernel_1/{number}.py"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    exec(compile(source, name, "exec"), globals())

STUDY = {
    "name": "cells", "space": {"a": [1, 2, 3]}, "goal": {"maximize": "rate"}, "baseline": {"a": 2},
    "budget": {"trials": 2}, "stages": {"baseline": {"repeats": 1}, "confirm": {"top": 1, "blocks": 3, "repeats": 1}},
}

def tune():
    try:
        found = ridgeline.tune({**STUDY, "workload": f})
        print("found", found.best, len(found.runs))
    except ridgeline.errors.RidgelineError as error:
        print("refused", error)
"""


def test_a_cell_that_is_edited_twice_never_gets_an_older_answer(tmp_path: Path) -> None:
    said = run_in(
        tmp_path,
        f"{_KERNEL}\n"
        "cell(1, 'scale = 10.0\\nimport math as maths')\n"
        "cell(2, 'def f(a):\\n    return scale * maths.sqrt(a)'); tune()\n"
        "cell(2, 'def f(a):\\n    return scale * maths.sqrt(a)'); tune()\n"
        "cell(3, 'def f(a):\\n    return scale / a'); tune()\n"
        "STUDY['name'] = 'cells-2'; tune()\n"
        "cell(4, 'def f(a):\\n    return -abs(a - 2.0)'); tune()\n"
        "cell(5, 'scale = -1.0'); cell(2, 'def f(a):\\n    return scale * maths.sqrt(a)')\n"
        "STUDY['name'] = 'cells'; tune()\n",
    ).splitlines()
    first, again, edited, elsewhere, twice, outside = said
    assert first.startswith("found {'a': 3} ") and again == first, "run again unchanged, a cell has its stored answer"
    assert edited.startswith("refused studies/cells already holds a campaign of another study (the function")
    assert elsewhere.startswith("found {'a': 1} ")
    assert twice.startswith("refused studies/cells-2 already holds a campaign of another study (the function")
    assert outside.startswith("refused studies/cells already"), "a value it reads from another cell was changed"
