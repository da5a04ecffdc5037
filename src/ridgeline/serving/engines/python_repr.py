"""Read the repr of a Python call, such as ServerArgs(tp_size=8, bs=[1, 2]), without running any of it.

A nested call becomes a dict of its keyword arguments; what is not a literal (an enum, an object) stays its text.
A repr that ends in the middle gives the arguments that were complete.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator

# a string, an object in angle brackets, a word, or one of the signs between them
_TOKEN = re.compile(
    r"\s*('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|<[^>]*>|(?:[^\s,()\[\]{}=<>'\":]|:(?!\s)){1,200}|[,()\[\]{}=:])"
)
_DEEPEST = 20
_CLOSERS = {"(": ")", "[": "]", "{": "}"}
_WORDS: dict[str, object] = {"None": None, "True": True, "False": False}


class _Torn(Exception):  # noqa: N818  a state of the text, not a malfunction
    """The text ended, or stopped being a repr."""


class _Tokens:
    def __init__(self, text: str, position: int) -> None:
        self._text, self._at = text, position
        self.next = ""
        self.take()

    def take(self) -> str:
        """The token that stands here; the one after it becomes `next`, empty at the end of what can be read."""
        taken, found = self.next, _TOKEN.match(self._text, self._at)
        self.next, self._at = (found[1], found.end()) if found else ("", self._at)
        return taken

    def expect(self, *wanted: str) -> str:
        if self.next not in wanted:
            raise _Torn
        return self.take()


def read_call(text: str, start: int = 0) -> tuple[dict[str, object], bool]:
    """Keyword arguments of the call that opens first after `start`, and whether it was complete."""
    opening = text.find("(", start)
    return _read(text, opening + 1) if opening >= 0 else ({}, False)


def read_arguments(text: str, start: int = 0) -> dict[str, object]:
    """Keyword arguments written without their call, as in model='m', dtype=torch.float32, up to what is not one."""
    # the closing parenthesis is ours, so that the last argument of a complete text counts
    return _read(text + ")", start)[0]


def read_pairs(text: str, start: int = 0) -> dict[str, object]:
    """The dict that opens first after `start`; empty when it is torn."""
    opening = text.find("{", start)
    try:
        value = _value(_Tokens(text, opening), 0) if opening >= 0 else {}
    except _Torn:
        return {}
    return value if isinstance(value, dict) else {}


def _read(text: str, start: int) -> tuple[dict[str, object], bool]:
    found: dict[str, object] = {}
    try:
        for name, value in _arguments(_Tokens(text, start), 0):
            found[name] = value
    except _Torn:
        return found, False
    return found, True


def _arguments(tokens: _Tokens, depth: int) -> Iterator[tuple[str, object]]:
    """Up to the closing parenthesis, each when it is complete: 'tp_size=1' cut out of 'tp_size=16' is not believed."""
    while tokens.next != ")":
        name = tokens.take()
        tokens.expect("=")
        value = _value(tokens, depth + 1)
        if not name.isidentifier() or tokens.next not in (",", ")"):
            raise _Torn
        yield name, value
        if tokens.next == ",":
            tokens.take()
    tokens.take()


def _value(tokens: _Tokens, depth: int) -> object:
    token = tokens.take()
    if depth > _DEEPEST or token in ("", ",", ")", "]", "}", "=", ":"):
        raise _Torn
    if token in _CLOSERS:
        return _items(tokens, _CLOSERS[token], depth)
    if token[0] in "'\"":
        return _string(token)
    if token[0] != "<" and tokens.next == "(":
        tokens.take()
        return _items(tokens, ")", depth) or {}
    return token if token[0] == "<" else _scalar(token)


def _items(tokens: _Tokens, closer: str, depth: int) -> object:
    """Values, pairs of a dict or arguments of a call, whichever they are."""
    items: list[object] = []
    pairs: dict[str, object] = {}
    while tokens.next != closer:
        value = _value(tokens, depth + 1)
        if tokens.next == (":" if closer == "}" else "="):
            tokens.take()
            pairs[str(value)] = _value(tokens, depth + 1)
        else:
            items.append(value)
        if tokens.next != closer:
            tokens.expect(",")
    tokens.take()
    return pairs if pairs or (closer == "}" and not items) else items


def _string(literal: str) -> str:
    try:
        return str(ast.literal_eval(literal))
    except (ValueError, SyntaxError):
        return literal[1:-1]


def _scalar(word: str) -> object:
    if word in _WORDS:
        return _WORDS[word]
    for kind in (int, float):
        try:
            value = kind(word)
        except ValueError:
            continue
        return value if math.isfinite(value) else word
    return word
