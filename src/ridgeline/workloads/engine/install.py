"""What an engine that is installed on this machine says of itself: its release, and its flags."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Collection, Mapping
from functools import lru_cache

from ridgeline.engines.knobs.releases import NEWEST, Version, parse_version
from ridgeline.workloads.engine.dialect import EngineDialect
from ridgeline.workloads.engine.options import Install

VERSION_LIMIT_S, FLAGS_LIMIT_S = 20.0, 180.0


def release_of(install: Install, dialect: EngineDialect) -> Version:
    """As the study says, as the engine on this machine says or said, or the newest we know of."""
    text = install.version
    if not text and not install.container:
        text = next((version for package in dialect.packages if (version := version_of(install, package))), "")
    return parse_version(text) or NEWEST


def version_of(install: Install, package: str) -> str:
    """The release of `package` in this interpreter; "" where it has none, or is not on this machine."""
    if install.recorded is not None:
        return _recorded(install.recorded, "versions").get(package, "")
    return installed_version(install.python, package)


def flags_of(install: Install, program: str) -> dict[str, str]:
    """Flag names and kinds of this engine; empty where it cannot be imported here."""
    if install.recorded is not None:
        return _recorded(install.recorded, "flags")
    return _installed_flags(install.python, program)


def said(install: Install, dialect: EngineDialect, names: Collection[str]) -> dict[str, object]:
    """What it says of itself, for the journal; of its flags only those of these names."""
    versions = {package: version for package in dialect.packages if (version := version_of(install, package))}
    flags = flags_of(install, dialect.introspect()) if names else {}
    return {"versions": versions, "flags": {name: flags[name] for name in names if name in flags}}


def _recorded(found: Mapping[str, object], what: str) -> dict[str, str]:
    """A journal is data: whoever wrote it may have written anything."""
    part = found.get(what)
    return {str(name): str(value) for name, value in part.items()} if isinstance(part, Mapping) else {}


@lru_cache(maxsize=32)
def installed_version(python: str, package: str) -> str:
    """Asked of the package's metadata: importing an engine takes many seconds."""
    return _said(python, f"import importlib.metadata as m; print(m.version({package!r}))", VERSION_LIMIT_S)


@lru_cache(maxsize=8)
def _installed_flags(python: str, program: str) -> dict[str, str]:
    """As the engine's own parser lists them."""
    try:
        kinds = json.loads(_said(python, program, FLAGS_LIMIT_S).splitlines()[-1])
    except (ValueError, IndexError):
        return {}
    return {str(name): str(kind) for name, kind in kinds.items()} if isinstance(kinds, dict) else {}


def _said(python: str, program: str, limit_s: float) -> str:
    if shutil.which(python) is None:
        return ""
    try:
        done = subprocess.run([python, "-c", program], capture_output=True, text=True, timeout=limit_s, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
