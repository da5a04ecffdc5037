"""A baseline that cannot run: who must act is said at once, with the line and what to change."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.command_line import ridgeline

STUDY = """version: 1
name: blame
workload:
  kind: command
  run: {run}
  files: {files}
  metrics: {{rate: {{regex: 'rate ([0-9.]+)'}}}}
space: {{x: [1, 2, 3]}}
goal: {{maximize: rate}}
{guards}baseline: {{x: 1}}
budget: {{trials: 2}}
confirm: {{top: 0}}
"""
RUN_LINE = 5
STENCIL = "#!/bin/sh\necho rate 3\n"
PATIENCE_S = 120


def tuned(folder: Path, run: str, files: str = "[]", guards: str = "") -> tuple[int, str, int]:
    """Exit code, what was said, and how many runs it took."""
    path = folder / "study.yaml"
    path.write_text(STUDY.format(run=json.dumps(run), files=files, guards=guards))
    done = ridgeline("tune", path, "--out", folder / "out", cwd=folder, timeout=PATIENCE_S)
    lines = (folder / "out" / "journal.jsonl").read_text().splitlines()
    return done.returncode, " ".join(done.stderr.split()), sum(json.loads(line)["event"] == "ended" for line in lines)


@pytest.mark.parametrize(
    ("run", "said", "remedy"),
    [
        ("./nosuch {x}", "the program ./nosuch was not found", "`workload: files`"),
        ("./stencill {x}", "the program ./stencill was not found", "did you mean ./stencil?"),
        ("./beside.sh {x}", "the program ./beside.sh was not found", "beside.sh is beside the study: add it to"),
        ("slepe {x}", "the program slepe was not found", "did you mean sleep?"),
        ("timeout 9 ./nosuch {x}", "the program ./nosuch was not found", "`workload: files`"),
        ("./plain.txt {x}", "./plain.txt may not be executed", "chmod +x"),
        ("./wrong.py {x}", "its interpreter /usr/bin/pythn3 is not", "#!/usr/bin/pythn3"),
        ("python3 -c 'import nosuchmodule{x}'", "Python has no module nosuchmodule1", "install it"),
        ("python3 -c 'import helper' {x}", "Python has no module helper", "name helper.py under `workload: files`"),
        (": {x}; cat input.dat", "the file input.dat was not found", "`workload: files`"),
        (": {x}; cat params.dat", "the file params.dat was not found", "params.dat is beside the study"),
        (": {x}; exit 127", "exit code 127: a command was not found", "correct `run`"),
    ],
)
def test_what_is_not_there_is_for_the_author_at_once(tmp_path: Path, run: str, said: str, remedy: str) -> None:
    for name, text, mode in (
        ("stencil", STENCIL, 0o755),
        ("plain.txt", STENCIL, 0o644),
        ("wrong.py", "#!/usr/bin/pythn3\nprint('rate 3')\n", 0o755),
        ("beside.sh", STENCIL, 0o755),
        ("helper.py", "", 0o644),
        ("params.dat", "1\n", 0o644),
    ):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(mode)
    code, message, runs = tuned(tmp_path, run, "[stencil, plain.txt, wrong.py]")
    assert (code, runs) == (2, 1), message
    assert f"study.yaml:{RUN_LINE}: workload.run: the baseline itself did not pass" in message
    assert said in message and remedy in message
    assert "The site did this" not in message and "ridgeline resume" in message


@pytest.mark.parametrize("guards", ["", "guards: ['rate > 1']\n"])
def test_a_metric_on_stderr_is_found_there(tmp_path: Path, guards: str) -> None:
    code, message, runs = tuned(tmp_path, "echo rate {x}.5 >&2", guards=guards)
    assert (code, runs) == (1, 1)
    assert "stdout has no text matching" in message and "but stderr has (1.5)" in message
    assert "set `file: stderr` in `workload: metrics: rate`" in message
    assert "guard" not in message


def test_a_run_that_says_nothing_is_told_so(tmp_path: Path) -> None:
    code, message, _ = tuned(tmp_path, "true {x}")
    assert code == 1 and "it is empty" in message and "let the program print it" in message
    assert "guard" not in message


def test_a_crash_says_what_to_look_at(tmp_path: Path) -> None:
    code, message, runs = tuned(tmp_path, "sh -c 'kill -SEGV $$' {x}")
    assert (code, runs) == (1, 1)
    assert re.search(r"died by SIGSEGV|segmentation fault", message) and "backtrace" in message
