"""What the drawn order alone shows, against all rows of coins counted one by one."""

from __future__ import annotations

import math
import random
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.stats import sign_flips
from ridgeline.stats.compare import Block, confirm
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


def test_a_verdict_stays_cheap_however_many_rounds_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted in sums, not in seconds: four settings in twelve blocks look at no more than 2 x 256 sums at a time, and
    at most 25 times for each end of an interval."""
    made: list[int] = []
    whole = sign_flips._sums

    def counted_sums(terms: list[float]) -> list[float]:
        made.append(len(sums := whole(terms)))
        return sums

    monkeypatch.setattr(sign_flips, "_sums", counted_sums)
    rng = random.Random(1)
    runs = {name: [[rng.gauss(100, 2) for _ in range(2)] for _ in range(12)] for name in "abcde"}
    blocks = [Block(n, ("n",), runs["e"][n], {name: runs[name][n] for name in "abcd"}) for n in range(12)]
    confirm(blocks)
    assert max(made) == 256
    assert 4 * 2 <= len(made) <= 4 * 2 * (1 + 2 + 2 * 25), "two halves: the test, both ends, and 25 halvings of each"


def test_which_rounds_flip_together_and_what_ties_count_for() -> None:
    """Of 17 rounds the first and the last are one coin; a sum that is as large counts as at least as large."""
    rounds = [1.0] + [0.0] * 15 + [-1.0]
    assert sign_flip_p(rounds) == 1.0, "they cancel within their coin"
    assert sign_flip_p([1.0, 1.0] + [0.0] * 14) == 0.5, "two coins of four agree, either way"
    assert sign_flip_p([2.0, 1.0, 1.0]) == 0.25
    assert sign_flip_p([2.0, 1.0, -1.0]) == 0.75, "|2 + 1 - 1| is reached by six rows of eight"
    assert sign_flip_p([3.0, 4.0], shift=3.5) == 1.0
    assert least_p(1) == 1.0 and least_p(0) == 1.0 and least_p(2) == 0.5 and least_p(99) == 2.0**-15
