from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.stats.intervals import mean_interval, median_interval, relative_noise, search_gain

positive = st.lists(st.floats(0.1, 1e4), min_size=1, max_size=30)


@given(positive)
def test_an_interval_holds_its_estimate(values: list[float]) -> None:
    for interval in (mean_interval(values), median_interval(values)):
        assert min(values) * (1 - 1e-9) <= interval.estimate <= max(values) * (1 + 1e-9)
        if interval.low is not None and interval.high is not None:
            assert interval.low * (1 - 1e-9) <= interval.estimate <= interval.high * (1 + 1e-9)


def test_the_mean_interval_holds_the_truth_as_often_as_it_says() -> None:
    held = 0
    for seed in range(500):
        rng = random.Random(seed)
        interval = mean_interval([100 * math.exp(rng.gauss(0, 0.05)) for _ in range(4)])
        assert interval.low is not None and interval.high is not None
        held += interval.low <= 100 <= interval.high
    assert 0.92 < held / 500 < 0.98


def test_the_median_needs_six_runs_for_95_percent() -> None:
    assert median_interval([1, 2, 3, 4, 5]).low is None
    six = median_interval([1, 2, 3, 4, 5, 6])
    assert (six.low, six.high) == (1, 6)
    assert "too few" in str(median_interval([1.0, 2.0]))


def test_one_run_has_no_interval() -> None:
    assert mean_interval([5.0]).low is None
    assert relative_noise([5.0]) is None
    assert relative_noise([1.0, -1.0]) is None


@pytest.mark.parametrize("spread", [0.0, 0.05, 0.2])
def test_the_search_estimate_is_less_inflated_than_what_was_seen(spread: float) -> None:
    seen = shrunk = held = 0.0
    for seed in range(300):
        rng = random.Random(seed)
        truth = [rng.gauss(0, spread) for _ in range(30)]
        values = [math.exp(t + rng.gauss(0, 0.03)) for t in truth]
        gain = search_gain(values, [math.exp(rng.gauss(0, 0.03)) for _ in range(6)])
        assert gain is not None and gain.low is not None and gain.high is not None
        true = math.expm1(truth[values.index(max(values))])
        seen += gain.seen - true
        shrunk += gain.change - true
        held += gain.low <= true <= gain.high
    assert abs(shrunk) < seen / 2
    assert held / 300 > 0.87


def test_the_search_estimate_calls_itself_one() -> None:
    text = str(search_gain([100, 120, 130], [100, 101, 99]))
    assert text.startswith("+30.0% over baseline (95%: ")
    assert "search estimate" in text
    assert "noise not known" in str(search_gain([130], [100]))
    assert search_gain([], [1.0]) is None
    assert search_gain([-1.0], [1.0]) is None


def test_a_time_to_minimise_gains_when_it_falls() -> None:
    gain = search_gain([50.0], [100.0], "minimize")
    assert gain is not None
    assert gain.seen == pytest.approx(1.0)
