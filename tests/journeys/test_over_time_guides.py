"""The guides about change over time run as written: every `$` block, in order, with what it prints.

`$ cat FILE` is a file to write ($PWD in it is the folder). Of shown output every line must be printed, in this order;
`...` stands for what is left out: lines where it stands alone, the rest of a line at its end.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

GUIDES = Path(__file__).parents[2] / "docs" / "guides"
BLOCK = re.compile(r"```\n\$ ([^\n]+)\n(.*?)```", re.DOTALL)


@pytest.mark.parametrize("page", ["which-change.md", "gate-in-ci.md"])
def test_a_guide_runs_as_written(page: str, tmp_path: Path) -> None:
    blocks = BLOCK.findall((GUIDES / page).read_text())
    assert len(blocks) >= 4
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "GITHUB_ACTIONS": ""}
    for command, shown in blocks:
        if command.startswith("cat "):
            (tmp_path / command.removeprefix("cat ")).write_text(
                shown if command.endswith(".sh") else shown.replace("$PWD", str(tmp_path))
            )
            continue
        done = subprocess.run(
            command, shell=True, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=600, check=False
        )
        printed = done.stdout.splitlines()
        for line in shown.splitlines():
            text = line.rstrip(".").rstrip() if line.endswith("...") else line
            while text and not (printed and (printed[0] == line or (text != line and printed[0].startswith(text)))):
                assert printed, f"{command}: {line!r} was not printed:\n{done.stdout}\n{done.stderr}"
                printed.pop(0)
