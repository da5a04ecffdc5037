"""What is wrong with a mapping, as problems with a remedy: pydantic's complaints, in plain English."""

from __future__ import annotations

from collections.abc import Iterable
from typing import get_origin

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from ridgeline.errors import near, nearest
from ridgeline.records.problem import Problem, Where
from ridgeline.study.forms.form import Form
from ridgeline.study.forms.shape import Shape, fields, shape_at, takes


def problems_of(error: ValidationError, form: type[Form], also: Iterable[str] = ()) -> list[Problem]:
    """Each complaint with its place. `also` are keys that stand beside the form's own and are read elsewhere."""
    details = error.errors(include_url=False)
    beside = tuple(also)
    meant = {(*d["loc"][:-1], key) for d in details if d["type"] == "extra_forbidden" and (key := _meant(d, form))}
    reported = [d for d in details if not (d["type"] == "missing" and d["loc"] in meant)]
    return [Problem(place(detail["loc"], form), _sentence(detail, form, beside)) for detail in reported]


def place(location: Where, form: type[Form]) -> Where:
    """The keys of the file: without the tags of unions, and without pydantic's mark for a wrong key."""
    shape: Shape | None = Shape(form)
    around: Shape | None = None
    kept: list[str | int] = []
    for step in location:
        is_mark = step == "[key]" and around is not None and get_origin(around.bare) is dict
        if not is_mark and not (shape is not None and shape.choices()):
            kept.append(step)
        around, shape = shape, shape.inside(step) if shape is not None else None
    return tuple(kept)


def shown(value: object) -> str:
    """A value as the file's author would say it."""
    if value is None or value == "":
        return "empty"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, bool):
        return "true" if value else "false"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _form_around(detail: ErrorDetails, form: type[Form]) -> type[Form] | None:
    shape = shape_at(form, detail["loc"][:-1])
    return shape.form if shape is not None else None


def _meant(detail: ErrorDetails, form: type[Form]) -> str:
    """The key that an unknown one was probably meant to be, or nothing."""
    around = _form_around(detail, form)
    return nearest(str(detail["loc"][-1]), fields(around)) if around else ""


def _sentence(detail: ErrorDetails, form: type[Form], also: tuple[str, ...]) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "extra_forbidden":
        return _unknown_key(detail, form, also)
    if kind == "missing":
        return f"this key is missing; add it{_example(detail, form)}"
    if kind == "value_error":
        return str(context["error"])
    location = detail["loc"]
    while (around := shape_at(form, location[:-1])) is not None and around.choices():
        location = location[:-1]  # of a union, say all that it takes
    shape = shape_at(form, location)
    return f"is {shown(detail['input'])}; it must be {takes(shape) if shape else 'something else'}"


def _unknown_key(detail: ErrorDetails, form: type[Form], also: tuple[str, ...]) -> str:
    key, around = str(detail["loc"][-1]), _form_around(detail, form)
    if around is None:
        return "no such key; remove it"
    if key in around.elsewhere:
        return around.elsewhere[key]
    known = [*fields(around), *(also if around is form else ())]
    return f"no such key{f' of {around.whose}' if around.whose else ''}; {near(key, known)}"


def _example(detail: ErrorDetails, form: type[Form]) -> str:
    key, around = str(detail["loc"][-1]), _form_around(detail, form)
    examples = fields(around)[key].examples if around and key in fields(around) else None
    return f", for example `{key}: {examples[0]}`" if examples else ""
