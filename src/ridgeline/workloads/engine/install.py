"""What an engine that is installed on this machine says of itself: its release, and its flags."""

from __future__ import annotations

import json
import shutil
import subprocess
from functools import lru_cache

from ridgeline.serving.engine.knobs.releases import NEWEST, Version, parse_version
from ridgeline.workloads.engine.dialect import EngineDialect
from ridgeline.workloads.engine.options import Install

VERSION_LIMIT_S, FLAGS_LIMIT_S = 20.0, 180.0


@lru_cache(maxsize=32)
def installed_version(python: str, package: str) -> str:
    """The release of `package` that this interpreter would import; "" where there is none on this machine.

    Asked of the package's metadata: importing an engine takes many seconds.
    """
    return _said(python, f"import importlib.metadata as m; print(m.version({package!r}))", VERSION_LIMIT_S)


def release_of(install: Install, dialect: EngineDialect) -> Version:
    """As the study says, as the engine on this machine says, or the newest we know of."""
    text = install.version
    if not text and not install.container:
        known = (installed_version(install.python, package) for package in dialect.packages)
        text = next((version for version in known if version), "")
    return parse_version(text) or NEWEST


@lru_cache(maxsize=8)
def installed_flags(python: str, program: str) -> dict[str, str]:
    """Flag names and kinds as the engine's own parser lists them; empty where it cannot be imported here."""
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
