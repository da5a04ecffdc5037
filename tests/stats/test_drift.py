from __future__ import annotations

import math
import random
from typing import Any

import pytest

from ridgeline.stats.drift import (
    PERMUTATIONS,
    Drift,
    Regimes,
    Repeat,
    drift,
    outliers,
    regimes,
)


def noisy(seed: int, shape: list[float], noise: float = 0.01) -> list[float]:
    rng = random.Random(seed)
    return [100 * math.exp(s + rng.gauss(0, noise)) for s in shape]


def test_steady_machines_are_rarely_called_drifting() -> None:
    called = sum(
        drift(noisy(seed, [0.0] * 10), "maximize", random.Random(seed)).kind != "steady" for seed in range(120)
    )
    assert called / 120 < 0.05 + 0.06


def test_a_step_is_found_where_it_is() -> None:
    found = drift(noisy(1, [0.0] * 7 + [-0.1] * 5), "maximize", random.Random(1))
    assert (found.kind, found.at) == ("step", 7)
    assert -0.13 < found.change < -0.07
    assert "slower from repeat 8 of 12" in str(found)


@pytest.mark.parametrize("at", [2, 10])
def test_two_repeats_on_one_side_are_a_step_and_one_is_an_outlier(at: int) -> None:
    found = drift(noisy(1, [0.0] * at + [-0.3] * (12 - at)), "maximize", random.Random(1))
    assert (found.kind, found.at) == ("step", at)
    for lone in ([-0.3] + [0.0] * 11, [0.0] * 11 + [-0.3]):
        assert drift(noisy(1, lone), "maximize", random.Random(1)).kind != "step"


def test_five_repeats_can_have_an_outlier() -> None:
    assert [o.index for o in outliers([Repeat(v) for v in (1.0, 1.01, 0.99, 1.0, 3.0)], "maximize")] == [4]


def test_a_trend_is_found() -> None:
    found = drift(noisy(2, [0.01 * i for i in range(12)]), "minimize", random.Random(2))
    assert found.kind == "trend"
    assert found.change < 0  # longer times are a slower machine
    assert "from first to last" in str(found)


def test_few_repeats_are_not_judged() -> None:
    assert drift([1.0, 2.0, 3.0, 4.0, 5.0], "maximize", random.Random(0)).kind == "undecided"
    assert drift([5.0] * 9, "maximize", random.Random(0)).kind == "steady"


def test_the_same_random_numbers_give_the_same_answer() -> None:
    values = noisy(5, [0.002 * i for i in range(12)])
    assert drift(values, "maximize", random.Random(7)) == drift(values, "maximize", random.Random(7))


def test_outliers_are_named_with_a_cause() -> None:
    values = [130.0, 100.0, 101.0, 99.0, 100.0, 100.5, 160.0, 99.5, 100.2]
    nodes = ["a", "a", "b", "a", "b", "a", "c", "b", "a"]
    found = outliers([Repeat(v, (n,)) for v, n in zip(values, nodes, strict=True)], "minimize")
    assert [(o.index, o.cause) for o in found] == [(0, "first run"), (6, "node")]
    assert "c, the only run there" in str(found[1])
    lone = [*[100.0, 100.5, 99.5, 100.2, 99.8], 150.0]
    assert [o.cause for o in outliers([Repeat(v, ("a",)) for v in lone], "minimize")] == ["unexplained"]


@pytest.mark.parametrize("before", [9, 4])
def test_runs_on_either_side_of_a_step_are_not_called_odd_one_by_one(before: int) -> None:
    values = noisy(3, [0.0] * before + [-0.3] * (13 - before), noise=0.005)
    drifted = drift(values, "maximize", random.Random(0))
    found = outliers([Repeat(v) for v in values], "maximize", drifted)
    assert {o.cause for o in found} == {"trend"}


def test_three_runs_have_no_outlier() -> None:
    assert outliers([Repeat(1.0), Repeat(1.0), Repeat(9.0)], "maximize") == []
    assert outliers([Repeat(1.0)] * 9, "maximize") == []


def test_the_change_of_a_trend_is_that_from_first_to_last() -> None:
    found = drift(noisy(2, [-0.01 * i for i in range(12)], noise=0.001), "maximize", random.Random(2))
    assert found.change == pytest.approx(math.expm1(-0.11), abs=0.005)


def test_an_outlier_is_five_robust_deviations_away_and_a_thousandth() -> None:
    calm = [100.0, 101.0, 99.0, 100.5, 99.5, 100.2, 99.8, 101.5, 98.5]  # the median distance is about 0.75%
    for odd, named in ((104.5, False), (107.0, True)):
        found = outliers([Repeat(v, ("a",)) for v in [*calm, odd]], "maximize")
        assert [o.index for o in found] == ([9] if named else [])
    exact = [100.0, 100.0001, 99.9999, 100.0, 100.0001, 99.9999, 100.05]
    assert outliers([Repeat(v, ("a",)) for v in exact], "maximize") == []


def test_runs_along_a_trend_are_not_called_odd_one_by_one() -> None:
    values = noisy(3, [0.0] * 9 + [-0.1, -0.2, -0.3, -0.4], noise=0.002)
    drifted = Drift("trend", -0.3, 0.001, len(values))
    found = outliers([Repeat(v) for v in values], "maximize", drifted)
    assert [(o.index, o.cause) for o in found] == [(n, "trend") for n in (9, 10, 11, 12)]


