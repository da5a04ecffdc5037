"""The parts that samplers are made of, by their definitions: order and ties, seeds, edges of knobs, formulas."""

from __future__ import annotations

import itertools
import math
import random
from statistics import NormalDist
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ridgeline.records.expression import Expression
from ridgeline.records.observation import Observation, Prediction
from ridgeline.records.space import Continuous, Discrete, Rule, Space, point_key
from ridgeline.samplers.fixed import GridSampler, RandomSampler
from ridgeline.samplers.guided.candidates import PAIRS, Pool, _others, around
from ridgeline.samplers.guided.chooser import (
    CAUTION,
    Chooser,
    Field,
    View,
    _fitted_count,
    acquisition,
    hopeless,
    in_order,
    incumbents,
    predicted,
    screened,
)
from ridgeline.samplers.guided.feasibility import credit, in_common
from ridgeline.samplers.guided.features import Features, along, shape
from ridgeline.samplers.guided.gaussian import EffectsFit, EffectsProcess, log_expected_improvement
from ridgeline.samplers.sequence import (
    Listing,
    SequenceSampler,
    _primes,
    _radical_inverse,
    filling,
    halton,
    is_of_space,
    shuffled,
)

X = Discrete("x", (1, 2, 4, 8), ordered=True)
MODE = Discrete("mode", ("a", "b", "c"), ordered=False)
ONLY_B = Discrete("depth", (1, 2), ordered=True, when=Expression.parse("mode == 'b'"))


def space(*knobs: Any, refuse: str = "") -> Space:
    rules = (Rule(Expression.parse(refuse), "because"),) if refuse else ()
    return Space(knobs, {}, rules)


def never(point: Any) -> None:
    return None


# numbers and points


def test_a_listing_has_every_point_once_and_the_last_knob_varies_fastest() -> None:
    plain = Listing(space(X, MODE))
    assert [plain.at(n) for n in range(plain.size)] == [
        {"x": x, "mode": mode} for x, mode in itertools.product(X.values, MODE.values)
    ]
    listing = Listing(space(X, MODE, ONLY_B))
    points = [p for n in range(listing.size) if (p := listing.at(n)) is not None]
    expected = [{"x": x, "mode": m} for x in X.values for m in "ac"]
    expected += [{"x": x, "mode": "b", "depth": d} for x in X.values for d in (1, 2)]
    assert sorted(map(point_key, points)) == sorted(map(point_key, expected)) and listing.size == 24


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 8, 9, 100, 1000])
def test_shuffled_numbers_are_each_once_and_the_seed_decides_their_order(size: int) -> None:
    assert sorted(shuffled(size, 1)) == list(range(size))
    assert list(shuffled(size, 1)) == list(shuffled(size, 1))
    if size >= 100:
        first, other = list(shuffled(size, 1)), list(shuffled(size, 2))
        assert first != other and sum(a < b for a, b in itertools.pairwise(first)) / size == pytest.approx(0.5, abs=0.2)


