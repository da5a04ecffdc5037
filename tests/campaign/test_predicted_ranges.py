"""What is stated of a trial before it runs: a range that nine of ten measured values lie in."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pytest

from ridgeline.campaign.controller import Campaign
from ridgeline.campaign.kinds.base import NextTrial
from ridgeline.campaign.kinds.search import SearchAgenda
from ridgeline.campaign.sampling import stated, with_range
from ridgeline.campaign.scores import Normalisation
from ridgeline.records.observation import Expectation, Prediction, Proposal
from ridgeline.records.outcome import Kind, Outcome
from ridgeline.records.run import Cause, Ending, Resources, Run
from ridgeline.records.space import Discrete, Point, Settings, Space
from ridgeline.records.study import Budget, ConfirmStage, Goal, SearchStage
from ridgeline.records.trial import PredictedRange, Stage, Trial
from ridgeline.samplers.base import Sampler
from ridgeline.samplers.guided.sampler import GuidedSampler
from ridgeline.stats.drift import Regimes, drift
from ridgeline.stats.nodes import corrected
from ridgeline.stats.stated_range import ELSEWHERE, widening
from ridgeline.study.history import History, read_history
from ridgeline.testing import ScriptedAnswer
from tests.campaign.harness import campaign, study
from tests.foretold import Foretold

SPACE = Space(
    (
        Discrete("threads", (1, 2, 4, 8, 16, 32, 64, 128), ordered=True),
        Discrete("block", tuple(range(8, 136, 8)), ordered=True),
        Discrete("kind", ("a", "b", "c"), ordered=False),
        Discrete("flag", (False, True), ordered=False),
    ),
    {},
)
NOISE = 0.03  # of a run


def planned(root: Path, seed: int, direction: str = "maximize") -> Campaign:
    """A search by a twin that is right, where runs have 3% of noise: near the best, noise is all that is left."""
    rng = random.Random(f"noise {seed}")
    ridge, best = rng.uniform(3.5, 6.0), rng.choice("abc")
    sign = 1 if direction == "maximize" else -1

    def log_speed(point: Settings) -> float:
        threads, block = math.log2(float(point["threads"] or 1)), float(point["block"] or 8) / 16
        return -0.08 * (threads - ridge) ** 2 - 0.005 * (threads + block - 9) ** 2 + 0.1 * (point["kind"] == best)

    def rate(settings: Settings) -> ScriptedAnswer:
        return ScriptedAnswer({"rate": 1000 * math.exp(sign * (log_speed(settings) + rng.gauss(0, NOISE)))})

    def predicted(point: Point) -> Expectation:
        score = sign * 1000 * math.exp(sign * log_speed(point))
        return Expectation(score, *sorted((score * 0.95, score / 0.95)))

    def sampler() -> Sampler:
        found = GuidedSampler(SPACE, seed, {"worth": 0}, lambda point: None)
        found.expect(Foretold(predicted))
        return found

    asked = study(
        root,
        space=SPACE,
        goal=Goal("rate", direction),  # type: ignore[arg-type]
        baseline={"threads": 1, "block": 8, "kind": "a", "flag": False},
        budget=Budget(trials=30),
        search=SearchStage("guided", {"worth": 0}, seed=seed, sentinel_every=0),
        confirm=ConfirmStage(top=0),
    )
    found = campaign(root, asked, rate)
    assert isinstance(found.agenda, SearchAgenda)
    found.agenda.new_sampler = sampler
    return found


def searched(root: Path, seed: int, direction: str = "maximize") -> History:
    planned(root, seed, direction).run()
    return read_history(root)


def predictions(history: History) -> list[tuple[PredictedRange, float]]:
    runs = history.ok_runs(Stage.SEARCH)
    return [(trial.predicted, run.metrics["rate"]) for trial, run in runs if trial.predicted is not None]


def test_nine_of_ten_measured_values_lie_in_the_range_that_was_stated(tmp_path: Path) -> None:
    directions = ("maximize", "minimize")
    found = [
        held for seed in range(4) for held in predictions(searched(tmp_path / str(seed), seed, directions[seed % 2]))
    ]
    assert len(found) >= 4 * 20
    inside = sum(predicted.holds(measured) for predicted, measured in found) / len(found)
    assert 0.8 <= inside <= 0.99
    early = [
        predicted.holds(measured) for seed in range(4) for predicted, measured in found[30 * seed : 30 * seed + 10]
    ]
    assert sum(early) / len(early) >= 0.8


def test_a_killed_campaign_goes_on_with_the_same_ranges(tmp_path: Path) -> None:
    history = searched(tmp_path / "whole", seed=1)
    last = max(history.trials)
    lines = (tmp_path / "whole/journal.jsonl").read_text().splitlines(keepends=True)
    begins = next(at for at, line in enumerate(lines) if json.loads(line).get("trial") == last)
    (tmp_path / "killed").mkdir()
    (tmp_path / "killed/journal.jsonl").write_text("".join(lines[:begins]))
    step = planned(tmp_path / "killed", seed=1).agenda.next()
    assert isinstance(step, NextTrial) and history.trials[last].predicted is not None
    assert step.trial.predicted == history.trials[last].predicted


def test_before_any_trial_the_errors_of_other_campaigns_set_the_width() -> None:
    assert 1.645 < widening([]) == sorted(ELSEWHERE)[-2]


def test_predictions_that_were_all_far_off_widen_the_range_until_it_would_have_held_them() -> None:
    widths = [widening([5.0] * trials) for trials in range(40)]
    assert widths == sorted(widths) and widths[3] == 5.0


def test_predictions_that_were_all_close_narrow_the_range() -> None:
    widths = [widening([0.2, -0.2] * trials) for trials in range(200)]
    assert widths == sorted(widths, reverse=True)
    assert widths[10] < 1.5 and widths[-1] == 0.2


def test_one_wild_run_does_not_set_the_width() -> None:
    assert widening([0.5] * 20 + [1e6]) <= widening([])
    assert math.isfinite(widening([0.5] * 20 + [math.inf]))


def the_range(tmp_path: Path, found: Prediction | None, through: Normalisation | None = None) -> PredictedRange | None:
    asked = study(tmp_path, goal=Goal("rate", "minimize"))
    return stated(Proposal({"x": 0, "y": 0}, "", found), asked, History(tmp_path), through)


def test_a_range_in_logs_is_a_ratio_and_in_the_unit_of_the_goal(tmp_path: Path) -> None:
    found = the_range(tmp_path, Prediction(-50.0, 0.1, in_logs=True))
    assert found is not None and found.value == 50.0
    factor = math.exp(0.1 * widening([]))
    assert (found.low, found.high) == pytest.approx((50.0 / factor, 50.0 * factor))
    assert found.error(50.0 * math.exp(0.2)) == pytest.approx(2.0)
    assert found.error(-1.0) == math.inf


def test_a_range_of_values_of_both_signs_is_a_difference(tmp_path: Path) -> None:
    found = the_range(tmp_path, Prediction(-1.0, 2.0, in_logs=False))
    assert found is not None
    assert (found.low, found.high) == pytest.approx((1 - 2 * widening([]), 1 + 2 * widening([])))
    assert found.error(5.0) == pytest.approx(2.0)


def test_a_model_that_knows_nothing_still_states_numbers(tmp_path: Path) -> None:
    found = the_range(tmp_path, Prediction(-1e30, 1e6, in_logs=True))
    assert found is not None and 0 < found.low < found.high < math.inf


def test_on_a_machine_that_changed_it_states_what_a_run_would_measure_now(tmp_path: Path) -> None:
    slowed = Regimes(drift([1.0] * 6, "maximize", random.Random(0)), (-1, 0), (math.log(100), math.log(80)))
    found = the_range(tmp_path, Prediction(-50.0, 0.1, in_logs=True), Normalisation(slowed))
    assert found is not None
    assert found.value == pytest.approx(50.0 * 80 / math.sqrt(100 * 80)), "the model speaks of the mean level"


def test_the_node_that_a_run_will_land_on_is_not_known_and_part_of_the_range(tmp_path: Path) -> None:
    past = History(tmp_path)
    for number, node in enumerate(("quick", "slow"), start=1):
        past.trials[number] = Trial(number, {}, {}, Stage.SEARCH, "test")
        ending = Ending(Cause.EXITED, 0, nodes=(node,))
        past.runs[number] = Run(number, number, 1, tmp_path, Resources(), ending, Outcome(Kind.OK), ())
    proposal = Proposal({}, "", Prediction(100.0, 0.03, in_logs=True))
    unchanged = Regimes(drift([1.0] * 6, "maximize", random.Random(0)))
    asked = study(tmp_path)
    alike = stated(proposal, asked, past, Normalisation(unchanged))
    one_slow = stated(proposal, asked, past, Normalisation(unchanged, {"slow": 1 / 0.92}))
    assert alike is not None and alike.spread == 0.03 and alike.value == 100.0
    half = -math.log(corrected(1.0, ("slow",), {"slow": 1 / 0.92})) / 2
    assert one_slow is not None and one_slow.spread == pytest.approx(math.hypot(0.03, half))
    assert one_slow.value == pytest.approx(100.0 * math.exp(half)) and one_slow.value < 100.0


def test_where_nothing_was_predicted_nothing_is_stated(tmp_path: Path) -> None:
    assert the_range(tmp_path, None) is None
    said = with_range(Proposal({}, "space-filling"), None, study(tmp_path), History(tmp_path))
    assert said == "space-filling"


def test_the_line_that_explains_a_trial_is_in_plain_words(tmp_path: Path) -> None:
    found = PredictedRange(18_100.0, 17_000.0, 19_300.0, 0.03, in_logs=True)
    aim = "best chance to beat the best so far per node-hour; 98% likely to pass"
    asked = Proposal({}, aim, Prediction(18_100.0, 0.03, in_logs=True, to_beat=17_500.0))
    why = with_range(asked, found, study(tmp_path), History(tmp_path))
    assert why == (
        "predicted rate 18,100 (90%: 17,000 to 19,300); "
        "best chance to beat rate 17,500 per node-hour; 98% likely to pass"
    )
