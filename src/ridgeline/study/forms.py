"""What a form is made of: the base class, and the types that people write into study and site files.

A form reads one mapping of a file: its fields are the keys, their types the limits, their descriptions the reference.
Validation, JSON schema and reference pages all come from it. Nothing that runs on a node imports this room: a form is
turned into a plain record before a job is made.

That record is what a form `makes`, and it has the defaults: a key is declared in the form and its default in the
record, each once, and `record()` needs no list of fields.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass
from dataclasses import fields as record_fields
from itertools import takewhile
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Tag,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    create_model,
)
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from ridgeline.errors import InputError, Problem, Where, near, nearest
from ridgeline.files import is_there
from ridgeline.records.expression import WrittenNumber, is_number, parse_duration, plain_number
from ridgeline.records.matching import LONGEST_PATTERN
from ridgeline.records.template import NO_VARIABLE, is_variable

FOLDER = "folder"  # the context of a validation: where relative names start


class Form(BaseModel):
    """A mapping of a file: every key is known and every value has its own type."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False, defer_build=True)
    whose: ClassVar[str] = ""  # completes "no such key of ..."
    elsewhere: ClassVar[Mapping[str, str]] = {}  # keys that belong to a sister form, and what to do about it
    makes: ClassVar[type[Any] | None] = None  # the record, where there is one
    aside: ClassVar[frozenset[str]] = frozenset()  # keys that do not go into it

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Gives each key its default: that of the record's field."""
        super().__pydantic_init_subclass__(**kwargs)
        if cls.makes is None:
            return
        defaults = {
            field.name: field.default if field.default_factory is MISSING else field.default_factory()
            for field in record_fields(cls.makes)
        }
        for name, key in cls.model_fields.items():
            if name in cls.aside:
                continue
            if (target := cls.target(name)) not in defaults:
                raise TypeError(f"{cls.__name__}.{name} is not a field of {cls.makes.__name__}; name it in `aside`")
            default = defaults[target]
            if default is MISSING or name not in vars(cls).get("__annotations__", {}):
                continue
            default = list(default) if isinstance(default, tuple) else default
            if key.is_required():
                key.default = default
            elif key.default == default:
                raise TypeError(f"{cls.__name__}.{name} repeats the default of its record; leave it out here")

    @classmethod
    def target(cls, name: str) -> str:
        """The record's field for one of this form."""
        return noted(cls.model_fields[name].metadata, FieldName) or name

    def record(self, **own: Any) -> Any:
        """What it makes: lists as tuples, forms as their own records; a key without a value is left to the record.

        `own` are fields that no key gives as they are.
        """
        assert self.makes is not None
        names = [name for name in type(self).model_fields if name not in self.aside]
        given = {self.target(name): _plain(value) for name in names if (value := getattr(self, name)) is not None}
        return self.makes(**given | own)


def _plain(value: object) -> object:
    if isinstance(value, Form):
        return value.record() if value.makes is not None else value
    return tuple(value) if isinstance(value, list) else value


@dataclass(frozen=True, slots=True)
class KeyNote:
    """Said of a key in its type, beside what the type says itself."""

    text: str


class FieldName(KeyNote):
    """The name of the record's field, where the key has another: `limit` becomes `limit_s`."""


class ValueUnit(KeyNote):
    """Of a number: its unit or what it counts, in the plural."""


class Accepts(KeyNote):
    """What may be written, where the type alone does not say it; completes "it must be ..."."""


class Entry(KeyNote):
    """Of a mapping with free keys: the word that stands for one of them in the reference."""


class DefaultText(KeyNote):
    """What holds where the key is not written, where the default value does not say it."""


def noted(notes: Iterable[object], kind: type[KeyNote]) -> str:
    """What they say of this kind; nothing where none does."""
    return next((note.text for note in notes if isinstance(note, kind)), "")


def accepted_by(check: Callable[[str], object]) -> AfterValidator:
    """The text is one that `check` takes; its InputError says what is wrong."""

    def accept(text: str) -> str:
        try:
            check(text)
        except InputError as error:
            raise ValueError(str(error)) from None
        return text

    return AfterValidator(accept)


TEXT_OR_MAPPING = Discriminator(lambda value: "<mapping>" if isinstance(value, dict) else "<text>")

