"""How records stand in a journal's lines: keys, order and types follow from the fields of the dataclass.

A key has the name of its field. One whose field has a default may be missing, and is left out where the record says
nothing else; a line that lacks another key, or holds something of another type, is refused. Keys without a field are
ignored: a later release wrote them. What is otherwise is said where the `Line` of a record is made; a `Row` is a record
whose values stand in a list, in the order of its fields.
"""

from __future__ import annotations

import itertools
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cached_property, lru_cache
from operator import attrgetter
from typing import Any, Generic, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

R = TypeVar("R")
Object = dict[str, Any]
_Convert = Callable[[Any], Any]
_MOST_ALIKE = 256  # combinations of keys and types that are remembered of one declaration
_MOST_EQUAL = 1024  # equal records of a journal that are made once
NUMBER = frozenset({int, float})
_PLAIN: dict[type, frozenset[type]] = {float: NUMBER, **{kind: frozenset({kind}) for kind in (str, int, bool)}}
_TEXT = _PLAIN[str]
_NOTHING = frozenset({type(None)})
_forms: dict[type, Line[Any] | Row[Any]] = {}


class _Shape(NamedTuple):
    """Of one value. `read` makes the record's value of the line's or raises ValueError, `write` is its inverse."""

    kinds: frozenset[type] = frozenset()  # by type, not isinstance: true is no number here; empty: any
    read: _Convert | None = None
    write: _Convert | None = None

    def fits(self, value: Any) -> bool:
        """As far as `read` does not see to it, as it does for lists and mappings of something."""
        return not self.kinds or type(value) in self.kinds or (self.read is not None and not self.kinds <= _TEXT)


class _Key(NamedTuple):
    name: str
    field: str
    shape: _Shape
    needed: bool
    default: Any


class Line(Generic[R]):
    """A record as a JSON object.

    `first` are fields that every line has, before all others; `names` are keys that are not called as their fields;
    `without` are fields that no line has. `nulls`: a key may also say null where its field may be None. `shapes_only`:
    plain values are taken as they are. `alike`: equal records are made once, the same few in every line.
    """

    def __init__(
        self,
        record: type[R],
        *,
        first: Sequence[str] = (),
        names: Mapping[str, str] | None = None,
        without: Sequence[str] = (),
        nulls: bool = False,
        shapes_only: bool = False,
        alike: bool = False,
    ) -> None:
        self.record, self._first, self._names, self._without = record, first, names or {}, without
        self._nulls, self._shapes_only = nulls, shapes_only
        self._made: dict[tuple[Any, ...], R] | None = {} if alike else None
        # lines of a journal are alike: of those with the same keys and types only what lies deeper is looked at again
        self._plans: dict[tuple[Any, ...], list[tuple[str, _Convert | None, Any]]] = {}
        if not shapes_only:
            _forms[record] = self

    @cached_property
    def _keys(self) -> list[_Key]:
        """In the order in which a record is made."""
        hints, keys = get_type_hints(self.record), []
        for each in fields(self.record):  # type: ignore[arg-type]
            if each.init:
                default = each.default_factory() if each.default_factory is not MISSING else each.default
                shape = _shape(hints[each.name], self._nulls, self._shapes_only)
                needed = default is MISSING or each.name in self._first
                name = "" if each.name in self._without else self._names.get(each.name, each.name)
                keys.append(_Key(name, each.name, shape, needed, default))
        return keys

    @cached_property
    def _written(self) -> list[_Key]:
        keys = {key.field: key for key in self._keys if key.name}
        return [*map(keys.__getitem__, self._first), *(key for key in keys.values() if key.field not in self._first)]

    def write(self, record: R) -> Object:
        line: Object = {}
        for name, attribute, (_, _, write), needed, default in self._written:
            value = getattr(record, attribute)
            if needed or not (value is None or (default is not None and not value)):
                line[name] = value if write is None else write(value)
        return line

    def read(self, line: Any) -> R:
        """ValueError where it lacks a key or holds something of another type."""
        if type(line) is not dict:
            raise ValueError("it is no mapping")
        if self._made is None:
            return self._read(line)
        whole = (*line.values(), *line, *map(type, line.values()))
        try:
            found = self._made.get(whole)
        except TypeError:  # it holds a list
            return self._read(line)
        if found is None:
            found = self._read(line)
            if len(self._made) < _MOST_EQUAL:
                self._made[whole] = found
        return found

    def _read(self, line: Object) -> R:
        alike = (*line, *map(type, line.values()))
        plan = self._plans.get(alike) or self._plan(line, alike)
        # every line of a long journal comes through here
        return self.record(
            *[default if not name else line[name] if read is None else read(line[name]) for name, read, default in plan]
        )

    def _plan(self, line: Object, alike: tuple[Any, ...]) -> list[tuple[str, _Convert | None, Any]]:
        for key in self._written:
            if key.name not in line:
                if key.needed:
                    raise ValueError(f"it has no {key.name!r}")
            elif not key.shape.fits(line[key.name]):
                raise ValueError(f"its {key.name!r} is of another type")
        plan = [(k.name, k.shape.read, None) if k.name in line else ("", None, k.default) for k in self._keys]
        if len(self._plans) < _MOST_ALIKE:
            self._plans[alike] = plan
        return plan


