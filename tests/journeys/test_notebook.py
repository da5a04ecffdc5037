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
    first, _, served = re.findall(r"```python\n(.*?)```", (ROOT / "docs/guides/python.md").read_text(), re.DOTALL)
    twin = [line for line in served.splitlines() if "bench(" not in line]
    said = run_in(tmp_path, "\n".join([first, *twin, "print(found.best, found.figures.keys())"]))
    assert "run 1, baseline: ok, rate" in said