_ANY_SCALAR = {"type": ["string", "number", "boolean"]}
_ONE_OR_MORE = WithJsonSchema(
    {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": ["string", "number"]}}]}
)


def _lines(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _as_text(value: object) -> object:
    if isinstance(value, bool):
        written = "true" if value else "false"
        raise ValueError(  # noqa: TRY004  pydantic takes no TypeError
            f'is {written}; it must be text: write "{written}" in quotes'
        )
    return str(value) if isinstance(value, int | float) else value


def _as_expression(value: object) -> object:
    if isinstance(value, WrittenNumber):
        number = plain_number(value)
        raise ValueError(  # noqa: TRY004  pydantic takes no TypeError
            f"{value} would be {number}; write {number}, or '\"{value}\"' for text as it is written"
        )
    return repr(value) if isinstance(value, bool | int | float) else value


def _single(value: object) -> object:
    if value is None or isinstance(value, list | dict):
        shown = {"NoneType": "empty", "list": "a list", "dict": "a mapping"}[type(value).__name__]
        raise ValueError(f"is {shown}; it must be a single number, text or true/false")
    return value


def _number(value: object) -> object:
    if not is_number(value) or not math.isfinite(value):
        raise ValueError(f"{value!r} is not a number; write one, without quotes or units")
    return plain_number(value)


def _one_line(text: str) -> str:
    if any(not c.isprintable() and c != "\t" for c in text):
        raise ValueError("holds a line break or a control character, but becomes part of one line; write one line")
    return text


def _without_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("holds a NUL character, which neither a command line nor an environment can; remove it")
    return text


def _variable(name: str) -> str:
    if not is_variable(name):
        raise ValueError(NO_VARIABLE)
    return name


def _pattern(text: str) -> str:
    if len(text) > LONGEST_PATTERN:
        raise ValueError(f"is a pattern of {len(text)} characters; at most {LONGEST_PATTERN} are accepted")
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"{text!r} is not a regular expression: {error}; correct the pattern") from None
    return text


def _beside(name: str, info: ValidationInfo) -> str:
    folder: Path | None = (info.context or {}).get(FOLDER)
    if any(ord(character) < 32 or 127 <= ord(character) < 160 for character in name):
        raise ValueError(f"{name[:200]!r} holds a control character; rename the file")
    if folder is not None and not is_there(folder / name):
        raise ValueError(f"{name[:200]} is not in {folder}; put it there, or correct the name")
    return name


def _words(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return shlex.split(value)
    except ValueError as error:
        raise ValueError(f"{value!r} cannot be taken apart ({error}); close the quote, or write a list") from None


_UNITS = {"": 1, "b": 1}
_UNITS |= {f"{letter}b": 1000**power for power, letter in enumerate("kmgtp", 1)}
_UNITS |= {f"{letter}ib": 1024**power for power, letter in enumerate("kmgtp", 1)}


def _size(value: object) -> int:
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", str(value))
    unit = match[2].lower() if match else ""
    if match is None or isinstance(value, bool) or unit not in _UNITS:
        raise ValueError(f"{value!r} is not a size; write e.g. 190 GB or 192 GiB")
    return round(float(match[1]) * _UNITS[unit])


Duration = Annotated[
    float,
    BeforeValidator(parse_duration),
    Accepts("a duration such as 90s, 10m or 1h30m, or a number of seconds"),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "exclusiveMinimum": 0},
                {"type": "string", "pattern": r"^\s*([0-9]+(\.[0-9]+)?\s*[dhms]\s*)+$"},
            ],
            "examples": ["1h30m"],
        }
    ),
]
Size = Annotated[
    int,
    BeforeValidator(_size),
    Accepts("a size such as 190 GB or 192 GiB, or a number of bytes"),
    WithJsonSchema({"anyOf": [{"type": "number"}, {"type": "string"}], "examples": ["192 GiB"]}),
]
Text = Annotated[str, BeforeValidator(_as_text), WithJsonSchema({"type": ["string", "number"], "title": "Text"})]
# what is written into job scripts, commands and tables as it is: a second line there would be an order of its own
OneLine = Annotated[Text, AfterValidator(_one_line)]
Lines = Annotated[
    list[Text],
    BeforeValidator(_lines),
    Accepts("text, or a list of texts"),
    _ONE_OR_MORE,
]

Words = Annotated[
    list[Annotated[Text, AfterValidator(_without_nul)]],
    BeforeValidator(_words),
    Accepts("text, taken apart as a shell would, or a list of words"),
    _ONE_OR_MORE,
]

SingleLines = Annotated[
    list[OneLine],
    BeforeValidator(_lines),
    Accepts("text, or a list of texts"),
    _ONE_OR_MORE,
]

