"""Values seen through the repeats of the baseline: right after a step and along a trend, untouched without them."""

from __future__ import annotations

import math
import random

import pytest

from ridgeline.stats.drift import Drift
from ridgeline.stats.regimes import BaselineRun, Regimes, regimes


def repeats(*values: float, every: int = 3, nodes: tuple[str, ...] = ("n1",)) -> list[BaselineRun]:
    return [BaselineRun(every * i, value, nodes) for i, value in enumerate(values)]


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
    placed = [BaselineRun(i, v, ("n1",) if i < 6 else ("n2",)) for i, v in enumerate(values)]
    assert not regimes(placed, "maximize").changed
    unknown = [BaselineRun(i, v, (f"n{i}",)) for i, v in enumerate(values)]
    assert not regimes(unknown, "maximize").changed, "every run elsewhere: node or time, nobody can say"


def test_the_order_is_that_of_the_runs() -> None:
    placed = repeats(*scattered([100.0] * 6 + [130.0] * 6))
    assert regimes(placed[::-1], "maximize") == regimes(placed, "maximize")


def test_half_way_between_two_repeats_the_level_is_half_way_too() -> None:
    course = Regimes(Drift("step", 0.3, 0.001, 2), (10, 20, 30), (0.0, 0.4, 0.4))
    at = [course.seen_through(100.0, place) for place in (10, 15, 20)]
    assert at[1] == pytest.approx((at[0] * at[2]) ** 0.5)
    assert at[0] / at[2] == pytest.approx(math.exp(0.4))
