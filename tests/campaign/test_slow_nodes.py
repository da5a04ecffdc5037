"""A node that is slower than its peers: named, allowed for in the ranking, and left out of the confirmation."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from ridgeline.campaign import scores
from ridgeline.campaign.confirmation import blocks_so_far, nodes_had_before
from ridgeline.campaign.controller import Campaign, Interrupted
from ridgeline.campaign.kinds.base import NextTrial
from ridgeline.campaign.kinds.search import SearchAgenda
from ridgeline.cli.campaign.nodes import _node_lines
from ridgeline.cli.main import run as command_line
from ridgeline.errors import CannotJudge, NothingFound
from ridgeline.records.expression import Expression
from ridgeline.records.outcome import Kind, Outcome
from ridgeline.records.run import Job
from ridgeline.records.space import point_key
from ridgeline.records.study import Budget, ConfirmStage, SearchStage, Study
from ridgeline.records.trial import Stage
from ridgeline.stats.nodes import (
    MOST_MORE_IF_LIKELY,
    MOST_URGENT,
    BaselinePlacement,
    NodeRun,
    NodeRuns,
    next_baseline_run,
    node_effects,
)
from ridgeline.stats.wording import MetricText
from ridgeline.study.history import History
from ridgeline.testing import MemoryExecutor, MemorySite, ScriptedAnswer, answer_of
from tests.campaign.harness import campaign, slots, study

NODES = ("n1", "n2", "n3", "n4")
SLOW = {"n2": 0.85}


class Unequal(MemoryExecutor):
    """Places jobs on nodes of different speed, by the name of the run folder alone; runs scatter by 0.5%."""

    def __init__(self, world: MemorySite | None = None, speeds: dict[str, float] = SLOW) -> None:
        super().__init__(slots(1, len(NODES)), world, self._answer)
        self.speeds = speeds
        self.avoided: list[tuple[str, ...]] = []

    def submit(self, job: Job) -> str:
        self.avoided.append(job.avoid_nodes)
        free = [node for node in NODES if node not in job.avoid_nodes]
        return super().submit(replace(job, on_nodes=job.on_nodes or (self._dice(job).choice(free),)))

    def _answer(self, job: Job) -> ScriptedAnswer:
        dice = self._dice(job)
        dice.random()
        rate = answer_of(job).metrics["rate"] * self.speeds.get(job.on_nodes[0], 1.0) * (1 + dice.gauss(0, 0.005))
        return ScriptedAnswer({"rate": rate})

    def _dice(self, job: Job) -> random.Random:
        return random.Random(f"7/{job.folder.name.partition('-')[0]}")


def question(folder: Path, **changes: Any) -> Study:
    return study(
        folder,
        site=slots(1, len(NODES)),
        budget=Budget(trials=20),
        search=SearchStage(sampler="random", seed=2, sentinel_every=4),
        confirm=ConfirmStage(top=2, blocks=4),
        **changes,
    )


def finished(folder: Path, speeds: dict[str, float] = SLOW) -> tuple[Campaign, Unequal]:
    executor = Unequal(speeds=speeds)
    run = campaign(folder, question(folder), executor=executor)
    run.run()
    return run, executor


def test_it_is_named_with_interval_and_evidence(tmp_path: Path) -> None:
    run, _ = finished(tmp_path)
    effects = {effect.node: effect for effect in scores.effects_of_nodes(run.study, run.history)}
    assert [node for node, effect in effects.items() if effect.verdict == "slow"] == ["n2"]
    slow = effects["n2"]
    assert slow.low is not None and slow.high is not None
    assert slow.low < 0.85 < slow.high
    first = next(iter(_node_lines([*effects.values()], MetricText("rate"), 4)))
    assert first.startswith("node n2 is 1")
    assert "% slower in rate than its peers (95%: " in first
    assert "runs there, " in first


def test_settings_are_ranked_by_what_they_are_worth_not_by_where_they_ran(tmp_path: Path) -> None:
    run, _ = finished(tmp_path)
    measured = {t.key: r for t, r in run.history.ok_runs(Stage.SEARCH)}
    on_slow = {key for key, r in measured.items() if r.ending.nodes == ("n2",)}
    assert on_slow, "some settings were measured on the slow node"
    worth = {t.key: 100.0 + 10 * float(t.settings["sum"] or 0) for t in run.history.trials.values()}
    for point, score in scores.ranking(run.study, run.history):
        assert score == pytest.approx(worth[point_key(point)], rel=0.03)
    raw = next(r for key, r in measured.items() if key in on_slow)
    key = run.history.trials[raw.trial].key
    assert raw.metrics["rate"] < 0.9 * worth[key], "the journal keeps what was measured"


def kept_off(run: Campaign, executor: Unequal) -> list[set[str]]:
    """The nodes that each block was not to begin on; its later runs are told nothing of the kind."""
    of_blocks = [t for t in run.history.trials.values() if t.stage in (Stage.CONFIRM, Stage.WARM_UP)]
    told = list(zip(of_blocks, executor.avoided[-len(of_blocks) :], strict=True))
    began = [nodes for trial, nodes in told if trial.stage is Stage.WARM_UP]
    assert not any(nodes for trial, nodes in told if trial.stage is Stage.CONFIRM), "it goes where its block began"
    assert all(len(set(nodes)) == len(nodes) for nodes in began), "each is named once"
    return [set(nodes) for nodes in began]


def test_blocks_do_not_begin_on_it(tmp_path: Path) -> None:
    run, executor = finished(tmp_path)
    (first,), (second,), (third,), last = (block.nodes for block in blocks_so_far(run.study, run.history))
    assert {first, second, third} == {"n1", "n3", "n4"} and last != ("n2",)
    assert kept_off(run, executor) == [{"n2"}, {"n2", first}, {"n2", first, second}, {"n2"}], "all had one: any of them"


def test_of_nodes_that_are_alike_each_has_a_block_before_one_has_two(tmp_path: Path) -> None:
    alike, other = finished(tmp_path, {})
    places = [node for block in blocks_so_far(alike.study, alike.history) for node in block.nodes]
    assert len(places) == 4 and set(places) == set(NODES)
    assert kept_off(alike, other) == [set(), {*places[:1]}, {*places[:2]}, {*places[:3]}]
    assert not scores.slow_nodes(alike.study, alike.history)


def test_baselines_of_the_start_go_to_nodes_not_seen_yet(tmp_path: Path) -> None:
    run, executor = finished(tmp_path)
    first, second = (r.ending.nodes for _, r in run.history.ok_runs(Stage.BASELINE)[:2])
    assert executor.avoided[:2] == [(), first]
    assert first != second
    assert not scores.next_baseline_placement(run.study, run.history, 1).avoid, "all four were seen"


def test_a_node_that_never_came_is_not_waited_for_again(tmp_path: Path) -> None:
    run, _ = finished(tmp_path)
    events = [*run.journal.read()]
    early = History.replay(tmp_path, events[: 1 + next(i for i, e in enumerate(events) if e["event"] == "ended")])
    many = replace(run.study, site=replace(run.study.site, nodes=99))
    assert scores.next_baseline_placement(many, early, 1).avoid
    (only,) = early.runs.values()
    lost = replace(only, number=2, outcome=Outcome(Kind.SITE_FAULT, "waited for nodes that are out of service"))
    early.runs[2] = lost
    assert not scores.next_baseline_placement(many, early, 1).avoid


class Small(Unequal):
    """A queue of two nodes: a job that is to avoid both of them runs on one all the same."""

    def submit(self, job: Job) -> str:
        asked = job.avoid_nodes
        left = [node for node in NODES[:2] if node not in asked] or NODES[:2]
        ticket = super().submit(replace(job, avoid_nodes=(), on_nodes=job.on_nodes or (self._dice(job).choice(left),)))
        self.avoided[-1] = asked
        return ticket


def test_a_queue_smaller_than_the_largest_job_is_looked_through_once(tmp_path: Path) -> None:
    """`nodes` is the most that a job may ask for; the queue may have fewer."""
    executor = Small(speeds={})
    run = campaign(tmp_path, question(tmp_path), executor=executor)
    run.run()
    assert set(run.history.outcomes) == {Kind.OK}
    # once each for the second node and for a third, which is not there
    stages = [run.history.trials[r.trial].stage for r in run.history.runs.values()]
    asked = [(set(nodes), stage) for nodes, stage in zip(executor.avoided, stages, strict=True) if nodes]
    looks = [nodes for nodes, stage in asked if stage not in (Stage.CONFIRM, Stage.WARM_UP)]
    assert looks in ([{"n1"}, {"n1", "n2"}], [{"n2"}, {"n1", "n2"}])
    begun = [nodes for nodes, stage in asked if stage in (Stage.CONFIRM, Stage.WARM_UP)]
    assert all(len(nodes) == 1 for nodes in begun), "a block has a node to begin on"
    again = History.replay(tmp_path, [*run.journal.read()])
    assert not scores.next_baseline_placement(run.study, again, 1).avoid


def test_where_too_few_nodes_are_left_the_slow_one_is_used(tmp_path: Path) -> None:
    run, _ = finished(tmp_path)
    trial = next(t for t in run.history.trials.values() if t.stage is Stage.CONFIRM)
    first_of_a_block = replace(trial, block=99)
    slow, *had = run.agenda.again(first_of_a_block).avoid_nodes
    assert slow == "n2" and tuple(had) == nodes_had_before(run.history, 99, 1, ("n2",))
    assert len({slow, *had}) < len(NODES), "one is left to run on"
    four_wide = replace(run.study.job, nodes=Expression.parse("4"))
    run.agenda.study = replace(run.study, job=four_wide)
    assert run.agenda.again(first_of_a_block).avoid_nodes == ()


def test_a_stopped_campaign_goes_on_as_if_it_had_not_been(tmp_path: Path) -> None:
    def searched(root: Path, stops: set[int]) -> list[tuple[Any, ...]]:
        world, left = MemorySite(), set(stops)
        while True:
            run = campaign(root, question(root), executor=Unequal(world))
            run.stop_requested = lambda run=run: (
                bool(left) and not run.history.open_runs and len(run.history.runs) >= min(left)
            )
            try:
                run.run()
            except Interrupted:
                left.discard(min(left))
                run.journal.close()
                continue
            before = [t for t in run.history.trials.values() if t.stage is not Stage.CONFIRM]
            final = [run.history.final_run(t) for t in before]
            return [(t.stage, t.key, r.ending.nodes) for t, r in zip(before, final, strict=True) if r is not None]

    calm = searched(tmp_path / "calm", set())
    assert searched(tmp_path / "stopped", {3, 9, 16, 21}) == calm


def test_the_sampler_is_told_again_only_what_compares_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every repeat of the baseline moves the p-value of a drift that is not there; values stay as they were."""
    made: list[tuple[Any, ...]] = []
    untaught = SearchAgenda._untaught

    def noted(agenda: SearchAgenda) -> Any:
        made.append(scores.normalisation(agenda.study, agenda.history).corrects_by)
        return untaught(agenda)

    monkeypatch.setattr(SearchAgenda, "_untaught", noted)
    run, _ = finished(tmp_path)
    assert not scores.normalisation(run.study, run.history).course.changed
    assert scores.slow_nodes(run.study, run.history) == ("n2",)
    assert len(made) > 1, "the slow node changed what was measured before"
    assert all(before != after for before, after in pairwise(made))


