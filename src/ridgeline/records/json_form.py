"""What `--json` prints of a record: its fields, each under its own name.

What is to be otherwise is declared where the field is, `field(metadata=in_json("margin_gib", gib))`; a property that
JSON has too is marked with `also_in_json`. A record that computes what it prints has an `as_json` of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from inspect import ismethod
from pathlib import PurePath
from typing import Any, ClassVar, NamedTuple, TypeVar

_Convert = Callable[[Any], Any]
_Property = TypeVar("_Property", bound=Callable[..., Any])
_KEY = "json"
_PLAIN = frozenset({str, int, float, bool, type(None)})


class _Printed(NamedTuple):
    name: str = ""
    to: _Convert | None = None
    hidden: bool = False
    flat: bool = False
    only: Sequence[str] = ()
    if_any: bool = False


def in_json(
    name: str = "", to: _Convert | None = None, *, flat: bool = False, only: Sequence[str] = (), if_any: bool = False
) -> dict[str, Any]:
    """Metadata of a field: its key, and what its value becomes unless it is None.

    `flat`: the keys of its record stand among those of this one, or `only` these. `if_any`: it is left out while it is
    empty.
    """
    return {_KEY: _Printed(name, to, flat=flat, only=only, if_any=if_any)}


NOT_IN_JSON = {_KEY: _Printed(hidden=True)}


def also_in_json(name: str = "", to: _Convert | None = None) -> Callable[[_Property], _Property]:
    """For the function of a property, below `@property`; or for one that needs no arguments."""

    def marked(function: _Property) -> _Property:
        setattr(function, _KEY, _Printed(name, to))
        return function

    return marked


def digits(number: int) -> _Convert:
    return lambda value: round(value, number)


def each(to: _Convert) -> _Convert:
    """Of the values of a mapping."""
    return lambda values: {name: to(value) for name, value in values.items()}


class JsonForm:
    """A dataclass that is printed by its declaration, fields first. `JSON_DIGITS` are those of all its floats."""

    __slots__ = ()
    JSON_DIGITS: ClassVar[int | None] = None

    def as_json(self) -> dict[str, Any]:
        return _as_json(self, self.JSON_DIGITS)


def _as_json(record: Any, digits_of_floats: int | None = None) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for attribute, (name, to, _, flat, only, if_any) in _printed(type(record)):  # type: ignore[arg-type]
        value = getattr(record, attribute)
        value = value() if ismethod(value) else value
        if flat:
            inner = {} if value is None else plain(value)
            found |= {key: inner[key] for key in only} if only and inner else inner
        elif not if_any or value:
            if to is not None and value is not None:
                value = to(value)
            elif digits_of_floats is not None and isinstance(value, float):
                value = round(float(value), digits_of_floats)
            found[name or attribute] = plain(value)
    return found


@cache
def _printed(record: Any) -> list[tuple[str, _Printed]]:
    own = [(each.name, each.metadata.get(_KEY, _Printed())) for each in fields(record)]
    for name in dict.fromkeys(name for each in reversed(record.__mro__) for name in vars(each)):
        member = getattr(record, name, None)
        function = member.fget if isinstance(member, property) else getattr(member, "func", member)
        if (how := getattr(function, _KEY, None)) is not None:
            own.append((name, how))
    return [(name, how) for name, how in own if not how.hidden]


def plain(value: Any) -> Any:
    """As JSON has it: records as objects, members of an enumeration as their values, paths as text."""
    if type(value) in _PLAIN:
        return value
    if isinstance(value, Enum):
        return value.value
    if hasattr(value, "as_json"):
        return value.as_json()
    if is_dataclass(value) and not isinstance(value, type):
        return _as_json(value)
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [plain(each) for each in value]
    return str(value) if isinstance(value, PurePath) else value
