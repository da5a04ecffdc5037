"""Ridgeline finds the fastest correct setting of a cluster program, in the fewest node-hours, with proof.

From Python: `check`, `tune`, `compare`, `edge`, `scale`, `steps`, `bisect`, `gate`, `verify` and `open` for studies,
`Search` for a loop of your own, `diagnose_file` for logs, `simulate`, `plan`, `bench` and `find_goodput` for serving;
docs/guides/python.md shows them.
Everything else is private and may change with any release.
"""

from __future__ import annotations

# not from `typing`, which takes its time: whoever stops the command line at its start should see no traceback
TYPE_CHECKING = False

__version__ = "0.3.0"
__all__ = [
    "Search", "StudyResult", "bench", "bisect", "check", "compare", "diagnose_file", "edge", "find_goodput", "gate",
    "open", "plan", "scale", "simulate", "steps", "tune", "verify",
]  # fmt: skip

if TYPE_CHECKING:
    from typing import Any

    from ridgeline.api import (
        Search,
        StudyResult,
        bisect,
        check,
        compare,
        diagnose_file,
        edge,
        gate,
        open,
        scale,
        steps,
        tune,
        verify,
    )  # fmt: skip
    from ridgeline.serving.api import bench, find_goodput, plan, simulate


def __getattr__(name: str) -> Any:
    # on demand: the command line and the session on a node start without what the API imports
    from importlib import import_module
    from importlib.util import find_spec

    if not name.startswith("_") and (name in __all__ or find_spec(f"ridgeline.{name}") is None):
        places: dict[str, str] = import_module("ridgeline.catalog").functions()
        module, _, attribute = places.get(name, f"ridgeline.api:{name}").partition(":")
        if name in __all__ or name in places:
            return getattr(import_module(module), attribute)
    raise AttributeError(f"module 'ridgeline' has no attribute {name!r}; it has {', '.join(__all__)}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
