from __future__ import annotations

import math
import random
from statistics import stdev
from typing import Any

import pytest

from ridgeline.stats.search_gain import search_gain
from ridgeline.stats.student import t_quantile
from ridgeline.stats.wording import MetricText


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


def test_without_anything_to_compare_there_is_no_estimate() -> None:
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


@pytest.mark.parametrize(
    ("tried", "baseline", "direction", "says"),
    [
        # 18.59 -> 19.18 frames a second, of seven settings of which most are slower
        ([19.18, 17.0, 15.2, 14.9, 13.1, 16.0, 12.2], [18.4, 18.59, 18.8], "maximize",
         "looks 1.03x baseline in the search; with one run a setting, chance alone could explain it"),
        ([10.0, 8.0], [10.6, 9.4], "minimize",
         "looks 1.25x as fast as baseline in the search; with one run a setting, chance alone could explain it"),
        ([200.0, 150.0], [100.0, 101.0, 99.0], "maximize",
         "looks 2.00x baseline in the search; allowing for having picked the best of 2, 95%: 1.86x to 2.15x"),
        ([90.0, 80.0], [100.0, 101.0, 99.0], "maximize",
         "looks 0.90x baseline in the search, no better than the baseline"),
        ([120.0], [100.0], "maximize",
         "looks 1.20x baseline in the search; how far runs scatter is not known yet"),
        ([120.0, 110.0], [100.0, 100.0], "maximize", "looks 1.20x baseline in the search"),
    ],
)  # fmt: skip
def test_the_best_of_a_search_is_spoken_of_in_plain_words(
    tried: list[float], baseline: list[float], direction: Any, says: str
) -> None:
    found = search_gain(tried, baseline, direction)
    assert found is not None
    goal = MetricText("wall_s" if direction == "minimize" else "fps", "", direction)
    assert found.text(goal) == says
