"""Templates: fields are filled, everything else stays as it is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.records.expression import ExpressionError
from ridgeline.records.template import bare_fields, field_names, render, render_env, unknown_fields, wide_fields
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


WHEN = frozenset({"m", "n"})  # knobs with a `when`


@pytest.mark.parametrize(
    ("text", "there", "absent"),
    [
        ("-a 1 [--merange {m}] -b", "-a 1 --merange 16 -b", "-a 1  -b"),
        ("[-m={m}]", "-m=16", ""),
        ("[--box {m}x{x}] {x}", "--box 16x7 7", " 7"),
        ("[--glob [0-9]* {m}]", "--glob [0-9]* 16", ""),
        # a list that holds a group stays a list
        ('{{"sizes": [{x}[, {m}]]}}', '{"sizes": [7, 16]}', '{"sizes": [7]}'),
        ("[--list [[{m}]]]", "--list [16]", ""),
        ("[line {m}\n]next", "line 16\nnext", "next"),
    ],
)
def test_a_group_goes_with_its_knob(text, there, absent):
    assert render(text, {"x": 7, "m": 16}, WHEN) == there
    assert render(text, {"x": 7, "m": None}, WHEN) == absent


@pytest.mark.parametrize(
    "text",
    [
        "[ -f x ]",
        "ls [0-9]*",
        "[ {x} -gt 3 ] && a",
        "[[ {x} -gt 3 ]]",
        "[{x}, 2]",
        "a[{x}]",
        "[[1, {x}], []]",
        "echo ][",
    ],
)
def test_brackets_around_anything_else_stay(text):
    assert render(text, {"x": 7, "m": None}, WHEN) == text.replace("{x}", "7")
    assert bare_fields(text, WHEN) == []


def test_all_knobs_of_a_group_must_be_there():
    text = "a [--box {m},{n}]"
    assert render(text, {"m": 1, "n": 2}, WHEN) == "a --box 1,2"
    assert render(text, {"m": 1, "n": None}, WHEN) == "a "
    assert render(text, {"m": None, "n": 2}, WHEN) == "a "


@pytest.mark.parametrize(
    ("text", "bare"),
    [
        ("--merange {m} [-n {n}]", ["m"]),
        ("[ {m} -gt 3 ]", ["m"]),  # the shell's own test, not a group
        ("[[ -n {m} ]]", ["m"]),
        ("[--m {m}] {m} {m}", ["m"]),
        ("[--m {m}", ["m"]),
        ("{x}", []),
    ],
)
def test_a_knob_outside_a_group_is_found(text, bare):
    assert bare_fields(text, WHEN) == bare


def test_a_group_in_a_group_is_refused():
    with pytest.raises(ExpressionError, match=r"\[--b \{n\}\] stands inside another group"):
        render("[--a {m} [--b {n}]]", {"m": 1, "n": 2}, WHEN)


def test_a_variable_made_of_absent_groups_is_not_set():
    env = {"RANGE": "[{m}]", "BOTH": "[{m}][{n}]", "OPTIONS": "-a [-m {m}]", "EMPTY": "", "X": "{x}"}
    assert render_env(env, {"x": 1, "m": None, "n": None}, WHEN) == {"OPTIONS": "-a ", "EMPTY": "", "X": "1"}
    assert render_env(env, {"x": 1, "m": 3, "n": None}, WHEN) == {
        "RANGE": "3",
        "BOTH": "3",
        "OPTIONS": "-a -m 3",
        "EMPTY": "",
        "X": "1",
    }


@given(st.text("[]{}mx \n$", max_size=24))
def test_any_brackets_render_or_are_refused(text):
    for value in (5, None):
        try:
            render(text, {"m": value, "x": 1}, WHEN)
        except ExpressionError as error:
            assert "inside another group" in str(error)