def test_a_sentinel_that_never_began_goes_where_it_was_to_go(tmp_path: Path) -> None:
    """A controller may be killed between the trial's line and the run's."""
    run, _ = finished(tmp_path)
    before = list(run.journal.read())
    at = next(i for i, e in enumerate(before) if e["event"] == "trial" and e["stage"] == "sentinel")
    number, where = before[at]["trial"], tuple(before[at + 1]["on_nodes"])
    past = History.replay(tmp_path, before[: at + 1])
    agenda = SearchAgenda(run.study, past, run.ledger, lambda: None)  # type: ignore[arg-type,return-value]
    again = agenda.next()
    assert isinstance(again, NextTrial)
    assert (again.trial.number, again.on_nodes) == (number, where)


def test_the_baseline_looks_at_every_node_and_again_at_a_suspect(tmp_path: Path) -> None:
    run, _ = finished(tmp_path)
    base = point_key(run.study.baseline)
    looks = [r.ending.nodes[0] for t, r in run.history.ok_runs(Stage.BASELINE, Stage.SENTINEL) if t.key == base]
    assert set(looks) == set(NODES)
    assert looks.count("n2") >= 3
    sentinels = run.history.count(Stage.SENTINEL)
    assert sentinels <= 20 * MOST_URGENT
    assert len(looks) <= len(NODES) + MOST_MORE_IF_LIKELY


