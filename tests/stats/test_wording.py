"""Numbers as people read them: small effects stay visible, and a percentage says of what."""

from __future__ import annotations

import pytest

from ridgeline.stats.wording import (
    MetricText,
    count,
    effect_text,
    metric_text,
    node_time_text,
    percent,
    percent_range,
    ratio_range,
    ratio_text,
)


@pytest.mark.parametrize(
    ("estimate", "low", "high", "told"),
    [
        (993 / 991, 993 / 991, 993 / 991, "1.002x"),
        (1.0004, 1.0, 1.03, "1.0004x"),
        (0.9996, 0.97, 1.0, "0.9996x"),
        (1.5, 1.5, 1.5, "1.50x"),
        (1.001, 0.95, 1.05, "1.00x"),  # no difference shown: more digits would claim one
        (1.0, 1.0, 1.0, "1.00x"),
    ],
)
def test_a_real_difference_never_reads_as_none(estimate: float, low: float, high: float, told: str) -> None:
    assert ratio_range(estimate, low, high)[0] == told


@pytest.mark.parametrize(
    ("ratio", "told"),
    [(1.2345, "1.23x"), (12.345, "12.3x"), (123.45, "123x"), (4090.4, "4,090x"), (0.95349, "0.953x"), (9.996, "10.0x"),
     (0.9999, "1.00x"), (2.0, "2.00x")],
)  # fmt: skip
def test_a_ratio_has_three_digits(ratio: float, told: str) -> None:
    assert ratio_text(ratio) == told


@pytest.mark.parametrize(
    ("estimate", "low", "high", "told"),
    [
        (2.5709, 2.5219, 2.6209, ("2.57x", "2.52 to 2.62")),
        (1.0508, 1.0123, 1.0907, ("1.05x", "1.01 to 1.09")),
        (1.0511, 1.0031, 1.0991, ("1.051x", "1.003 to 1.099")),  # its low end would read as no gain
        (0.9485, 0.9012, 0.9981, ("0.949x", "0.901 to 0.998")),
        (9.98, 9.51, 10.62, ("9.98x", "9.51 to 10.6")),
    ],
)
def test_an_interval_has_no_more_digits_than_its_ratio_needs(
    estimate: float, low: float, high: float, told: tuple[str, str]
) -> None:
    assert ratio_range(estimate, low, high) == told


def test_a_change_beyond_a_doubling_is_said_as_a_ratio() -> None:
    assert [effect_text(0.078), effect_text(0.999), effect_text(1.0), effect_text(3.091)] == [
        "7.8%", "99.9%", "2.00x", "4.09x",
    ]  # fmt: skip
    assert effect_text(1e300) == "more than 1,000x"
    assert percent_range(-0.05, 3.091) == "0.950x to 4.09x"
    assert percent_range(-0.05, 0.5) == "-5.0% to +50.0%"
    assert MetricText("wall_s", "s", "minimize").changed(1 / 4.09 - 1) == "wall_s 4.09x as high"


def test_before_and_after_are_told_apart() -> None:
    speed = MetricText("rate", "steps/s")
    assert speed.before_after(302, 317) == "302 -> 317 steps/s"
    assert speed.before_after(1000.2, 1000.4) == "1,000.2 -> 1,000.4 steps/s"
    assert MetricText("rate").before_after(302, 317) == "rate 302 -> 317"


def test_goodput_is_named_since_its_unit_reads_as_that_of_all_requests() -> None:
    goodput = MetricText("goodput", "requests/s")
    assert goodput.before_after(5.6, 14.5) == "goodput 5.6 -> 14.5 requests/s"
    assert goodput.value(14.5) == "goodput 14.5 requests/s"
    assert MetricText("requests_s", "requests/s").value(14.5) == "14.5 requests/s"


def test_a_loss_that_rounds_to_nothing_is_not_said_to_be_one() -> None:
    assert [percent(-0.004, 0), percent(-0.0), percent(0.004, 0)] == ["0%", "0.0%", "+0%"]
    assert [percent(-0.006, 0), percent(0.041)] == ["-1%", "+4.1%"]


def test_percentages_are_of_the_metric_itself() -> None:
    time, speed = MetricText("wall_s", "s", "minimize"), MetricText("rate", "steps/s")
    third_slower = 1 / 1.5 - 1
    assert time.changed(third_slower) == "wall_s 50% higher"
    assert time.changed(1.03) == "wall_s 51% lower"
    assert speed.changed(-0.5) == "rate 50% lower"
    assert time.range(-0.02, 0.25) == "wall_s -20.0% to +2.0%"
    assert speed.range(-0.02, 0.25) == "rate -2.0% to +25.0%"


def test_a_ratio_says_what_it_counts_where_less_is_better() -> None:
    assert MetricText("wall_s", "s", "minimize").ratio_to("1.20x", "baseline") == "1.20x as fast as baseline"
    assert MetricText("itl", "ms/token", "minimize").ratio_to("1.20x", "A") == "1.20x as fast as A"
    assert MetricText("energy", "J", "minimize").ratio_to("1.20x", "A") == "1.20x as economical as A"
    assert MetricText("iterations", "", "minimize").ratio_to("1.20x", "A") == "1.20x as good as A"
    assert MetricText("rate", "steps/s").ratio_to("1.20x", "baseline") == "1.20x baseline"


@pytest.mark.parametrize(
    ("value", "told"),
    [(0.0, "0"), (0.00012345, "0.0001234"), (0.001, "0.001"), (1.23456, "1.235"), (999.94, "999.9"), (1000.4, "1,000"),
     (1234567.8, "1,234,568"), (12345678.0, "1.235e+07"), (-4321.0, "-4,321")],
)  # fmt: skip
def test_a_value_has_four_digits_or_all_before_the_point(value: float, told: str) -> None:
    assert metric_text(value) == told


@pytest.mark.parametrize(
    ("number", "noun", "shown", "told"),
    [
        (1, "run", "", "1 run"),
        (0, "run", "", "0 runs"),
        (2, "legal point", "", "2 legal points"),
        (1.0004, "node-hour", "1", "1 node-hour"),
        (1.04, "node-hour", "1.04", "1.04 node-hours"),
        (1000, "legal point", "1,000", "1,000 legal points"),
    ],
)
def test_one_is_singular(number, noun, shown, told):
    assert count(number, noun, shown) == told


def test_node_time_of_short_runs_is_in_seconds() -> None:
    assert node_time_text(12.14) == "12.1 node-hours" and node_time_text(1.0) == "1 node-hour"
    assert node_time_text(7.78e-5) == "0.28 node-seconds" and node_time_text(0.0) == "0 node-hours"
