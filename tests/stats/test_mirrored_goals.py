"""A time is judged as its rate is: whatever takes a direction says of 1/x to minimise what it says of x to maximise."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from ridgeline.stats.compare import Block, Direction, confirm, first_run_effect, unpaired
from ridgeline.stats.contribution import contributions, search_gain
from ridgeline.stats.drift import Repeat, drift, outliers, regimes
from ridgeline.stats.equivalence import equivalence
from ridgeline.stats.gate import gate_plan, judge_gate
from ridgeline.stats.nodes import NodeRun, corrections, node_effects
from ridgeline.stats.pareto import tradeoffs
from ridgeline.stats.scaling import scaling

Turn = Callable[[Sequence[float]], list[float]]


def noisy(seed: int, number: int, level: float = 100.0, noise: float = 0.01) -> list[float]:
    rng = random.Random(seed)
    return [level * math.exp(rng.gauss(0, noise)) for _ in range(number)]


def _blocks(turn: Turn, gain: float) -> list[Block]:
    found = []
    for n in range(6):
        base, other = noisy(n, 2), noisy(100 + n, 2, 100 * gain)
        own = turn([*base, *other])
        found.append(Block(n, (f"n{n % 2}",), own[:2], {"b": own[2:]}, (own[0], turn([base[0] * (1.05 + n / 500)])[0])))
    return found


def _slowing(seed: int) -> list[float]:
    return [value * (0.9 if n > 9 else 1.0) for n, value in enumerate(noisy(seed, 20))]


CASES: dict[str, Callable[[Turn, Direction], Any]] = {
    "confirm, better": lambda turn, way: confirm(_blocks(turn, 1.2), 0.95, way),
    "confirm, worse": lambda turn, way: confirm(_blocks(turn, 0.8), 0.95, way),
    "first run": lambda turn, way: first_run_effect(_blocks(turn, 1.0), 0.95, way),
    "equivalence": lambda turn, way: equivalence(_blocks(turn, 1.03), 0.05, 0.95, way),
    "unpaired": lambda turn, way: unpaired(turn(noisy(1, 5)), turn(noisy(2, 4, 120)), way),
    "drift, step": lambda turn, way: drift(turn(_slowing(1)), way, random.Random(1)),
    "regimes": lambda turn, way: (
        regimes([Repeat(value, place=3 * n) for n, value in enumerate(turn(_slowing(2)))], way).drift
    ),
    "outliers": lambda turn, way: [
        (found.index, found.change, found.cause, found.reason)
        for found in outliers([Repeat(value) for value in turn([*noisy(3, 5), 60.0, *noisy(4, 5), 150.0])], way)
    ],
    "search gain": lambda turn, way: search_gain(turn(noisy(5, 9, 120, 0.1)), turn(noisy(6, 4)), way),
    "search gain of few": lambda turn, way: search_gain(turn(noisy(5, 3, 120, 0.1)), turn(noisy(6, 4)), way),
    "contributions": lambda turn, way: contributions(
        {"a": 0, "b": 0},
        {"a": 1, "b": 1},
        [
            ({"a": a, "b": b}, value)
            for (a, b), value in zip(
                [(a, b) for _ in range(4) for a in (0, 1) for b in (0, 1)],
                turn([100 * 1.3**a * math.exp(e) for _ in range(4) for a in (0, 1) for e in (0.01 * a, -0.01)]),
                strict=True,
            )
        ],
        way,
    ),
    "scaling": lambda turn, way: scaling(
        {size: turn(noisy(size, 3, 100 * size / (1 + 0.15 * (size - 1)))) for size in (1, 2, 4, 8)},
        way,
        random.Random(1),
    ),
    "gate, slower": lambda turn, way: _gated(turn, way, 90.0),
    "gate, faster": lambda turn, way: _gated(turn, way, 110.0),
    "slow nodes": lambda turn, way: node_effects(_on_nodes(turn), way),
}


def _gated(turn: Turn, way: Direction, level: float) -> Any:
    stored, new = turn(noisy(1, 40)), turn(noisy(2, 40, level))
    plan = gate_plan(stored, way)
    return plan, judge_gate(plan, stored, new, way)


def _on_nodes(turn: Turn) -> list[NodeRun]:
    values = turn([v * (0.8 if n % 4 == 1 else 1.0) for n, v in enumerate(noisy(11, 32))])
    return [NodeRun(f"s{n // 4 % 2}", (f"n{n % 4}",), value, place=n) for n, value in enumerate(values)]


def plain(found: Any) -> Any:
    """Fields by name, numbers to seven digits: logs of 1/x are those of x turned around but for their last digits."""
    if isinstance(found, float):
        return float(f"{found:.7g}")
    if isinstance(found, dict):
        return {name: plain(value) for name, value in found.items()}
    if isinstance(found, list | tuple):
        return [plain(value) for value in found]
    names = getattr(found, "__dataclass_fields__", None)
    return {name: plain(getattr(found, name)) for name in names} if names else found


@pytest.mark.parametrize("case", CASES)
def test_a_time_is_judged_as_its_rate_is(case: str) -> None:
    as_rate = CASES[case](list, "maximize")
    as_time = CASES[case](lambda values: [1 / value for value in values], "minimize")
    assert plain(as_time) == plain(as_rate)
    assert plain(CASES[case](list, "minimize")) != plain(as_rate), "the direction matters, or this shows nothing"


def test_the_cases_say_what_they_are_called() -> None:
    """Each of them finds something: two empty answers are equal as well."""

    def of(case: str) -> Any:
        return CASES[case](list, "maximize")

    assert of("confirm, better").winner == "b" and of("confirm, worse").winner is None
    assert of("confirm, worse").comparisons["b"].verdict == "worse"
    assert of("first run").change < 0
    assert of("drift, step").kind == "step" and of("drift, step").change < 0 and of("drift, step").at == 10
    assert [(index, change < 0) for index, change, *_ in of("outliers")] == [(5, True), (11, False)]
    assert of("unpaired").verdict == "better"
    assert of("search gain").seen > 0.1
    assert of("contributions")[0].knobs == ("a",) and of("contributions")[0].change > 0.2
    assert of("scaling").pays_to == 4
    assert of("gate, slower")[1].slower is True and of("gate, faster")[1].slower is False
    assert of("gate, slower")[1].change > 0.05 and of("gate, faster")[1].change < -0.05
    assert [effect.verdict for effect in of("slow nodes")] == ["usual", "slow", "usual", "usual"]


def test_a_slow_nodes_values_are_brought_to_those_of_its_peers() -> None:
    for way in ("maximize", "minimize"):
        factors = corrections(
            node_effects(_on_nodes(list if way == "maximize" else lambda v: [1 / x for x in v]), way), way
        )  # type: ignore[arg-type]
        assert set(factors) == {"n1"} and (factors["n1"] > 1.1) == (way == "maximize")


POINTS = {
    "fast": [(10.0, 5.0), (10.0, 5.0)],
    "cheap": [(6.0, 2.0), (6.0, 2.0)],
    "middle": [(8.0, 3.0), (8.0, 3.0)],
    "dominated": [(7.0, 4.0), (7.0, 4.0)],
    "as good and dearer": [(8.0, 3.5), (8.0, 3.5)],
    "twin": [(8.0, 3.0), (8.0, 3.0)],
}


@pytest.mark.parametrize("first", ["maximize", "minimize"])
@pytest.mark.parametrize("second", ["maximize", "minimize"])
def test_the_front_is_what_none_beats_in_both_whatever_the_directions(first: Direction, second: Direction) -> None:
    """By the definition, over points turned so that the same ones are best."""
    runs = {
        name: [(a if first == "maximize" else 1 / a, 1 / b if second == "maximize" else b) for a, b in values]
        for name, values in POINTS.items()
    }
    found = tradeoffs(runs, (first, second))
    assert found[0].setting == "fast" and found[-1].setting == "cheap"
    assert {one.setting: one.place for one in found} == {
        "fast": "on", "cheap": "on", "middle": "on", "twin": "on", "dominated": "behind", "as good and dearer": "near",
    }  # fmt: skip


def test_behind_the_front_is_what_another_surely_beats() -> None:
    """A runs that scatter so that the intervals overlap leave it near; without repeats nothing is sure."""
    apart = {"a": [(10.0, 10.0), (10.1, 10.1)], "b": [(5.0, 5.0), (5.1, 5.1)]}
    close = {"a": [(10.0, 10.0), (12.0, 12.0)], "b": [(9.9, 9.9), (11.9, 11.9)]}
    single = {"a": [(10.0, 10.0)], "b": [(5.0, 5.0)]}
    for runs, place in ((apart, "behind"), (close, "near"), (single, "near")):
        assert {one.setting: one.place for one in tradeoffs(runs, ("maximize", "maximize"))} == {"a": "on", "b": place}
        turned = {name: [(1 / x, 1 / y) for x, y in values] for name, values in runs.items()}
        assert {one.setting: one.place for one in tradeoffs(turned, ("minimize", "minimize"))} == {
            "a": "on",
            "b": place,
        }
    half = {"a": [(10.0, 10.0), (10.1, 10.1)], "b": [(5.0, 10.0), (5.1, 10.1)]}
    assert tradeoffs(half, ("maximize", "maximize"))[1].place == "near", "ahead in one of two alone is not sure"
    assert [
        one.setting for one in tradeoffs({**apart, "none": [], "zero": [(0.0, 1.0)]}, ("maximize", "minimize"))
    ] == ["a", "b"]
