"""A failed run as a bug report."""

from __future__ import annotations

from pathlib import Path

import pytest

import ridgeline
from ridgeline.campaign.bug import bug_report, failed_run
from ridgeline.errors import InputError

PROGRAM = """
import sys
a, b, c, d = map(int, sys.argv[1:])
for n in range(40):
    print("step", n, file=sys.stderr)
if a > 1 and d == 4:
    print("api_key=sk-abc123def456ghi", file=sys.stderr)
    print("RuntimeError: tile of 4 with several streams", file=sys.stderr)
    sys.exit(1)
print("rate", 10 + a + b + c + d)
"""
STUDY = """version: 1
name: solver
workload:
  kind: command
  run: python3 solver.py {a} {b} {c} {d}
  files: [solver.py]
  metrics: {rate: {regex: "rate ([0-9]+)"}}
space: {a: [1, 2], b: [0, 1], c: [0, 1], d: [1, 4]}
baseline: {a: 1, b: 0, c: 0, d: 1}
presets: [{a: 2, b: 1, c: 1, d: 4}]
goal: {maximize: rate}
budget: {trials: 1}
confirm: {top: 0}
stages: {baseline: {repeats: 1}}
search: {sentinel_every: 0}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("bug")
    (home / "solver.py").write_text(PROGRAM)
    (home / "study.yaml").write_text(STUDY)
    ridgeline.tune(home / "study.yaml", out=home / "out")
    return home / "out"


def failing(folder: Path) -> Path:
    return next(path for path in sorted((folder / "runs").iterdir()) if "a2" in path.name)


def test_the_report_has_what_a_maintainer_asks_for_and_no_secret(folder: Path) -> None:
    text = bug_report(*failed_run(failing(folder)))
    assert "```sh\npython3 solver.py 2 1 1 4\n```" in text
    assert "> RuntimeError: tile of 4 with several streams" in text
    assert "step 39" in text and "step 3\n" not in text, "around the deciding line"
    assert "It ended so in 1 of 1 run" in text
    assert "sk-abc123" not in text and "(hidden)" in text
    assert "- python: " in text
    assert "The baseline passes. Changed from it: a 2, b 1, c 1, d 4." in text


def test_what_is_no_failed_run_is_named(folder: Path) -> None:
    with pytest.raises(InputError, match="is not a run folder; name one of a study's runs, such as"):
        failed_run(folder)
    with pytest.raises(InputError, match="this run passed, so there is nothing to report"):
        failed_run(folder / "runs" / sorted(p.name for p in (folder / "runs").iterdir())[0])
