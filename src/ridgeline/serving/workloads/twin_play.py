"""Study folders written before 0.1.0 start this file by its path to perform their plays; they still can."""

from __future__ import annotations

import runpy
from pathlib import Path

if __name__ == "__main__":
    runpy.run_path(str(Path(__file__).parent / "twin" / "player.py"), run_name="__main__")
