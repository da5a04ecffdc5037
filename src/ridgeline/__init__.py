"""Ridgeline finds the fastest correct setting of a cluster program, in the fewest node-hours, with proof.

From Python: `tune`, `compare` and `open` for studies, `simulate`, `plan` and `bench` for serving; docs/guides/python.md
shows them. Everything else is private and may change with any release.
"""

from __future__ import annotations

# not from `typing`, which takes its time: whoever stops the command line at its start should see no traceback
TYPE_CHECKING = False

__version__ = "0.3.0"
__all__ = ["StudyResult", "bench", "compare", "open", "plan", "simulate", "tune"]

if TYPE_CHECKING:
    from typing import Any

    from ridgeline.api import StudyResult, bench, compare, open, plan, simulate, tune


def __getattr__(name: str) -> Any:
    # on demand: the command line and the session on a node start without what the API imports
    if name in __all__:
        from ridgeline import api

        return getattr(api, name)
    raise AttributeError(f"module 'ridgeline' has no attribute {name!r}; it has {', '.join(__all__)}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
