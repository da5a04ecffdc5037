"""Hypothesis strategies shared by the tests: expressions, spaces, points, events, study texts."""

from __future__ import annotations

import re
from typing import Any

import yaml
from hypothesis import strategies as st

from ridgeline.records.expression import Expression, Value
from ridgeline.records.space import Continuous, Discrete, Knob, Rule, Space

NAMES = ("tp", "pp", "block", "threads", "march")
names = st.sampled_from(NAMES)
small_numbers = st.one_of(st.integers(-50, 50), st.floats(-50, 50).map(lambda x: round(x, 3)))
words = st.text("abcdefgh-+_.", min_size=1, max_size=8)
values: st.SearchStrategy[Value] = st.one_of(st.booleans(), st.integers(-1000, 1000), words)
environments = st.fixed_dictionaries({name: st.one_of(st.none(), small_numbers) for name in NAMES})


def _join(parts: tuple[str, str, str]) -> str:
    return f"({parts[0]} {parts[1]} {parts[2]})"


arithmetic = st.recursive(
    st.one_of(names, small_numbers.map(repr)),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "//", "%"]), inner).map(_join),
        st.tuples(st.sampled_from(["min", "max"]), inner, inner).map(lambda p: f"{p[0]}({p[1]}, {p[2]})"),
        inner.map(lambda text: f"-({text})"),
        inner.map(lambda text: f"abs({text})"),
    ),
    max_leaves=6,
)
comparisons = st.tuples(arithmetic, st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), arithmetic).map(_join)
conditions = st.recursive(
    comparisons,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(_join),
        inner.map(lambda text: f"(not {text})"),
    ),
    max_leaves=4,
)


@st.composite
def discrete_knobs(draw: st.DrawFn, name: str, when: Expression | None = None) -> Discrete:
    if draw(st.booleans()):
        numbers = draw(st.lists(st.integers(-20, 20), min_size=1, max_size=5, unique=True))
        return Discrete(name, tuple(sorted(numbers)), ordered=True, when=when)
    return Discrete(name, tuple(draw(st.lists(words, min_size=1, max_size=4, unique=True))), ordered=False, when=when)


@st.composite
def spaces(draw: st.DrawFn, continuous: bool = False) -> Space:
    """Up to four knobs; later ones may exist only for some values of an earlier one; maybe a rule."""
    knobs: list[Knob] = []
    for name in NAMES[: draw(st.integers(1, 4))]:
        when = None
        earlier = [k for k in knobs if isinstance(k, Discrete)]
        depends: bool = bool(earlier) and draw(st.booleans())
        if depends:
            other = draw(st.sampled_from(earlier))
            when = Expression.parse(f"{other.name} == {draw(st.sampled_from(list(other.values)))!r}")
        if continuous and draw(st.booleans()):
            low = draw(st.floats(0.001, 10))
            knobs.append(Continuous(name, low, low + draw(st.floats(0.5, 100)), draw(st.booleans()), when))
        else:
            knobs.append(draw(discrete_knobs(name, when)))
    rules = []
    if draw(st.booleans()):
        rules.append(Rule(Expression.parse(f"{knobs[0].name} == {draw(values)!r}"), "because"))
    return Space(tuple(knobs), {}, tuple(rules))


json_values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**53), 2**53),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)),
    max_leaves=8,
)
events: st.SearchStrategy[dict[str, Any]] = st.dictionaries(st.text(max_size=8), json_values, max_size=5)


@st.composite
def study_documents(draw: st.DrawFn) -> dict[str, Any]:
    """A valid study as plain data, its baseline inside its space."""
    space: dict[str, Any] = {}
    baseline: dict[str, Any] = {}
    for name in NAMES[: draw(st.integers(1, 4))]:
        form, value = draw(st.sampled_from(["list", "steps", "geometric", "any", "fixed"])), None
        low = draw(st.integers(1, 20))
        if form == "list":
            listed = draw(st.lists(values, min_size=1, max_size=4, unique_by=lambda v: (isinstance(v, bool), v)))
            space[name], value = listed, draw(st.sampled_from(listed))
        elif form == "steps":
            step, count = draw(st.sampled_from([1, 2, 0.5, 0.01])), draw(st.integers(0, 20))
            index = draw(st.integers(0, count))
            space[name] = {"from": low, "to": round(low + step * count, 6), "step": step}
            value = round(low + step * index, 6)
        elif form == "geometric":
            count = draw(st.integers(0, 6))
            space[name] = {"from": low, "to": low * 2**count, "times": 2}
            value = low * 2 ** draw(st.integers(0, count))
        elif form == "any":
            space[name], value = {"from": low, "to": low + 2.5, "log": draw(st.booleans())}, low + 1.25
        else:
            space[name] = draw(values)
        if value is not None:
            baseline[name] = value
    return {
        "version": 1,
        "name": "drawn",
        "workload": {"kind": "command", "run": "./a.out"},
        "space": space,
        "derived": {"twice": f"{NAMES[0]} == 2"},
        "rules": [{"refuse": f"{NAMES[0]} == 'never'", "because": "it is not"}],
        "goal": {draw(st.sampled_from(["maximize", "minimize"])): "speed"},
        "guards": ["error < 1e-6", 'stdout lacks "nan"'],
        "baseline": baseline,
        "budget": {"trials": draw(st.integers(0, 100)), "wall": draw(st.sampled_from([60, "10m", "1h30m"]))},
    }


class StudyDumper(yaml.SafeDumper):
    """PyYAML's writer, which quotes text that YAML 1.1 takes for a number, made to quote what YAML 1.2 takes for one.

    On its own it leaves the text 1e3, 0E0, -.5, 09 or 0o7 without quotes, and nobody can tell that from the number.
    """


StudyDumper.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$|0o[0-7]+$|0x[0-9a-fA-F]+$"),
    list("-+.0123456789"),
)


def as_yaml(document: dict[str, Any], **how: Any) -> str:
    text: str = yaml.dump(document, Dumper=StudyDumper, **{"sort_keys": False, **how})
    return text
