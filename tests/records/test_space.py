"""Spaces: points are listed once, restricted points stay, conditions and circles are honoured."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.records.expression import Expression, ExpressionError
from ridgeline.records.space import Discrete, Rule, Space, point_key
from tests.strategies import spaces


@given(spaces())
def test_every_point_is_listed_once_complete_and_restricted(space):
    points = list(space.points())
    assert len({point_key(p) for p in points}) == len(points) <= space.raw_size()
    for point in points:
        assert space.missing(point) == []
        assert space.restrict(point) == point
        assert all(space.by_name[name].contains(value) for name, value in point.items())


@given(spaces(continuous=True), st.data())
def test_any_draw_restricts_to_a_complete_point_of_the_space(space, data):
    share = st.floats(0, 1, exclude_max=True)
    drawn = {knob.name: knob.at(data.draw(share)) for knob in space.knobs}
    point = space.restrict(drawn)
    assert space.missing(point) == []
    assert space.restrict(point) == point
    assert all(space.by_name[name].contains(value) for name, value in point.items())
    settings = space.settings(point)
    assert set(settings) == set(space.names)
    assert all(settings[name] is None for name in space.by_name if name not in point)


@given(spaces())
def test_the_listing_holds_exactly_the_draws(space):
    listed = {point_key(p) for p in space.points()}
    corners = ({k.name: k.at(share) for k in space.knobs} for share in (0.0, 0.3, 0.6, 0.999))
    assert {point_key(space.restrict(c)) for c in corners} <= listed


@given(spaces())
def test_a_rule_refuses_exactly_where_it_holds(space):
    for point in space.points():
        holds = any(rule.refuse.holds(space.settings(point)) for rule in space.rules)
        assert (space.refusal(point) is not None) == holds


@given(st.dictionaries(st.sampled_from("abcd"), st.integers(0, 3), min_size=1), st.randoms())
def test_a_points_key_does_not_depend_on_order(point, rng):
    items = list(point.items())
    rng.shuffle(items)
    assert point_key(dict(items)) == point_key(point)


def test_true_is_not_one():
    knob = Discrete("flag", (True, False), ordered=False)
    assert knob.contains(True)
    assert not knob.contains(1)
    for numbers in (range(3), (0, 1)):
        assert Discrete("n", numbers, ordered=True).contains(1)
        assert not Discrete("n", numbers, ordered=True).contains(True)


def test_circles_are_found():
    a = Discrete("a", (1, 2), ordered=True, when=Expression.parse("b == 1"))
    b = Discrete("b", (1, 2), ordered=True, when=Expression.parse("a == 1"))
    with pytest.raises(ExpressionError, match="depends on itself"):
        _ = Space((a, b), {}).order
    derived = {"x": Expression.parse("y + 1"), "y": Expression.parse("x + 1")}
    with pytest.raises(ExpressionError, match="circle"):
        Space((Discrete("k", (1,), ordered=True),), derived).settings({"k": 1})


def test_derived_values_may_build_on_each_other_in_any_order():
    derived = {"nodes": Expression.parse("gpus / 8"), "gpus": Expression.parse("tp * pp")}
    space = Space((Discrete("tp", (8,), ordered=True), Discrete("pp", (2,), ordered=True)), derived)
    assert space.settings({"tp": 8, "pp": 2}) == {"tp": 8, "pp": 2, "nodes": 2.0, "gpus": 16}


def test_a_rule_about_an_absent_knob_refuses_nothing():
    page = Discrete("page", (1, 16), ordered=True, when=Expression.parse("backend == 'fa3'"))
    backend = Discrete("backend", ("fa3", "triton"), ordered=False)
    space = Space((backend, page), {}, (Rule(Expression.parse("page < 16"), "too small"),))
    assert space.refusal({"backend": "triton"}) is None
    assert space.refusal({"backend": "fa3", "page": 1}) == "too small"


def test_a_rule_that_cannot_be_evaluated_refuses_and_says_why():
    space = Space((Discrete("n", (0, 1), ordered=True),), {}, (Rule(Expression.parse("1 / n > 2"), "unused"),))
    assert "division" in (space.refusal({"n": 0}) or "")


def test_a_log_knob_spreads_over_magnitudes():
    knob = Discrete("n", tuple(2**k for k in range(11)), ordered=True, log=True)
    assert [knob.at(share) for share in (0.0, 0.5, 0.99)] == [1, 32, 1024]
