"""YAML with lines: the scalars people mean, the line of every value, and bounded trees."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.errors import StudyError
from ridgeline.store.yaml_tree import dotted, parse_yaml
from tests.strategies import json_values, study_documents


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
    ],
)
def test_scalars_mean_what_people_mean(text, value):
    read = plain(f"x: {text}")["x"]
    assert read == value
    assert type(read) is type(value)


@given(st.dictionaries(st.text("abcxyz", min_size=1), json_values, min_size=1, max_size=5))
def test_what_a_yaml_writer_writes_is_read_back(document):
    # the writer quotes what YAML 1.1 would misread, so both versions agree on its output
    assert plain(yaml.safe_dump(document, allow_unicode=False)) == document


@given(study_documents())
def test_every_value_has_its_line(document):
    text = yaml.safe_dump(document, sort_keys=False, default_flow_style=False, width=1000)
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