def remembering(seed: int, length: int) -> list[float]:
    """A machine of which every run has half of the last one's deviation, and no drift."""
    rng = random.Random(seed)
    logs = [rng.gauss(0, 0.01)]
    for _ in range(length - 1):
        logs.append(0.5 * logs[-1] + math.sqrt(0.75) * rng.gauss(0, 0.01))
    return [100 * math.exp(log) for log in logs]


@pytest.mark.parametrize("length", [10, 15])
def test_a_machine_whose_runs_resemble_the_last_one_is_rarely_called_drifting(length: int) -> None:
    """Shuffled orders alone called 19% of such series of 10, and 30% of 15, drifting."""
    called = sum(
        drift(remembering(seed, length), "maximize", random.Random(seed)).kind != "steady" for seed in range(100)
    )
    assert called <= 14


def test_a_large_step_is_still_found_in_ten_runs() -> None:
    found = sum(
        drift(noisy(seed, [0.0] * 5 + [-0.06] * 5), "maximize", random.Random(seed)).kind == "step"
        for seed in range(40)
    )
    assert found >= 36


def test_what_is_clearly_no_drift_is_not_shuffled_to_the_end() -> None:
    class Counting(random.Random):
        shuffles = 0

        def shuffle(self, x: Any) -> None:
            self.shuffles += 1
            super().shuffle(x)

    noise = random.Random(4)
    steady, rng = [math.exp(noise.gauss(0, 0.02)) for _ in range(60)], Counting(0)
    assert drift(steady, "maximize", rng).kind == "steady"
    assert 50 <= rng.shuffles < PERMUTATIONS
    stepped, rng = [value * (0.9 if at > 30 else 1) for at, value in enumerate(steady)], Counting(0)
    assert drift(stepped, "maximize", rng).kind == "step"
    assert rng.shuffles == PERMUTATIONS


# Values seen through the repeats of the baseline: right after a step and along a trend, untouched without them.


def repeats(*values: float, every: int = 3, nodes: tuple[str, ...] = ("n1",)) -> list[Repeat]:
    return [Repeat(value, nodes, every * i) for i, value in enumerate(values)]


def scattered(levels: list[float], seed: int = 1) -> list[float]:
    dice = random.Random(seed)
    return [level * (1 + dice.gauss(0, 0.005)) for level in levels]


def test_after_a_step_both_sides_are_seen_at_the_same_level() -> None:
    course = regimes(repeats(*scattered([100.0] * 6 + [130.0] * 6)), "maximize")
    assert course.drift.kind == "step"
    early, late = course.seen_through(200.0, 4), course.seen_through(260.0, 28)
    assert early == pytest.approx(late, rel=0.02)
    assert course.seen_through(210.0, 1) > course.seen_through(234.0, 30), "raw, the second would be better"


def test_a_time_is_divided_as_a_rate_is() -> None:
    course = regimes(repeats(*scattered([1.3] * 6 + [1.0] * 6)), "minimize")
    assert course.seen_through(0.65, 4) == pytest.approx(course.seen_through(0.5, 28), rel=0.02)


def test_along_a_trend_the_level_follows() -> None:
    course = regimes(repeats(*scattered([100.0 * 1.03**i for i in range(12)])), "maximize")
    assert course.drift.kind == "trend"
    assert course.seen_through(100.0, 0) == pytest.approx(course.seen_through(100.0 * 1.03**11, 33), rel=0.03)
    assert course.seen_through(5.0, 999) == course.seen_through(5.0, 33), "after the last repeat the level stays"
    assert course.seen_through(5.0, -9) == course.seen_through(5.0, 0)


def test_between_two_repeats_the_level_is_between_theirs() -> None:
    course = regimes(repeats(*scattered([100.0] * 6 + [130.0] * 6)), "maximize")
    before, between, after = (course.seen_through(100.0, place) for place in (15, 16, 18))
    assert before > between > after


def test_a_steady_machine_changes_nothing() -> None:
    for seed in range(20):
        course = regimes(repeats(*scattered([100.0] * 12, seed)), "maximize", level=0.999)
        assert not course.changed
        assert course.seen_through(123.4, 7) == 123.4
    assert not regimes([], "maximize").changed
    assert not regimes(repeats(1.0, -1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0), "maximize").changed


def test_a_slow_node_is_no_change_of_the_machine() -> None:
    values = scattered([100.0] * 6 + [70.0] * 6)
    placed = [Repeat(v, ("n1",) if i < 6 else ("n2",), i) for i, v in enumerate(values)]
    assert not regimes(placed, "maximize").changed
    unknown = [Repeat(v, (f"n{i}",), i) for i, v in enumerate(values)]
    assert not regimes(unknown, "maximize").changed, "every run elsewhere: node or time, nobody can say"


def test_the_order_is_that_of_the_runs() -> None:
    placed = repeats(*scattered([100.0] * 6 + [130.0] * 6))
    assert regimes(placed[::-1], "maximize") == regimes(placed, "maximize")


def test_half_way_between_two_repeats_the_level_is_half_way_too() -> None:
    course = Regimes(Drift("step", 0.3, 0.001, 2), (10, 20, 30), (0.0, 0.4, 0.4))
    at = [course.seen_through(100.0, place) for place in (10, 15, 20)]
    assert at[1] == pytest.approx((at[0] * at[2]) ** 0.5)
    assert at[0] / at[2] == pytest.approx(math.exp(0.4))
