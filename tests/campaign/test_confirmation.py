"""What the confirmation promises: who is in it, in which order, where and when its runs are, and what counts."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from itertools import count, pairwise, takewhile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ridgeline.campaign import confirmation, scores
from ridgeline.campaign.confirmation import (
    ConfirmationVerdict,
    _NearestTried,
    blocks_so_far,
    choose,
    runs_needed,
)
from ridgeline.campaign.controller import Campaign, Interrupted
from ridgeline.campaign.judge import misplaced
from ridgeline.campaign.scores import ranking
from ridgeline.cli.campaign.live import TerminalView
from ridgeline.errors import NothingFound
from ridgeline.records.exhibit import ComparedSetting
from ridgeline.records.expression import Expression
from ridgeline.records.measurement import Reading
from ridgeline.records.outcome import Kind
from ridgeline.records.run import Cause, Ending, Job, Machine, Resources, Run
from ridgeline.records.space import Settings, point_key
from ridgeline.records.study import Budget, ConfirmStage, Goal, JobLimits
from ridgeline.records.trial import Stage
from ridgeline.stats.compare import order_of_block
from ridgeline.stats.verdict import Block, Comparison, Verdict
from ridgeline.study.codec import SetAside
from ridgeline.study.history import History
from ridgeline.testing import FunctionWorkload, MemoryExecutor, MemorySite, ScriptedAnswer, answer_of
from tests.campaign.harness import campaign, rate, slots, study


def confirm_runs(history: History, *, counted: bool = True) -> dict[int, list[Run]]:
    """The runs of each block, in the order they ended."""
    found: dict[int, list[Run]] = defaultdict(list)
    for run in history.runs.values():
        trial = history.trials[run.trial]
        if trial.block is not None and (trial.number not in history.uncounted) is counted:
            found[trial.block].append(run)
    return found


class Wandering(MemoryExecutor):
    """Places every job on the next node of the site, unless it is told where to run."""

    places = 3
    obeys = True

    def __init__(self, world: MemorySite | None = None, slot_count: int = 1) -> None:
        super().__init__(slots(slot_count, self.places), world)
        self.asked: list[tuple[str, ...]] = []
        self._numbers = count(1)

    def submit(self, job: Job) -> str:
        self.asked.append(job.on_nodes)
        if not (job.on_nodes and self.obeys):
            job = replace(job, on_nodes=(f"n{next(self._numbers) % self.places}",))
        return super().submit(job)


def test_a_block_stays_on_the_nodes_of_its_first_run(tmp_path: Path) -> None:
    executor = Wandering()
    run = campaign(tmp_path, study(tmp_path, site=slots(1, 3)), executor=executor)
    verdict = run.run()
    found = confirm_runs(run.history)
    assert [len({r.ending.nodes for r in runs}) for runs in found.values()] == [1, 1, 1]
    assert len({runs[0].ending.nodes for runs in found.values()}) > 1, "blocks may be on different nodes"
    pinned = [r.number in run.history.pinned_to for runs in found.values() for r in runs]
    assert pinned == ([False] + [True] * 6) * 3, "all but the warm-up of each block"
    assert [run.history.trials[runs[0].trial].stage for runs in found.values()] == [Stage.WARM_UP] * 3
    assert not verdict.repeated
    assert set(verdict.machines) == {name for runs in found.values() for name in runs[0].ending.nodes}


@pytest.mark.parametrize("slot_count", [2, 4])
def test_runs_of_a_block_never_overlap_in_time(tmp_path: Path, slot_count: int) -> None:
    question = study(tmp_path, site=slots(slot_count))
    run = campaign(tmp_path, question, lambda s: replace(rate(s), seconds=3.0 + float(s["sum"] or 0)))
    run.run()
    assert [len(runs) for runs in confirm_runs(run.history).values()] == [6, 6, 6]
    for runs in confirm_runs(run.history).values():
        times = sorted((r.ending.started_s, r.ending.ended_s) for r in runs)
        assert all(ended <= started for (_, ended), (started, _) in pairwise(times))
    spans = [
        (min(r.ending.started_s for r in b), max(r.ending.ended_s for r in b))
        for b in confirm_runs(run.history).values()
    ]
    assert spans[0][1] > spans[1][0], "blocks themselves go on side by side"


def test_blocks_are_rounds_of_all_settings(tmp_path: Path) -> None:
    run = campaign(tmp_path, study(tmp_path))
    run.run()
    for runs in confirm_runs(run.history).values():
        keys = [run.history.trials[r.trial].key for r in runs]
        middle = len(keys) // 2
        assert len(set(keys[:middle])) == middle and sorted(keys[:middle]) == sorted(keys[middle:])


def test_rounds_are_drawn_from_the_seed_as_the_journal_says(tmp_path: Path) -> None:
    """A replay, a resume and the dry run find the same order; another seed has another."""
    orders = []
    for seed in (1, 2):
        root = tmp_path / str(seed)
        asked = study(root, search=replace(study(root).search, seed=seed), confirm=ConfirmStage(top=2, blocks=4))
        run = campaign(root, asked)
        run.run()
        ran = [[run.history.trials[r.trial].key for r in runs] for runs in confirm_runs(run.history).values()]
        planned = next(event for event in run.journal.read() if event["event"] == "confirm")
        assert (planned["protocol"], planned["seed"]) == (3, seed)
        asked_for = [confirmation.block_order(asked, run.history, block) for block in range(4)]
        assert ran == [[point_key(point) for point in order] for order in asked_for]
        settings = [asked.baseline, *run.history.candidates_of(0)]
        assert asked_for[3] == [settings[at] for at in order_of_block(3, 3, 2, seed)]
        orders.append(ran)
    assert orders[0] != orders[1]


def test_blocks_of_protocol_2_go_on_in_the_order_they_had(tmp_path: Path) -> None:
    run = campaign(tmp_path, study(tmp_path))
    run.run()
    run.journal.close()
    lines = [json.loads(line) for line in (tmp_path / "journal.jsonl").read_text().splitlines()]
    at = next(n for n, line in enumerate(lines) if line["event"] == "confirm")
    lines[at]["protocol"] = 2
    (tmp_path / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines[: at + 1]))
    again = campaign(tmp_path, study(tmp_path))
    again.run()
    for block in range(3):
        keys = [trial.key for trial in confirmation.trials_of(again.history, block)]
        assert len(keys) == 6 and keys == keys[::-1], "a palindrome"
    assert all(not block.order for block in confirmation.blocks_so_far(again.study, again.history))


def test_blocks_begin_on_nodes_that_had_fewer_of_them(tmp_path: Path) -> None:
    """What is gained on a node counts once: three blocks on three nodes are three numbers."""
    asked = study(tmp_path, site=slots(1, 3), confirm=ConfirmStage(top=1, blocks=3))
    run = campaign(tmp_path, asked)
    run.run()
    where = [block.nodes for block in confirmation.blocks_so_far(run.study, run.history)]
    seen = {node for r in run.history.runs.values() for node in r.ending.nodes}
    assert len(set(where)) == min(3, len(seen)), (where, seen)


def test_nodes_had_before_are_those_with_more_blocks_than_others() -> None:
    def had(
        *blocks_of: tuple[str, ...], width: int = 1, seen: tuple[str, ...] = (), avoided: tuple[str, ...] = ()
    ) -> Any:
        history = SimpleNamespace(trials={}, uncounted=set())
        runs: dict[int, Any] = {}
        stages = [(Stage.SEARCH, None, node) for node in seen]
        stages += [(Stage.CONFIRM, number, node) for number, nodes in enumerate(blocks_of) for node in nodes]
        for number, (stage, block, node) in enumerate(stages, 1):
            history.trials[number] = SimpleNamespace(number=number, stage=stage, block=block)
            runs[number] = SimpleNamespace(outcome=SimpleNamespace(kind=Kind.OK), ending=SimpleNamespace(nodes=(node,)))
        history.final_run = lambda trial: runs[trial.number]
        return confirmation.nodes_had_before(history, len(blocks_of), width, avoided)

    assert had(seen=("a", "b")) == ()
    assert had(("a",), seen=("a", "b", "c")) == ("a",)
    assert had(("a",), ("b",), seen=("a", "b", "c")) == ("a", "b")
    assert had(("a",), ("b",), seen=("a", "b", "c"), width=2) == (), "one is too few for two"
    assert had(("a",), ("b",), ("a",), seen=("a", "b")) == ("a",), "b had one, a two"
    assert had(("a",), seen=("a", "b"), avoided=("b",)) == (), "a slow node is no other"
    assert had(("a",), ("a",)) == (), "nobody knows of another"


def test_where_all_blocks_were_on_one_node_of_several_it_is_said(tmp_path: Path) -> None:
    run = campaign(tmp_path, study(tmp_path, confirm=ConfirmStage(top=1, blocks=3)))
    verdict = run.run()
    (place,) = {block.nodes for block in confirmation.blocks_so_far(run.study, run.history)}
    assert f"3 blocks on {place[0]}" in verdict.headline, "which machine it was"
    assert "nothing was compared on other nodes" not in verdict.headline, "there is none"
    several = replace(run.study, site=replace(run.study.site, nodes=4))
    text = confirmation.with_circumstances(verdict.headline, several, run.history, verdict)  # type: ignore[arg-type]
    assert text.endswith(f"; it holds for {place[0]} alone: nothing was compared on other nodes")
    again = confirmation.with_circumstances(text, several, run.history, verdict)  # type: ignore[arg-type]
    assert again == text, "once"


def test_a_confirmation_that_an_earlier_version_planned_goes_on_as_it_began(tmp_path: Path) -> None:
    run = campaign(tmp_path, study(tmp_path))
    run.run()
    run.journal.close()
    lines = [json.loads(line) for line in (tmp_path / "journal.jsonl").read_text().splitlines()]
    at = next(n for n, line in enumerate(lines) if line["event"] == "confirm")
    del lines[at]["protocol"], lines[at]["seed"]
    (tmp_path / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines[: at + 1]))
    again = campaign(tmp_path, study(tmp_path, site=slots(1, 3)), executor=Wandering())
    again.run()
    assert again.history.protocol == 1
    first = {again.history.trials[runs[0].trial].key for runs in confirm_runs(again.history).values()}
    assert first == {point_key(again.study.baseline)}
    assert not again.history.count(Stage.WARM_UP)


@pytest.mark.parametrize(
    ("warmup", "nodes", "runs"), [("always", 1, 3), ("auto", 1, 0), ("auto", 3, 3), ("never", 3, 0)]
)
def test_a_warm_up_runs_where_the_node_may_be_cold_and_counts_nowhere(
    tmp_path: Path, warmup: Any, nodes: int, runs: int
) -> None:
    asked = study(tmp_path, site=slots(1, nodes), confirm=ConfirmStage(top=1, blocks=3, warmup=warmup))
    run = campaign(tmp_path, asked)
    verdict = run.run()
    warm = [trial for trial in run.history.trials.values() if trial.stage is Stage.WARM_UP]
    assert len(warm) == run.history.count(Stage.WARM_UP) == runs
    assert all(trial.why and trial.block is not None for trial in warm)
    assert [len(b.baseline) for b in blocks_so_far(run.study, run.history)] == [2, 2, 2]
    assert {c.blocks for c in verdict.comparisons} == {3}
    spent = sum(r.node_hours for r in run.history.runs.values())
    assert run.history.node_hours == pytest.approx(spent), "what it costs is counted"
    assert runs_needed(asked, 1, 3) == 12 + runs


def test_a_machine_that_was_idle_or_built_on_is_warmed_up(tmp_path: Path) -> None:
    run = campaign(tmp_path, study(tmp_path))
    run.run()
    history = run.history
    history.uncounted |= {trial.number for trial in confirmation.trials_of(history, 0)}
    busy = history.busy_until_s
    assert busy is not None
    assert confirmation.why_warm_up(run.study, history, 0, busy + 1) == ""
    assert "for 500 s" in confirmation.why_warm_up(run.study, history, 0, busy + 500)
    assert confirmation.why_warm_up(run.study, history, 1, busy + 500) == "", "it has begun"
    history.busy_until_s = None
    assert "built" in confirmation.why_warm_up(run.study, history, 0, busy + 1)


def test_a_first_run_effect_is_in_the_verdict(tmp_path: Path) -> None:
    asked = study(tmp_path, confirm=ConfirmStage(top=1, blocks=5))
    run = campaign(tmp_path, asked)

    def act(job: Job) -> ScriptedAnswer:
        trial = list(run.history.trials.values())[-1]
        first = trial.stage is Stage.CONFIRM and len(confirmation.trials_of(run.history, trial.block or 0)) == 1
        value = answer_of(job).metrics["rate"] * (1 + 0.001 * (trial.number % 3))
        return ScriptedAnswer({"rate": value * (0.9 if first else 1.0)})

    run.executor = MemoryExecutor(asked.site, act=act)
    verdict = run.run()
    assert re.search(
        r"the first run of a block was (9|10)\.\d% slower than the last of the same setting", verdict.headline
    )
    answer = run.question.answer(run.study, run.history)
    assert "the first run of a block was" in answer.headline, "best and the report say it too"


class Doubted(FunctionWorkload):
    """Says of one setting, from its second run on, that it was not applied."""

    seen = 0

    def read(self, run: Run) -> Reading:
        reading = super().read(run)
        if "x9-y2" in run.folder.name:
            self.seen += 1
            if self.seen > 1:
                return replace(reading, unverified="x is 8 in the log, 9 was asked for")
        return reading


def test_a_candidate_that_is_unverified_when_run_again_is_out(tmp_path: Path) -> None:
    run = campaign(tmp_path, study(tmp_path, budget=Budget(trials=29)))
    run.workload = Doubted(run.study, rate)
    verdict = run.run()
    assert verdict.winner in ({"x": 9, "y": 1}, {"x": 8, "y": 2})
    assert [why.split(";")[0] for why in verdict.disqualified.values()] == ["unverified"]
    assert not verdict.repeated, "the block itself was whole"


def with_baseline(first: float, later: float, candidate: float) -> Callable[[Job], ScriptedAnswer]:
    """The baseline at first and as sentinel; every other setting measures the same."""
    seen = count(1)

    def act(job: Job) -> ScriptedAnswer:
        if not job.name.endswith("x0-y0"):
            return ScriptedAnswer({"rate": candidate})
        return ScriptedAnswer({"rate": first if next(seen) <= 3 else later})

    return act


def test_sentinels_count_as_runs_of_the_baseline(tmp_path: Path) -> None:
    """Held against the first three runs alone, every setting would look better."""
    run = campaign(tmp_path, study(tmp_path), act=with_baseline(100.0, 130.0, 105.0))
    assert run.run().conclusion == "keep-baseline"
    told = scores.mean_value(run.study, run.history, Stage.BASELINE, Stage.SENTINEL)
    runs = run.history.ok_runs(Stage.BASELINE, Stage.SENTINEL)
    assert told == pytest.approx(sum(r.metrics["rate"] for _, r in runs) / len(runs))
    assert told > 101.0, "as the faces tell it, too"
    slow = campaign(tmp_path / "slow", study(tmp_path), act=with_baseline(100.0, 70.0, 95.0))
    assert slow.run().conclusion == "confirmed"


@pytest.mark.parametrize("direction", ["maximize", "minimize"])
def test_settings_that_looked_worse_are_not_run_again(tmp_path: Path, direction: Any) -> None:
    best = {"x": 9, "y": 2} if direction == "maximize" else {"x": 0, "y": 0}
    run = campaign(tmp_path, study(tmp_path, goal=Goal("rate", direction), baseline=best))
    verdict = run.run()
    assert verdict.conclusion == "keep-baseline"
    assert verdict.recommended is None
    assert run.history.count(Stage.CONFIRM) == 0
    assert verdict.nearest_tried is not None
    assert verdict.nearest_tried.ratio is not None
    assert 0.8 < verdict.nearest_tried.ratio < 1.0
    line = History.replay(tmp_path, run.journal.read()).verdict
    assert line is not None
    assert run.question.verdict_from(line) == verdict
    assert isinstance(verdict.nearest_tried, _NearestTried)


def test_only_settings_that_looked_better_fill_the_places(tmp_path: Path) -> None:
    def act(settings: Settings) -> ScriptedAnswer:
        return ScriptedAnswer({"rate": 120.0 if settings["sum"] == 11 else 100.0 if settings["sum"] == 0 else 90.0})

    run = campaign(tmp_path, study(tmp_path, budget=Budget(trials=29), confirm=ConfirmStage(top=3, blocks=3)), act)
    assert run.run().winner == {"x": 9, "y": 2}
    assert run.history.candidates == ({"x": 9, "y": 2},)


def test_what_was_shown_to_be_worse_keeps_the_baseline(tmp_path: Path) -> None:
    seen = count()

    def act(job: Job) -> ScriptedAnswer:
        lucky = 1.2 if next(seen) < 17 and not job.name.endswith("x0-y0") else 0.9
        return ScriptedAnswer({"rate": 100.0 if job.name.endswith("x0-y0") else 100.0 * lucky})

    assert campaign(tmp_path, study(tmp_path), act=act).run().conclusion == "keep-baseline"


# blocks that a stop cut, or that were moved


def stopped_in(root: Path, world: MemorySite, when: Callable[[Campaign], bool], **changes: Any) -> Campaign:
    """A campaign that was stopped when that was the case."""
    run = campaign(root, study(root, **changes), world=world)
    run.stop_requested = lambda: when(run)
    with pytest.raises(Interrupted):
        run.run()
    run.journal.close()
    return run


def confirm_runs_done(number: int) -> Callable[[Campaign], bool]:
    return lambda run: sum(map(len, confirm_runs(run.history).values())) >= number


def test_a_block_that_a_stop_cut_is_run_again_as_a_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = MemorySite()
    # block 0 is complete, two runs of block 1 are done and the third is under way
    stopped_in(tmp_path, world, lambda run: confirm_runs_done(8)(run) and bool(run.history.open_runs))
    run = campaign(tmp_path, study(tmp_path), world=world)
    run.on_change = TerminalView(quiet=False).update
    verdict = run.run()
    said = "  block 1 of the confirmation is run again: the study was stopped in the middle of it\n"
    assert capsys.readouterr().out.count(said) == 1
    (aside,) = verdict.repeated
    assert (aside.block, aside.reason) == (1, "the study was stopped in the middle of it")
    assert set(aside.trials) == run.history.uncounted
    assert [len(runs) for runs in confirm_runs(run.history).values()] == [6, 1 + 6, 6], "and it was idle meanwhile"
    assert {run.history.opening_of[r.number] for r in confirm_runs(run.history)[1]} == {2}
    assert {run.history.opening_of[r.number] for r in confirm_runs(run.history)[0]} == {1}, "a whole block stays"
    left = confirm_runs(run.history, counted=False)[1]
    assert [r.outcome.kind for r in left if r.outcome] == [Kind.OK, Kind.OK, Kind.CANCELLED], (
        "all of it is in the journal"
    )
    assert {run.history.opening_of[r.number] for r in left} == {1}, "nothing more was run for it"
    again = History.replay(tmp_path, run.journal.read())
    assert (again.set_aside, again.uncounted) == (run.history.set_aside, run.history.uncounted)
    assert again.count(Stage.CONFIRM) == 18
    assert run.question.verdict_from(again.verdict) == verdict  # type: ignore[arg-type]


def test_a_stop_between_two_blocks_costs_nothing(tmp_path: Path) -> None:
    world = MemorySite()
    stopped_in(tmp_path, world, lambda run: confirm_runs_done(6)(run) and not run.history.open_runs)
    run = campaign(tmp_path, study(tmp_path), world=world)
    assert not run.run().repeated
    assert run.history.count(Stage.CONFIRM) == 18


def test_jobs_that_went_on_without_a_controller_complete_their_block(tmp_path: Path) -> None:
    """A batch system does not stop with us: a last run that was under way belongs to its block."""

    class Batch(MemoryExecutor):
        detached = True

    def last_of_block_flies(run: Campaign) -> bool:
        return confirm_runs_done(5)(run) and bool(run.history.open_runs)

    world = MemorySite()
    first = campaign(tmp_path, study(tmp_path), executor=Batch(world=world))
    first.stop_requested = lambda: last_of_block_flies(first)
    with pytest.raises(Interrupted):
        first.run()
    first.journal.close()
    assert not campaign(tmp_path, study(tmp_path), executor=Batch(world=world)).run().repeated


class Restarted(MemoryExecutor):
    """The machine is another one, under the same name, after so many runs."""

    def __init__(self, after: int) -> None:
        super().__init__(world=MemorySite())
        self.after = after

    def _finish(self, ticket: str) -> Ending:
        self.world.boot = "abcdef012345" if len(self.world.endings) < self.after else "543210fedcba"
        return super()._finish(ticket)


def test_a_block_that_landed_on_another_machine_is_run_again(tmp_path: Path) -> None:
    run = campaign(tmp_path, study(tmp_path), executor=Restarted(25))  # 17 before the confirmation, 8 of it
    verdict = run.run()
    (aside,) = verdict.repeated
    assert aside.block == 1
    assert aside.reason == ("it began on memory (boot abcdef01), and a run of it was on memory (boot 543210fe)")
    for runs in confirm_runs(run.history).values():
        assert len(runs) == 6
        assert len({r.ending.machines for r in runs}) == 1
    assert verdict.machines == ("memory (boot abcdef01)", "memory (boot 543210fe)")
    assert "on 2 nodes" in verdict.headline


def test_the_host_name_is_enough_where_it_tells_machines_apart(tmp_path: Path) -> None:
    assert campaign(tmp_path, study(tmp_path)).run().machines == ("memory",)


class Disobedient(Wandering):
    obeys = False


def test_a_site_that_never_keeps_a_block_together_gives_no_verdict(tmp_path: Path) -> None:
    """And does not go on for ever, and blames no setting for it."""
    run = campaign(tmp_path, study(tmp_path, site=slots(1, 3)), executor=Disobedient())
    verdict = run.run()
    assert verdict.conclusion == "unconfirmed"
    assert len(verdict.repeated) == 3 * confirmation.MOST_MOVES
    assert not verdict.disqualified
    assert run.history.outcomes[Kind.UNVERIFIED] > 0


class Unpinnable(Disobedient):
    pins_nodes = False


def test_a_site_that_cannot_pin_is_not_asked_to(tmp_path: Path) -> None:
    executor = Unpinnable()
    run = campaign(tmp_path, study(tmp_path, site=slots(1, 3)), executor=executor)
    verdict = run.run()
    assert not any(executor.asked)
    assert (verdict.conclusion, verdict.repeated) == ("confirmed", ())


# a batch system whose site file says nothing of its nodes


class SameHostName(Wandering):
    """Its nodes have names of their own, and programs on all of them are told the same."""

    def _machines(self, job: Job) -> tuple[Machine, ...]:
        return tuple(Machine("vm", "abcdef012345") for _ in job.on_nodes)


class SameHostNameAndDisobedient(SameHostName):
    obeys = False


class SameHostNameAndUnpinnable(SameHostNameAndDisobedient):
    pins_nodes = False


UNSAID = replace(slots(1), batch="slurm")


def test_a_block_stays_where_it_began_whatever_the_site_file_says(tmp_path: Path) -> None:
    executor = SameHostName()
    run = campaign(tmp_path, study(tmp_path, site=UNSAID), executor=executor)
    verdict = run.run()
    assert (verdict.conclusion, verdict.repeated) == ("confirmed", ()), "no run of the confirmation was in vain"
    found = confirm_runs(run.history)
    assert [len({r.ending.nodes for r in runs}) for runs in found.values()] == [1, 1, 1]
    assert [r.number in run.history.pinned_to for runs in found.values() for r in runs] == ([False] + [True] * 5) * 3
    assert set(verdict.machines) == {runs[0].ending.nodes[0] for runs in found.values()} == {"n0", "n1", "n2"}
    assert "on 3 nodes" in verdict.headline, "as the site calls them, not as programs are told"
    assert confirmation.known_nodes(run.study, run.history) == 3
    assert confirmation.known_nodes(replace(run.study, site=slots(1)), run.history) == 1, "this machine is one"
    assert confirmation.known_nodes(replace(run.study, site=slots(1, 5)), run.history) == 5


def test_blocks_of_such_a_site_begin_on_the_nodes_that_had_fewer(tmp_path: Path) -> None:
    """It would put each of them on the same one, as an idle cluster does; others are known from the search."""

    class Idle(SameHostName):
        places = 2

        def submit(self, job: Job) -> str:
            free = [name for name in ("n0", "n1") if name not in job.avoid_nodes]
            search = next(self._numbers) < 8
            if not job.on_nodes:
                job = replace(job, on_nodes=("n1" if search and "n1" in free else free[0],))
            return MemoryExecutor.submit(self, job)

    run = campaign(tmp_path, study(tmp_path, site=UNSAID, confirm=ConfirmStage(top=1, blocks=4)), executor=Idle())
    run.run()
    where = [block.nodes for block in blocks_so_far(run.study, run.history)]
    assert where == [("n0",), ("n1",), ("n0",), ("n1",)]


def test_a_block_that_is_moved_all_the_same_is_told_by_the_sites_names(tmp_path: Path) -> None:
    run = campaign(tmp_path, study(tmp_path, site=UNSAID), executor=SameHostNameAndDisobedient())
    verdict = run.run()
    assert verdict.conclusion == "unconfirmed" and len(verdict.repeated) == 3 * confirmation.MOST_MOVES
    assert {aside.reason for aside in verdict.repeated} <= {
        f"it began on n{at}, and a run of it was on n{(at + 1) % 3}" for at in range(3)
    }


def test_where_nodes_cannot_be_asked_for_blocks_count_wherever_they_ran(tmp_path: Path) -> None:
    run = campaign(tmp_path, study(tmp_path, site=UNSAID), executor=SameHostNameAndUnpinnable())
    verdict = run.run()
    assert (verdict.conclusion, verdict.repeated) == ("confirmed", ())
    run.history.protocol = 2
    assert confirmation.moved(run.study, run.history, 0), "before, it was not asked: such a block did not count"


def test_one_place_of_a_batch_system_that_was_seen_to_have_more(tmp_path: Path) -> None:
    """The search was on other nodes too; the blocks were all on one, since the others went down."""

    class Down(SameHostName):
        def submit(self, job: Job) -> str:
            where = f"n{next(self._numbers) % 3}" if len(self.asked) < 17 else "n1"
            self.asked.append(job.on_nodes)
            return MemoryExecutor.submit(self, replace(job, on_nodes=(where,)))

    verdict = campaign(tmp_path, study(tmp_path, site=UNSAID), executor=Down()).run()
    assert verdict.conclusion == "confirmed"
    assert verdict.headline.endswith("; it holds for n1 alone: nothing was compared on other nodes")


class TwoNodes(MemoryExecutor):
    """Blocks in turn on two nodes, on the second of which other settings than the baseline gain so much more."""

    def __init__(self, site: Any, more: float) -> None:
        super().__init__(site, act=self._answer)
        self.more = more

    def submit(self, job: Job) -> str:
        free = [name for name in ("n0", "n1") if name not in job.avoid_nodes] or ["n0"]
        return super().submit(job if job.on_nodes else replace(job, on_nodes=(free[0],)))

    def _answer(self, job: Job) -> ScriptedAnswer:
        base = job.name.endswith("x0-y0")
        scatter = 1 + 0.001 * (int(job.folder.name[:4]) % 5)
        return ScriptedAnswer({"rate": (100.0 if base else 105.0 + self.more * (job.on_nodes == ("n1",))) * scatter})


def test_a_gain_on_two_nodes_that_are_alike_is_stated_with_the_nodes(tmp_path: Path) -> None:
    asked = study(tmp_path, site=slots(1, 2), confirm=ConfirmStage(top=1, blocks=6))
    run = campaign(tmp_path, asked, executor=TwoNodes(asked.site, 1.0))
    verdict = run.run()
    assert verdict.conclusion == "confirmed"
    assert "6 blocks on 2 nodes, shown for these alone)" in verdict.headline
    scope = r"; it holds for n0 and n1 alone, which differ little: about \d+ nodes, a block on each, would show it for"
    assert re.search(f"{scope} others too", verdict.headline)
    answer = run.question.answer(run.study, run.history)
    assert re.search(scope, answer.headline) and answer.confirmed
    read = ConfirmationVerdict.from_line(run.history.verdict)  # type: ignore[arg-type]
    assert read.comparisons == verdict.comparisons and read.comparisons[0].only_here
    again = confirmation.with_circumstances(verdict.headline, run.study, run.history, verdict)  # type: ignore[arg-type]
    assert again == verdict.headline, "once"


def test_the_nodes_of_a_verdict_about_few_are_all_named() -> None:
    blocks_of = [Block(n, (name,), [1.0], {"c": [1.1]}) for n, name in enumerate(("n2", "n0", "n1", "n0"))]
    said = Comparison("c", Verdict.BETTER, "ratio", 1.1, 1.0, 1.2, 0.95, 4, 1, 0.01, 0.1, 0.1, only_here=True)
    few = confirmation._few_alike
    assert few(blocks_of, said) == (
        "; it holds for n0, n1 and n2 alone, which differ little: of others nothing is shown"
    )
    assert few(blocks_of, replace(said, nodes_needed=7)).endswith(
        "differ little: about 7 nodes, a block on each, would show it for others too"
    )
    assert few(blocks_of, replace(said, only_here=False)) == few(blocks_of, None) == ""


def test_a_gain_that_depends_on_the_node_is_no_verdict(tmp_path: Path) -> None:
    asked = study(tmp_path, site=slots(1, 2), confirm=ConfirmStage(top=1, blocks=6))
    verdict = campaign(tmp_path, asked, executor=TwoNodes(asked.site, 6.0)).run()
    assert verdict.conclusion == "no-difference" and verdict.winner is None
    assert "on these 2 nodes alone +" in verdict.headline and "it holds for" not in verdict.headline


@pytest.mark.parametrize(
    ("nodes", "machines", "called"),
    [
        (("n1",), (Machine("vm", "abc"),), ("n1",)),
        (("n1",), (Machine("n1.site.org", "abc"),), ("n1.site.org",)),
        (("n1",), (), ("n1",)),
        ((), (Machine("vm", "abc"),), ("vm",)),
        ((), (), ()),
        (("n1", "n2"), (Machine("n1", "abc"),), ("n1", "n2")),
    ],
)
def test_places_have_the_names_of_nodes(
    tmp_path: Path, nodes: tuple[str, ...], machines: tuple[Machine, ...], called: tuple[str, ...]
) -> None:
    run = Run(1, 1, 1, tmp_path, Resources(), Ending(Cause.EXITED, nodes=nodes, machines=machines))
    assert confirmation.places_of([run]) == {1: called}


def test_nodes_of_one_name_are_told_apart_by_what_is_known_of_them(tmp_path: Path) -> None:
    machines = [Machine("vm", boot) for boot in ("abcdef0123", "3210fedcba")]
    ends = [Ending(Cause.EXITED, nodes=("n1",), machines=(machine,)) for machine in machines]
    runs = [Run(number, 1, 1, tmp_path, Resources(), ending) for number, ending in enumerate(ends)]
    assert confirmation.places_of(runs) == {0: ("n1 (boot abcdef01)",), 1: ("n1 (boot 3210fedc)",)}


# where a run was


@pytest.mark.parametrize(
    ("nodes", "asked", "on_nodes", "wrong"),
    [
        (("n1", "n2"), 2, (), ""),
        (("n1",), 2, (), "it asked for 2 nodes and ran on 1 (n1)"),
        (("n1", "n2"), 1, (), "it asked for 1 node and ran on 2 (n1, n2)"),
        (("n2",), 1, ("n1",), "it ran on n2, but n1 was asked for"),
        (("n1.cluster",), 1, ("n1",), ""),
        (("b", "a"), 2, ("a", "b"), ""),
        ((), 2, ("a", "b"), ""),
    ],
)
def test_a_run_on_other_nodes_than_asked_is_doubted(
    nodes: tuple[str, ...], asked: int, on_nodes: tuple[str, ...], wrong: str
) -> None:
    assert misplaced(Ending(Cause.EXITED, 0, nodes=nodes), asked, on_nodes) == wrong


def test_two_nodes_that_were_one_do_not_count(tmp_path: Path) -> None:
    class Packed(MemoryExecutor):
        def _finish(self, ticket: str) -> Ending:
            return replace(super()._finish(ticket), nodes=("n1",), machines=(Machine("n1"),))

    question = study(tmp_path, job=JobLimits(nodes=Expression.parse("2")), site=slots(1, 4))
    with pytest.raises(NothingFound, match=r"unverified; it asked for 2 nodes and ran on 1 \(n1\)"):
        campaign(tmp_path, question, executor=Packed()).run()
    assert campaign(tmp_path / "apart", question).run().conclusion == "confirmed"


def test_what_a_run_was_asked_is_in_the_journal(tmp_path: Path) -> None:
    run = campaign(tmp_path, study(tmp_path, site=slots(1, 3)), executor=Wandering())
    run.run()
    past = History.replay(tmp_path, run.journal.read())
    pinned = {n: nodes for n, nodes in past.pinned_to.items() if past.trials[past.runs[n].trial].block is not None}
    assert len(pinned) == 3 * 6
    assert all(run.history.runs[number].ending.nodes == nodes for number, nodes in pinned.items())


def test_jobs_cancelled_in_the_queue_do_not_end_the_budget(tmp_path: Path) -> None:
    """Their start is unknown: as a date, 0 would be half a million hours ago."""

    class Queue(MemoryExecutor):
        def _finish(self, ticket: str) -> Ending:
            ending = super()._finish(ticket)
            if re.search(r"000[45]-", ticket):
                return Ending(Cause.LOST, reason="cancelled by the operator", started_s=0.0, ended_s=ending.ended_s)
            return ending

    question = study(tmp_path, budget=Budget(trials=12, node_hours=1.0))
    run = campaign(tmp_path, question, executor=Queue(world=MemorySite()))
    assert run.run().conclusion == "confirmed"
    assert run.history.node_hours < 1.0


@pytest.mark.parametrize(
    ("affordable", "candidates", "blocks"),
    [(30, 2, 5), (29, 1, 5), (20, 1, 5), (19, 1, 4), (12, 1, 3), (11, 0, 0)],
)
def test_with_less_to_spend_first_settings_are_left_out_and_then_blocks(
    tmp_path: Path, affordable: int, candidates: int, blocks: int
) -> None:
    run = campaign(tmp_path, study(tmp_path, confirm=ConfirmStage(top=2, blocks=5)))
    run.run()
    searched = History.replay(tmp_path, takewhile(lambda event: event["event"] != "confirm", run.journal.read()))
    plan = choose(run.study, searched, lambda points, blocks: 2 * (len(points) + 1) * blocks <= affordable)
    assert (len(plan.candidates), plan.blocks) == (candidates, blocks)
    best = [point for point, _ in ranking(run.study, run.history)]
    assert [*plan.candidates] == best[:candidates]


def test_when_all_that_passed_fails_in_the_confirmation_the_verdict_says_why(tmp_path: Path) -> None:
    seen: Counter[str] = Counter()

    def act(job: Job) -> ScriptedAnswer:
        answer = answer_of(job)
        seen[job.name.partition("-")[2]] += 1
        again = seen[job.name.partition("-")[2]] > 1 and not job.name.endswith("x0-y0")
        return replace(answer, exit_code=1, stderr="second time unlucky\n") if again else answer

    verdict = campaign(tmp_path, study(tmp_path), act=act).run()
    assert verdict.conclusion == "nothing-passed"
    assert "failed when it was run again" in verdict.headline and "second time unlucky" in verdict.headline


def test_a_block_is_not_run_again_for_ever_for_moving_and_stops_do_not_count_as_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = campaign(tmp_path, study(tmp_path))
    run.run()
    monkeypatch.setattr(confirmation, "moved", lambda *_: "it began elsewhere")
    for before, again in (
        ([], True),
        ([confirmation.STOPPED] * 5, True),
        (["moved"], True),
        (["moved", "moved"], False),
    ):
        run.history.set_aside = [SetAside(0, (), reason) for reason in before]
        found = confirmation.broken(run.study, run.history, 0, ())
        assert (found is not None and found.reason == "it began elsewhere") is again
    run.history.set_aside = [SetAside(1, (), "moved")] * 2
    assert confirmation.broken(run.study, run.history, 0, ()) is not None, "each block has its own count"


def test_what_is_shown_of_a_setting_is_the_mean_of_its_runs(tmp_path: Path) -> None:
    values = count(100)

    def act(job: Job) -> ScriptedAnswer:
        base = job.name.endswith("x0-y0")
        return ScriptedAnswer({"rate": 50.0 if base else float(next(values))})

    run = campaign(tmp_path, study(tmp_path), act=act)
    run.run()
    (point, score), *_ = ranking(run.study, run.history)
    key = point_key(point)
    runs = [r.metrics["rate"] for t, r in run.history.ok_runs(Stage.CONFIRM) if t.key == key]
    assert len(runs) == 6
    assert scores.mean_value(run.study, run.history, Stage.CONFIRM, key=key) == pytest.approx(sum(runs) / 6)
    assert scores.mean_value(run.study, run.history, Stage.CONFIRM, key="nobody") is None
    assert scores.looked_like(run.study, run.history, score) == pytest.approx(score / 50.0)
    assert scores.looked_like(run.study, run.history, -1.0) is None, "no ratio of a gain and a loss"
    assert scores.mean_value(run.study, History(tmp_path), Stage.BASELINE) is None


def test_a_time_that_halves_looks_twice_as_good(tmp_path: Path) -> None:
    asked = study(tmp_path, goal=Goal("rate", "minimize"), budget=Budget(trials=2))
    run = campaign(tmp_path, asked)
    run.run()
    assert scores.looked_like(run.study, run.history, run.study.goal.score(50.0)) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("ran", "width", "goes_to"),
    [
        ([("n1",)], 1, ("n1",)),
        ([("n1",)], 2, ()),
        ([("n1",), ("n2", "n3")], 2, ("n2", "n3")),
        ([("n2", "n3")], 1, ("n2",)),
        ([("n2", "n3"), ("n1",)], 1, ("n1",)),
    ],
)
def test_settings_of_one_block_may_take_different_numbers_of_nodes(
    monkeypatch: pytest.MonkeyPatch, ran: list[tuple[str, ...]], width: int, goes_to: tuple[str, ...]
) -> None:
    """A job of two nodes that is sent to the one node of the baseline gets another one beside it, and is lost."""
    runs = [SimpleNamespace(ending=SimpleNamespace(nodes=nodes)) for nodes in ran]
    monkeypatch.setattr(confirmation, "_runs", lambda *_: runs)
    assert confirmation.nodes_of_block(None, 1, width) == goes_to  # type: ignore[arg-type]


def test_faces_get_every_candidate_whose_ratio_is_known_under_what_it_changed() -> None:
    def row(point: dict[str, Any], verdict: Verdict, scale: Any, *numbers: float | None) -> Comparison:
        return Comparison(json.dumps(point), verdict, scale, *numbers, 0.95, 5, 3, 0.01, None, None)

    rows = [
        row({"x": 1, "y": 0}, Verdict.BETTER, "ratio", 1.2, 1.1, 1.3),
        row({"x": 0, "y": 2}, Verdict.TOO_FEW_BLOCKS, "ratio", None, None, None),
        row({"x": 0, "y": 2}, Verdict.TOO_FEW_BLOCKS, "ratio", 1.1, None, None),
        row({"x": 0, "y": 3}, Verdict.BETTER, "difference", 4.0, 3.0, 5.0),
        row({"x": 2, "y": 2}, Verdict.WORSE, "ratio", 0.8, 0.7, 0.9),
    ]
    assert confirmation.compared_settings({"x": 0, "y": 0}, rows) == (
        ComparedSetting("x 1", 1.2, 1.1, 1.3, "better"),
        ComparedSetting("x 2, y 2", 0.8, 0.7, 0.9, "worse"),
    )
