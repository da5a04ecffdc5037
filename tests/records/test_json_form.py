"""What `--json` prints of a record follows from its declaration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from ridgeline.records.json_form import NOT_IN_JSON, JsonForm, also_in_json, digits, each, in_json, plain


class _Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True, slots=True)
class _Inner:
    low: float
    high: float
    note: str = ""


@dataclass(frozen=True, slots=True)
class _Outer(JsonForm):
    JSON_DIGITS = 2
    name: str = field(metadata=in_json("called"))
    size: float
    exact: float = field(metadata=in_json(to=digits(4)))
    sizes: Mapping[str, float] = field(metadata=in_json("doubled", each(lambda value: value * 2)))
    colour: _Colour
    path: Path
    inner: tuple[_Inner, ...]
    spread: _Inner | None = field(default=None, metadata=in_json(flat=True, only=("low",)))
    secret: str = field(default="s", metadata=NOT_IN_JSON)
    maybe: float | None = field(default=None, metadata=in_json(to=round))

    @property
    @also_in_json("twice", digits(1))
    def doubled_size(self) -> float:
        return self.size * 2

    @property
    def silent(self) -> int:
        return 1


OUTER = _Outer("a", 1.23456, 1.234567, {"x": 1.5}, _Colour.RED, Path("b/c"), (_Inner(1, 2.125),))
PRINTED = {
    "called": "a",
    "size": 1.23,
    "exact": 1.2346,
    "doubled": {"x": 3.0},
    "colour": "red",
    "path": "b/c",
    "inner": [{"low": 1, "high": 2.125, "note": ""}],
    "maybe": None,
    "twice": 2.5,
}


def test_a_record_is_printed_as_it_is_declared() -> None:
    assert OUTER.as_json() == PRINTED
    assert type(OUTER.as_json()["colour"]) is str
    assert plain({"of": [OUTER]}) == {"of": [PRINTED]}


def test_a_record_among_the_keys_is_printed_where_it_is_there() -> None:
    more = _Outer("a", 1.0, 1.0, {}, _Colour.RED, Path(), (), _Inner(3.0, 4.0), maybe=2.6)
    printed = more.as_json()
    assert (printed["low"], printed["maybe"]) == (3.0, 3)
    assert not {"high", "spread", "secret", "silent"} & set(printed)
