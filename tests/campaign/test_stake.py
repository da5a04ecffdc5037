"""What `check` says a campaign may cost is a bound: no campaign on a site that does its part runs more, in any part."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from ridgeline.campaign.preview import Stake, _profiler_doubt, stake
from ridgeline.errors import RidgelineError
from ridgeline.records.expression import Expression
from ridgeline.records.run import Cause, Ending, Job
from ridgeline.records.site import Site as SiteRecord
from ridgeline.records.study import (
    BaselineStage,
    Budget,
    Builds,
    ConfirmStage,
    JobLimits,
    ProfileStage,
    SearchStage,
    Study,
)
from ridgeline.records.trial import Stage
from ridgeline.testing import MemoryExecutor, ScriptedAnswer, answer_of
from tests.campaign.harness import campaign, rate, slots, study

PART = {
    Stage.BASELINE: "baseline",
    Stage.SEARCH: "search",
    Stage.CONFIRM: "confirmation",
    Stage.WARM_UP: "warm-up",
    Stage.PROFILE: "profile",
}


class Site(MemoryExecutor):
    """Nodes of different speed, noise, settings that crash, and where `faults` says so nodes that die."""

    def __init__(self, asked: Study, seed: int, faults: float) -> None:
        super().__init__(asked.site, act=self._run)
        self.dice, self.faults = random.Random(seed), faults
        self.names = [f"n{number}" for number in range(asked.site.nodes)]
        self.speeds = {name: self.dice.choice([1.0, 1.0, 1.0, 0.8]) for name in self.names}
        self.dying: set[str] = set()

    def submit(self, job: Job) -> str:
        free = [name for name in self.names if name not in job.avoid_nodes]
        width = job.resources.nodes
        drawn = tuple(self.dice.sample(free if len(free) >= width else self.names, width))
        ticket = super().submit(replace(job, on_nodes=job.on_nodes or drawn))
        if self.dice.random() < self.faults:
            self.dying.add(ticket)
        return ticket

    def _run(self, job: Job) -> ScriptedAnswer:
        told = answer_of(job)
        speed = min(self.speeds[name] for name in job.on_nodes) * (1 + self.dice.gauss(0, 0.02))
        return replace(told, metrics={"rate": told.metrics["rate"] * speed}, seconds=self.dice.uniform(1, 9))

    def _finish(self, ticket: str) -> Ending:
        ending = super()._finish(ticket)
        return replace(ending, cause=Cause.NODE_FAILED, exit_code=None) if ticket in self.dying else ending


def asked(folder: Path, seed: int) -> Study:
    dice = random.Random(seed)
    nodes = dice.choice([1, 1, 2, 3, 6])
    wide = nodes > 1 and dice.random() < 0.4
    return study(
        folder,
        site=slots(dice.choice([1, 2, 4]), nodes),
        budget=Budget(trials=dice.choice([0, 1, 3, 9, 14])),
        baseline_stage=BaselineStage(dice.choice([1, 3])),
        search=SearchStage(sampler="random", seed=seed, sentinel_every=dice.choice([0, 1, 4, 8])),
        confirm=ConfirmStage(top=dice.choice([0, 1, 3]), blocks=dice.choice([3, 5]), repeats=dice.choice([1, 2])),
        profile=ProfileStage("perf") if dice.random() < 0.3 else None,
        job=JobLimits(nodes=Expression.parse("1 + (y > 0)") if wide else None, limit_s=10.0),
    )


def ran(folder: Path, question: Study, seed: int, faults: float = 0.0) -> tuple[Counter[str], int, float]:
    """Runs by part, all of them, and their node-hours."""
    run = campaign(folder, question, rate, executor=Site(question, seed, faults))
    try:
        run.run()
    except RidgelineError:
        assert faults, "only a site with faults may end a campaign"
    trials, found = run.history.trials, run.history.runs.values()
    stages = (trials[each.trial].stage for each in found)
    return Counter(PART.get(stage, "looks") for stage in stages), len(found), run.history.node_hours


@pytest.mark.parametrize("seed", range(24))
def test_no_part_of_a_campaign_runs_more_than_was_said(tmp_path: Path, seed: int) -> None:
    question = asked(tmp_path, seed)
    said = stake(question)
    parts, runs, node_hours = ran(tmp_path, question, seed)
    bounds = {part.name: part.runs or 0 for part in said.parts}
    bounds["looks"] = bounds.get("repeats", 0) + bounds.get("survey of nodes", 0)
    assert {name: count for name, count in parts.items() if count > bounds.get(name, 0)} == {}
    assert runs <= (said.runs or 0)
    assert node_hours <= (said.node_hours or 0.0)


@pytest.mark.parametrize("seed", range(8))
def test_with_faults_of_the_site_it_runs_no_more_than_was_said_of_that(tmp_path: Path, seed: int) -> None:
    question = asked(tmp_path, 1000 + seed)
    _, runs, _ = ran(tmp_path, question, seed, faults=0.15)
    assert runs <= (stake(question).runs_with_faults or 0)


def said(folder: Path, **changes: object) -> Stake:
    return stake(study(folder, **changes))


def test_a_bound_is_reached_where_everything_is_run(tmp_path: Path) -> None:
    question = study(tmp_path, budget=Budget(trials=12), confirm=ConfirmStage(top=2, blocks=3, warmup="never"))
    parts, runs, _ = ran(tmp_path, question, 0)
    assert runs == stake(question).runs == 3 + 12 + 2 + 18
    assert parts == {"baseline": 3, "search": 12, "looks": 2, "confirmation": 18}


def test_a_budget_of_time_or_node_hours_bounds_node_hours_and_not_runs(tmp_path: Path) -> None:
    found = said(tmp_path, budget=Budget(node_hours=5.0), site=slots(2))
    assert found.runs is None and found.runs_with_faults is None
    assert found.node_hours == pytest.approx(5 + 2), "what is in flight goes on to its limit of an hour"
    assert {part.name: part.runs for part in found.parts} == {
        "baseline": 3, "search": None, "repeats": None, "confirmation": 18, "warm-up": 3,
    }  # fmt: skip
    assert said(tmp_path, budget=Budget(wall_s=3600.0), site=slots(2)).node_hours == pytest.approx(4)


def test_a_budget_of_node_hours_bounds_builds_on_the_site_too(tmp_path: Path) -> None:
    builds = Builds(("make",), ("bin",), where="site", limit_s=7200.0)
    found = said(tmp_path, budget=Budget(node_hours=5.0, trials=60), site=slots(2), builds=builds)
    assert found.node_hours == pytest.approx(5 + 2 * (1 + 2)), "two jobs in flight: a build of two hours, a run of one"


def test_a_profiler_that_jobs_here_will_not_find_is_warned_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    asked = study(tmp_path, profile=ProfileStage("vtune"), site=SiteRecord())
    assert _profiler_doubt(asked).startswith("stages.profile: vtune is not on the PATH of this machine")
    assert _profiler_doubt(replace(asked, profile=ProfileStage("mpip"))) == "", "a library, found by the loader"
    assert _profiler_doubt(replace(asked, site=SiteRecord(batch="slurm"))) == "", "the nodes may have it"
    assert _profiler_doubt(replace(asked, site=SiteRecord(modules=("vtune",)))) == ""
    tool = tmp_path / "vtune"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    assert _profiler_doubt(asked) == ""
