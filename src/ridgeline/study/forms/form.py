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
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass
from dataclasses import fields as record_fields
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic.fields import FieldInfo

from ridgeline.errors import InputError
from ridgeline.files import is_there
from ridgeline.matching import LONGEST_PATTERN
from ridgeline.records.duration import parse_duration
from ridgeline.records.expression import is_number
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
        defaults = _record_defaults(cls.makes)
        for name, key in cls.model_fields.items():
            target = cls.target(name)
            if name in cls.aside:
                continue
            if target not in defaults:
                raise TypeError(f"{cls.__name__}.{name} is not a field of {cls.makes.__name__}; name it in `aside`")
            if name in vars(cls).get("__annotations__", {}):
                _take_default(f"{cls.__name__}.{name}", key, defaults[target])

    @classmethod
    def target(cls, name: str) -> str:
        """The record's field for one of this form."""
        notes = cls.model_fields[name].metadata
        return next((note.name for note in notes if isinstance(note, FieldName)), name)

    def record(self, **own: Any) -> Any:
        """What it makes: lists as tuples, forms as their own records; a key without a value is left to the record.

        `own` are fields that no key gives as they are.
        """
        assert self.makes is not None
        names = [name for name in type(self).model_fields if name not in self.aside]
        given = {self.target(name): _plain(value) for name in names if (value := getattr(self, name)) is not None}
        return self.makes(**given | own)


def _record_defaults(record: type[Any]) -> dict[str, Any]:
    """Field -> default; MISSING where there is none."""
    return {
        field.name: field.default if field.default_factory is MISSING else field.default_factory()
        for field in record_fields(record)
    }


def _take_default(name: str, key: FieldInfo, default: Any) -> None:
    default = list(default) if isinstance(default, tuple) else default
    if not key.is_required():
        if default is not MISSING and key.default == default:
            raise TypeError(f"{name} repeats the default of its record; leave it out here")
    elif default is not MISSING:
        key.default = default


def _plain(value: object) -> object:
    if isinstance(value, Form):
        return value.record()
    return tuple(value) if isinstance(value, list) else value


@dataclass(frozen=True, slots=True)
class FieldName:
    """The name of the record's field, where the key has another: `limit` becomes `limit_s`."""

    name: str


@dataclass(frozen=True, slots=True)
class ValueUnit:
    """Of a number: its unit or what it counts, in the plural."""

    name: str


@dataclass(frozen=True, slots=True)
class Accepts:
    """What may be written, where the type alone does not say it; completes "it must be ..."."""

    text: str


@dataclass(frozen=True, slots=True)
class Entry:
    """Of a mapping with free keys: the word that stands for one of them in the reference."""

    name: str


@dataclass(frozen=True, slots=True)
class DefaultText:
    """What holds where the key is not written, where the default value does not say it."""

    text: str


def accepted_by(check: Callable[[str], object]) -> AfterValidator:
    """The text is one that `check` takes; its InputError says what is wrong."""

    def accept(text: str) -> str:
        try:
            check(text)
        except InputError as error:
            raise ValueError(str(error)) from None
        return text

    return AfterValidator(accept)


def _text_or_mapping(value: object) -> str:
    """The tag of a union of text and a form."""
    return "<mapping>" if isinstance(value, dict) else "<text>"


TEXT_OR_MAPPING = Discriminator(_text_or_mapping)

_ANY_SCALAR = {"type": ["string", "number", "boolean"]}


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
    return repr(value) if isinstance(value, bool | int | float) else value


def _single(value: object) -> object:
    if value is None or isinstance(value, list | dict):
        shown = {"NoneType": "empty", "list": "a list", "dict": "a mapping"}[type(value).__name__]
        raise ValueError(f"is {shown}; it must be a single number, text or true/false")
    return value


def _number(value: object) -> object:
    if not is_number(value) or not math.isfinite(value):
        raise ValueError(f"{value!r} is not a number; write one, without quotes or units")
    return value


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
        raise ValueError(f"{name[:200]} is not in {folder}; correct the name")
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
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": ["string", "number"]}}]}),
]

Words = Annotated[
    list[Annotated[Text, AfterValidator(_without_nul)]],
    BeforeValidator(_words),
    Accepts("text, taken apart as a shell would, or a list of words"),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": ["string", "number"]}}]}),
]

SingleLines = Annotated[
    list[OneLine],
    BeforeValidator(_lines),
    Accepts("text, or a list of texts"),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": ["string", "number"]}}]}),
]

ExpressionText = Annotated[
    str,
    BeforeValidator(_as_expression),
    Accepts("an expression"),
    WithJsonSchema({**_ANY_SCALAR, "title": "Expression"}),
]
Single = Annotated[
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
