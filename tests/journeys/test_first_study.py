"""The first guide, followed by somebody who pastes every command."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs/guides/first-study.md"


def test_the_guide_runs_as_it_is_pasted(tmp_path: Path) -> None:
    checkout = tmp_path / "check out"  # a checkout, as far as the guide goes
    (checkout / "examples").mkdir(parents=True)
    (checkout / "examples/01-stencil").symlink_to(ROOT / "examples/01-stencil")
    (checkout / "scripts").symlink_to(ROOT / "scripts")
    blocks = re.findall(r"^```sh\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 5
    done = subprocess.run(
        ["bash", "-e", "-u", "-o", "pipefail"], input="\n".join(blocks), cwd=checkout, text=True, capture_output=True,
        timeout=600, env={**os.environ, "COLUMNS": "120"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for said in ("rate ", "40 legal points", "node-hours", "GF/s"):
        assert said in done.stdout
    assert "GF/s" in (checkout / "my-study/studies/stencil/report.html").read_text()
