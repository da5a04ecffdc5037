"""`{knob}` in commands, environment and input files of a study."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from ridgeline.records.expression import ExpressionError

# {name} or {name:format}; {{ and }} stand for themselves; ${SHELL} variables are left to the shell
_FIELD = re.compile(r"\{\{|\}\}|(?<!\$)\{(?P<name>[A-Za-z_]\w*)(?::(?P<format>[^{}]*))?\}")

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
WIDEST_FIELD = 1000  # characters
TOO_WIDE = f"asks for more than {WIDEST_FIELD} characters; take a smaller width"
NO_VARIABLE = "is not a name for an environment variable; use letters, digits and _"


def is_variable(name: str) -> bool:
    """Whether a shell can export it; `NO_VARIABLE` says what is wrong with one that it cannot."""
    return _VARIABLE.fullmatch(name) is not None


def too_wide(field: re.Match[str]) -> bool:
    """`{x:>3000000000}` is short to write and fills all memory."""
    return any(len(digits) > 9 or int(digits) > WIDEST_FIELD for digits in re.findall(r"\d+", field["format"] or ""))


def wide_fields(text: str) -> list[str]:
    return [match[0] for match in _FIELD.finditer(text) if too_wide(match)]


def field_names(text: str) -> set[str]:
    return {match["name"] for match in _FIELD.finditer(text) if match["name"]}


def render(text: str, values: Mapping[str, object]) -> str:
    """`text` with every field filled. A knob that does not exist at this point renders as nothing."""

    def fill(match: re.Match[str]) -> str:
        if not match["name"]:
            return match[0][0]
        name = match["name"]
        if name not in values:
            raise ExpressionError(f"{{{name}}} is not a knob or a derived value; known: {', '.join(values) or 'none'}")
        value = values[name]
        if value is None:
            return ""
        if isinstance(value, bool) and not match["format"]:
            return "true" if value else "false"
        if too_wide(match):
            raise ExpressionError(f"{match[0]} {TOO_WIDE}")
        try:
            return format(value, match["format"] or "")
        except ValueError as error:
            raise ExpressionError(f"{match[0]} does not fit the value {value!r}: {error}") from None

    return _FIELD.sub(fill, text)


def unknown_fields(text: str, known: Iterable[str]) -> list[str]:
    return sorted(field_names(text) - set(known))
