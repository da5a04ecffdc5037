"""What the drawn order alone shows, against all rows of coins counted one by one."""

from __future__ import annotations

import math
import random
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.stats.sign_flips import flip_interval, least_p, sign_flip_p

differences = st.lists(st.floats(-1, 1).filter(lambda x: abs(x) > 1e-3), min_size=2, max_size=8)


def counted(values: list[float], shift: float = 0.0) -> float:
    terms = [value - shift for value in values]
    sums = [
        abs(math.fsum(s * t for s, t in zip(signs, terms, strict=True)))
        for signs in product((1, -1), repeat=len(terms))
    ]
    return sum(one >= abs(math.fsum(terms)) - 1e-9 for one in sums) / len(sums)


@given(values=differences)
@settings(max_examples=60)
def test_every_row_of_coins_is_counted(values: list[float]) -> None:
    assert sign_flip_p(values) == pytest.approx(min(1.0, counted(values)))


@pytest.mark.parametrize("rounds", [3, 6, 10, 16])
def test_rounds_that_all_agree_give_the_least_there_is(rounds: int) -> None:
    assert sign_flip_p([0.1 + 0.01 * at for at in range(rounds)]) == least_p(rounds) == 2.0 ** (1 - rounds)
    assert sign_flip_p([-0.1] * rounds) == least_p(rounds), "either direction"


def test_one_round_against_five_is_six_in_thirty_two() -> None:
    assert sign_flip_p([1.0, 1.0, 1.0, 1.0, 1.0, -1.0]) == 14 / 64
    assert sign_flip_p([0.0, 0.0, 0.0]) == 1.0


def test_more_rounds_than_coins_flip_together_at_the_same_level() -> None:
    assert sign_flip_p([1.0]) == 1.0, "one round shows nothing"
    rejected = 0
    for seed in range(100):
        rng = random.Random(seed)
        rejected += sign_flip_p([rng.choice((-1, 1)) * (1 + at % 3) for at in range(31)]) <= 0.05
    assert rejected <= 0.05 * 100 + 3 * math.sqrt(100 * 0.05 * 0.95)
    assert sign_flip_p([1.0] * 31) == least_p(31) == least_p(16)


@given(values=differences, p=st.sampled_from([0.04, 0.25]))
@settings(max_examples=40)
def test_the_interval_holds_what_the_test_does_not_reject(values: list[float], p: float) -> None:
    middle = math.fsum(values) / len(values)
    low, high = flip_interval(values, max(p, least_p(len(values))), (middle, middle))
    assert min(values) - 1e-9 <= low <= middle <= high <= max(values) + 1e-9
    for at in (0.1, 0.5, 0.9):
        inside = low + (high - low) * at
        if high - low > 1e-6:
            assert counted(values, inside) > p - 1e-9 or math.isclose(counted(values, inside), p)


def test_an_interval_that_is_wide_enough_stays() -> None:
    assert flip_interval([0.1, 0.2, 0.15, 0.12, 0.18, 0.11], 0.04, (-1.0, 2.0)) == (-1.0, 2.0)
    assert flip_interval([0.1, 0.2, 0.15, 0.12, 0.18, 0.11], 0.04, (0.14, 0.15)) == pytest.approx((0.1, 0.2))
