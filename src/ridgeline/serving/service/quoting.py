"""What a file says as one word of somebody else's text: a POSIX shell, a comment, a pod of Kubernetes, a systemd unit.

Text of a deployment file is only ever a word. Where a node must fill something in, our own code says so with `OnNode`;
a plain `str`, whatever it holds, arrives on the command line as it was written.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping

from ridgeline.records.launch import OnNode

_NAME = re.compile(r"\$([A-Za-z_]\w*)", re.ASCII)
_SPECIAL_IN_DOUBLE_QUOTES = re.compile(r'[\\"`$]')


def in_shell(word: str) -> str:
    """As one word for dash, bash and any other POSIX shell."""
    if not isinstance(word, OnNode):
        return shlex.quote(word)
    parts = _NAME.split(word)  # text, name, text, name, ..., text
    texts = (_SPECIAL_IN_DOUBLE_QUOTES.sub(r"\\\g<0>", text) for text in parts[::2])
    names = (f"${name}" for name in parts[1::2])
    return f'"{_alternating(texts, names)}"'


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
    parts = _NAME.split(word)
    texts = (text.replace("$", "$$") for text in parts[::2])
    return _alternating(texts, (f"$({variables[name]})" for name in parts[1::2]))


def in_unit(word: str) -> str:
    """As one word of ExecStart= and similar keys in a unit of systemd, which fills in %x, $NAME and ${NAME}."""
    escaped = "".join(_IN_UNIT.get(character, character) for character in word)
    return f'"{escaped}"'


_IN_UNIT = {"%": "%%", "$": "$$", "\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def _alternating(texts: Iterable[str], names: Iterable[str]) -> str:
    first, *others = texts
    return first + "".join(name + text for name, text in zip(names, others, strict=True))
