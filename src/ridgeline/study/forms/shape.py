"""Finding the way in a form: the fields of a form, the type at a place, and what that type takes in plain English."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import Tag
from pydantic.fields import FieldInfo

from ridgeline.study.forms.form import Accepts, Form, ValueUnit


@dataclass(frozen=True, slots=True)
class Shape:
    """A type without its wrapping, and what the wrapping said."""

    bare: Any
    notes: tuple[object, ...] = ()

    @property
    def form(self) -> type[Form] | None:
        """The form that reads a mapping of this shape; of a union, the one of its mapping."""
        if isinstance(self.bare, type) and issubclass(self.bare, Form):
            return self.bare
        found = (choice.form for choice in self.choices())
        return next((form for form in found if form is not None), None)

    def choices(self) -> list[Shape]:
        return [_shape_of(choice) for choice in get_args(self.bare)] if _is_union(self.bare) else []

    def inside(self, step: str | int) -> Shape | None:
        """The shape one step further: a key of a form or mapping, an item of a list, a tag of a union."""
        if _is_union(self.bare):
            tagged = [choice for choice in self.choices() if Tag(str(step)) in choice.notes]
            return tagged[0] if tagged else None
        if self.form is not None:
            field = fields(self.form).get(str(step))
            return None if field is None else field_shape(field)
        if get_origin(self.bare) is dict:
            return _shape_of(get_args(self.bare)[1])
        return _shape_of(get_args(self.bare)[0]) if get_origin(self.bare) is list else None


def _shape_of(annotation: Any, notes: tuple[object, ...] = ()) -> Shape:
    while True:
        if get_origin(annotation) is Annotated:
            annotation, *more = get_args(annotation)
            notes = (*notes, *more)
        elif _is_union(annotation) and len(some := [a for a in get_args(annotation) if a is not NoneType]) == 1:
            annotation = some[0]
        else:
            return Shape(annotation, notes)


def field_shape(field: FieldInfo) -> Shape:
    return _shape_of(field.annotation, tuple(field.metadata))


def fields(form: type[Form]) -> dict[str, FieldInfo]:
    """The fields of a form under the keys of the file."""
    return {field.alias or name: field for name, field in form.model_fields.items()}


def shape_at(form: type[Form], steps: Iterable[str | int]) -> Shape | None:
    """The shape at a place as pydantic names it, tags of unions included; None where keys are free."""
    shape: Shape | None = Shape(form)
    for step in steps:
        shape = shape.inside(step) if shape is not None else None
    return shape


def takes(shape: Shape) -> str:
    """What may be written there: `a whole number of at least 1`."""
    said = [note.text for note in shape.notes if isinstance(note, Accepts)]
    if said:
        return said[0]
    if _is_union(shape.bare):
        return " or ".join(dict.fromkeys(takes(choice) for choice in shape.choices()))
    if get_origin(shape.bare) is Literal:
        names = [str(value) for value in get_args(shape.bare)]
        return names[0] if len(names) == 1 else f"one of {', '.join(names)}"
    if shape.bare in (int, float):
        return _number(shape)
    if get_origin(shape.bare) is list:
        return _list(shape)
    if get_origin(shape.bare) is dict or shape.form is not None:
        return "a mapping"
    return {bool: "true or false", str: "text"}.get(shape.bare, "a value")


def unit(shape: Shape) -> str:
    return next((note.name for note in shape.notes if isinstance(note, ValueUnit)), "")


def _list(shape: Shape) -> str:
    item = shape.inside(0)
    plain = {"text": "texts", "a mapping": "mappings"}.get(takes(item)) if item is not None else None
    return f"a list of {plain}" if plain else "a list"


def _number(shape: Shape) -> str:
    noun = "a whole number" if shape.bare is int else "a number"
    counted = unit(shape)
    limits = " and ".join(_limit(note) for note in shape.notes if isinstance(note, Ge | Gt | Le | Lt))
    if counted:
        return f"{noun} of {counted}" + (f", {limits}" if limits else "")
    joint = " of " if limits.startswith("at") else " "
    return f"{noun}{joint}{limits}" if limits else noun


def _limit(note: Ge | Gt | Le | Lt) -> str:
    if isinstance(note, Ge):
        return f"at least {note.ge:g}"
    if isinstance(note, Gt):
        return f"above {note.gt:g}"
    return f"at most {note.le:g}" if isinstance(note, Le) else f"below {note.lt:g}"


def _is_union(annotation: Any) -> bool:
    return get_origin(annotation) in (Union, UnionType)
