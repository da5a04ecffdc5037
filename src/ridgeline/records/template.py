"""`{knob}` in commands, environment and input files of a study, and `[--flag {knob}]`, which goes with its knob."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from ridgeline.records.expression import ExpressionError

# {name} or {name:format}; {{ and }} stand for themselves; ${SHELL} variables are left to the shell
_FIELD = re.compile(r"\{\{|\}\}|(?<!\$)\{(?P<name>[A-Za-z_]\w*)(?::(?P<format>[^{}]*))?\}")

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_WIDEST_FIELD = 1000  # characters
TOO_WIDE = f"asks for more than {_WIDEST_FIELD} characters; take a smaller width"
NO_VARIABLE = "is not a name for an environment variable; use letters, digits and _"


def is_variable(name: str) -> bool:
    """Whether a shell can export it; `NO_VARIABLE` says what is wrong with one that it cannot."""
    return _VARIABLE.fullmatch(name) is not None


def _too_wide(field: re.Match[str]) -> bool:
    """`{x:>3000000000}` is short to write and fills all memory."""
    return any(len(digits) > 9 or int(digits) > _WIDEST_FIELD for digits in re.findall(r"\d+", field["format"] or ""))


def wide_fields(text: str) -> list[str]:
    return [match[0] for match in _FIELD.finditer(text) if _too_wide(match)]


def field_names(text: str) -> set[str]:
    return {match["name"] for match in _FIELD.finditer(text) if match["name"]}


@dataclass(frozen=True, slots=True)
class _Group:
    """`[--flag {knob}]`: there only where all its knobs are. `start` and `end` are where its brackets stand."""

    start: int
    end: int
    names: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Brackets:
    """What the brackets of a text mean: `groups`, `doubled` ones (left of each pair), and fields in no group."""

    groups: tuple[_Group, ...] = ()
    doubled: frozenset[int] = frozenset()
    bare: tuple[str, ...] = ()


def _brackets(text: str, optional: Collection[str]) -> _Brackets:
    """A pair of brackets is a group where it directly holds a field of `optional` and opens with no blank, as the
    shell's own test does; a doubled pair stands for the bracket itself. All other brackets are just text."""
    fields = [(m.start(), m["name"]) for m in _FIELD.finditer(text) if m["name"] in optional]
    if not fields:
        return _Brackets()
    pairs = _pairs(text)
    held: dict[tuple[int, int], set[str]] = {}
    doubled: set[int] = set()
    bare: list[str] = []
    for position, name in fields:
        around = sorted((pair for pair in pairs.items() if pair[0] < position < pair[1]), reverse=True)
        while len(around) > 1 and around[1] == (around[0][0] - 1, around[0][1] + 1):
            doubled |= {around[1][0], around[0][1]}
            around = around[2:]
        if around and not text[around[0][0] + 1].isspace():
            held.setdefault(around[0], set()).add(name)
        else:
            bare.append(name)
    groups = tuple(_Group(start, end, frozenset(names)) for (start, end), names in sorted(held.items()))
    for outer, inner in itertools.pairwise(groups):
        if inner.end < outer.end:
            what = f"{text[inner.start : inner.end + 1]} stands inside another group"
            raise ExpressionError(f"{what}; groups do not nest: write them side by side")
    return _Brackets(groups, frozenset(doubled), tuple(dict.fromkeys(bare)))


def _pairs(text: str) -> dict[int, int]:
    found: dict[int, int] = {}
    opened: list[int] = []
    for position, character in enumerate(text):
        if character == "[":
            opened.append(position)
        elif character == "]" and opened:
            found[opened.pop()] = position
    return found


def bare_fields(text: str, optional: Collection[str]) -> list[str]:
    """Fields of knobs that do not exist everywhere, and that stand outside a group: without their knob nothing is left
    of them, and the flag before takes the next word for its value. ExpressionError where groups nest."""
    return list(_brackets(text, optional).bare)


def grouped(text: str, name: str) -> str:
    """How the first `{name}` of this text is written as a group: with the flag before it, where there is one."""
    found = re.search(rf"(?:(?<!\S)-[\w-]+[ =]|[\w.-]+=)?\{{{name}(?::[^{{}}]*)?\}}", text)
    return f"[{found[0] if found else f'{{{name}}}'}], which goes with its knob"


def render(text: str, values: Mapping[str, object], optional: Collection[str] = ()) -> str:
    """`text` with every field filled; a knob that does not exist at this point renders as nothing.

    Of names in `optional` (`Space.optional`) a group `[--flag {name}]` is kept, without its brackets, where all have a
    value, and dropped where one has none.
    """
    return _rendered(text, values, _brackets(text, optional))


def render_env(env: Mapping[str, str], values: Mapping[str, object], optional: Collection[str] = ()) -> dict[str, str]:
    """An environment; a variable that is made of groups alone, all of which are dropped, is not set."""
    filled = {}
    for name, text in env.items():
        brackets = _brackets(text, optional)
        filled[name] = _rendered(text, values, brackets)
        if brackets.groups and not filled[name] and all(_dropped(group, values) for group in brackets.groups):
            del filled[name]
    return filled


def _dropped(group: _Group, values: Mapping[str, object]) -> bool:
    return any(name in values and values[name] is None for name in group.names)


def _rendered(text: str, values: Mapping[str, object], brackets: _Brackets) -> str:
    parts: list[str] = []
    at = 0
    for group in brackets.groups:
        parts.append(_filled(text, at, group.start, values, brackets.doubled))
        if not _dropped(group, values):
            parts.append(_filled(text, group.start + 1, group.end, values, brackets.doubled))
        at = group.end + 1
    return "".join([*parts, _filled(text, at, len(text), values, brackets.doubled)])


def _filled(text: str, start: int, end: int, values: Mapping[str, object], doubled: Collection[int]) -> str:
    kept = [position for position in range(start, end) if position not in doubled] if doubled else None
    part = text[start:end] if kept is None else "".join(text[position] for position in kept)
    return _FIELD.sub(lambda match: _value(match, values), part)


def _value(match: re.Match[str], values: Mapping[str, object]) -> str:
    name = match["name"]
    if not name:
        return match[0][0]
    if name not in values:
        raise ExpressionError(f"{{{name}}} is not a knob or a derived value; known: {', '.join(values) or 'none'}")
    value = values[name]
    if value is None:
        return ""
    if isinstance(value, bool) and not match["format"]:
        return "true" if value else "false"
    if _too_wide(match):
        raise ExpressionError(f"{match[0]} {TOO_WIDE}")
    try:
        return _formatted(value, match["format"] or "")
    except ValueError as error:
        raise ExpressionError(f"{match[0]} does not fit the value {value!r}: {error}") from None


def _formatted(value: object, how: str) -> str:
    try:
        return format(value, how)
    except ValueError:
        if not isinstance(value, str):
            raise
        return format(float(value), how)  # a number that is kept as it was written, such as 0.80


def unknown_fields(text: str, known: Iterable[str]) -> list[str]:
    return sorted(field_names(text) - set(known))
