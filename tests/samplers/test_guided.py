"""The guided sampler: better than chance where there is something to learn, and sensible where there is not."""

from __future__ import annotations

import csv
import itertools
import json
import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ridgeline.errors import InputError
from ridgeline.records.observation import Expectation, Observation, Prospect
from ridgeline.records.space import Continuous, Discrete, Point, Space, point_key
from ridgeline.samplers.base import Prior
from ridgeline.samplers.guided.chooser import CAUTION, acquisition, hopeless, in_order, relative_cost
from ridgeline.samplers.guided.gaussian import Fit, GaussianProcess, log_expected_improvement
from ridgeline.samplers.guided.model import ObservedData, ScoreModel
from ridgeline.samplers.guided.sampler import NO_EFFECT, GuidedSampler
from tests.foretold import Foretold

GRID = Space((Discrete("a", tuple(range(20)), True), Discrete("b", tuple(range(20)), True)), {})
SPEED = Callable[[Point], float | None]


def number(point: Point, name: str) -> float:
    value = point[name]
    assert isinstance(value, int | float)
    return float(value)


def hill(point: Point) -> float:
    """Best at a 13, b 5, where it is 100."""
    return 100.0 * math.exp(-((number(point, "a") - 13) ** 2 + (number(point, "b") - 5) ** 2) / 80)


def upside_down(point: Point) -> float:
    return 1.0 / hill(point)


def edge(point: Point) -> float | None:
    """Faster and faster with a, until it fails."""
    return None if number(point, "a") >= 8 else 10.0 + number(point, "a") + 0.1 * number(point, "b")


def make(space: Space = GRID, seed: int = 0, **options: object) -> GuidedSampler:
    return GuidedSampler(space, seed, options, lambda point: None)


def searched(sampler: GuidedSampler, speed: SPEED, trials: int, noise: float = 0.0) -> list[tuple[Point, float | None]]:
    rng, found = random.Random(1), []
    for _ in range(trials):
        proposal = sampler.ask()
        assert proposal is not None
        value = speed(proposal.point)
        if value is not None:
            value *= math.exp(rng.gauss(0, noise))
        sampler.tell(Observation(proposal.point, value))
        found.append((proposal.point, value))
    return found


def guided_by(speed: Callable[[Point], float | None], seed: int = 0) -> GuidedSampler:
    sampler = make(seed=seed)
    sampler.expect(Foretold(lambda point: None if (value := speed(point)) is None else Expectation(value)))
    sampler.tell(Observation({"a": 0, "b": 19}, hill({"a": 0, "b": 19})))
    return sampler


def trials_to_the_top(sampler: GuidedSampler, limit: int = 40) -> int:
    for trial in range(1, limit + 1):
        proposal = sampler.ask()
        assert proposal is not None
        value = hill(proposal.point)
        if value > 95:
            return trial
        sampler.tell(Observation(proposal.point, value))
    return limit + 1


@pytest.mark.parametrize("seed", range(3))
def test_it_finds_the_top_of_a_hill_in_a_tenth_of_the_space(seed: int) -> None:
    assert trials_to_the_top(make(seed=seed)) <= 25  # 3 of 400 points are that high


def test_where_no_knob_has_an_effect_every_other_trial_fills_the_space() -> None:
    sampler, rng, reasons = make(), random.Random(2), []
    for _ in range(26):
        proposal = sampler.ask()
        assert proposal is not None
        reasons.append(proposal.why)
        sampler.tell(Observation(proposal.point, 100 * math.exp(rng.gauss(0, 0.3))))
    filled = [why == NO_EFFECT for why in reasons]
    assert sum(filled[14:]) >= 4 and not any(filled[:12])
    assert not any(one and other for one, other in itertools.pairwise(filled))


@pytest.mark.parametrize("observed", [17, 19, 35])
def test_a_search_begun_anew_with_the_same_observations_goes_on_alike(observed: int) -> None:
    """Length scales are found at some counts only: at others those of the first observations are used."""
    whole, fresh = make(seed=3), make(seed=3)
    for point, value in searched(whole, hill, observed):
        fresh.tell(Observation(point, value))
    assert fresh.ask() == whole.ask()


