"""Study folders written before 0.1.0 start sessions as `python -m ridgeline.serving.workloads.session`; they still can."""

from __future__ import annotations

import sys

from ridgeline.serving.workloads.engine.session.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
