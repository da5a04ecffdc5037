"""What people write as values in study files: numbers, times, and small expressions (rules, conditions, guards).

An expression is parsed once into a tree of closures over a whitelist of Python's syntax; nothing is ever evaluated as
code. A name whose knob does not exist at a point (its `when` is false) has the value None: arithmetic with it gives
None and an ordering comparison with it is false, so a rule about an absent knob refuses nothing.
"""

from __future__ import annotations

import ast
import math
import operator
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeGuard

Value = bool | int | float | str | None
_Evaluator = Callable[[Mapping[str, object]], object]

LONGEST_EXPRESSION = 1000
_DEEPEST_EXPRESSION = 100
_LARGEST_MAGNITUDE = 1e15


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether one can compute with it. Python counts booleans as numbers; someone who writes `true` doesn't mean 1."""
    return isinstance(value, int | float) and not isinstance(value, bool)


class WrittenNumber:
    """A number that Python prints in another way than it was written, such as 2.10; its text is as written."""

    written: str

    def __str__(self) -> str:
        return self.written


class _WrittenInt(WrittenNumber, int):
    pass


class _WrittenFloat(WrittenNumber, float):
    pass


def as_written(number: int | float, text: str) -> int | float:
    """The number, with its text where that is not how it prints."""
    if str(number) == text:
        return number
    kept = _WrittenInt(number) if isinstance(number, int) else _WrittenFloat(number)
    kept.written = text
    return kept


def plain_number(value: Any) -> Any:
    """Without the text of a `WrittenNumber`; anything else as it is."""
    if not isinstance(value, WrittenNumber):
        return value
    return int(value) if isinstance(value, int) else float(value)  # type: ignore[arg-type]  # one of the two


class ExpressionError(ValueError):
    """The text is not an expression we accept, or it cannot be evaluated with these values."""


def _power(base: float, exponent: float) -> float:
    if abs(exponent) > 64 or abs(base) > _LARGEST_MAGNITUDE:
        raise ExpressionError(f"{base} ** {exponent} is too large")
    return float(base**exponent) if exponent < 0 else base**exponent


def _round(value: float, digits: int = 0) -> float:
    if abs(digits) > 15:
        raise ExpressionError(f"round to {digits} digits; at most 15 make sense")
    return round(value, digits) if digits else round(value)