def runs_at(*speeds: tuple[str, float]) -> list[NodeRun]:
    return [NodeRun("base", (node,), 100 * speed, place=at) for at, (node, speed) in enumerate(speeds)]


def test_where_to_look_next() -> None:
    def look(runs: list[NodeRun], width: int = 1, direction: Any = "maximize", there_are: int = 0) -> BaselinePlacement:
        return next_baseline_run(NodeRuns(runs), "base", node_effects(runs, direction), width, there_are)

    alike = runs_at(*((node, 1 + at / 1000) for at, node in enumerate("abcdefab")))
    assert not look(alike).urgent
    unseen = [*alike, NodeRun("other", ("z",), 50.0, place=9)]
    assert look(unseen).nodes == ("z",)
    assert look(unseen).urgent
    assert look(alike, there_are=7) == BaselinePlacement((), 1, ("a", "b", "c", "d", "e", "f"))
    assert look(alike, there_are=6).nodes, "all were seen"
    suspect = runs_at(("a", 1.0), ("b", 0.96), ("c", 1.01), ("d", 0.99), ("e", 1.0), ("f", 1.01), ("a", 0.99))
    assert look(suspect).nodes == ("b",)
    assert look(suspect).urgent
    assert not look(suspect, direction="minimize").urgent, "a shorter time is no reason to suspect"
    assert "b" in look(suspect, 2).nodes
    again = [*suspect, NodeRun("base", ("b",), 96.0, place=8)]
    assert look(again).nodes != ("b",), "in turn with its peers"
    assert look(suspect[:1]).nodes == ()


