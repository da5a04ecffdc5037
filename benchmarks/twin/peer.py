"""The wheel of aiconfigurator-core in a virtual environment of its own: real configs and measured operator tables.

Nothing of it becomes part of this package. Only `model_configs/` and `systems/data/` are read: `systems/` also holds a
table of serving measurements, which must stay unseen by anything that is fitted.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

RELEASE = "0.12.0"
FOLDER = Path(tempfile.gettempdir()) / f"ridgeline-aiconfigurator-{RELEASE}"


def add_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--venv", type=Path, default=FOLDER, help=f"where the wheel is installed (default {FOLDER})")


def wheel(venv: Path, *others: str) -> Path:
    """The package's folder, installed first where it is not there. `others` are packages that reading it takes."""
    found = next(venv.glob("lib/python*/site-packages/aiconfigurator_core"), None)
    if found is None:
        print(f"installing aiconfigurator-core {RELEASE} into {venv}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
        pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "-q"]
        subprocess.run([*pip, "--no-deps", f"aiconfigurator-core=={RELEASE}"], check=True)
        if others:
            subprocess.run([*pip, *others], check=True)
        found = next(venv.glob("lib/python*/site-packages/aiconfigurator_core"))
    return found