def test_costs_are_minimised_as_well() -> None:
    found = searched(make(), lambda point: -1.0 / hill(point), 25)
    assert max(value for _, value in found if value is not None) > -1 / 90


def test_it_keeps_away_from_what_failed_and_still_reaches_the_edge() -> None:
    found = searched(make(), edge, 40)
    assert sum(value is None for _, value in found[10:]) <= 10  # 60% of the space fails
    assert max(value for _, value in found if value is not None) >= 18.0


@pytest.mark.parametrize("seed", range(3))
def test_what_is_expected_is_tried_first(seed: int) -> None:
    assert trials_to_the_top(guided_by(hill, seed)) <= 3


def test_an_expectation_upside_down_is_seen_through() -> None:
    assert trials_to_the_top(guided_by(upside_down)) <= 30


class OffAlongA(Prior):
    """Expects the top at a 4 instead of 13; `rests`: and says that where it lies is uncertain by 4."""

    def __init__(self, rests: tuple[float, ...] = (4.0,)) -> None:
        self.rests, self.asked = rests, set[str]()

    def __call__(self, point: Point) -> Expectation | None:
        self.asked.add(point_key(point))
        return Expectation(hill({**point, "a": number(point, "a") + 9}))

    def sensitivities(self, point: Point) -> tuple[float, ...]:
        off = number(point, "a") - 4
        return tuple((off**2 - (off - by) ** 2) / 80 for by in self.rests)


def trials_when_off(prior: OffAlongA, seed: int) -> int:
    sampler = make(seed=seed)
    sampler.expect(prior)
    sampler.tell(Observation({"a": 0, "b": 19}, hill({"a": 0, "b": 19})))
    return trials_to_the_top(sampler)


@pytest.mark.parametrize("seed", range(3))
def test_an_expectation_that_says_what_it_rests_on_is_set_right_in_a_few_trials(seed: int) -> None:
    assert trials_when_off(OffAlongA(), seed) <= 6
    assert trials_when_off(OffAlongA(), seed) < trials_when_off(OffAlongA(()), seed)


@pytest.mark.parametrize("rests", [(math.nan,), (math.inf, 1.0)])
def test_leanings_that_are_no_numbers_are_left_out(rests: tuple[float, ...]) -> None:
    assert trials_when_off(OffAlongA(rests), 0) == trials_when_off(OffAlongA(()), 0)


def test_what_is_proposed_was_asked_of_the_outlook_itself() -> None:
    prior = OffAlongA()
    sampler = make()
    sampler.expect(prior)
    sampler.tell(Observation({"a": 0, "b": 19}, 1.0))
    for _ in range(12):
        proposal = sampler.ask()
        assert proposal is not None and point_key(proposal.point) in prior.asked
        prior.asked -= {point_key(proposal.point)}  # a point is proposed once
        sampler.tell(Observation(proposal.point, hill(proposal.point)))


def test_an_outlook_that_says_nothing_is_no_prior() -> None:
    assert trials_to_the_top(guided_by(lambda point: None)) <= 30


def test_earlier_observations_guide_and_may_be_proposed_again() -> None:
    before = [({"a": a, "b": b}, 0.7 * hill({"a": a, "b": b})) for a in range(1, 20, 3) for b in range(2, 20, 3)]
    sampler = make()
    sampler.recall([Observation(point, score) for point, score in before])
    sampler.tell(Observation({"a": 0, "b": 19}, hill({"a": 0, "b": 19})))
    assert trials_to_the_top(sampler) <= 4
    assert sampler.takes_earlier and sampler.takes_prior


def test_pending_trials_do_not_crowd() -> None:
    sampler = make()
    searched(sampler, hill, 20)
    pending: list[Point] = []
    for _ in range(8):
        proposal = sampler.ask(pending)
        assert proposal is not None
        pending.append(proposal.point)
    assert len({point_key(point) for point in pending}) == 8


