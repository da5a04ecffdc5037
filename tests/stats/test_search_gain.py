from __future__ import annotations

import math
import random
from statistics import stdev

import pytest

from ridgeline.stats.search_gain import search_gain
from ridgeline.stats.student import t_quantile


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


def test_the_winner_of_few_settings_pays_for_each_of_them() -> None:
    """Too few to shrink by: the interval is that of one of three chances to be far off."""
    gain = search_gain([100.0, 120.0, 130.0], [100.0, 101.0, 99.0])
    assert gain is not None and gain.low is not None
    noise = stdev(map(math.log, [100.0, 101.0, 99.0]))
    half = t_quantile(1 - 0.05 / 3 / 2, 2) * noise * math.sqrt(1 + 1 / 3)
    assert math.log1p(gain.change) - math.log1p(gain.low) == pytest.approx(half)


def test_with_few_repeats_of_the_baseline_the_share_of_noise_is_doubted() -> None:
    held = 0
    for seed in range(400):
        rng = random.Random(seed)
        truth = [rng.gauss(0, 0.03) for _ in range(40)]
        values = [math.exp(t + rng.gauss(0, 0.03)) for t in truth]
        gain = search_gain(values, [math.exp(rng.gauss(0, 0.03)) for _ in range(4)])
        assert gain is not None and gain.low is not None and gain.high is not None
        held += gain.low <= math.expm1(truth[values.index(max(values))]) <= gain.high
    assert held / 400 > 0.9


@pytest.mark.parametrize("scale", [0.001, 1.0, 70_000.0])
def test_the_estimate_does_not_depend_on_the_unit(scale: float) -> None:
    """Few settings and many: with many the estimate is pulled toward their mean, wherever that lies."""
    baseline = [100.0, 101.0, 99.0, 100.5]
    for tried in ([100.0, 120.0, 130.0], [90.0, 95.0, 100.0, 104.0, 110.0, 115.0, 121.0, 130.0]):
        gain = search_gain([scale * v for v in tried], [scale * v for v in baseline])
        plain = search_gain(tried, baseline)
        assert gain is not None and plain is not None
        assert (gain.seen, gain.change) == (pytest.approx(plain.seen), pytest.approx(plain.change))
        assert 0.2 < gain.change <= gain.seen
