"""Runs that were not interleaved: the interval is Welch's, and keeps its level."""

from __future__ import annotations

import math
import random
from statistics import fmean, stdev

import pytest
from scipy import stats

from ridgeline.stats.student import t_quantile
from ridgeline.stats.unpaired import together, unpaired


def test_the_interval_is_welchs() -> None:
    a, b = [100.0, 104.0, 98.0, 101.0], [110.0, 118.0, 109.0]
    found = unpaired(a, b, "maximize")
    assert found is not None
    peer = stats.ttest_ind([math.log(v) for v in b], [math.log(v) for v in a], equal_var=False).confidence_interval(
        0.95
    )
    assert (found.low, found.high) == pytest.approx((math.exp(peer.low), math.exp(peer.high)))
    assert found.verdict == "better"


def test_a_time_that_fell_is_better() -> None:
    found = unpaired([10.0, 10.1, 9.9], [8.0, 8.1, 7.9], "minimize")
    assert found is not None and found.ratio == pytest.approx(1.25, rel=0.01)
    assert found.verdict == "better"


def test_one_run_has_no_interval_and_no_verdict() -> None:
    found = unpaired([10.0], [20.0, 21.0], "maximize")
    assert found is not None and found.low is None
    assert str(found).endswith("too few runs to tell")
    assert unpaired([1.0, -1.0], [1.0], "maximize") is None
    assert unpaired([], [1.0], "maximize") is None


def test_equal_campaigns_are_called_different_no_more_often_than_the_level_says() -> None:
    rng = random.Random(7)
    alarms = 0
    for _ in range(400):
        a, b = ([math.exp(rng.gauss(0, 0.02)) for _ in range(4)] for _ in range(2))
        found = unpaired(a, b, "maximize")
        alarms += found is not None and found.verdict in ("better", "worse")
    assert alarms <= 400 * 0.09


def test_many_settings_at_once_widen_the_interval() -> None:
    a, b = [100.0, 104.0, 98.0], [110.0, 118.0, 109.0]
    alone, among = unpaired(a, b, "maximize"), unpaired(a, b, "maximize", among=10)
    assert alone is not None and among is not None
    assert among.low is not None and alone.low is not None and among.low < alone.low


def test_settings_together_need_three_for_an_interval() -> None:
    assert together([1.1, 1.2])[1] is None
    ratio, low, high = together([1.1, 1.2, 1.15])
    assert low is not None and high is not None and low < ratio < high
    assert together([0.5, 2.0])[0] == pytest.approx(1.0), "half as fast and twice as fast cancel"
    logs = [math.log(each) for each in (1.1, 1.2, 1.15)]
    half = t_quantile(0.975, 2) * stdev(logs) / math.sqrt(3)
    assert (low, ratio, high) == pytest.approx([math.exp(fmean(logs) + side * half) for side in (-1, 0, 1)])


def test_values_without_a_ratio_and_values_without_scatter() -> None:
    assert unpaired([0.0, 1.0], [1.0, 2.0], "maximize") is None
    assert unpaired([1.0, 2.0], [-1.0, 1.0], "maximize") is None
    same = unpaired([5.0, 5.0], [6.0, 6.0], "maximize")
    assert same is not None
    assert (same.low, same.high) == (pytest.approx(1.2), pytest.approx(1.2))
