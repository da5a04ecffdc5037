"""A machine that changes during the search: settings are compared with each other, not with the time of day."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ridgeline.campaign import scores
from ridgeline.campaign.controller import Campaign, Interrupted
from ridgeline.campaign.status import CampaignStatus
from ridgeline.records.observation import Observation
from ridgeline.records.run import Job
from ridgeline.records.space import point_key
from ridgeline.records.study import Budget, ConfirmStage, Goal, SearchStage, Study
from ridgeline.records.trial import Stage
from ridgeline.report.insights import insights
from ridgeline.samplers.base import Sampler
from ridgeline.testing import MemorySite, ScriptedAnswer
from tests.campaign.harness import campaign, study

BEST, LATE = {"x": 9, "y": 2}, {"x": 7, "y": 1}
OTHERS = [{"x": x, "y": y} for x in range(1, 7) for y in (0, 1)]


def faster_from(run_number: int, by: float = 1.3) -> Callable[[Job], ScriptedAnswer]:
    """The program gains 10 with each step of x and y; the machine is faster from this run on."""

    def act(job: Job) -> ScriptedAnswer:
        number, x, y = map(int, re.findall(r"\d+", job.name))
        speed = by if number >= run_number else 1.0
        return ScriptedAnswer({"rate": speed * (100.0 + 10 * (x + y) + 0.2 * (number * 7919 % 5))})

    return act


def question(folder: Path, **changes: Any) -> Study:
    """The best setting is tried first, a mediocre one last."""
    return study(
        folder,
        presets=(BEST, *OTHERS, LATE),
        budget=Budget(trials=14),
        search=SearchStage(sampler="random", seed=1, sentinel_every=1),
        confirm=ConfirmStage(top=1, blocks=3),
        **changes,
    )


def test_a_late_mediocre_setting_does_not_pass_for_the_best(tmp_path: Path) -> None:
    run = campaign(tmp_path, question(tmp_path), act=faster_from(17))
    verdict = run.run()
    raw = {t.key: r.metrics["rate"] for t, r in run.history.ok_runs(Stage.SEARCH)}
    assert max(raw, key=raw.__getitem__) == point_key(LATE), "as measured, the late one looks best"
    assert run.history.candidates == (BEST,)
    assert verdict.winner == BEST


def test_for_a_goal_to_minimise_too(tmp_path: Path) -> None:
    def act(job: Job) -> ScriptedAnswer:
        return ScriptedAnswer({"rate": 1e4 / faster_from(17)(job).metrics["rate"]})

    run = campaign(tmp_path, question(tmp_path, goal=Goal("rate", "minimize")), act=act)
    assert run.run().winner == BEST


def test_on_a_steady_machine_values_are_compared_as_measured(tmp_path: Path) -> None:
    run = campaign(tmp_path, question(tmp_path), act=faster_from(999))
    run.run()
    compared = [score for _, score in scores.compared_scores(run.study, run.history, Stage.SEARCH)]
    assert compared == [r.metrics["rate"] for _, r in run.history.ok_runs(Stage.SEARCH)]


def told(run: Campaign) -> list[str]:
    now = CampaignStatus(run.question, run.study, run.history)
    return insights(run.study, run.history, now.answer)


def test_it_is_said_once(tmp_path: Path) -> None:
    run = campaign(tmp_path, question(tmp_path), act=faster_from(17))
    run.run()
    assert len([line for line in told(run) if line.startswith("the machine changed meanwhile: rate 30.1% higher")]) == 1
    steady = campaign(tmp_path / "steady", question(tmp_path), act=faster_from(999))
    steady.run()
    assert not [line for line in told(steady) if "the machine changed" in line]


def test_the_value_that_is_shown_is_the_one_that_was_measured(tmp_path: Path) -> None:
    run = campaign(tmp_path, question(tmp_path), act=faster_from(17))
    run.stop_requested = lambda: run.history.count(Stage.CONFIRM) > 0
    with pytest.raises(Interrupted):
        run.run()
    answer = CampaignStatus(run.question, run.study, run.history).answer
    assert answer.candidate is not None
    assert answer.candidate.point == BEST
    first = next(r for t, r in run.history.ok_runs(Stage.SEARCH) if t.point == BEST)
    assert answer.candidate.value == first.metrics["rate"]


class Listening(Sampler):
    """A sampler that keeps what it is told, and proposes what is left of a list."""

    def __init__(self) -> None:
        self.observations: list[Observation] = []

    def tell(self, observation: Observation) -> None:
        self.observations.append(observation)

    def ask(self, pending: Any = ()) -> None:
        return None


def test_the_sampler_learns_what_settings_are_worth(tmp_path: Path) -> None:
    """Also of runs before the change was found: it is told all of it again."""
    run = campaign(tmp_path, question(tmp_path), act=faster_from(17))
    made: list[Listening] = []

    def new_sampler() -> Listening:
        made.append(Listening())
        return made[-1]

    run.agenda.new_sampler = new_sampler  # type: ignore[attr-defined]
    run.run()
    run.agenda._taught()  # type: ignore[attr-defined]
    tried = [observation for observation in made[-1].observations if observation.point != run.study.baseline]
    assert len(tried) == 14
    assert max(tried, key=lambda observation: observation.score or 0).point == BEST


def test_a_stopped_search_goes_on_as_if_it_had_not_been(tmp_path: Path) -> None:
    """Every proposal depends on the history alone, also those after the change was found."""

    def searched(root: Path, stops: set[int]) -> list[Any]:
        asked = study(
            root,
            budget=Budget(trials=20),
            search=SearchStage(sampler="guided", seed=3, sentinel_every=2),
            confirm=ConfirmStage(top=1, blocks=3),
        )
        world, left = MemorySite(), set(stops)
        while True:
            run = campaign(root, asked, act=faster_from(17), world=world)
            run.stop_requested = lambda run=run: (
                bool(left) and not run.history.open_runs and run.history.count(Stage.SEARCH) >= min(left)
            )
            try:
                run.run()
            except Interrupted:
                left.discard(min(left))
                run.journal.close()
                continue
            assert scores.normalisation(run.study, run.history).course.changed
            return [t.point for t in run.history.trials.values() if t.stage is Stage.SEARCH]

    assert searched(tmp_path / "calm", set()) == searched(tmp_path / "stopped", {9, 15, 18})
