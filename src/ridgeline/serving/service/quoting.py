"""What a file says as one word of somebody else's text: a POSIX shell, a comment, a pod of Kubernetes, a systemd unit.

Text of a deployment file is only ever a word. Where a node must fill something in, our own code says so with `OnNode`;
a plain `str`, whatever it holds, arrives on the command line as it was written.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence

from ridgeline.records.launch import OnNode

# a name that the node fills in, or else what must be escaped
_IN_SHELL = re.compile(r'(\$[A-Za-z_]\w*)|[\\"`$]', re.ASCII)
_IN_POD = re.compile(r"\$([A-Za-z_]\w*)|\$", re.ASCII)


def in_shell(word: str) -> str:
    """As one word for dash, bash and any other POSIX shell."""
    if not isinstance(word, OnNode):
        return shlex.quote(word)
    escaped = _IN_SHELL.sub(lambda found: found[1] or f"\\{found[0]}", word)
    return f'"{escaped}"'


def shell_line(argv: Iterable[str]) -> str:
    return " ".join(map(in_shell, argv))


def in_comment(text: str) -> str:
    """On one line: what follows a line break would be run."""
    return " ".join(text.split())


def in_pod(word: str, variables: Mapping[str, str]) -> str:
    """As one word of a container's command, arguments or environment. `variables`: our names -> those of the pod.

    Kubernetes fills in $(NAME), and takes $$ for one dollar.
    """
    if not isinstance(word, OnNode):
        return word.replace("$", "$$")
    return _IN_POD.sub(lambda found: f"$({variables[found[1]]})" if found[1] else "$$", word)


def in_unit(word: str) -> str:
    """As one word of ExecStart= and similar keys in a unit of systemd, which fills in %x, $NAME and ${NAME}."""
    if re.fullmatch(r"[\w./:=@+,-]+", word):
        return word
    return f'"{word.translate(_IN_UNIT)}"'


_IN_UNIT = str.maketrans({"%": "%%", "$": "$$", "\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"})


# An API key is no word of a command line: the arguments of a process are read by every user of its node, its
# environment only by its owner. vLLM takes its key from a variable of its own. SGLang (0.5.15) and the routers take one
# as an argument only, or from a file of arguments; they are started as Python modules, so a line of Python puts the key
# among the arguments inside the process, where nobody else sees it.

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
