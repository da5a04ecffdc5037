"""A mapping read by its form: all of its problems, and as much of the form as could be read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError, create_model

from ridgeline.records.problem import Problem, Where
from ridgeline.study.forms.form import FOLDER, Form
from ridgeline.study.forms.problems import place, problems_of

F = TypeVar("F", bound=Form)


def read_form(
    form: type[F], given: Mapping[str, object], folder: Path, under: Where = (), also: Iterable[str] = ()
) -> tuple[F, list[Problem]]:
    """The form, and every problem of `given` with its place below `under`.

    A key without a value counts as not written. What is wrong is left out of the form, so that the rest can still be
    looked at; there, a required key that is missing is None. Files are looked for in `folder`. `also` are keys that
    are read elsewhere.
    """
    left: dict[str, object] = {key: value for key, value in given.items() if value is not None}
    context = {FOLDER: folder}
    try:
        return form.model_validate(left, context=context), []
    except ValidationError as error:
        problems = [Problem((*under, *p.where), p.message) for p in problems_of(error, form, also)]
        left = _without(left, error, form)
    while True:
        lenient = _without_required(form, left)
        try:
            return lenient.model_validate(left, context=context), problems
        except ValidationError as error:
            # not reported: it may only be found because something was left out
            if not left:
                return lenient.model_construct(), problems  # a condition of the form as a whole
            smaller = _without(left, error, form)
            left = smaller if smaller != left else {}


def _without(given: Mapping[str, object], error: ValidationError, form: type[Form]) -> dict[str, object]:
    left = dict(given)
    for detail in error.errors(include_url=False):
        where = place(detail["loc"], form)
        # an item is left out with its list, for a gap in it would move the others
        steps = where[: next((n for n, step in enumerate(where) if isinstance(step, int)), len(where))]
        if detail["type"] == "missing" and len(steps) == len(where):
            steps = steps[:-1]
        _drop(left, steps)
    return left


def _drop(given: dict[str, object], steps: Where) -> None:
    """Leave out the entry at `steps`; the nearest one around it where it is not there."""
    if not steps:
        return
    inner: Any = given.get(str(steps[0]))
    if len(steps) > 1 and isinstance(inner, dict) and steps[1] in inner:
        copy = dict(inner)
        _drop(copy, steps[1:])
        given[str(steps[0])] = copy
    else:
        given.pop(str(steps[0]), None)


def _without_required(form: type[F], given: Mapping[str, object]) -> type[F]:
    """The same form, but for required keys that are not there."""
    missing = {
        name: (Any, None)
        for name, field in form.model_fields.items()
        if field.is_required() and (field.alias or name) not in given
    }
    return create_model(form.__name__, __base__=form, **missing) if missing else form  # type: ignore[call-overload]
