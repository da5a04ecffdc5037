"""What is wrong with a study file's shape, in words: pydantic's complaints made into problems with a remedy."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import get_args

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from ridgeline.store.schema import Form, GuardForm, RangeForm, StudyForm, ValuesForm

_NEEDED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "finite_number": "a finite number",
}
_LIMITS = {
    "greater_than": ("gt", "above"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "below"),
    "less_than_equal": ("le", "at most"),
}

# tags that unions of the schema put into the place of a problem
_TAGGED: dict[str, type[Form]] = {"<values>": ValuesForm, "<range>": RangeForm, "<mapping>": GuardForm}


def suggestion(word: str, known: Iterable[str]) -> str:
    """`did you mean X?`, or the known words, nearest first."""
    names = list(known)
    near = get_close_matches(word, names, n=1)
    return f"did you mean {near[0]}?" if near else f"known: {', '.join(nearest_first(word, names)) or 'none'}"


def nearest_first(word: str, known: Iterable[str], most: int = 12) -> list[str]:
    names = list(known)
    near = get_close_matches(word, names, n=3, cutoff=0.4)
    rest = [name for name in names if name not in near]
    shown = [*near, *rest][:most]
    return [*shown, "..."] if len(names) > most else shown


def form_problems(error: ValidationError) -> list[tuple[tuple[str | int, ...], str]]:
    """Each complaint as its place in the file and a sentence."""
    details = error.errors(include_url=False)
    misspelt = {(*d["loc"][:-1], near) for d in details if d["type"] == "extra_forbidden" and (near := _meant(d))}
    told = [d for d in details if not (d["type"] == "missing" and d["loc"] in misspelt)]
    return [(_place(detail["loc"]), _sentence(detail)) for detail in told]


def _keys_beside(detail: ErrorDetails) -> list[str]:
    form = form_at(detail["loc"][:-1])
    return [field.alias or name for name, field in form.model_fields.items()] if form else []


def _meant(detail: ErrorDetails) -> str:
    """The key that an unknown one was probably meant to be, or nothing."""
    near = get_close_matches(str(detail["loc"][-1]), _keys_beside(detail), n=1)
    return near[0] if near else ""


def _place(location: tuple[str | int, ...]) -> tuple[str | int, ...]:
    # tags of our unions are written <so>; they are not keys of the file
    return tuple(step for step in location if not (isinstance(step, str) and step[:1] == "<"))


def _sentence(detail: ErrorDetails) -> str:
    kind, value, context = detail["type"], detail["input"], detail.get("ctx", {})
    if kind == "extra_forbidden":
        return f"no such key; {suggestion(str(detail['loc'][-1]), _keys_beside(detail))}"
    if kind == "missing":
        return "this key is missing; add it"
    if kind == "value_error":
        return str(context["error"])
    if kind in _LIMITS:
        limit, word = _LIMITS[kind]
        return f"is {value}; it must be {word} {context[limit]:g}"
    if kind == "literal_error":
        return f"is {value!r}; this ridgeline reads version {context['expected']}"
    if kind == "string_pattern_mismatch":
        return f"{value!r} cannot be a folder's name; use letters, digits, dots, dashes and underscores"
    if kind == "string_too_short":
        return "is empty; write some text"
    if kind in _NEEDED:
        return f"{shown(value)} stands here; {_NEEDED[kind]} is needed"
    return f"{detail['msg']}; correct this value"


def shown(value: object) -> str:
    """A value as a study file's author would say it."""
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, bool):
        return "true" if value else "false"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def form_at(steps: tuple[str | int, ...]) -> type[Form] | None:
    """The model that reads the mapping at this error location of pydantic; None where keys are free."""
    form: type[Form] | None = StudyForm
    for step in steps:
        if isinstance(step, str) and step in _TAGGED:
            form = _TAGGED[step]
        elif isinstance(step, str) and form is not None:
            fields = {field.alias or name: field for name, field in form.model_fields.items()}
            form = _form_in(fields[step].annotation) if step in fields else None
    return form


def _form_in(annotation: object) -> type[Form] | None:
    if isinstance(annotation, type) and issubclass(annotation, Form):
        return annotation
    found = (_form_in(part) for part in get_args(annotation))
    return next((form for form in found if form is not None), None)
