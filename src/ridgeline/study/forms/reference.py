"""Reference pages out of forms: every key with what it says, what it takes and its default."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from inspect import cleandoc
from typing import get_origin

from pydantic import BeforeValidator
from pydantic.fields import FieldInfo

from ridgeline.records.duration import parse_duration, show_duration
from ridgeline.study.forms.form import DefaultText, Entry, Form
from ridgeline.study.forms.shape import Shape, field_shape, fields, takes


@dataclass(frozen=True, slots=True)
class KeyRow:
    """One key of a file. `key` is its path: `metrics.METRIC.regex`, `rules[].refuse`."""

    key: str
    says: str
    takes: str
    default: str


def key_rows(form: type[Form], prefix: str = "", closed: Collection[str] = ()) -> list[KeyRow]:
    """Every key of a form and of the forms in it, in their order; keys in `closed` are not opened."""
    found: dict[str, KeyRow] = {}
    for key, field in fields(form).items():
        path, shape = f"{prefix}{key}", field_shape(field)
        rows = [KeyRow(path, field.description or "", takes(shape), _default(field, shape))]
        if path not in closed:
            rows += [row for inner, start in _inside(shape, path) for row in key_rows(inner, start, closed)]
        for row in rows:
            found.setdefault(row.key, row)
    return list(found.values())


def section(form: type[Form], prefix: str = "", closed: Collection[str] = (), title: str = "") -> str:
    """The form's own description and the table of its keys."""
    rows = key_rows(form, prefix, closed)
    parts = (f"## {title}" if title else "", described(form), table(rows) if rows else "")
    return "\n\n".join(part for part in parts if part)


def described(form: type) -> str:
    return cleandoc(form.__doc__ or "")


def table(rows: Iterable[KeyRow]) -> str:
    lines = ["| key | what it says | takes | default |", "|---|---|---|---|"]
    for row in rows:
        cells = (f"`{row.key}`", row.says.removesuffix("."), row.takes, row.default)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def _inside(shape: Shape, path: str) -> Iterable[tuple[type[Form], str]]:
    """The forms below a key, each with what the paths of its keys begin with."""
    if isinstance(shape.bare, type) and issubclass(shape.bare, Form):
        yield shape.bare, f"{path}."
    elif get_origin(shape.bare) in (list, dict):
        name = next((note.name for note in shape.notes if isinstance(note, Entry)), "NAME")
        start = f"{path}[]" if get_origin(shape.bare) is list else f"{path}.{name}"
        inner = shape.inside(name)
        yield from _inside(inner, start) if inner is not None else ()
    else:
        for choice in shape.choices():
            yield from _inside(choice, path)


def _default(field: FieldInfo, shape: Shape) -> str:
    otherwise = [note.text for note in shape.notes if isinstance(note, DefaultText)]
    if otherwise:
        return otherwise[0]
    if field.is_required():
        return "required"
    value = field.default
    if isinstance(value, Form) or value is None:
        return ""
    if value in ("", [], {}):
        return "none"
    if any(isinstance(note, BeforeValidator) and note.func is parse_duration for note in shape.notes):
        return f"`{show_duration(value)}`"
    if isinstance(value, bool):
        return "`true`" if value else "`false`"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"