ExpressionText = Annotated[
    str,
    BeforeValidator(_as_expression),
    Accepts("an expression"),
    WithJsonSchema({**_ANY_SCALAR, "title": "Expression"}),
]
Single = Annotated[
    Any,
    BeforeValidator(lambda value: plain_number(_single(value))),
    Accepts("a number, text, or true or false"),
    WithJsonSchema({**_ANY_SCALAR, "title": "Value"}),
]
# a knob's value: of a number that is printed in another way than it was written, the text is kept
KnobValue = Annotated[
    Any,
    BeforeValidator(_single),
    Accepts("a number, text, or true or false"),
    WithJsonSchema({**_ANY_SCALAR, "title": "Value"}),
]
Number = Annotated[Any, BeforeValidator(_number), Accepts("a number"), WithJsonSchema({"type": "number"})]
Pattern = Annotated[str, AfterValidator(_pattern), Accepts("a regular expression")]
FileBeside = Annotated[str, AfterValidator(_beside), Accepts("the name of a file beside the study file")]
Variable = Annotated[str, AfterValidator(_variable)]
Environment = Annotated[
    dict[Variable, Annotated[Text, AfterValidator(_without_nul)]],
    Accepts("a mapping of `NAME: text` pairs such as {OMP_NUM_THREADS: 1}"),
]


# Finding the way in a form: the fields of a form, the type at a place, and what that type takes in plain English.


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


def _shape_at(form: type[Form], steps: Iterable[str | int]) -> Shape | None:
    """The shape at a place as pydantic names it, tags of unions included; None where keys are free."""
    shape: Shape | None = Shape(form)
    for step in steps:
        shape = shape.inside(step) if shape is not None else None
    return shape


def takes(shape: Shape) -> str:
    """What may be written there: `a whole number of at least 1`."""
    if said := noted(shape.notes, Accepts):
        return said
    if _is_union(shape.bare):
        return " or ".join(dict.fromkeys(takes(choice) for choice in shape.choices()))
    if get_origin(shape.bare) is Literal:
        names = [str(value) for value in get_args(shape.bare)]
        return names[0] if len(names) == 1 else f"one of {', '.join(names)}"
    if shape.bare in (int, float):
        return _number_type(shape)
    if get_origin(shape.bare) is list:
        return _list(shape)
    if get_origin(shape.bare) is dict or shape.form is not None:
        return "a mapping"
    return {bool: "true or false", str: "text"}.get(shape.bare, "a value")


def _list(shape: Shape) -> str:
    item = shape.inside(0)
    plain = {"text": "texts", "a mapping": "mappings"}.get(takes(item)) if item is not None else None
    return f"a list of {plain}" if plain else "a list"


def _number_type(shape: Shape) -> str:
    noun = "a whole number" if shape.bare is int else "a number"
    counted = noted(shape.notes, ValueUnit)
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


# What is wrong with a mapping, as problems with a remedy: pydantic's complaints, in plain English.


def problems_of(error: ValidationError, form: type[Form], also: Iterable[str] = ()) -> list[Problem]:
    """Each complaint with its place. `also` are keys that stand beside the form's own and are read elsewhere."""
    details = error.errors(include_url=False)
    beside = tuple(also)
    meant = {(*d["loc"][:-1], key) for d in details if d["type"] == "extra_forbidden" and (key := _meant(d, form))}
    reported = [d for d in details if not (d["type"] == "missing" and d["loc"] in meant)]
    return [Problem(_place(detail["loc"], form), _sentence(detail, form, beside)) for detail in reported]


def _place(location: Where, form: type[Form]) -> Where:
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
    shape = _shape_at(form, detail["loc"][:-1])
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
    while (around := _shape_at(form, location[:-1])) is not None and around.choices():
        location = location[:-1]  # of a union, say all that it takes
    shape = _shape_at(form, location)
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


# A mapping read by its form: all of its problems, and as much of the form as could be read.

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
        return sound_part(form, left, error, context), problems


def sound_part(form: type[F], given: Mapping[str, object], error: ValidationError, context: Any = None) -> F:
    """The form without what is wrong with it; a required key that is missing is None."""
    left, before = dict(given), None
    while True:
        for detail in error.errors(include_url=False):
            # an item is left out with its list, for a gap in it would move the others
            left = _without(left, [*takewhile(lambda step: isinstance(step, str), _place(detail["loc"], form))])
        left = {} if left == before else left
        before = left
        missing = {
            name: (Any, None)
            for name, field in form.model_fields.items()
            if field.is_required() and (field.alias or name) not in left
        }
        lenient = create_model(form.__name__, __base__=form, **missing)  # type: ignore[call-overload]
        try:
            found: F = lenient.model_validate(left, context=context)
        except ValidationError as again:
            # not reported: it may only be found because something was left out
            if not left:
                return lenient.model_construct()  # type: ignore[no-any-return]  # a condition of the form as a whole
            error = again
        else:
            return found


def _without(given: dict[str, Any], steps: list[Any]) -> dict[str, Any]:
    """All but the entry at `steps`, or the nearest one around it; nothing where that is the whole."""
    if not steps:
        return {}
    first, *rest = steps
    inner = given.get(first)
    if rest and isinstance(inner, dict) and rest[0] in inner:
        return {**given, first: _without(inner, rest)}
    return {key: value for key, value in given.items() if key != first}