def test_haltons_sequence() -> None:
    assert _primes(6) == [2, 3, 5, 7, 11, 13]
    assert [_radical_inverse(n, 2, [0, 1]) for n in (1, 2, 3, 4, 5)] == [0.5, 0.25, 0.75, 0.125, 0.625]
    assert [_radical_inverse(n, 3, [0, 2, 1]) for n in (1, 2, 3)] == pytest.approx([2 / 3, 1 / 3, 2 / 9])
    points = list(itertools.islice(halton(2, 7), 36))
    for dimension, base in ((0, 4), (1, 9)):
        for start in range(0, 36, base):
            cells = {int((p[dimension] % 1.0) * base * 4) // 4 for p in points[start : start + base]}
            assert len(cells) >= base - 1, "each stretch of so many falls into as many parts of the line"
    assert all(0 <= share < 1 for p in points for share in p)
    assert points == list(itertools.islice(halton(2, 7), 36)) != list(itertools.islice(halton(2, 8), 36))


@pytest.mark.parametrize("sampler", [RandomSampler, GridSampler])
def test_every_legal_point_is_asked_for_once_and_none_that_is_refused(sampler: Any) -> None:
    legal = space(X, MODE, ONLY_B, refuse="x == 8")
    asked = sampler(legal, 3, {}, lambda point: "no" if point["mode"] == "c" else None)
    seen = []
    while (proposal := asked.ask()) is not None:
        seen.append(point_key(proposal.point))
        asked.tell(Observation(proposal.point, 1.0))
    expected = [{"x": x, "mode": "a"} for x in (1, 2, 4)]
    expected += [{"x": x, "mode": "b", "depth": d} for x in (1, 2, 4) for d in (1, 2)]
    assert sorted(seen) == sorted(map(point_key, expected))


def test_what_is_pending_is_not_asked_again_and_the_answer_depends_on_nothing_else() -> None:
    walk = SequenceSampler(iter([{"x": n} for n in (1, 2, 3, 4)]))

    def key(n: int) -> str:
        return point_key({"x": n})

    assert walk.first_free(set(), set()) == {"x": 1} == walk.first_free(set(), set())
    assert walk.first_free(set(), {key(1)}) == {"x": 2}
    assert walk.first_free(set(), set()) == {"x": 1}, "free again"
    assert walk.first_free({key(1)}, {key(2)}) == {"x": 3}
    assert walk.free({key(1)}, {key(3)}, 5) == [{"x": 2}, {"x": 4}] and walk.free({key(1)}, set(), 2) == [
        {"x": 2},
        {"x": 3},
    ]
    assert walk.first_free({key(n) for n in (1, 2, 3, 4)}, set()) is None


def test_the_order_of_a_grid() -> None:
    def order(**options: Any) -> list[Any]:
        grid = GridSampler(space(X), 5, options, never)
        found = []
        while (proposal := grid.ask()) is not None:
            found.append(proposal.point["x"])
            grid.tell(Observation(proposal.point, None))
        return found

    assert order() == order(order="listed") == [1, 2, 4, 8]
    assert sorted(order(order="shuffled")) == [1, 2, 4, 8]


def test_filling_ends_when_a_finite_space_has_no_more() -> None:
    found = list(filling(space(X, MODE), 1, lambda point: point["mode"] != "a"))
    assert len(found) == 8 and len({point_key(p) for p in found}) == 8


# codes of knobs


def test_knobs_are_coded_by_order_choice_or_share() -> None:
    line = Continuous("lr", 1e-4, 1e-2, log=True)
    flat = Continuous("f", 2.0, 6.0)
    dense = Discrete("n", tuple(2**k for k in range(33)), ordered=True, log=True)
    sparse = Discrete("m", tuple(2**k for k in range(32)), ordered=True, log=True)
    whole = space(X, MODE, line, flat, dense, sparse)
    assert [shape(k) for k in whole.knobs] == ["index", "choice", "share", "share", "share", "index"]
    point = {"x": 4, "mode": "c", "lr": 1e-3, "f": 3.0, "n": 2**8, "m": 2**8}
    assert [along(k, point[k.name]) for k in (line, flat, dense)] == pytest.approx([0.5, 0.25, 0.25])
    assert along(flat, 2.0) == 0.0 and along(flat, 6.0) == 1.0 and along(X, 8) == 1.0
    assert is_of_space(whole, point)
    assert not is_of_space(whole, {**point, "x": 3}) and not is_of_space(whole, {**point, "z": 1})
    assert not is_of_space(whole, {"x": 4}) and is_of_space(space(Discrete("t", (True, 1, 0), ordered=False)), {"t": 1})
    assert not is_of_space(space(Discrete("t", (True, False), ordered=False)), {"t": 1}), "1 is not true"


# candidates


def test_all_values_one_knob_away_are_candidates_of_ordered_knobs_the_nearest_eight() -> None:
    wide = Discrete("w", tuple(range(40)), ordered=True)
    rng = random.Random(1)
    assert _others(wide, 20, rng) == [n for n in range(12, 29) if n != 20]
    assert _others(wide, 0, rng) == list(range(1, 9)) and _others(wide, 39, rng) == list(range(31, 39))
    assert _others(MODE, "b", rng) == ["a", "c"]
    found = around(
        space(X, MODE, refuse="x == 8"), [{"x": 2, "mode": "a"}], random.Random(1), {point_key({"x": 1, "mode": "a"})}
    )
    points = [tuple(p.values()) for p in found.values()]
    assert points[:3] == [(4, "a"), (2, "b"), (2, "c")], "without what is known or refused"
    assert set(points) <= {(x, m) for x in (1, 2, 4) for m in "abc"} - {(1, "a")}
    assert PAIRS >= 60 and len(points) == len(set(points))
    born = around(space(MODE, ONLY_B), [{"mode": "a"}], random.Random(1), ())
    assert all(("depth" in point) == (point["mode"] == "b") for point in born.values())


def test_a_pool_is_a_prefix_of_one_sequence() -> None:
    small = space(X, MODE, refuse="x == 8")
    pool = Pool(small, Features(small), 1)
    points, keys, rows = pool.grown(0)
    assert (
        len(points) == len(keys) == len(rows) == 9 and pool.exhausted and list(keys) == [point_key(p) for p in points]
    )
    large = space(Continuous("a", 0.0, 1.0), Continuous("b", 0.0, 1.0))
    one, other = Pool(large, Features(large), 1), Pool(large, Features(large), 1)
    later, _, _ = one.grown(3)
    first, _, _ = other.grown(0)
    assert (len(first), len(later)) == (4000, 4000 + 3 * 500)
    assert later[: len(first)] == first and not other.exhausted
    assert one.grown(0)[0] == first, "asked again for fewer"


def test_what_failed_has_in_common() -> None:
    own = space(X, MODE, Discrete("fixed", (1,), ordered=False))
    failed = [{"x": 8, "mode": "a", "fixed": 1}, {"x": 8, "mode": "b", "fixed": 1}]
    assert in_common(own, failed, [{"x": 4, "mode": "a", "fixed": 1}]) == "x 8"
    assert in_common(own, failed, [{"x": 8, "mode": "c", "fixed": 1}]) == ""
    assert in_common(own, failed[:1], [{"x": 4, "mode": "c", "fixed": 1}]) == "x 8, mode a"


# what is chosen


def test_of_equal_promises_the_first_and_what_surely_fails_last() -> None:
    order = in_order(np.array([1.0, 3.0, 3.0, 9.0, 2.0]), np.array([False, False, False, True, False]))
    assert order == [1, 2, 4, 0, 3]


def test_expected_improvement_is_the_integral() -> None:
    mean, spread = np.array([0.0, 1.0, -2.0, 0.3]), np.array([1.0, 0.5, 0.7, 2.0])
    z = (mean - 0.4) / spread
    normal = NormalDist()
    expected = spread * np.array([normal.pdf(each) + each * normal.cdf(each) for each in z])
    assert np.exp(log_expected_improvement(mean, spread, 0.4)) == pytest.approx(expected, rel=1e-6)
    far = log_expected_improvement(np.array([-50.0, -60.0]), np.array([1.0, 1.0]), 0.0)
    assert np.isfinite(far).all() and far[0] > far[1]


def test_a_promise_counts_the_chance_to_pass_and_the_cost() -> None:
    chance = np.array([0.9, 0.45, 0.9, 0.1])
    promise = acquisition(np.ones(4), np.full(4, 0.1), chance, 0.9, np.array([1.0, 1.0, 2.0, 1.0]))
    assert promise[0] - promise[1] == pytest.approx(CAUTION * math.log(2))
    assert promise[0] - promise[2] == pytest.approx(math.log(2))
    assert list(hopeless(chance, 0.2)) == [False, False, False, True]
    assert list(hopeless(np.array([0.1, 0.074]), 0.2)) == [False, True], "three quarters of the best"


def test_odds_are_credited_as_far_as_they_predict_better_than_the_share_so_far() -> None:
    def reference(odds: list[float], passed: list[bool]) -> float:
        height, before = math.log(9.0), 0
        for n, (each, ok) in enumerate(zip(odds, passed, strict=True)):
            chance = 0.05 + 0.9 / (1 + math.exp(-each))
            alike = (before + 1) / (n + 2)
            height += math.log(chance if ok else 1 - chance) - math.log(alike if ok else 1 - alike)
            before += ok
        return 1 / (1 + math.exp(-height))

    for odds, passed in (
        ([3.0, -3.0, 3.0], [True, False, True]),
        ([3.0, -3.0, 3.0], [False, True, False]),
        ([0.5], [True]),
        ([], []),
    ):
        assert credit(np.array(odds), np.array(passed, dtype=bool)) == pytest.approx(reference(odds, passed))


def test_length_scales_are_found_anew_after_ever_more_observations() -> None:
    assert [_fitted_count(n) for n in (0, 1, 7, 8, 15, 16, 17, 18, 31, 32, 35, 36, 63, 64, 71, 72)] == [
        0, 1, 7, 8, 15, 16, 16, 18, 30, 32, 32, 36, 60, 64, 64, 72,
    ]  # fmt: skip


def test_effects_multiply_over_knobs() -> None:
    """By the formula: a product over knobs of (1 + share x likeness) / (1 + share), with Matern's likeness."""
    places = np.array([[0.0, 0.0], [0.5, 0.0], [0.5, 1.0], [1.0, 1.0]])
    fit = EffectsFit(np.array([4.0, 2.0]), 1.5, 0.01, np.array([0.5, 2.0]), np.array([0.1, 0.3]))
    process = EffectsProcess(places, np.array([0, 1]), fit)

    def kernel(a: Any, b: Any) -> float:
        product = 1.5
        for knob in (0, 1):
            square = (a[knob] - b[knob]) ** 2
            d = math.sqrt(5 * fit.weights[knob] * square)
            alike = (1 - fit.own[knob]) * (1 + d + d * d / 3) * math.exp(-d) + fit.own[knob] * (square < 1e-9)
            product *= (1 + fit.shares[knob] * alike) / (1 + fit.shares[knob])
        return product

    expected = [[kernel(a, b) for b in places] for a in places]
    assert process.across(places) == pytest.approx(np.array(expected))


class Linear:
    """A model whose mean is the first feature."""

    noise, trust = 0.3, 0.0

    def at(self, rows: Any, expected: Any) -> Any:
        return rows[:, 0], np.full(len(rows), 0.4)

    roughly = at


def test_the_best_means_are_the_centres_and_ties_go_to_the_earlier() -> None:
    rows = np.array([[9.0], [1.0], [5.0], [3.0], [5.0], [4.0], [2.0]])
    values = np.array([0.0, 0.0, 0.0, math.nan, 0.0, 0.0, 0.0])
    seen: Any = SimpleNamespace(rows=rows, values=values, expected=None, earlier=1)
    observations = [Observation({"x": n}, 1.0) for n in range(1, 7)]
    best, centres = incumbents(Linear(), seen, observations)  # type: ignore[arg-type]
    assert best == 5.0, "what an earlier study has is not of this one"
    assert [point["x"] for point in centres] == [2, 4, 5, 6], "four of them; 3 failed"


def test_only_the_best_of_very_many_get_a_closer_look_in_the_order_they_stand() -> None:
    count = 3000
    rows = np.array([[float(n % 100)] for n in range(count)])
    field = Field([{"x": n} for n in range(count)], [str(n) for n in range(count)], rows, None)
    chances: Any = SimpleNamespace(roughly=lambda rows, odds: np.where(rows[:, 0] >= 90, 0.01, 0.9))
    view: Any = View(SimpleNamespace(sign=0), None, Linear(), chances, 50.0, field)  # type: ignore[arg-type]
    kept = screened(view, Linear(), by_mean=True)  # type: ignore[arg-type]
    numbers = [int(key) for key in kept.keys]
    assert len(numbers) == 1500 and numbers == sorted(numbers)
    assert {n % 100 for n in numbers} == set(range(40, 90)), "the best means of those that may pass"
    assert (
        screened(View(view.scale, None, Linear(), chances, 50.0, field.only(range(1500))), Linear()).keys
        == field.keys[:1500]
    )  # type: ignore[arg-type]


@pytest.mark.parametrize(("sign", "best", "better"), [(1, 2.0, 2.0 + math.log1p(0.5)), (0, 4.0, 6.0), (0, -4.0, -2.0)])
def test_better_by_a_share(sign: int, best: float, better: float) -> None:
    view = View(SimpleNamespace(sign=sign), None, None, None, best, None)  # type: ignore[arg-type]
    assert view.better_by(0.5) == pytest.approx(better) and view.to_beat == view.better_by(0.01)


def test_what_is_predicted_of_a_run_has_its_noise_too() -> None:
    field = Field([{"x": 1}], ["1"], np.array([[7.0]]))
    scale = SimpleNamespace(sign=1, score=lambda value: 10 * value)
    view: Any = View(scale, None, Linear(), None, 5.0, field)  # type: ignore[arg-type]
    found = predicted(field, view)
    assert found == Prediction(70.0, pytest.approx(0.5), in_logs=True, to_beat=50.0)


def test_the_leading_candidates_are_legal_untried_and_in_order() -> None:
    asked: list[Any] = []

    def legal(point: Any) -> bool:
        asked.append(point["x"])
        return bool(point["x"] != 2)

    chooser = Chooser(space(X), 1, legal, None, ())
    field = Field([{"x": x} for x in (1, 2, 4, 8)], ["1", "2", "4", "8"], np.zeros((4, 1)))
    order = [1, 2, 3, 0]
    assert chooser._leading(order, field, {"4"}, 2) == [3, 0]
    assert chooser._leading(order, field, (), 1) == [2] and chooser._leading(order, field, ()) == [2, 3, 0]
    assert asked.count(2) == 1, "asked once"
