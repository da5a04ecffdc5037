"""Expressions say what Python would say, and nothing but the whitelist is ever evaluated."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.records.expression import FUNCTIONS, LONGEST_EXPRESSION, Expression, ExpressionError
from tests.strategies import arithmetic, conditions, environments


def outcome(function):
    try:
        return function()
    except (ExpressionError, TypeError, ValueError, ZeroDivisionError, OverflowError):
        return "error"


@given(arithmetic | conditions, environments)
def test_agrees_with_python_where_every_knob_exists(text, values):
    values = {name: 3 if value is None else value for name, value in values.items()}
    expected = outcome(lambda: eval(text, {"__builtins__": {}, **FUNCTIONS}, dict(values)))  # the reference, in a test
    actual = outcome(lambda: Expression.parse(text).evaluate(values))
    if isinstance(expected, float) and isinstance(actual, float):
        assert actual == expected or math.isclose(actual, expected) or (math.isnan(actual) and math.isnan(expected))
    else:
        assert actual == expected


@given(arithmetic, environments)
def test_absent_knob_makes_arithmetic_absent_and_orderings_false(text, values):
    expression = Expression.parse(text)
    if not expression.names:
        return
    absent = {**values, next(iter(expression.names)): None}
    result = outcome(lambda: expression.evaluate(absent))
    assert result is None or result == "error"
    if result is None:
        assert not Expression.parse(f"({text}) < 10 ** 9").holds(absent)
        assert not Expression.parse(f"({text}) > -(10 ** 9)").holds(absent)


@given(st.text(max_size=60) | st.text("xy0123456789.()[]+-*/%<>=!,'\" andornotif else:lambda{}@~^&|", max_size=60))
def test_any_text_is_parsed_or_refused_and_never_anything_else(text):
    try:
        expression = Expression.parse(text)
        expression.evaluate(dict.fromkeys(expression.names, 2))
    except ExpressionError:
        pass


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "().__class__",
        "x.real",
        "x[0]",
        "lambda: 1",
        "[y for y in (1, 2)]",
        "open('f')",
        "eval('1')",
        "f'{x}'",
        "(y := 3)",
        "x << 40",
        "{1: 2}",
        "max(*x)",
        "max(x, default=1)",
        "b'x'",
        "...",
        "1j",
        "x = 2",
        "",
        "import os",
    ],
)
def test_nothing_outside_the_whitelist_is_accepted(text):
    with pytest.raises(ExpressionError):
        Expression.parse(text)


@pytest.mark.parametrize(
    "text",
    ["9 ** 9 ** 9", "10 ** 60 * 10 ** 60", "round(5, -10 ** 9)", "(10 ** 15) ** 64 ** 2", "1 / 0", "max()", "log2(0)"],
)
def test_costly_or_meaningless_values_are_errors_at_once(text):
    with pytest.raises(ExpressionError):
        Expression.parse(text).evaluate({})


@pytest.mark.parametrize(
    "text", ["-" * 500 + "1", "1" + "+1" * 490, "not " * 240 + "x", "x" * (LONGEST_EXPRESSION + 1)]
)
def test_deep_or_long_texts_are_refused_when_read_not_when_used(text):
    with pytest.raises(ExpressionError, match=r"deep|characters"):
        Expression.parse(text)


def test_names_are_what_it_reads():
    assert Expression.parse("tp * max(pp, 2) if block in (1, x) else 'y'").names == {"tp", "pp", "block", "x"}


def test_a_missing_name_is_named():
    with pytest.raises(ExpressionError, match="tp has no value"):
        Expression.parse("tp + 1").evaluate({})
