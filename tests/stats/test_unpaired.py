"""Runs that were not interleaved: the interval is Welch's, and keeps its level."""

from __future__ import annotations

import math
import random
from statistics import fmean, stdev

import pytest
from scipy import stats

from ridgeline.stats.student import t_quantile
from ridgeline.stats.unpaired import together, unpaired


def test_the_interval_is_welchs_with_fewer_degrees_of_freedom() -> None:
    a, b = [100.0, 104.0, 98.0, 101.0], [110.0, 118.0, 109.0]
    found = unpaired(a, b, "maximize")
    assert found is not None and found.low is not None and found.high is not None
    peer = stats.ttest_ind([math.log(v) for v in b], [math.log(v) for v in a], equal_var=False)
    welch = peer.confidence_interval(0.95)
    freedom = 2 / (1 / peer.df + 1 / 2)
    wider = stats.t.ppf(0.975, freedom) / stats.t.ppf(0.975, peer.df)
    assert math.log(found.high / found.low) == pytest.approx(wider * (welch.high - welch.low))
    assert math.sqrt(found.high * found.low) == pytest.approx(found.ratio)
    assert found.verdict == "better"


def test_three_runs_against_ten_keep_the_level() -> None:
    """With Welch's own degrees of freedom it was 6 to 7%."""
    rng = random.Random(3)
    called = 0
    for _ in range(2000):
        sides = ([math.exp(rng.gauss(0, 0.02)) for _ in range(number)] for number in (10, 3))
        found = unpaired(*sides, "maximize")
        called += found is not None and found.verdict != "no detectable difference"
    assert called / 2000 < 0.05


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
