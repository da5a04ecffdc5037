"""Records as JSON: what `--json` prints of one, and lines of a file that are read back into one.

What is printed is the fields, each under its own name. What is to be otherwise is declared where the field is,
`field(metadata=in_json("margin_gib", gib))`; a property that JSON has too is marked with `also_in_json`. A record that
computes what it prints has an `as_json` of its own.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache, cached_property
from inspect import ismethod
from pathlib import PurePath
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

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


def in_json(
    name: str = "", to: _Convert | None = None, *, flat: bool = False, only: Sequence[str] = ()
) -> dict[str, Any]:
    """Metadata of a field: its key, and what its value becomes unless it is None.

    `flat`: the keys of its record stand among those of this one, or `only` these.
    """
    return {_KEY: _Printed(name, to, flat=flat, only=only)}


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
    for attribute, (name, to, _, flat, only) in _printed(type(record)):  # type: ignore[arg-type]
        value = getattr(record, attribute)
        value = value() if ismethod(value) else value
        if flat:
            inner = {} if value is None else plain(value)
            found |= {key: inner[key] for key in only} if only and inner else inner
            continue
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


# The way back: records read from lines of a file that people may have edited.

R = TypeVar("R")
Object = dict[str, Any]
NUMBER = frozenset({int, float})
_KINDS: dict[Any, frozenset[type]] = {
    float: NUMBER,
    **{kind: frozenset({kind}) for kind in (str, int, bool, type(None))},
}
_forms: dict[type, Line[Any] | Row[Any]] = {}


class _Shape(NamedTuple):
    """Of one value. `read` makes the record's value of the line's or raises ValueError, `write` is its inverse; None
    is None in both."""

    kinds: frozenset[type] = frozenset()  # by type, not isinstance: true is no number here; empty: any
    read: _Convert | None = None
    write: _Convert | None = None

    def of(self, value: Any, refusal: str) -> Any:
        if self.kinds and type(value) not in self.kinds:
            raise ValueError(refusal)
        return value if self.read is None or value is None else self.read(value)

    def line(self, value: Any) -> Any:
        return value if self.write is None or value is None else self.write(value)


class _LineKey(NamedTuple):
    name: str
    field: str
    shape: _Shape
    needed: bool
    default: Any
    refusal: str


class Line(Generic[R]):
    """A record as a JSON object whose keys, order and types follow from the fields of the dataclass.

    A key whose field has a default may be missing, and is left out where the record says nothing else; a line that
    lacks another key, or holds something of another type, is refused. Keys without a field are ignored: a later
    release wrote them. `first` are fields that every line has, before all others; `names` are keys that are not called
    as their fields; `without` are fields that no line has.
    """

    def __init__(
        self,
        record: type[R],
        *,
        first: Sequence[str] = (),
        names: Mapping[str, str] | None = None,
        without: Sequence[str] = (),
    ) -> None:
        self.record, self._first, self._names, self._without = record, first, names or {}, without
        _forms[record] = self

    @cached_property
    def _keys(self) -> list[_LineKey]:
        """In the order in which a line has them."""
        hints = get_type_hints(self.record)
        keys = {}
        for each in fields(self.record):  # type: ignore[arg-type]
            if each.init and each.name not in self._without:
                default = each.default_factory() if each.default_factory is not MISSING else each.default
                needed = default is MISSING or each.name in self._first
                name, shape = self._names.get(each.name, each.name), _shape(hints[each.name])
                refusal = f"its {name!r} is of another type"
                keys[each.name] = _LineKey(name, each.name, shape, needed, default, refusal)
        return [*map(keys.__getitem__, self._first), *(key for key in keys.values() if key.field not in self._first)]

    def write(self, record: R) -> Object:
        line: Object = {}
        for name, attribute, shape, needed, default, _ in self._keys:
            value = getattr(record, attribute)
            if needed or not (value is None or (default is not None and not value)):
                line[name] = shape.line(value)
        return line

    def read(self, line: Any) -> R:
        """ValueError where it lacks a key or holds something of another type."""
        if type(line) is not dict:
            raise ValueError("it is no mapping")
        values = {}
        for name, attribute, shape, needed, _, refusal in self._keys:
            if name in line:
                values[attribute] = shape.of(line[name], refusal)
            elif needed:
                raise ValueError(f"it has no {name!r}")
        return self.record(**values)


class Row(Generic[R]):
    """A record as a list of its values, in the order of its fields; `called` is what one is not that can't be read."""

    def __init__(self, record: type[R], called: str) -> None:
        self._record, self._refusal = record, f"not {called}"
        _forms[record] = self

    @cached_property
    def _shapes(self) -> dict[str, _Shape]:
        hints = get_type_hints(self._record)
        return {each.name: _shape(hints[each.name]) for each in fields(self._record)}  # type: ignore[arg-type]

    def read(self, row: Any) -> R:
        if type(row) is not list or len(row) != len(self._shapes):
            raise ValueError(self._refusal)
        shapes = self._shapes.values()
        return self._record(*[shape.of(value, self._refusal) for shape, value in zip(shapes, row, strict=True)])

    def write(self, record: R) -> list[Any]:
        return [shape.line(getattr(record, name)) for name, shape in self._shapes.items()]


def _shape(hint: Any) -> _Shape:
    """How a value of that type stands in a line."""
    if hint in _KINDS:
        return _Shape(_KINDS[hint])
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _shape_of_union(inner)
    if origin is Literal:
        return _Shape(frozenset(map(type, inner)))
    if origin is tuple:
        return _shape_of_tuple(inner)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _shape_of_mapping(_shape(inner[1]))
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _Shape(_KINDS[str], hint, lambda member: member.value)
    if isinstance(hint, type) and is_dataclass(hint):
        form = _forms.get(hint) or Line(hint)
        return _Shape(frozenset({list if isinstance(form, Row) else dict}), form.read, form.write)
    return _Shape()


def _shape_of_union(inner: Sequence[Any]) -> _Shape:
    """Of several types one may have a form of its own; the others are plain."""
    shapes = [_shape(each) for each in inner]
    kinds = frozenset[type]().union(*(shape.kinds for shape in shapes))
    read, write = next(((shape.read, shape.write) for shape in shapes if shape.read), (None, None))
    return _Shape(kinds if all(shape.kinds for shape in shapes) else frozenset(), read, write)


def _shape_of_tuple(inner: Sequence[Any]) -> _Shape:
    if inner[-1] is not Ellipsis:
        shapes = [_shape(each) for each in inner]
        return _Shape(
            frozenset({list}),
            lambda row: tuple(shape.of(v, "not such a row") for shape, v in zip(shapes, row, strict=True)),
            lambda row: [shape.line(v) for shape, v in zip(shapes, row, strict=True)],
        )
    one = _shape(inner[0])
    return _Shape(
        frozenset({list}),
        lambda row: tuple([one.of(value, "not a list of such values") for value in row]),
        lambda row: [one.line(value) for value in row],
    )


def _shape_of_mapping(one: _Shape) -> _Shape:
    if one == _Shape():
        return _Shape(frozenset({dict}), None, dict)
    return _Shape(
        frozenset({dict}),
        lambda found: {name: one.of(value, "not a mapping of such values") for name, value in found.items()},
        lambda record: {name: one.line(value) for name, value in record.items()},
    )
