"""The sequences below the samplers: even, without repeats, cheap in huge spaces."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.records.expression import Expression
from ridgeline.records.space import Discrete, Rule, Space, point_key
from ridgeline.samplers.sequence import Listing, filling, halton, is_of_space, shuffled
from ridgeline.testing.contracts.samplers import spaces


@given(size=st.integers(1, 3000), seed=st.integers(0, 99))
def test_shuffled_gives_every_number_once(size: int, seed: int) -> None:
    assert sorted(shuffled(size, seed)) == list(range(size))


def test_seeds_shuffle_differently() -> None:
    orders = {tuple(shuffled(50, seed)) for seed in range(20)}
    assert len(orders) == 20


@given(space=spaces())
def test_a_listing_holds_every_point_once(space: Space) -> None:
    listing = Listing(space)
    listed = [point_key(p) for number in range(listing.size) if (p := listing.at(number)) is not None]
    assert sorted(listed) == sorted(point_key(p) for p in space.points())


@given(space=spaces(continuous=True), seed=st.integers(0, 9))
def test_every_point_of_the_sequence_is_of_the_space(space: Space, seed: int) -> None:
    for point in itertools.islice(filling(space, seed, lambda p: True), 10):
        assert is_of_space(space, point)
        assert not is_of_space(space, {**point, "none of these": 1})


@pytest.mark.parametrize("dimensions", [1, 2, 5, 10])
def test_the_first_points_are_spread_more_evenly_than_chance(dimensions: int) -> None:
    """In every single knob, 30 points leave no fifth of the range empty; 30 random points do so in 1 knob of 160."""
    for seed in range(20):
        points = list(itertools.islice(halton(dimensions, seed), 30))
        for axis in range(dimensions):
            counts = [sum(int(p[axis] * 5) == fifth for p in points) for fifth in range(5)]
            assert min(counts) >= 1
            assert all(0 <= p[axis] < 1 for p in points)


def test_a_billion_points_cost_nothing_until_asked() -> None:
    knobs = tuple(Discrete(f"k{i}", range(1000), True) for i in range(3))
    rule = Rule(Expression.parse("k0 + k1 + k2 > 2900"), "too much")
    points = list(itertools.islice(filling(Space(knobs, {}, (rule,)), 0, lambda p: True), 50))
    assert len({point_key(p) for p in points}) == 50


def test_few_legal_points_among_many_are_all_found() -> None:
    knobs = tuple(Discrete(f"k{i}", tuple(range(30)), True) for i in range(3))
    space = Space(knobs, {}, (Rule(Expression.parse("k0 + k1 + k2 > 1"), "too much"),))
    found = list(filling(space, 0, lambda p: space.refusal(p) is None))
    assert len(found) == 4  # all zero, or one of the three knobs at one
