"""Modules that a verb names at its top are loaded when it first uses them: its `--help` waits for none of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType


@contextmanager
def lazily() -> Iterator[None]:
    """Within it, `from ridgeline.campaign import check` loads nothing until something of `check` is asked for."""
    finder = _Finder()
    sys.meta_path.insert(sys.meta_path.index(PathFinder), finder)  # in its place: others before it are asked first
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target) if fullname.startswith("ridgeline.") else None
        if spec is not None and spec.loader is not None and spec.submodule_search_locations is None:
            spec.loader = LazyLoader(spec.loader)
        return spec
