"""API keys and tokens on their way to a process: by its environment, which only its owner reads.

The arguments of a process are read by every user of its node. vLLM takes its key from a variable of its own. SGLang
(0.5.15) and the routers take one as an argument only, or from a file of arguments; they are started as Python modules,
so a line of Python puts the key among the arguments inside the process, where nobody else sees it.
"""

from __future__ import annotations

import stat
from collections.abc import Sequence
from pathlib import Path

from ridgeline.errors import InputError
from ridgeline.files import text_of
from ridgeline.records.secrets import SECRETS_FOLDER, looks_secret, masked

_WITH_KEY = (
    "import os, runpy, sys; key, module, *argv = sys.argv[1:]; "
    'sys.argv = [module, *argv, "--api-key", os.environ[key]]; '
    'runpy.run_module(module, run_name="__main__", alter_sys=True)'
)


def with_key(argv: Sequence[str], variable: str) -> list[str]:
    """`PYTHON -m MODULE ...` that finds `--api-key` and the variable's value behind its arguments; as it is without."""
    if not variable:
        return list(argv)
    place = argv.index("-m")
    return [*argv[:place], "-c", _WITH_KEY, variable, *argv[place + 1 :]]


def without_key(argv: Sequence[str]) -> list[str]:
    """As people know the command; how the key gets in is left out."""
    if _WITH_KEY not in argv:
        return list(argv)
    place = argv.index(_WITH_KEY)
    return [*argv[: place - 1], "-m", *argv[place + 2 :]]


def kept_in(name: str) -> str:
    """The file of a secret that is not in the environment, as people write it."""
    return f"~/{SECRETS_FOLDER}/{name}"


def kept_secret(name: str) -> str:
    """From the file that only its owner may read; empty where there is none."""
    path = Path(kept_in(name)).expanduser()
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return ""
    if mode & 0o077:
        raise InputError(f"{path} is open to others (mode {mode:o}); close it with `chmod 600 {path}`")
    return text_of(path).strip()


def reveals_secret(name: str, value: str) -> bool:
    """Whether `NAME: value`, or a flag and its value, says a key, token or password in plain text."""
    text = f"{name} {value}" if name.startswith("-") else f"{name}={value}"
    return looks_secret(value) or masked(text) != text