def test_looks_at_a_suspect_end_where_they_settle_nothing() -> None:
    rng = random.Random(3)
    nodes = "abcd" + "ab" * (MOST_MORE_IF_LIKELY // 2)
    noisy = runs_at(*((node, math.exp(rng.gauss(0, 0.05))) for node in nodes))
    assert not next_baseline_run(NodeRuns(noisy), "base", node_effects(noisy, "maximize"), 1).urgent


def test_a_suspect_that_is_settled_needs_no_more_looks() -> None:
    rng = random.Random(1)
    many = runs_at(*((node, (0.9 if node == "b" else 1.0) * (1 + rng.gauss(0, 0.002))) for node in "abc" * 3))
    effects = node_effects(many, "maximize")
    assert {e.node: e.verdict for e in effects}["b"] == "slow"
    assert not next_baseline_run(NodeRuns(many), "base", effects, 1).urgent


def test_the_verb_says_what_is_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(
        "version: 1\nname: one\n"
        "workload: {kind: command, run: 'echo rate $((100 + {x}))', metrics: {rate: {regex: 'rate (.*)'}}}\n"
        "space: {x: {from: 0, to: 9}}\ngoal: {maximize: rate}\nbaseline: {x: 0}\nbudget: {trials: 2}\n"
        "stages: {search: {sampler: random}, confirm: {top: 0}}\n"
    )
    with pytest.raises(NothingFound, match="the study asks for no confirmation"):
        command_line(["tune", str(file), "--out", str(tmp_path / "out")])
    capsys.readouterr()
    with pytest.raises(CannotJudge, match="don't show whether a node is slow"):
        command_line(["study", "nodes", str(tmp_path / "out")])
    assert capsys.readouterr().out.startswith("can't judge: all 5 good runs were on ")
    with pytest.raises(CannotJudge, match="don't show whether a node is slow"):
        command_line(["study", "nodes", str(tmp_path / "out"), "--json"])
    assert [node["verdict"] for node in json.loads(capsys.readouterr().out)["nodes"]] == ["undecided"]


def test_what_cannot_be_told_is_said_with_what_is_missing() -> None:
    goal = MetricText("rate")
    assert [*_node_lines([], goal, 8)] == ["can't judge: no good run recorded its node"]
    few = node_effects([NodeRun("s", (node,), 1.0) for node in ("a", "a", "b")], "maximize")
    assert [*_node_lines(few, goal, 8)] == [
        "can't judge: a (2 runs), b (1 run); a node is judged by 3 runs there and 3 elsewhere"
    ]
    pairs = [NodeRun("s", pair, 1.0) for pair in (("a", "b"), ("c", "d")) * 6]
    assert [*_node_lines(node_effects(pairs, "maximize"), goal, 8)] == [
        "can't separate a from b: all runs that count used both; a job on one of them and another node would show it",
        "can't separate c from d: all runs that count used both; a job on one of them and another node would show it",
    ]
    lonely = [NodeRun(f"s{number}", (node,), 1.0) for number, node in enumerate("aaabbb")]
    (line,) = _node_lines(node_effects(lonely, "maximize"), goal, 8)
    assert line == "can't judge: a (3 runs), b (3 runs); too few runs of the same setting on different nodes"


def test_each_run_is_looked_at_once_however_long_the_campaign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touched: list[int] = []
    real = scores.node_runs

    def noting(runs: Any, metric: str) -> Any:
        found = real(runs, metric)
        touched.extend(run.place for run in found)
        return found

    monkeypatch.setattr(scores, "node_runs", noting)
    run, _ = finished(tmp_path)
    good = [r.number for _, r in run.history.ok_runs(*Stage)]
    assert len(good) >= 30
    # those that ended after the last question are taken when somebody asks again
    assert touched == good[: len(touched)]
    scores.effects_of_nodes(run.study, run.history)
    assert touched == good
