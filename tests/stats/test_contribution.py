from __future__ import annotations

import math
import random
import re
from statistics import stdev
from typing import Any

import pytest

from ridgeline.records.space import Point
from ridgeline.stats.contribution import Contribution, contributions, search_gain, text
from ridgeline.stats.student import t_quantile
from ridgeline.stats.wording import MetricText

BASELINE: Point = {"tp": 2, "batch": 64, "nccl": "ring"}
WINNER: Point = {"tp": 8, "batch": 1000, "nccl": "tree"}


def trials(seed: int, count: int, sign: float = 1.0) -> list[tuple[Point, float]]:
    rng = random.Random(seed)
    made: list[tuple[Point, float]] = []
    for _ in range(count):
        point: Point = {
            "tp": rng.choice((2, 4, 8)),
            "batch": rng.randrange(64, 1024),
            "nccl": rng.choice(["ring", "tree"]),
        }
        log = {2: 0.0, 4: 0.2, 8: math.log(1.4)}[int(point["tp"] or 0)] + 0.05 * math.log(float(point["batch"] or 1))
        made.append((point, 100 * math.exp(sign * (log + rng.gauss(0, 0.02)))))
    return made


@pytest.mark.parametrize("direction", ["maximize", "minimize"])
def test_the_knob_that_brought_it_is_named_first(direction: str) -> None:
    sign = 1.0 if direction == "maximize" else -1.0
    found = contributions(BASELINE, WINNER, trials(2, 40, sign), direction)  # type: ignore[arg-type]
    assert [c.name for c in found] == ["tp", "batch", "nccl"]
    assert found[0].low <= 0.4 <= found[0].high
    assert not found[2].detectable
    assert text(found).startswith("tp +")
    assert text(found).endswith("no detectable difference: nccl")


def test_a_knob_without_effect_is_rarely_credited() -> None:
    credited = 0
    for seed in range(100):
        found = contributions(BASELINE, WINNER, trials(seed, 30), "maximize")
        credited += next(c for c in found if c.name == "nccl").detectable
    assert credited <= 10


def test_knobs_that_did_not_move_are_not_listed() -> None:
    found = contributions(BASELINE, {**BASELINE, "tp": 8}, trials(2, 30), "maximize")
    assert [c.name for c in found] == ["tp"]


def test_too_few_trials_say_nothing() -> None:
    assert contributions(BASELINE, WINNER, trials(3, 5), "maximize") == []


def test_conditional_knobs_take_part() -> None:
    rng = random.Random(4)
    made: list[tuple[Point, float]] = []
    for _ in range(40):
        point: Point = {"be": "fa3", "page": rng.choice((1, 16))} if rng.random() < 0.6 else {"be": "triton"}
        gain = (0.3 if point["be"] == "fa3" else 0.0) + (0.2 if point.get("page") == 16 else 0.0)
        made.append((point, math.exp(gain + rng.gauss(0, 0.02))))
    found = contributions({"be": "triton"}, {"be": "fa3", "page": 16}, made, "maximize")
    assert {c.name for c in found} == {"be", "page"}