def test_a_thousand_pending_trials() -> None:
    space = Space((Discrete("a", tuple(range(60)), True), Discrete("b", tuple(range(60)), True)), {})
    sampler = make(space)
    searched(sampler, lambda point: 1.0 + number(point, "a"), 10)
    pending: list[Point] = [{"a": a, "b": b} for a in range(20, 60) for b in range(25)]
    proposal = sampler.ask(pending)
    assert proposal is not None and point_key(proposal.point) not in {point_key(point) for point in pending}


@pytest.mark.parametrize("value", [5.0, 0.0, -3.0])
def test_a_constant_objective_is_searched_without_complaint(value: float) -> None:
    found = searched(make(), lambda point: value, 20)
    assert len({point_key(point) for point, _ in found}) == 20


def test_the_only_point_of_a_space_is_proposed_once() -> None:
    sampler = make(Space((Discrete("a", (7,), True),), {}))
    first = sampler.ask()
    assert first is not None and first.point == {"a": 7}
    assert sampler.ask([first.point]) is None
    sampler.tell(Observation(first.point, 1.0))
    assert sampler.ask() is None
    assert sampler.prospect() is None


def test_the_earlier_observations_of_another_space_are_no_guide() -> None:
    stranger, plain = make(), make()
    stranger.recall([Observation({"threads": n, "b": 3}, float(n)) for n in range(10)])
    found = searched(stranger, hill, 12)
    assert all(set(point) == {"a", "b"} for point, _ in found)
    assert [point for point, _ in found[:6]] == [point for point, _ in searched(plain, hill, 6)]


def half_fails(point: Point) -> float | None:
    return None if number(point, "a") < 10 else 1.0 + number(point, "b")


@pytest.mark.parametrize("seed", range(4))
def test_the_first_trials_turn_from_where_others_failed(seed: int) -> None:
    sampler = make(seed=seed, startup=12)
    found = searched(sampler, half_fails, 12)
    failed = [value is None for _, value in found]
    assert sum(failed[4:]) <= 2  # of eight; an even spread has four


def test_when_all_fail_it_fills_the_space() -> None:
    found = searched(make(), lambda point: None, 20)
    assert len({point_key(point) for point, _ in found}) == 20


@pytest.mark.parametrize("nonsense", [math.nan, math.inf, -math.inf])
def test_a_score_that_is_no_number_is_a_failure(nonsense: float) -> None:
    sampler = make()
    searched(sampler, lambda point: nonsense if number(point, "a") > 8 else number(point, "b") + 1, 20)
    proposal = sampler.ask()
    assert proposal is not None and number(proposal.point, "a") <= 8


def test_forty_knobs_and_very_many_points() -> None:
    flags = tuple(Discrete(f"flag{i}", (False, True), False) for i in range(36))
    sizes = tuple(Discrete(f"size{i}", range(1000), True) for i in range(4))
    space = Space((*flags, *sizes), {})
    assert space.raw_size() > 1e20
    found = searched(make(space), lambda point: 100 + 9.0 * bool(point["flag3"]) + number(point, "size1") / 100, 16)
    late = [value for _, value in found[8:] if value is not None]
    assert sum(late) / len(late) > 112  # by chance 109.5


def test_continuous_and_conditional_knobs() -> None:
    from ridgeline.records.expression import Expression

    when = Expression.parse("mode == 'deep'")
    knobs = (
        Discrete("mode", ("flat", "deep"), False),
        Continuous("x", 0.0, 1.0),
        Discrete("n", (1, 2, 4), True, when=when),
    )
    space = Space(knobs, {})
    found = searched(make(space), lambda point: 1 + number(point, "x") + (point.get("n") == 4), 25)
    best = max(found, key=lambda pair: pair[1] or 0.0)[0]
    assert best["mode"] == "deep" and best["n"] == 4 and number(best, "x") > 0.8


def test_it_says_in_one_line_why() -> None:
    sampler = guided_by(hill)
    proposal = sampler.ask()
    assert proposal is not None
    assert proposal.why == "the prior ranks it first of the untried settings; 98% likely to pass"
    for _, value in searched(sampler, hill, 8):
        assert value is not None
    later = sampler.ask()
    assert later is not None and later.why.startswith("best chance to beat the best so far per node-hour; ")
    assert later.predicted is not None and later.predicted.to_beat == pytest.approx(100.0, rel=0.1)


