"""Products and ratios beside the knobs: an edge along a product is one cut."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from ridgeline.records.expression import Expression
from ridgeline.records.space import Continuous, Discrete, Knob, Space
from ridgeline.samplers.guided.features import MOST_KNOBS, Features, Products


def beside(*knobs: Knob, points: list[dict[str, object]]) -> np.ndarray:
    """Only what is added to the features."""
    space = Space(knobs, {})
    features = Features(space)
    rows = features.of(points)  # type: ignore[arg-type]
    return Products(space, features).beside(rows)[:, rows.shape[1] :]


X = Discrete("x", (16, 32, 48, 64), True)
Y = Discrete("y", (1, 2, 4, 8), True)


def test_a_product_and_a_ratio_of_every_two_sizes_in_logs() -> None:
    points = [{"x": x, "y": y} for x, y in itertools.product(X.values, Y.values)]
    found = beside(X, Y, points=points)
    for row, point in zip(found, points, strict=True):
        product, ratio = (np.log(float(point["x"] * how)) for how in (point["y"], 1 / point["y"]))  # type: ignore[operator]
        assert sorted(np.abs(row)) == pytest.approx(sorted(np.abs([product, ratio])), abs=1e-4)


def test_equal_products_are_equal() -> None:
    found = beside(X, Y, points=[{"x": 16, "y": 4}, {"x": 32, "y": 2}, {"x": 64, "y": 1}])
    assert len(set(found[:, 0])) == 1


def test_numbers_along_a_line_and_conditional_ones() -> None:
    line = Continuous("line", 1.0, 100.0, log=True)
    here = Discrete("here", (1, 10, 100), True, when=Expression.parse("x > 16"))
    found = beside(X, line, here, points=[{"x": 32, "line": 10.0, "here": 10}, {"x": 16, "line": 1.0}])
    assert found.shape[1] == 6 and np.isfinite(found).all()
    assert np.log(320.0) == pytest.approx(found[0, 0], abs=1e-3)


def test_switches_and_choices_have_no_size() -> None:
    switch, choice = Discrete("s", (0, 1), True), Discrete("c", ("a", "b", "c"), False)
    assert beside(X, switch, choice, points=[{"x": 16, "s": 1, "c": "b"}]).shape[1] == 0


def test_what_has_zero_is_taken_by_its_place() -> None:
    zero = Discrete("z", (0, 1, 2), True)
    found = beside(X, zero, points=[{"x": 16, "z": 0}, {"x": 16, "z": 2}])
    assert np.isfinite(found).all() and found[1, 0] - found[0, 0] == pytest.approx(1.0)


def test_very_many_knobs_are_left_as_they_are() -> None:
    many = [Discrete(f"k{i}", (1, 2, 4), True) for i in range(MOST_KNOBS + 1)]
    assert beside(*many, points=[{knob.name: 2 for knob in many}]).shape[1] == 0


def test_a_huge_range_costs_no_more_than_a_short_one() -> None:
    huge = Discrete("huge", range(1, 10**9), True)
    found = beside(huge, X, points=[{"huge": 10**9 - 1, "x": 16}])
    assert found[0, 0] == pytest.approx(np.log(16e9), abs=1e-2)
