"""Templates: fields are filled, everything else stays as it is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.records.expression import ExpressionError
from ridgeline.records.template import field_names, render, unknown_fields, wide_fields
from tests.strategies import names, values


@given(st.text(st.characters(exclude_characters="{}"), max_size=40))
def test_text_without_braces_is_untouched(text):
    assert render(text, {"x": 1}) == text
    assert field_names(text) == set()


@given(names, values, st.text(st.characters(exclude_characters="{}$"), max_size=10))
def test_a_field_is_replaced_by_its_value(name, value, around):
    shown = {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)
    assert render(f"{around}{{{name}}}{around}", {name: value}) == f"{around}{shown}{around}"
    assert field_names(f"{around}{{{name}}}{around}") == {name}


@given(st.text("{}ab$: ", max_size=20))
def test_any_text_renders_or_is_refused(text):
    try:
        render(text, {"a": 1, "b": "x"})
    except ExpressionError:
        pass


def test_doubled_braces_and_shell_variables_are_left_alone():
    assert render("awk '{{print $1}}' ${HOME}/{name}", {"name": "f"}) == "awk '{print $1}' ${HOME}/f"


def test_an_absent_knob_renders_as_nothing_and_an_unknown_one_is_an_error():
    assert render("-x{page}", {"page": None}) == "-x"
    with pytest.raises(ExpressionError, match="pgae"):
        render("-x {pgae}", {"page": 1})
    assert unknown_fields("{a} {b} {c}", ["b"]) == ["a", "c"]


def test_formats_are_applied_and_bad_ones_said():
    assert render("{n:04d} {x:.2f}", {"n": 7, "x": 0.125}) == "0007 0.12"
    with pytest.raises(ExpressionError, match="does not fit"):
        render("{n:04d}", {"n": "seven"})


@pytest.mark.parametrize("field", ["{x:>3000000000}", "{x:0>1001}", "{x:.99999999999999999999f}", "{x:1001}"])
def test_a_field_wider_than_anybody_needs_is_refused(field):
    with pytest.raises(ExpressionError, match="more than 1000"):
        render(field, {"x": 1.5})
    assert wide_fields(f"a {field} {{x:>1000}}") == [field]