_ARITHMETIC: dict[type[ast.operator], Callable[..., object]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
}
_ORDERING: dict[type[ast.cmpop], Callable[..., bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
FUNCTIONS: dict[str, Callable[..., object]] = {
    "min": min,
    "max": max,
    "abs": abs,
    "round": _round,
    "ceil": math.ceil,
    "floor": math.floor,
    "log2": math.log2,
    "sqrt": math.sqrt,
    "int": int,
}


@dataclass(frozen=True, slots=True)
class Expression:
    """`text` as the user wrote it; `names` are the knobs or metrics it reads."""

    text: str
    names: frozenset[str]
    _evaluate: _Evaluator = field(repr=False, compare=False)

    @classmethod
    def parse(cls, text: str) -> Expression:
        if len(text) > LONGEST_EXPRESSION:
            raise ExpressionError(f"expression of {len(text)} characters; at most {LONGEST_EXPRESSION} are accepted")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Python's advice on its own style, such as on "\d", helps nobody here
                tree = ast.parse(text.strip(), mode="eval")
        except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
            reason = error.msg if isinstance(error, SyntaxError) else str(error)
            raise ExpressionError(f"{text!r} is not an expression ({reason})") from None
        if _depth(tree.body) > _DEEPEST_EXPRESSION:
            raise ExpressionError(f"expression is nested more than {_DEEPEST_EXPRESSION} deep; use derived values")
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and is_number(node.value):
                node.kind = ast.get_source_segment(text.strip(), node)  # how it was written
        names: set[str] = set()
        evaluator = _compile(tree.body, names)
        return cls(text, frozenset(names), evaluator)

    def evaluate(self, values: Mapping[str, object]) -> object:
        try:
            return self._evaluate(values)
        except ExpressionError:
            raise
        except (TypeError, ValueError, ZeroDivisionError, OverflowError) as error:
            raise ExpressionError(f"{self.text!r} cannot be evaluated: {error}") from None

    def holds(self, values: Mapping[str, object]) -> bool:
        return bool(self.evaluate(values))

    def reading(self, numbers: Mapping[str, Mapping[str, object]]) -> Expression:
        """The same, with the texts of these names taken for the numbers they stand for."""
        here = {name: numbers[name] for name in self.names if numbers.get(name)}
        inner = self._evaluate
        if not here:
            return self

        def evaluate(values: Mapping[str, object]) -> object:
            return inner(
                {**values, **{name: known.get(str(values.get(name)), values.get(name)) for name, known in here.items()}}
            )

        return replace(self, _evaluate=evaluate)


def _depth(root: ast.AST) -> int:
    """Levels of the tree, counted without recursion."""
    deepest, waiting = 0, [(root, 1)]
    while waiting:
        node, level = waiting.pop()
        deepest = max(deepest, level)
        waiting += [(child, level + 1) for child in ast.iter_child_nodes(node)]
    return deepest


def _compile(node: ast.expr, names: set[str]) -> _Evaluator:
    match node:
        case ast.Constant(value=bool() | int() | float() | str() | None as value):
            return lambda _: value
        case ast.Name(id=name):
            names.add(name)
            return _lookup(name)
        case ast.Tuple(elts=items) | ast.List(elts=items):
            parts = [_compile(item, names) for item in items]
            return lambda values: tuple(part(values) for part in parts)
        case ast.BoolOp(op=op, values=operands):
            parts, combined = [_compile(item, names) for item in operands], all if isinstance(op, ast.And) else any
            return lambda values: combined(part(values) for part in parts)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            inner = _compile(operand, names)
            return lambda values: not inner(values)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            inner = _compile(operand, names)
            return lambda values: None if (value := inner(values)) is None else -_number(value)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            return _arithmetic(_ARITHMETIC[type(op)], _compile(left, names), _compile(right, names))
        case ast.Compare():
            return _comparison(node, names)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            condition, yes, no = (_compile(item, names) for item in (test, body, orelse))
            return lambda values: yes(values) if condition(values) else no(values)
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in FUNCTIONS:
            return _call(FUNCTIONS[name], [_compile(item, names) for item in arguments])
        case ast.Call(func=ast.Name(id=name)):
            raise ExpressionError(f"{name}() is not a known function; known: {', '.join(FUNCTIONS)}")
        case _:
            raise ExpressionError(
                f"{ast.unparse(node)!r} is not allowed here; use knobs, numbers, comparisons, and/or/not"
            )


def _lookup(name: str) -> _Evaluator:
    def lookup(values: Mapping[str, object]) -> object:
        try:
            return values[name]
        except KeyError:
            raise ExpressionError(f"{name} has no value") from None

    return lookup


def _number(value: object) -> int | float:
    if isinstance(value, int | float):
        return value
    raise ExpressionError(f"{value!r} is not a number")


def _arithmetic(operation: Callable[..., object], left: _Evaluator, right: _Evaluator) -> _Evaluator:
    def compute(values: Mapping[str, object]) -> object:
        a, b = left(values), right(values)
        if a is None or b is None:
            return None
        result = operation(_number(a), _number(b))
        if isinstance(result, int | float) and abs(result) > _LARGEST_MAGNITUDE**4:
            raise ExpressionError("a value is too large")
        return result

    return compute


def _call(function: Callable[..., object], parts: list[_Evaluator]) -> _Evaluator:
    def compute(values: Mapping[str, object]) -> object:
        arguments = [part(values) for part in parts]
        return None if any(a is None for a in arguments) else function(*arguments)

    return compute


def _comparison(node: ast.Compare, names: set[str]) -> _Evaluator:
    operands = [_compared(item, names) for item in (node.left, *node.comparators)]
    tests = [_relation(op) for op in node.ops]

    def compare(values: Mapping[str, object]) -> bool:
        left = operands[0](values)
        for test, operand in zip(tests, operands[1:], strict=True):
            right = operand(values)
            if not test(left, right):
                return False
            left = right
        return True

    return compare


def _compared(node: ast.expr, names: set[str]) -> _Evaluator:
    """As any other, but that a number keeps its text: `release == 2.10` asks for that text where release is one."""
    if isinstance(node, ast.Constant) and is_number(node.value) and node.kind:
        number = as_written(node.value, node.kind)
        return lambda _: number
    if isinstance(node, ast.Tuple | ast.List):
        parts = [_compared(item, names) for item in node.elts]
        return lambda values: tuple(part(values) for part in parts)
    return _compile(node, names)


def _equal(left: object, right: object) -> bool:
    if isinstance(left, str) and is_number(right):
        return left == str(right)
    if isinstance(right, str) and is_number(left):
        return right == str(left)
    return left == right


def _ordered(ordering: Callable[..., bool], left: object, right: object) -> bool:
    if left is None or right is None:
        return False
    if isinstance(left, str) != isinstance(right, str):
        text, number = (left, right) if isinstance(left, str) else (right, left)
        raise ExpressionError(f"{text!r} is text and cannot be ordered beside the number {number}")
    return ordering(left, right)


def _relation(op: ast.cmpop) -> Callable[[object, object], bool]:
    match op:
        case ast.Eq() | ast.Is():
            return _equal
        case ast.NotEq() | ast.IsNot():
            return lambda left, right: not _equal(left, right)
        case ast.In():
            return lambda left, right: any(_equal(left, each) for each in _collection(right))
        case ast.NotIn():
            return lambda left, right: not any(_equal(left, each) for each in _collection(right))
    ordering = _ORDERING[type(op)]
    return lambda left, right: _ordered(ordering, left, right)


def _collection(value: object) -> tuple[object, ...]:
    if isinstance(value, tuple):
        return value
    raise ExpressionError("`in` needs a list of values on its right, such as (1, 2, 4)")


# Times as people write them: `90s`, `10m`, `1h30m`, `2d`, or plain seconds.

_UNIT_S = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_PART = r"(?:(?P<{0}>[0-9]+(?:\.[0-9]+)?)\s*{0}\s*)?"
_DURATION = re.compile(r"\s*" + "".join(_PART.format(unit) for unit in _UNIT_S))


def parse_duration(value: object) -> float:
    """Seconds, above 0. ValueError says how to write it."""
    match = _DURATION.fullmatch(value) if isinstance(value, str) and len(value) < 64 else None
    if is_number(value):
        seconds = float(value)
    elif match is not None and any(match.groups()):
        seconds = sum(_UNIT_S[unit] * float(number) for unit, number in match.groupdict().items() if number)
    else:
        raise ValueError(f"{value!r} is not a duration; write e.g. 90s, 10m, 1h30m or a number of seconds")
    if not (math.isfinite(seconds) and seconds > 0):
        raise ValueError(f"a duration of {value} makes no sense; it must be above 0")
    return seconds


def show_duration(seconds: float) -> str:
    """`1h30m`: the way back, rounded to whole seconds from one second on."""
    if seconds < 1:
        return f"{seconds:g}s"
    rest, words = round(seconds), ""
    for unit, size_s in _UNIT_S.items():
        count, rest = divmod(rest, int(size_s))
        words += f"{count}{unit}" if count else ""
    return words
