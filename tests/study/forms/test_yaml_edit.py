"""A value changed in the text of a YAML file; everything else stays, letter by letter."""

from __future__ import annotations

import pytest
import yaml

from ridgeline.study.forms.yaml_edit import YamlEditError, with_value

BLOCK = """\
top: 1  # first
router:  # here
  kind: smg
  policy:  # none yet
  names:
    - a
    - b
# end
last: [1]
"""


@pytest.mark.parametrize(
    ("text", "where", "value", "after"),
    [
        ("a: 1 # x\n", ("a",), "two", "a: two # x\n"),
        ("a: {b: 1, c: 2} # x\n", ("a", "b"), None, "a: {c: 2} # x\n"),
        ("a: {b: 1, c: 2} # x\n", ("a", "c"), None, "a: {b: 1} # x\n"),
        ("a: {b: 1} # x\n", ("a", "b"), None, "a: {} # x\n"),
        ("a: {b: 1,\n} # x\n", ("a", "c"), "d, e", "a: {b: 1, c: 'd, e',\n} # x\n"),
        ("a: {} # x\n", ("a", "c"), True, "a: {c: true} # x\n"),
        ("a: 1\n", ("b", "c", "d"), 2, "a: 1\nb:\n  c:\n    d: 2\n"),
        ("a: 1", ("b",), 2, "a: 1\nb: 2\n"),
        ("a: 1\r\n", ("b",), 2, "a: 1\r\nb: 2\r\n"),
        ("a:\n  b: 1\n", ("a",), {"c": 2}, "a: {c: 2}\n"),
        ("a: 1\n", ("b",), None, "a: 1\n"),
        (BLOCK, ("router", "policy"), "random", BLOCK.replace("policy:  #", "policy: random  #")),
        (BLOCK, ("router", "kind"), None, BLOCK.replace("  kind: smg\n", "")),
        (BLOCK, ("router", "names"), None, BLOCK.replace("  names:\n    - a\n    - b\n", "")),
        ("a: [{b: {c: 1}}, {}] # x\n", ("a", 0, "b", "c"), 2, "a: [{b: {c: 2}}, {}] # x\n"),
        ("a:\n- b: 1 # x\n  c: {}\n", ("a", 0, "c", "d"), 2, "a:\n- b: 1 # x\n  c: {d: 2}\n"),
        ("a:\n- b: 1 # x\n", ("a", 0, "c"), 2, "a:\n- b: 1 # x\n  c: 2\n"),
        (BLOCK, ("router", "port"), 1, BLOCK.replace("    - b\n", "    - b\n  port: 1\n")),
        (BLOCK, ("router", "names"), ["c"], BLOCK.replace("names:\n    - a\n    - b\n", "names: [c]\n")),
    ],
)
def test_only_the_lines_concerned_change(text: str, where: tuple[str, ...], value: object, after: str) -> None:
    assert with_value(text, where, value) == after
    yaml.safe_load(after)


@pytest.mark.parametrize("text", ["a: 1\n", "a: [1]\n", "b: &x {c: 1}\na: *x\n"])
def test_what_has_no_place_of_its_own_is_refused(text: str) -> None:
    with pytest.raises(YamlEditError):
        with_value(text, ("a", "c"), 2)