def test_what_is_predicted_of_a_run_includes_its_noise_and_trials_in_flight_make_it_no_surer() -> None:
    line = Space((Discrete("a", tuple(range(12)), True),), {})
    sampler, rng = make(line), random.Random(3)
    for a in 6 * (0, 1, 2, 3, 4, 5, 8, 9, 10, 11):
        sampler.tell(Observation({"a": a}, (10 + a) * math.exp(rng.gauss(0, 0.1))))
    first = sampler.ask()
    assert first is not None and first.predicted is not None and first.predicted.in_logs
    assert 0.07 < first.predicted.spread < 0.2, "the truth is well known by now, but a run has 10% of noise"
    assert first.predicted.score == pytest.approx(16.5, rel=0.15)
    flying = sampler.ask([{"a": 6 if first.point["a"] == 7 else 7}])
    assert flying is not None and flying.predicted is not None and flying.point == first.point
    assert flying.predicted.spread == pytest.approx(first.predicted.spread)


def test_the_prospect_falls_as_the_best_is_found() -> None:
    sampler = make()
    assert sampler.prospect() is None  # nothing is known yet
    searched(sampler, hill, 12)
    early = sampler.prospect()
    searched(sampler, hill, 28)
    late = sampler.prospect()
    assert early is not None and late is not None
    assert late.chance <= early.chance and late.over and late.gain < 0.05
    assert "untried" in str(late)


def test_where_much_may_be_found_the_search_is_not_over() -> None:
    sampler = make()
    rng = random.Random(5)
    for point in ({"a": a, "b": 0} for a in range(12)):
        sampler.tell(Observation(point, rng.uniform(1, 100)))
    prospect = sampler.prospect()
    assert prospect is not None and not prospect.over


class _Sent(Prior):
    """A prior that expects much of every setting, and knows what no setting exceeds."""

    def __init__(self, highest: float | None) -> None:
        self.highest = highest

    def __call__(self, point: Point) -> Expectation:
        return Expectation(50.0, 10.0, 250.0)


def test_nothing_is_left_to_find_beyond_what_no_setting_exceeds() -> None:
    def prospect(highest: float | None) -> Prospect:
        sampler = make()
        sampler.expect(_Sent(highest))
        for a in range(12):
            sampler.tell(Observation({"a": a, "b": 0}, 98.0 + a / 10))
        found = sampler.prospect()
        assert found is not None
        return found

    assert prospect(None).chance > 0.3 and not prospect(None).over
    bounded = prospect(100.0)  # less than 2% above the best
    assert bounded.chance == 0.0 and bounded.over
    assert bounded.gain < prospect(None).gain


def test_a_search_that_gained_lately_does_not_end_whatever_its_model_says() -> None:
    line = Space((Discrete("a", tuple(range(40)), True),), {})
    sampler = make(line)
    for a in range(14):
        sampler.tell(Observation({"a": a}, 100.0 - a))
    for a in range(14, 20):
        sampler.tell(Observation({"a": a}, 100.0 + a))
    found = sampler.prospect()
    assert found is not None and found.gaining and not found.over
    assert replace(found, gaining=False, chance=0.0).over


@pytest.mark.parametrize(
    ("values", "told", "last_gain", "gaining"),
    [
        (40, 30, 21, True),  # in a space of forty a quarter of it is enough: ten
        (40, 30, 20, False),
        (400, 30, 19, True),
        (400, 30, 18, False),
        (400, 45, 31, True),  # fourteen of forty-five are less than a third
        (400, 45, 30, False),
    ],
)
def test_a_search_has_gained_lately_until_a_third_of_it_or_twelve_trials_brought_nothing(
    values: int, told: int, last_gain: int, gaining: bool
) -> None:
    sampler = make(Space((Discrete("a", tuple(range(values)), True),), {}))
    for a in range(told):
        sampler.tell(Observation({"a": a}, 200.0 if a == last_gain - 1 else 100.0))
    found = sampler.prospect()
    assert found is not None and found.gaining is gaining