def test_knobs_that_only_moved_together_share_one_part() -> None:
    rng = random.Random(6)
    made: list[tuple[Point, float]] = []
    for _ in range(30):
        tp, batch = rng.choice((4, 8, 16)), rng.choice((64, 512))
        gain = (0.35 if tp == 8 else 0.0) + (0.2 if batch == 512 else 0.0)
        made.append(({"tp": tp, "pp": 16 // tp, "batch": batch}, math.exp(gain + rng.gauss(0, 0.02))))
    found = contributions({"tp": 16, "pp": 1, "batch": 64}, {"tp": 8, "pp": 2, "batch": 512}, made, "maximize")
    assert [c.name for c in found] == ["tp with pp", "batch"]
    assert found[0].low <= math.expm1(0.35) <= found[0].high


def test_numbers_of_many_values_are_told_apart_unless_one_follows_from_the_other() -> None:
    rng = random.Random(7)
    free: list[tuple[Point, float]] = [
        ({"a": 1 + rng.random(), "b": rng.random()}, 1 + rng.random()) for _ in range(30)
    ]
    found = contributions({"a": 1.1, "b": 0.1}, {"a": 1.9, "b": 0.8}, free, "maximize")
    assert {c.knobs for c in found} == {("a",), ("b",)}
    bound: list[tuple[Point, float]] = [({"a": p["a"], "b": 7 - 2 * float(p["a"] or 0)}, v) for p, v in free]
    found = contributions({"a": 1.1, "b": 4.8}, {"a": 1.9, "b": 3.2}, bound, "maximize")
    assert [c.knobs for c in found] == [("a", "b")]


def test_what_the_trials_leave_open_is_not_called_no_difference() -> None:
    """One look at a value under much noise shows nothing, neither a gain nor that there is none."""
    rng = random.Random(8)
    made: list[tuple[Point, float]] = [
        ({"tp": rng.choice((2, 8)), "page": 1}, math.exp(rng.gauss(0, 0.3))) for _ in range(12)
    ]
    made = [(point, value * (4 if point["tp"] == 8 else 1)) for point, value in made]
    made.append(({"tp": 8, "page": 16}, 4.0))
    said = text(contributions({"tp": 2, "page": 1}, {"tp": 8, "page": 16}, made, "maximize"))
    assert "no detectable difference" not in said
    assert "too few trials to tell: page (-" in said


def disturbed_once() -> list[tuple[Point, float]]:
    """Only `block` matters. -O3 ran once, and something disturbed that run."""
    rng = random.Random(1)
    made: list[tuple[Point, float]] = []
    for block in (16, 16, 16, 16, 32, 64, 32, 64, 16, 32, 64, 16, 64, 32):
        schedule = rng.choice(("static", "dynamic"))
        speed = 100 * math.exp(0.3 * math.log2(block / 16) + rng.gauss(0, 0.01))
        made.append(({"opt": "-O2", "block": block, "schedule": schedule}, speed))
    return [*made, ({"opt": "-O3", "block": 64, "schedule": "static"}, 0.42 * 100 * math.exp(0.6))]


def test_an_effect_that_hangs_on_one_run_is_open() -> None:
    baseline: Point = {"opt": "-O2", "block": 16, "schedule": "static"}
    winner: Point = {"opt": "-O3", "block": 64, "schedule": "static"}
    found = {c.name: c for c in contributions(baseline, winner, disturbed_once(), "maximize")}
    assert found["block"].detectable
    assert not found["opt"].detectable
    assert "open, too few trials to tell: opt (" in text(list(found.values()))


def test_a_stated_effect_carries_its_interval() -> None:
    baseline: Point = {"opt": "-O2", "block": 16, "schedule": "static"}
    found = contributions(baseline, {**baseline, "block": 64}, disturbed_once(), "maximize")
    assert re.match(r"block \+\d+% \(\+\d+% to \+\d+%\)$", text(found))


def test_each_knob_is_said_once_shown_undetectable_or_open() -> None:
    found = [
        Contribution(("a",), 0.004, 0.001, 0.007),
        Contribution(("b",), 0.001, -0.002, 0.004),
        Contribution(("c",), 0.1, -0.2, 0.4),
    ]
    assert text(found) == (
        "a +0% (+0% to +1%); no detectable difference: b; open, too few trials to tell: c (-20% to +40%)"
    )


@pytest.mark.parametrize(
    ("low", "high", "small"), [(-0.09, 0.09, True), (-0.09, 0.11, False), (-0.11, 0.09, False), (-0.15, 0.15, False)]
)
def test_a_knob_hardly_matters_where_a_tenth_is_ruled_out_on_both_sides(low: float, high: float, small: bool) -> None:
    assert Contribution(("a",), 0.0, low, high).small is small


def test_a_run_without_a_positive_value_has_no_logarithm_and_is_left_out() -> None:
    points = [({"a": a, "b": b}, 100.0 * (1 + a)) for a in (0, 1) for b in (0, 1, 2)] * 2
    whole = contributions({"a": 0, "b": 0}, {"a": 1, "b": 0}, points, "maximize")
    assert whole
    assert contributions({"a": 0, "b": 0}, {"a": 1, "b": 0}, [*points, ({"a": 1, "b": 1}, 0.0)], "maximize") == whole


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
         "looks 0.900x baseline in the search, no better than the baseline"),
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
