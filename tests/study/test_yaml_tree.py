"""YAML with lines: the scalars people mean, the line of every value, and bounded trees."""

from __future__ import annotations

import re
from itertools import chain, product

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from ridgeline.errors import StudyError
from ridgeline.study.yaml_tree import dotted, parse_yaml, resolve
from tests.strategies import as_yaml, json_values, study_documents


def plain(text):
    tree = parse_yaml(text, "f.yaml")
    assert tree.problems == ()
    return tree.plain()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-6", 1e-6),
        ("1E6", 1e6),
        ("-1.5e+3", -1500.0),
        ("1.", 1.0),
        (".5", 0.5),
        ("+3", 3),
        ("0", 0),
        ("-0", 0),
        ("0x1F", 31),
        ("0o17", 15),
        ("1_000", 1000),
        ("on", "on"),
        ("off", "off"),
        ("yes", "yes"),
        ("no", "no"),
        ("Y", "Y"),
        ("true", True),
        ("False", False),
        ("~", None),
        ("null", None),
        ('"12"', "12"),
        ("'true'", "true"),
        ("!!str 12", "12"),
        ("!!float 12", 12.0),
        ("1:30", "1:30"),
        ("2025-01-02", "2025-01-02"),
        ("-O3", "-O3"),
        ("1e", "1e"),
        ("=", "="),
        ("1.2.3", "1.2.3"),
        (".inf", float("inf")),
        ("-.Inf", float("-inf")),
        # JSON numbers all, and numbers to YAML 1.2, though a YAML 1.1 writer leaves such text without quotes
        ("0E0", 0.0),
        ("1e3", 1000.0),
        ("0e+00", 0.0),
        ("-.5", -0.5),
        ("1_000.5", 1000.5),
        # numbers to no version of YAML
        ("1_0e5", "1_0e5"),
        ("1_0.5e3", "1_0.5e3"),
        ("0_9", "0_9"),
        ("0b1", "0b1"),
    ],
)
def test_scalars_mean_what_people_mean(text, value):
    read = plain(f"x: {text}")["x"]
    assert read == value
    assert type(read) is type(value)


@given(st.dictionaries(st.text("abcxyz", min_size=1), json_values, min_size=1, max_size=5))
@example({"a": "0E0"})
@example({"a": "1e3", "b": "-.5", "c": "09", "x": "0o7", "y": "012e4", "z": 1e-06})
def test_what_a_yaml_writer_writes_is_read_back(document):
    # the writer quotes what either version of YAML takes for a number
    assert plain(as_yaml(document, allow_unicode=False)) == document


CORE = {  # the schema that YAML 1.2 recommends, word for word
    int: re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+"),
    float: re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"),
}


def old_kind(text):
    """What PyYAML, a reader and writer of YAML 1.1, takes an unquoted text for."""
    rules = yaml.SafeLoader.yaml_implicit_resolvers.get(text[0], [])
    return next((tag.rpartition(":")[2] for tag, rule in rules if rule.match(text)), "str")


def test_every_short_text_is_a_number_exactly_where_yaml_says_so():
    """All 402,233 texts of up to five such characters: nothing is a number to us alone."""
    for text in map("".join, chain.from_iterable(product("019eE+-._xob:", repeat=n) for n in range(1, 6))):
        value, old = resolve(text), old_kind(text)
        new = next((kind for kind, form in CORE.items() if form.fullmatch(text)), str)
        if new is not str:
            assert type(value) is new, text
        elif type(value) is not str:
            assert old == type(value).__name__, text
        if type(value) is not str and old != "str" and not re.match("[-+]?0[0-7_]", text):
            assert value == yaml.safe_load(text), text


@pytest.mark.parametrize(
    ("text", "instead"), [("010", "10"), ("-007", "-7"), ("0_", "0"), ("00", "0"), ("012e4", "12e4"), ("00E1", "0E1")]
)
def test_a_leading_zero_is_refused_with_both_ways_out(text, instead):
    tree = parse_yaml(f"x: {text}", "f.yaml")
    assert tree.problems == (f'f.yaml:1: {text} has a leading zero; write {instead} or "{text}" in quotes',)


@given(study_documents())
def test_every_value_has_its_line(document):
    text = as_yaml(document, default_flow_style=False, width=1000)
    tree = parse_yaml(text, "f.yaml")
    lines = text.split("\n")

    def look(value, where):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            line = lines[tree.line_of((*where, key)) - 1]
            assert line.lstrip().startswith("-") if isinstance(key, int) else f"{key}:" in line
            if isinstance(inner, dict | list):
                look(inner, (*where, key))

    look(document, ())


def test_the_line_of_what_is_not_there_is_that_of_the_nearest_above():
    tree = parse_yaml("a: 1\nspace:\n  tp:\n    - 1\n    - 2\n", "f.yaml")
    assert tree.line_of(("space", "tp", 1)) == 5
    assert tree.line_of(("space", "tp", 7, "x")) == 3
    assert tree.line_of(("space", "pp")) == 2
    assert tree.line_of(("nothing",)) == 1
    assert tree.message(("space", "tp", 1), "is odd") == "f.yaml:5: space.tp[1]: is odd"
    assert dotted(("rules", 1, "refuse")) == "rules[1].refuse"


def test_anchors_and_merge_keys_work_and_own_keys_win():
    text = "a: &a {x: 1, y: 2}\nb: {y: 3, <<: *a, z: 4}\nc:\n  <<: [*a, {w: 5}]\n  x: 6\n"
    assert plain(text) == {"a": {"x": 1, "y": 2}, "b": {"y": 3, "x": 1, "z": 4}, "c": {"x": 6, "y": 2, "w": 5}}


def test_a_quoted_merge_sign_is_a_key():
    assert plain('"<<": 1') == {"<<": 1}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: &a [1, *a]", "inside"),
        ("a: *b", "not defined"),
        ("[" * 100_000, "deep"),
        ("a: " + "{b: " * 3000, "deep"),
        ("- " * 5000 + "x", "deep"),
        ("\n".join(["a0: &a0 [x]"] + [f"a{i}: &a{i} [" + f"*a{i - 1}, " * 9 + "]" for i in range(1, 12)]), "unfold"),
        ("\n".join(["a0: &a0 [x]"] + [f"a{i}: &a{i} [*a{i - 1}]" for i in range(1, 100)]), "deep"),
        ("? [a, b]\n: 1", "key"),
        ("a: &a [1]\n*a : 2", "key"),
        ("%YAML 9.9\n---\na: 1", "not YAML"),
        ("a: 'x", "not YAML"),
        ("\x85\x00", "control character"),
        ("", "empty"),
        ("# only a comment\n", "empty"),
    ],
)
def test_hostile_or_broken_texts_end_in_one_message(text, says):
    with pytest.raises(StudyError, match=says) as raised:
        parse_yaml(text, "f.yaml")
    assert len(raised.value.problems) == 1
    assert raised.value.problems[0].startswith("f.yaml:")


@given(st.text(max_size=100) | st.text("ab:-[]{},&*#?|>'\"%@`! \n\t<~01", max_size=60))
def test_any_text_is_a_tree_or_a_study_error(text):
    try:
        parse_yaml(text, "f.yaml").plain()
    except StudyError:
        pass
