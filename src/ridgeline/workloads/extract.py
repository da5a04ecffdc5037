"""Metrics out of the files of a run: by regular expression, JSON path or CSV column."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from ridgeline.errors import ReadError
from ridgeline.files import NotRegularError, read_unzipped
from ridgeline.records import matching
from ridgeline.records.matching import Found, TooSlow

Pick = Literal["last", "first", "max", "min", "sum", "mean"]
_PICKS: dict[str, Callable[[Sequence[float]], float]] = {
    "last": lambda values: values[-1],
    "first": lambda values: values[0],
    "max": max,
    "min": min,
    "sum": math.fsum,
    "mean": lambda values: math.fsum(values) / len(values),
}
# Of a number that goes on beyond what was found: digits, a decimal or grouping mark with digits, an exponent
_INSIDE = tuple("0123456789.")
_GOES_ON = re.compile(
    r"""(?:\d|\.(?=\d))(?:\d+|(?:[.,]\d|['\u2019\u00a0\u202f](?=\d{3}(?!\d))|[eEdD][-+]?(?=\d))\d*)"""
    r"""(?:[.,'\u2019\u00a0\u202f]?\d+)*(?:[eE][-+]?\d+)?"""
)
_GOES_BEFORE = re.compile(
    r"""(?:\d[\d.,'\u2019]*(?:[eE][-+]?)?|(?<![\w.)\]])-|0[xX][0-9a-fA-F]*|\d[\u00a0\u202f](?=\Z))\Z"""
)
_HEXADECIMAL = re.compile(r"[xX][0-9a-fA-F]+")
_NO_LITERALS = re.compile(r"\\[dDwWsSbBAZ]|\[(?:\\.|[^\]])*\]|\{[^}]*\}|(?<!\\)\.|\(\?(?:P?<\w+>|[:=!])")
_LARGEST_FILE_BYTES = 256 * 2**20


class MetricMissing(Exception):  # noqa: N818  a fact about an output, not a malfunction
    """The metric could not be read; the message says where it was looked for and what was found."""


class MetricUnread(MetricMissing):
    """It may well be there, but was not read: the pattern ran out of its time, or the file is a pipe.

    So the run does not count, whether or not the metric decides anything.
    """


@dataclass(frozen=True, slots=True)
class ByRegex:
    """The first group of every match, or the whole match where the pattern has no group."""

    pattern: re.Pattern[str]

    key: ClassVar[str] = "`regex`"

    def __str__(self) -> str:
        return f"text matching {self.pattern.pattern!r}"

    def values(self, text: str) -> list[object]:
        return [*matching.in_context(self.pattern, text, 1 if self.pattern.groups else 0)]

    def whole_number(self, found: Found) -> str:
        """The number as it was printed, of which what was found is only a part; empty where it is all of it.

        A character that the pattern itself names beside the group is one that its author knows of.
        """
        named = _NO_LITERALS.sub("", self.pattern.pattern)
        before = _GOES_BEFORE.search(found.before) if found.text[:1] in _INSIDE else None
        after = _GOES_ON.match(found.text[-1:] + found.after) if found.text[-1:] in _INSIDE else None
        if found.text.strip("+-") == "0" and (hexadecimal := _HEXADECIMAL.match(found.after)):
            after = hexadecimal
        if before and not (found.begins_earlier and before[0][-1] in named):
            rest = _GOES_ON.match(found.text[-1:] + found.after)
            return before[0] + found.text + (rest[0][1:] if rest else "")
        joint = "" if after is None else after[0].lstrip(found.text[-1:])[:1]
        if after and not (found.ends_later and joint in named):
            return found.text + found.after[: after.end() - (after is not None and after.re is _GOES_ON)]
        return ""


@dataclass(frozen=True, slots=True)
class ByJson:
    """The value at a dotted path, in a whole JSON file or in each line that is JSON; a list gives all its items."""

    path: str

    key: ClassVar[str] = "`json`"

    def __str__(self) -> str:
        return f"JSON value at {self.path}"

    def values(self, text: str) -> list[object]:
        found: list[object] = []
        for document in _documents(text):
            value = _descend(document, self.path.split("."))
            found += value if isinstance(value, list) else [] if value is None else [value]
        return found


@dataclass(frozen=True, slots=True)
class ByCsv:
    """A column by its heading; `row` picks one line of the table, counted from 0, or from the end when negative."""

    column: str
    row: int | None = None

    key: ClassVar[str] = "`csv`"

    def __str__(self) -> str:
        return f"column {self.column}" + ("" if self.row is None else f" with a row {self.row}")

    def values(self, text: str) -> list[object]:
        lines = [line for line in text.splitlines() if line.strip()]
        if not lines:
            return []
        for delimiter in (",", ";", "\t", " "):
            try:
                header, *rows = csv.reader(lines, delimiter=delimiter, skipinitialspace=True)
            except csv.Error:  # a cell of megabytes: not a table, or not with this delimiter
                continue
            names = [name.strip() for name in header]
            if self.column in names:
                index = names.index(self.column)
                if delimiter == "," and (row := next((r for r in rows if any(map(str.strip, r[len(header) :]))), None)):
                    raise ReadError(
                        f"a line has {len(row)} cells ({','.join(row)[:60]}), but the header {len(header)}: a decimal "
                        "comma looks like a separator; print numbers with a point, or separate cells by `;`"
                    )
                cells: list[object] = [row[index].strip() for row in rows if len(row) > index]
                if self.row is None:
                    return cells
                return cells[self.row : self.row + 1 or None] if -len(cells) <= self.row < len(cells) else []
        return []


@dataclass(frozen=True, slots=True)
class Metric:
    """How one metric is read. Text metrics compare equal or not; only numbers can be ranked."""

    name: str
    source: ByRegex | ByJson | ByCsv
    file: str = "stdout"
    unit: str = ""
    is_text: bool = False
    pick: Pick = "last"

    def read(self, text: str) -> float | str:
        """The metric's value in the text of its file."""
        found = self._found(text)
        if self.is_text:
            picked = found[0 if self.pick == "first" else -1]
            return picked.text if isinstance(picked, Found) else str(picked)
        try:
            value = _PICKS[self.pick]([self._number(item) for item in found])
        except (OverflowError, ValueError) as error:  # a sum beyond all numbers, or of inf and -inf
            raise MetricMissing(f"{self.name}: no {self.pick} of what {self.file} says ({error})") from None
        if not math.isfinite(value):
            raise MetricMissing(f"{self.name}: {self.file} says {value}, not a number that can be ranked")
        return value

    def _found(self, text: str) -> list[object]:
        try:
            found = self.source.values(text)
        except (TooSlow, ReadError) as error:
            raise MetricUnread(f"{self.name}: in {self.file}, {error}") from None
        if not found:
            raise MetricMissing(f"{self.name}: {self.file} has no {self.source}")
        return found

    def _number(self, item: object) -> float:
        if isinstance(item, Found):
            assert isinstance(self.source, ByRegex)
            if whole := self.source.whole_number(item):
                raise MetricMissing(
                    f"{self.name}: {item.text!r} is only a part of {whole!r} in {self.file}, as the pattern cuts it out"
                )
            item = item.text
        if isinstance(item, bool):  # Python takes true for 1
            said = "true" if item else "false"
            raise MetricMissing(f"{self.name}: {said} in {self.file} is not a number; write 1 or 0, or set type: text")
        try:
            if isinstance(item, int | float):
                return float(item)
            return float(re.sub(r"[dD]", "e", str(item)))  # Fortran writes 1.5D-03
        except OverflowError:
            raise MetricMissing(
                f"{self.name}: {str(item)[:20]}... in {self.file} is too large, not a number that can be ranked"
            ) from None
        except ValueError:
            raise MetricMissing(
                f"{self.name}: {str(item)[:60]!r} in {self.file} is not a number; for a word, set type: text"
            ) from None


def file_text(folder: Path, name: str, largest_bytes: int = _LARGEST_FILE_BYTES) -> str:
    """The text of a run's file; NotThere says why there is none."""
    path = folder / name
    try:
        if path.stat().st_size > largest_bytes:
            raise MetricMissing(f"{name} is larger than {largest_bytes >> 20} MiB; let the program write a summary")
        content = read_unzipped(path, largest_bytes)
    except NotRegularError as error:
        raise MetricUnread(f"{name}: {error.strerror}; let the program write a file") from None
    except OSError as error:
        raise MetricMissing(f"{name}: {error.strerror or error}") from None
    return content.decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n")


def _documents(text: str) -> list[object]:
    try:
        return [json.loads(text)]
    except (ValueError, RecursionError):
        pass  # not one document: perhaps one a line, between other output
    documents: list[object] = []
    for line in text.splitlines():
        if line.lstrip()[:1] in ("{", "["):
            try:
                documents.append(json.loads(line))
            except (ValueError, RecursionError):
                continue
    return documents


def _descend(value: object, parts: Sequence[str]) -> object:
    """The value at the path, or None. A key may itself hold dots: `latency.p50` is tried as one key too."""
    if not parts:
        return value
    if isinstance(value, list) and re.fullmatch(r"-?[0-9]{1,18}", parts[0]):
        index = int(parts[0])
        return _descend(value[index], parts[1:]) if -len(value) <= index < len(value) else None
    if isinstance(value, dict):
        for length in range(1, len(parts) + 1):
            key = ".".join(parts[:length])
            if key in value and (found := _descend(value[key], parts[length:])) is not None:
                return found
    return None
