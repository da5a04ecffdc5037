"""A trace file taken apart: one object for each line or entry, and a count of what could not be used."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime
from itertools import chain, islice
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError
from ridgeline.files import read_unzipped

SHAPES = (
    "a trace is JSONL with input_length and output_length in each line, or a ShareGPT JSON list of conversations; "
    "docs/guides/predict-a-server.md lists all formats"
)
# Times in seconds stay below this for a thousand years; past it a clock no longer resolves a step.
_LATEST_S = 1e11
# Ten times the longest context of any model; a number above it counts something else.
_MOST_TOKENS = 100_000_000
_DIGITS = 20  # of nanoseconds since 1970, and one more
# How SGLang's --log-requests begins the line of a request that it has answered.
FINISHED = "Finish: obj="


class Recording:
    """`entries`: where each stands, and its fields; read once, `opening` being the first of them. A row that is bad by
    itself is skipped and counted; a file whose structure is damaged is refused."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._noted: Counter[tuple[str, str]] = Counter()
        self._first = ""
        text = _text(path)
        if not text.strip():
            raise InputError(f"{path} is empty; {SHAPES}")
        entries = (object_at(where, found) for where, found in self._taken_apart(text))
        self.opening = list(islice(entries, 20))
        self.entries: Iterator[tuple[str, Mapping[str, Any]]] = chain(self.opening, entries)

    def skip(self, where: str, why: str) -> None:
        """`why` goes on after the word request."""
        self._first = self._first or f"{where}: a request {why}"
        self.note("request", f"{why}, left out")

    def note(self, what: str, why: str) -> None:
        self._noted[what, why] += 1

    def notes(self) -> tuple[str, ...]:
        return tuple(f"{n:,} {what}{'s' * (n > 1)} {why}" for (what, why), n in self._noted.items())

    def refuse_empty(self) -> InputError:
        why = f"{self._first}, and no other was left" if self._first else f"{self.path} holds no request"
        return InputError(f"{why}; {SHAPES}")

    def _taken_apart(self, text: str) -> Iterator[tuple[str, Any]]:
        opening, first = text.lstrip()[:1], text.lstrip().partition("\n")[0]
        if opening == "[" or (opening == "{" and not _is_json(first)):
            try:
                whole = _parsed(text)
            except ValueError as bad:
                if opening == "[" and FINISHED not in text:
                    raise InputError(f"{self.path}: not JSON ({bad}); {SHAPES}") from None
            else:
                yield from self._whole(whole)
                return
        if FINISHED in text and opening != "{":
            lines = self._whole_lines(text, text.endswith("}"))
            yield from ((where, {"log": line}) for where, line in lines if FINISHED in line)
        elif first.startswith("TIMESTAMP,"):
            yield from self._csv(text)
        else:
            yield from self._json_lines(text)

    def _whole(self, document: Any) -> Iterator[tuple[str, Any]]:
        if not isinstance(document, list):
            yield f"{self.path}", document
        else:
            yield from ((f"{self.path}: entry {n}", fields) for n, fields in enumerate(document, start=1))

    def _lines(self, text: str) -> Iterator[tuple[str, str]]:
        for number, line in enumerate(text.split("\n"), start=1):
            if line.strip():
                yield f"{self.path}:{number}", line

    def _whole_lines(self, text: str, ended: bool = False) -> Iterator[tuple[str, str]]:
        """But for a last one without its end, whose numbers may be cut short."""
        lines = list(self._lines(text))
        if len(lines) > 1 and not ended and not text.endswith("\n"):
            self._note_half()
            lines.pop()
        yield from lines

    def _csv(self, text: str) -> Iterator[tuple[str, Any]]:
        rows = csv.DictReader(line for _, line in self._whole_lines(text))
        try:
            for row in rows:
                yield f"{self.path}:{rows.line_num}", row
        except csv.Error as bad:
            raise InputError(f"{self.path}:{rows.line_num + 1}: not CSV ({bad}); {SHAPES}") from None

    def _note_half(self) -> None:
        self.note("half line", "at the end left out, as a killed writer leaves it")

    def _json_lines(self, text: str) -> Iterator[tuple[str, Any]]:
        lines = list(self._lines(text))
        for place, (where, line) in enumerate(lines):
            try:
                yield where, _parsed(line)
            except ValueError as bad:
                if 0 < place == len(lines) - 1 and not text.endswith("\n"):
                    self._note_half()
                    return
                raise InputError(f"{where}: not JSON ({bad}); a trace holds one JSON object per line") from None


def _text(path: Path) -> str:
    try:
        return read_unzipped(path).decode("utf-8-sig")
    except UnicodeDecodeError as bad:
        raise InputError(f"{path}: not UTF-8 text ({bad.reason} at byte {bad.start}); {SHAPES}") from None
    except OSError as bad:
        raise InputError(f"{path}: cannot be read ({bad.strerror or bad}); {SHAPES}") from None


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _is_json(line: str) -> bool:
    try:
        _parsed(line)
    except ValueError:
        return False
    return True


def object_at(where: str, found: Any) -> tuple[str, Mapping[str, Any]]:
    if not isinstance(found, dict):
        raise InputError(f"{where}: expected an object, found {type(found).__name__}; {SHAPES}")
    return where, found


def first_of(fields: Mapping[str, Any], *names: str) -> Any:
    """The value of the first of these names that has one."""
    return next((fields[name] for name in names if fields.get(name) is not None), None)


def whole_of(value: Any) -> int | None:
    """A whole number from zero, also one written as text; None for anything else."""
    if isinstance(value, str) and value.isdecimal() and len(value) <= _DIGITS:
        return int(value)
    return value if type(value) is int and 0 <= value < 10**_DIGITS else None


def tokens_of(value: Any) -> int | None:
    """A count of tokens that a prompt or an answer may have; None for anything else."""
    tokens = whole_of(value)
    return None if tokens is None or tokens > _MOST_TOKENS else tokens


def clock_s(stamp: Any) -> float | None:
    """Seconds since 1970 of a date and time, local where it names no zone; None: it is none."""
    try:
        return datetime.fromisoformat(stamp).timestamp()
    except (TypeError, ValueError, OverflowError, OSError):
        return None


def seconds_of(where: str, name: str, value: Any, a_second: float = 1.0) -> float | None:
    """`a_second`: how many of the value's units are one."""
    if value is None:
        return None
    if type(value) not in (int, float) or not 0 <= value <= _LATEST_S * a_second:
        raise InputError(f"{where}: {name} is {value!r}, which is not a time; give a number, zero or above")
    return float(value / a_second)


def blocks_fit(blocks: int, tokens: int, block_tokens: int) -> bool:
    """Whether so many blocks hold a prompt, or what fills whole blocks of it."""
    return blocks in (tokens // block_tokens, -(-tokens // block_tokens))


def session_name(where: str, field: str, value: Any) -> str | int | None:
    if value is not None and type(value) not in (str, int):
        raise InputError(f"{where}: {field} is {value!r}; name a session by a word or a number")
    return value  # type: ignore[no-any-return]  # one of these


def block_size(where: str, fields: Mapping[str, Any], usual: int) -> int:
    found = first_of(fields, "block_tokens", "block_size")
    if found is None:
        return usual
    size = tokens_of(found)
    if not size:
        raise InputError(f"{where}: a block of {found!r} tokens is none; give block_size as a whole number above zero")
    return size
