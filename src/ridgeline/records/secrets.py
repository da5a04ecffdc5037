"""Keys, tokens and passwords: hidden in everything that is shown or kept, and named instead of written."""

from __future__ import annotations

import re
from collections.abc import Iterable

HIDDEN = "(hidden)"
SECRETS_FOLDER = ".ridgeline/secrets"  # below the home folder: one file a secret, named after its variable
_SHORTEST_VALUE = 4  # of a named secret: a shorter one would hide half of every line

# Every repeat has a bound: logs are searched for these
_NAMED = (
    r"((?<![A-Za-z0-9])(?:[\w.-]{0,40}[_.-])?(?:api[_-]?key|access[_-]?key(?:[_-]id)?|secret(?:[_-]key)?|private[_-]key|"
    r"passw(?:or)?d|passphrase|hf_token|auth[_-]?token|token)['\"]?\s{0,3}(?:[=:]|(?<=key )|(?<=password ))\s{0,3})"
    r"(?!None\b|null\b|\(hidden|[\d.,%]{1,40}(?:[\s;)]|$))(\[?['\"][^'\"]{1,300}['\"]\]?|[^\s,;'\")&]{3,300})"
)
_FLAG = r"(--[\w-]{0,40}(?:api-key|password|token|secret)\s{1,3})(?!-|\(hidden)([^\s'\"]{3,300})"
_HEADER = r"((?:Bearer|Basic)\s{1,3})([\w.~+/=-]{8,300})"
_URL = r"([a-z][a-z0-9+.-]{1,20}://[^\s/:@'\"]{0,100}:)([^\s/@'\"]{1,200})(?=@)"
# known by their shape alone
_SHAPES = (
    r"\b(?:sk|pk|rk)-(?=[\w-]{0,40}\d)[\w-]{8,300}|\bhf_(?=[A-Za-z]{0,40}\d)[A-Za-z0-9]{6,200}|\bhf_[A-Za-z0-9]{20,200}|"
    r"\bgh[pousr]_[A-Za-z0-9]{16,255}|\bgithub_pat_\w{20,255}|\bglpat-[\w-]{16,64}|\bxox[abeoprs]-[\w-]{10,200}|"
    r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b|\bAIza[\w-]{30,60}|\bnvapi-[\w-]{16,200}|"
    r"\beyJ[\w-]{8,2000}\.[\w-]{8,2000}\.[\w-]{0,2000}"
)
_PARTS = re.compile("|".join((_NAMED, _FLAG, _HEADER, _URL)), re.IGNORECASE | re.ASCII)
_WHOLE = re.compile(_SHAPES, re.ASCII)


def masked(text: str, values: Iterable[str] = ()) -> str:
    """The text without what looks like a secret, and without these values; the name of a secret stays readable."""
    for value in values:
        if len(value) >= _SHORTEST_VALUE:
            text = text.replace(value, HIDDEN)
    text = _PARTS.sub(lambda m: next(part for part in m.groups()[::2] if part is not None) + HIDDEN, text)
    return _WHOLE.sub(HIDDEN, text)


def looks_secret(value: str) -> bool:
    """Whether a value is a key or token by its shape alone."""
    return _WHOLE.search(value) is not None


def reference_lines(name: str) -> list[str]:
    """Shell lines that put a secret into the environment without holding it; without it they end the script."""
    file = f'"$HOME/{SECRETS_FOLDER}/{name}"'
    return [
        f'[ -n "${{{name}:-}}" ] || [ ! -r {file} ] || {name}=$(cat {file})',
        f'[ -n "${{{name}:-}}" ] || {{ echo "ridgeline: the secret {name} is neither in the environment nor in" '
        f"{file} >&2; exit 74; }}",
        f"export {name}",
    ]
