"""An engine that is installed somewhere, and what one on this machine says of itself: its release, and its flags."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

_VERSION_LIMIT_S, _FLAGS_LIMIT_S = 20.0, 180.0


@dataclass(frozen=True, slots=True)
class Install:
    """Where an engine is: an interpreter, perhaps inside a container image. `version` "" where nobody said.

    `recorded`: what it reported of itself when its campaign ran (`self_reported` of its engine); with it, it is not
    started to be asked.
    """

    python: str = "python3"
    container: str = ""
    version: str = ""
    recorded: Mapping[str, object] | None = field(default=None, compare=False)


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


def _recorded(found: Mapping[str, object], what: str) -> dict[str, str]:
    """A journal is data: whoever wrote it may have written anything."""
    part = found.get(what)
    return {str(name): str(value) for name, value in part.items()} if isinstance(part, Mapping) else {}


@lru_cache(maxsize=32)
def installed_version(python: str, package: str) -> str:
    """Asked of the package's metadata: importing an engine takes many seconds."""
    return _output_of(python, f"import importlib.metadata as m; print(m.version({package!r}))", _VERSION_LIMIT_S)


def installed_packages(python: str) -> dict[str, str]:
    """Every package that this interpreter finds, with its release; empty where it is not on this machine."""
    program = "import importlib.metadata as m; print(*{f'{d.name}=={d.version}' for d in m.distributions()}, sep='\\n')"
    lines = _output_of(python, program, _VERSION_LIMIT_S).splitlines()
    return dict(line.split("==", 1) for line in sorted(lines, key=str.lower) if "==" in line)


@lru_cache(maxsize=8)
def _installed_flags(python: str, program: str) -> dict[str, str]:
    """As the engine's own parser lists them."""
    try:
        kinds = json.loads(_output_of(python, program, _FLAGS_LIMIT_S).splitlines()[-1])
    except (ValueError, IndexError):
        return {}
    return {str(name): str(kind) for name, kind in kinds.items()} if isinstance(kinds, dict) else {}


def _output_of(python: str, program: str, limit_s: float) -> str:
    if shutil.which(python) is None:
        return ""
    try:
        done = subprocess.run(
            [python, "-c", program], capture_output=True, text=True, errors="replace", timeout=limit_s, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