class Row(Generic[R]):
    """A record as a list; `called` is what a list is not that can't be read. `alike` as of a line."""

    def __init__(self, record: type[R], called: str, *, alike: bool = False) -> None:
        self._record, self._called = record, called
        self._make: Callable[..., R] = lru_cache(_MOST_EQUAL)(record) if alike else record
        _forms[record] = self

    @cached_property
    def read(self) -> _Convert:
        make, called, shapes = self._make, self._called, self._shapes
        known = frozenset(itertools.product(*(shape.kinds for shape in shapes)))
        deep = [(at, shape.read) for at, shape in enumerate(shapes) if shape.read is not None]

        def read(row: Any) -> R:
            if type(row) is not list or (*map(type, row),) not in known:
                raise _refused(called)
            if not deep:
                return make(*row)
            values = row[:]
            for at, read in deep:
                values[at] = read(values[at])
            return make(*values)

        return read

    @cached_property
    def write(self) -> _Convert:
        values = attrgetter(*(each.name for each in fields(self._record)))  # type: ignore[arg-type]
        writes = [shape.write for shape in self._shapes]
        if not any(writes):
            return lambda record: list(values(record))
        return lambda record: [v if w is None else w(v) for v, w in zip(values(record), writes, strict=True)]

    @cached_property
    def _shapes(self) -> list[_Shape]:
        hints = get_type_hints(self._record)
        return [_shape(hints[each.name]) for each in fields(self._record)]  # type: ignore[arg-type]


def _refused(what: str) -> ValueError:
    return ValueError(f"not {what}")


def _shape(hint: Any, nulls: bool = False, shapes_only: bool = False) -> _Shape:
    """How a value of that type stands in a line."""
    plain = _PLAIN.get(hint)
    if plain is not None:
        return _Shape() if shapes_only else _Shape(plain)
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _shape_of_union(inner, nulls, shapes_only)
    if origin is Literal:
        return _Shape() if shapes_only else _Shape(frozenset(map(type, inner)))
    if origin is tuple:
        return _shape_of_tuple(inner, nulls, shapes_only)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        kinds = _kinds(inner[1])
        return _Shape(frozenset({dict}), _mapping_of(kinds) if kinds and not shapes_only else None, dict)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _Shape(frozenset({str}), _one_of(hint), lambda member: member.value)
    if isinstance(hint, type) and is_dataclass(hint):
        form = _forms.get(hint) or Line(hint, nulls=nulls, shapes_only=shapes_only)
        return _Shape(frozenset({list if isinstance(form, Row) else dict}), form.read, form.write)
    return _Shape()


def _shape_of_union(inner: Sequence[Any], nulls: bool, shapes_only: bool) -> _Shape:
    """Of several types one may have a form of its own; the others are plain."""
    shapes = [_shape(each, nulls, shapes_only) for each in inner if each is not type(None)]
    kinds = frozenset[type]().union(*(shape.kinds for shape in shapes))
    read, write = next(((s.read, s.write) for s in shapes if s.read or s.write), (None, None))
    if not nulls or type(None) not in inner:
        return _Shape(kinds, read, write)
    may_read = read and (lambda value: None if value is None else read(value))
    may_write = write and (lambda value: None if value is None else write(value))
    return _Shape(kinds and kinds | _NOTHING, may_read, may_write)


def _kinds(hint: Any) -> frozenset[type]:
    """Of the values of a mapping; a setting may also be None."""
    each = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    return frozenset[type]().union(*(_PLAIN.get(one, _NOTHING if one is type(None) else frozenset()) for one in each))


def _shape_of_tuple(inner: Sequence[Any], nulls: bool, shapes_only: bool) -> _Shape:
    if inner[-1] is not Ellipsis:
        reads = [_shape(each, nulls, shapes_only).read for each in inner]
        fixed = lambda row: tuple([v if r is None else r(v) for v, r in zip(row, reads, strict=True)])  # noqa: E731
        return _Shape(frozenset({list}), fixed, list)
    one = _shape(inner[0], nulls, shapes_only)
    kinds, read_one, write_one = one

    def read(value: Any) -> tuple[Any, ...]:
        if type(value) is not list or (kinds and not kinds.issuperset(map(type, value))):
            raise _refused("a list of such values")
        return tuple(value) if read_one is None else tuple([read_one(each) for each in value])

    def write(values: Iterable[Any]) -> list[Any]:
        return list(values) if write_one is None else [write_one(each) for each in values]

    return _Shape(frozenset({list}), read, write)


def _mapping_of(kinds: frozenset[type]) -> _Convert:
    def read(value: Any) -> Any:
        if type(value) is not dict or not kinds.issuperset(map(type, value.values())):
            raise _refused("a mapping of such values")
        return value

    return read


def _one_of(values: Any) -> _Convert:
    """A member of an enumeration. A long journal asks for these by the ten thousand, and an enumeration is slow."""
    known = {each.value: each for each in values}
    return lambda value: known.get(value) or values(value)
