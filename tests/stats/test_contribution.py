from __future__ import annotations

import math
import random
import re

import pytest

from ridgeline.records.space import Point
from ridgeline.stats.contribution import Contribution, contributions, text

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
