"""Read the repr of a Python call, such as ServerArgs(tp_size=8, bs=[1, 2]), without running any of it.

A nested call becomes a dict of its keyword arguments; what is not a literal (an enum, an object) stays its text.
A repr that ends in the middle gives the arguments that were complete.
"""

from __future__ import annotations

import ast
import math
import re

_NAME = re.compile(r"[A-Za-z_]\w{0,99}")
_STRING = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")
_SCALAR = re.compile(r"(?:[^\s,()\[\]{}=<>'\":]|:(?!\s)){1,200}")
_DEEPEST = 20
_CLOSERS = {"(": ")", "[": "]", "{": "}"}
_WORDS: dict[str, object] = {"None": None, "True": True, "False": False}


class _Torn(Exception):  # noqa: N818  a state of the text, not a malfunction
    """The text ended, or stopped being a repr."""


class _Cursor:
    def __init__(self, text: str, position: int) -> None:
        self.text = text
        self.position = position

    def peek(self) -> str:
        while self.position < len(self.text) and self.text[self.position].isspace():
            self.position += 1
        if self.position >= len(self.text):
            raise _Torn
        return self.text[self.position]

    def take(self, pattern: re.Pattern[str]) -> str | None:
        found = pattern.match(self.text, self.position)
        if found is None:
            return None
        self.position = found.end()
        return found.group()


def read_call(text: str, start: int = 0) -> tuple[dict[str, object], bool]:
    """Keyword arguments of the call that opens first after `start`, and whether it was complete."""
    opening = text.find("(", start)
    arguments: dict[str, object] = {}
    if opening < 0:
        return arguments, False
    try:
        _arguments(_Cursor(text, opening + 1), arguments, 0)
    except _Torn:
        return arguments, False
    return arguments, True


def read_arguments(text: str, start: int = 0) -> dict[str, object]:
    """Keyword arguments written without their call, as in model='m', dtype=torch.float32, up to what is not one."""
    arguments: dict[str, object] = {}
    try:
        # the closing parenthesis is ours, so that the last argument of a complete text counts
        _arguments(_Cursor(text + ")", start), arguments, 0)
    except _Torn:
        pass
    return arguments


def read_pairs(text: str, start: int = 0) -> dict[str, object]:
    """The dict that opens first after `start`; empty when it is torn."""
    opening = text.find("{", start)
    if opening < 0:
        return {}
    try:
        value = _collection(_Cursor(text, opening), 0)
    except _Torn:
        return {}
    return value if isinstance(value, dict) else {}


def _arguments(cursor: _Cursor, into: dict[str, object], depth: int) -> None:
    while True:
        if cursor.peek() == ")":
            cursor.position += 1
            return
        name = cursor.take(_NAME)
        if name is None or cursor.peek() != "=":
            raise _Torn
        cursor.position += 1
        value = _value(cursor, depth + 1)
        closing = cursor.peek()
        if closing not in ",)":
            raise _Torn
        # stored only now: 'tp_size=1' cut out of 'tp_size=16' must not be believed
        into[name] = value
        if closing == ",":
            cursor.position += 1


def _value(cursor: _Cursor, depth: int) -> object:
    if depth > _DEEPEST:
        raise _Torn
    first = cursor.peek()
    if first in "'\"":
        return _string(cursor)
    if first in "[({":
        return _collection(cursor, depth)
    if first == "<":
        return _angle(cursor)
    word = cursor.take(_SCALAR)
    if word is None:
        raise _Torn
    if cursor.position < len(cursor.text) and cursor.text[cursor.position] == "(":
        cursor.position += 1
        return _call(cursor, depth)
    return _scalar(word)


def _call(cursor: _Cursor, depth: int) -> object:
    nested: dict[str, object] = {}
    start = cursor.position
    try:
        _arguments(cursor, nested, depth)
    except _Torn:
        # positional arguments, as in PosixPath('/x'): keep what is inside
        cursor.position = start
        return _items(cursor, ")", depth)
    return nested


def _string(cursor: _Cursor) -> str:
    literal = cursor.take(_STRING)
    if literal is None:
        raise _Torn
    try:
        return str(ast.literal_eval(literal))
    except (ValueError, SyntaxError):
        return literal[1:-1]


def _collection(cursor: _Cursor, depth: int) -> object:
    opening = cursor.text[cursor.position]
    cursor.position += 1
    return _items(cursor, _CLOSERS[opening], depth)


def _items(cursor: _Cursor, closer: str, depth: int) -> object:
    items: list[object] = []
    pairs: dict[str, object] = {}
    while cursor.peek() != closer:
        value = _value(cursor, depth + 1)
        if closer == "}" and cursor.peek() == ":":
            cursor.position += 1
            pairs[str(value)] = _value(cursor, depth + 1)
        else:
            items.append(value)
        if cursor.peek() == ",":
            cursor.position += 1
        elif cursor.peek() != closer:
            raise _Torn
    cursor.position += 1
    return pairs if pairs or (closer == "}" and not items) else items


def _angle(cursor: _Cursor) -> str:
    end = cursor.text.find(">", cursor.position)
    if end < 0:
        raise _Torn
    text = cursor.text[cursor.position : end + 1]
    cursor.position = end + 1
    return text


def _scalar(word: str) -> object:
    if word in _WORDS:
        return _WORDS[word]
    try:
        return int(word)
    except ValueError:
        pass
    try:
        value = float(word)
    except ValueError:
        return word
    return value if math.isfinite(value) else word