def test_spreads_that_the_observations_exceed_are_widened_for_the_prospect() -> None:
    rows = np.linspace(0, 1, 12)[:, None]
    columns = np.zeros(1, dtype=np.intp)
    fit = Fit(np.array([0.1]), 1.0, 1e-4)
    rough = np.where(np.arange(12) % 2, 1.0, -1.0)
    process = GaussianProcess(rows, columns, fit)
    assert process.overconfidence(process.solved(rough)) > 3.0
    smooth = np.sin(rows[:, 0])
    assert process.overconfidence(process.solved(smooth)) == 1.0


def recorded_times() -> dict[str, float]:
    """Milliseconds of every NWChem setting that was right, by point; the others failed."""
    found = {}
    with (Path(__file__).parents[2] / "benchmarks/search/nwchem-water.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            chosen = {name.partition("_")[0]: name for name, value in row.items() if "_" in name and value == "1"}
            if row["outcome"] == "ok":
                found[point_key({**chosen, "grid": int(row["grid"])})] = float(row["time_ms"])
    return found


def test_searches_that_say_little_is_left_are_right_on_a_recorded_space() -> None:
    times = recorded_times()
    names = {name: tuple(sorted({json.loads(key)[name] for key in times})) for name in ("blas", "mpi", "integrals")}
    knobs = [Discrete(name, values, False) for name, values in names.items()]
    space = Space((*knobs, Discrete("grid", (0, 1, 2), True)), {})
    ended = []
    for seed in range(4):
        sampler, rng, tried = make(space, seed), random.Random(seed), []
        while (proposal := sampler.ask()) is not None:
            time = times.get(point_key(proposal.point))
            tried += [] if time is None else [time]
            score = None if time is None else -time * math.exp(rng.gauss(0, 0.03))
            sampler.tell(Observation(proposal.point, score))
            prospect = sampler.prospect() if len(tried) > 8 else None
            if prospect is not None and prospect.over:
                ended.append(min(tried) <= 1.02 * min(times.values()))
                break
    assert len(ended) >= 2 and all(ended)


def test_no_prospect_where_none_is_asked_for() -> None:
    sampler = make(worth=0)
    searched(sampler, hill, 15)
    assert sampler.prospect() is None


@pytest.mark.parametrize(("option", "value"), [("startup", 0), ("worth", 1.5), ("worth", -0.1), ("expect", "a +* b")])
def test_a_wrong_option_is_refused_by_name(option: str, value: object) -> None:
    with pytest.raises(InputError, match=rf"^{option}: "):
        make(**{option: value})


# what a trial promises for its cost


def test_a_dear_setting_is_known_by_what_its_like_have_cost() -> None:
    told = np.array([[0.0], [0.0], [0.0], [1.0], [1.0], [1.0]])
    observations = [Observation({"a": n}, 1.0, node_s) for n, node_s in enumerate([10.0, 11.0, 9.0, 40.0, 44.0, 36.0])]
    cheap, dear = relative_cost(observations, told, np.array([[0.0], [1.0]]))
    assert cheap < 1.0 < dear
    assert dear / cheap == pytest.approx(4.0 ** (1.5 / 4.5), rel=0.01), "shrunk, as six observations are few"
    far = relative_cost(observations, told, np.array([[-50.0], [50.0]]))
    assert far == pytest.approx([1 / 3, 3.0]), "a straight line says little far away"


def test_runs_that_failed_or_say_no_cost_do_not_count_as_cheap() -> None:
    told = np.array([[0.0]] * 5 + [[1.0]] * 5)
    paid = [Observation({"a": n}, 1.0, 20.0) for n in range(5)]
    failed = [Observation({"a": n}, None, 0.5) for n in range(5, 10)]  # a crash is over soon
    unknown = [Observation({"a": n}, 1.0, None) for n in range(5, 10)]
    for others in (failed, unknown):
        assert relative_cost([*paid, *others], told, np.array([[0.0], [1.0]])) == pytest.approx([1.0, 1.0])
    assert relative_cost(paid[:4], told[:4], np.array([[0.0], [1.0]])) == pytest.approx([1.0, 1.0]), "too few to tell"


def test_of_two_that_promise_the_same_the_cheaper_comes_first() -> None:
    alike = np.ones(2)
    first, second = acquisition(alike, 0.1 * alike, 0.9 * alike, 1.0, np.array([1.0, 2.0]))
    assert first - second == pytest.approx(math.log(2.0))


def test_the_likelier_to_pass_comes_first_and_the_hopeless_last() -> None:
    chance = np.array([0.9, 0.45, 0.01])
    promise = acquisition(np.array([1.0, 1.0, 9.0]), np.full(3, 0.1), chance, 1.0, np.ones(3))
    assert promise[0] - promise[1] == pytest.approx(CAUTION * math.log(2.0))
    assert hopeless(chance, 0.05).tolist() == [False, False, True]
    assert in_order(promise, hopeless(chance, 0.05)) == [0, 1, 2]
    assert in_order(np.array([1e15, 2.0, 2.0]), np.array([True, False, False])) == [1, 2, 0]
    own = in_order(np.array([1.0, 1.0 + 1e-9]), np.array([True, True]))
    assert own == [1, 0], "those that come last have an order of their own"


@pytest.mark.parametrize(("mean", "spread"), [(0.0, 1.0), (1.2, 0.5), (-2.0, 0.7), (-3.0, 1.0)])
def test_the_expected_gain_is_that_of_a_normal_distribution(mean: float, spread: float) -> None:
    from scipy.stats import norm  # here: it takes a second, and every worker collects every file

    truths = mean + spread * norm.ppf((np.arange(200_000) + 0.5) / 200_000)
    found = log_expected_improvement(np.array([mean]), np.array([spread]), 0.5)[0]
    assert found == pytest.approx(math.log(np.maximum(truths - 0.5, 0.0).mean()), abs=0.02)


def test_the_expected_gain_falls_however_hopeless_a_point_is() -> None:
    found = log_expected_improvement(np.array([0.0, -5.0, -20.0, -40.0]), np.ones(4), 1.0)
    assert np.isfinite(found).all()
    assert (np.diff(found) < -5).all()


def test_the_interval_of_an_expectation_is_taken_as_the_middle_nine_tenths() -> None:
    sampler, off = make(), math.exp(1.6449 * 0.2)
    sampler.expect(Foretold(lambda point: Expectation(hill(point), low=hill(point) / off, high=hill(point) * off)))
    chooser = sampler._choosing()
    chooser._seen([Observation({"a": 0, "b": 19}, 1.0)])
    assert chooser._current is not None
    assert chooser._current.spread == pytest.approx(0.2, rel=0.001)


# what pending trials will teach is not asked for again


@pytest.mark.parametrize("seed", [2, 3, 4])
def test_a_pending_trial_sends_the_next_one_elsewhere(seed: int) -> None:
    """What it will show of its neighbours is as good as known."""
    sampler = make(seed=seed)
    searched(sampler, hill, 10)
    first = sampler.ask()
    assert first is not None
    second = sampler.ask([first.point])
    assert second is not None
    away = math.dist(*([number(point, "a"), number(point, "b")] for point in (first.point, second.point)))
    assert away >= 2.0, "a neighbour would have promised most, but for the trial under way"


# what is left to be found


def left_after(monkeypatch: pytest.MonkeyPatch, share: float) -> Prospect:
    """Where this share of all possible truths has a point half again as good, and the rest has none that is better."""
    sampler = make(worth=0.02)
    searched(sampler, hill, 14)
    chooser = sampler._choosing()
    view = chooser._view(sampler._observations, sampler._observed_keys)

    def truths(rows: np.ndarray, expected: object, count: int, rng: object) -> np.ndarray:
        found = np.full((count, len(rows)), view.best - 1.0)
        found[: round(share * count), 0] = view.best + math.log(1.5)
        return found

    monkeypatch.setattr(view.scores, "draws", truths, raising=False)
    monkeypatch.setattr(view.chances, "at", lambda rows, odds: np.ones(len(rows)))
    return chooser.prospect(sampler._observations, sampler._observed_keys, 0.02)


def test_what_is_left_is_the_share_of_truths_with_something_better(monkeypatch: pytest.MonkeyPatch) -> None:
    found = left_after(monkeypatch, 0.2)
    assert found.chance == pytest.approx(0.2)
    assert found.gain == pytest.approx(0.5), "what one truth in twenty has, and more"


def test_no_draw_with_something_better_is_a_small_chance_and_not_none() -> None:
    text = str(Prospect(0.0, 0.02, 0.0))
    assert text.startswith("under 0.1% chance")
    assert text.endswith("none gains more than 0.1%")


def test_a_bound_beyond_all_measure_is_not_printed() -> None:
    text = str(Prospect(0.3, 0.02, 694.991))
    assert text.startswith("nothing can be said yet")
    assert "budget.trials" in text
    assert "%" not in text
    assert "gains more than 90.0%" in str(Prospect(0.3, 0.02, 0.9))


def test_what_hardly_any_truth_has_is_not_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    found = left_after(monkeypatch, 0.03)
    assert found.chance == pytest.approx(0.03)
    assert found.gain == 0.0


class _Twin(Prior):
    """Sure of small a; of large a it says little good, with an interval that would allow anything."""

    called = "twin"

    def __call__(self, point: Point) -> Expectation:
        mean = 100.0 - number(point, "a") - 0.5 * number(point, "b")
        return Expectation(mean, mean / 1.1, mean * 1.1)

    def sensitivities(self, point: Point) -> tuple[float, ...]:
        return (0.02, 1.5 * number(point, "a") / 19.0)


def test_the_first_trials_with_a_twin_are_its_best_settings_and_not_its_widest() -> None:
    sampler, baseline = make(), {"a": 10, "b": 10}
    sampler.expect(_Twin())
    sampler.tell(Observation(baseline, 85.0))
    for _ in range(3):
        proposal = sampler.ask()
        assert proposal is not None and number(proposal.point, "a") <= 5
        sampler.tell(Observation(proposal.point, 100.0 - number(proposal.point, "a")))


def test_the_first_trials_with_a_twin_are_of_different_families() -> None:
    """Two layouts are equally fast for the twin, and the other knob hardly matters: both layouts are tried first."""
    space = Space((Discrete("layout", ("a", "b", "c", "d"), False), Discrete("n", tuple(range(16)), True)), {})
    speeds = {"a": 100.0, "b": 99.0, "c": 60.0, "d": 30.0}
    sampler = make(space)
    sampler.expect(Foretold(lambda point: Expectation(speeds[str(point["layout"])] + 0.01 * number(point, "n"))))
    sampler.tell(Observation({"layout": "d", "n": 0}, 30.0))
    first = [sampled for sampled, _ in searched(sampler, lambda point: speeds[str(point["layout"])], 2)]
    assert [point["layout"] for point in first] == ["a", "b"]


def test_a_twin_is_asked_of_every_family_before_its_best_is_chosen() -> None:
    """No layout is like another and the other knob is inert: 20 points drawn at random miss some of the 32 layouts."""
    names = tuple("".join(pair) for pair in itertools.product("abcdef", "uvwxyz"))[:32]
    space = Space((Discrete("layout", names, False), Discrete("n", tuple(range(16)), True)), {})
    asked: set[str] = set()

    def twin(point: Point) -> Expectation:
        asked.add(layout := str(point["layout"]))
        return Expectation(100.0 - names.index(layout))

    sampler = make(space)
    sampler.expect(Foretold(twin))
    sampler.tell(Observation({"layout": names[-1], "n": 0}, 69.0))
    proposal = sampler.ask()
    assert asked == set(names)
    assert proposal is not None and proposal.point["layout"] == names[0]


@pytest.mark.parametrize(("budget", "led"), [(6, 6), (40, 3)])
def test_a_small_budget_with_a_twin_tries_what_looks_best_to_the_end(budget: int, led: int) -> None:
    sampler, whys = make(), []
    sampler.expect(_Twin())
    sampler.tell(Observation({"a": 10, "b": 10}, 85.0))
    for left in range(budget, budget - 6, -1):
        sampler.plan(left)
        proposal = sampler.ask()
        assert proposal is not None
        whys.append(proposal.why)
        sampler.tell(Observation(proposal.point, 100.0 - number(proposal.point, "a")))
    assert [why.startswith("the twin ranks it first of the untried settings") for why in whys] == [True] * led + [
        False
    ] * (6 - led)


def test_a_third_of_a_small_budget_fills_the_space() -> None:
    sampler, whys = make(), []
    for left in range(6, 0, -1):
        sampler.plan(left)
        proposal = sampler.ask()
        assert proposal is not None
        whys.append(proposal.why)
        sampler.tell(Observation(proposal.point, hill(proposal.point)))
    assert sum(why.startswith("space-filling start") for why in whys) == 2


def test_a_run_over_its_time_limit_is_a_bound_and_no_failure() -> None:
    """Times of 1 to 20 with a limit of 5: what ran into it passed as far as the search is concerned."""
    line = Space((Discrete("a", tuple(range(30)), True),), {})
    sampler = make(line)
    for a in (0, 4, 9, 15, 20, 25, 29):
        took = 1.0 + abs(a - 4)
        sampler.tell(Observation({"a": a}, -min(took, 5.0), censored=took > 5.0))
    proposal = sampler.ask()
    assert proposal is not None and number(proposal.point, "a") <= 9
    assert "100% likely to pass" in proposal.why


def test_where_a_bound_is_all_that_is_known_the_others_say_how_far_beyond_it_lies() -> None:
    rows = np.linspace(0, 1, 9)[:, None]
    truth = -4.0 * rows[:, 0]
    bounded = truth < -2.0
    seen = ObservedData(rows, np.where(bounded, -2.0, truth), None, None, censored=bounded)
    plain = replace(seen, censored=None)
    columns = np.zeros(1, dtype=np.intp)
    means = [ScoreModel(one, columns).at(rows[-1:], None)[0][0] for one in (seen, plain)]
    assert means[0] < means[1] - 0.05


def test_where_nearly_all_fails_it_stays_near_what_passed_and_says_what_failures_share() -> None:
    space = Space((*(Discrete(f"k{i}", (0, 1, 2, 3), True) for i in range(6)), Discrete("one", (1, 2), True)), {})
    good = {**{f"k{i}": 1 for i in range(6)}, "one": 1}
    sampler = make(space)
    for _ in range(3):  # as a baseline is measured
        sampler.tell(Observation(good, 1.0))
    for a in range(5):
        sampler.tell(Observation({**good, "k0": 3, "k1": a % 4, "one": 2, "k5": a % 3}, None))
    proposal = sampler.ask()
    assert proposal is not None
    assert proposal.why == "next to a setting that passed, since 5 of 6 settings failed, all with k0 3, one 2"
    assert sum(proposal.point[name] != value for name, value in good.items()) <= 2


def test_a_space_where_every_point_fails_is_said_to_fail() -> None:
    sampler = make()
    found = searched(sampler, lambda point: None, 7)
    assert len({point_key(point) for point, _ in found}) == 7
    proposal = sampler.ask()
    assert proposal is not None and proposal.why == "space-filling, since 7 of 7 settings failed"


@pytest.mark.parametrize("speed", [lambda point: 5.0, lambda point: number(point, "a") - 9.5])
def test_equal_values_and_a_goal_of_mixed_sign_are_searched_as_well(speed: Callable[[Point], float]) -> None:
    found = searched(make(), speed, 20)
    assert len({point_key(point) for point, _ in found}) == 20
    assert max(value for _, value in found if value is not None) >= min(9.5, speed({"a": 19, "b": 0}))


def test_sixty_switches_are_no_obstacle() -> None:
    space = Space(tuple(Discrete(f"s{i}", (False, True), False) for i in range(60)), {})

    def speed(point: Point) -> float:
        return 10.0 + 3.0 * (point["s3"] is True) + 2.0 * (point["s40"] is False)

    sampler = make(space)
    assert len({point_key(point) for point, _ in searched(sampler, speed, 8)}) == 8
    proposal = sampler.ask()
    assert proposal is not None and proposal.why.startswith("best chance to beat the best so far")
