from __future__ import annotations

import math
import random

import pytest

from ridgeline.stats.search_gain import search_gain


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
