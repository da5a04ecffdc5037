"""What a campaign promises, on a program that is a function."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from ridgeline.campaign.controller import Interrupted
from ridgeline.campaign.kinds.search import SearchAgenda
from ridgeline.campaign.ledger import Ledger, Reserve
from ridgeline.diagnose.readers.failures import PROGRAM_FAILURES
from ridgeline.errors import NothingFound, SiteError, StoreError
from ridgeline.records.outcome import Kind, Move, Signature
from ridgeline.records.run import Cause, Ending, Job
from ridgeline.records.space import Settings
from ridgeline.records.study import Budget, ConfirmStage, Goal, JobLimits
from ridgeline.records.trial import Stage
from ridgeline.stats.compare import order_of_block
from ridgeline.study.history import History
from ridgeline.testing import MemoryExecutor, MemorySite, ScriptedAnswer
from tests.campaign.harness import campaign, guards, rate, rule, slots, study


def test_finds_and_confirms_the_best(tmp_path: Path) -> None:
    run = campaign(tmp_path, study(tmp_path, budget=Budget(trials=29)))
    verdict = run.run()
    assert verdict.conclusion == "confirmed"
    assert verdict.winner == {"x": 9, "y": 2}
    assert verdict.comparisons[0].estimate == pytest.approx(2.1)


def test_minimising_finds_the_smallest(tmp_path: Path) -> None:
    question = study(tmp_path, goal=Goal("rate", "minimize"), baseline={"x": 9, "y": 2}, budget=Budget(trials=29))
    assert campaign(tmp_path, question).run().winner == {"x": 0, "y": 0}


def test_baseline_then_search_with_sentinels_then_confirm(tmp_path: Path) -> None:
    run = campaign(tmp_path, study(tmp_path))
    run.run()
    stages = [trial.stage for trial in run.history.trials.values()]
    assert stages[:3] == [Stage.BASELINE] * 3
    assert Counter(stages) == {Stage.BASELINE: 3, Stage.SEARCH: 12, Stage.SENTINEL: 2, Stage.CONFIRM: 18}
    assert stages[8] is Stage.SENTINEL, "the baseline comes again after five search trials"


def test_every_round_of_a_block_has_every_setting_once(tmp_path: Path) -> None:
    run = campaign(tmp_path, study(tmp_path))
    run.run()
    for block in range(3):
        keys = [t.key for t in run.history.trials.values() if t.block == block]
        assert len(keys) == 6 and len(set(keys[:3])) == len(set(keys[3:])) == len(set(keys)) == 3


def test_frugal_blocks_are_one_round_each_drawn_from_the_seed(tmp_path: Path) -> None:
    run = campaign(tmp_path, study(tmp_path, confirm=ConfirmStage(top=1, blocks=4, repeats=1)))
    assert run.run().conclusion == "confirmed"
    orders = [[t.key for t in run.history.trials.values() if t.block == block] for block in range(4)]
    assert all(len(set(order)) == len(order) == 2 for order in orders)
    assert set(orders[0]) == set(orders[1]) == set(orders[2]) == set(orders[3])
    baseline = run.history.trials[1].key
    drawn = [order_of_block(2, block, 1, run.study.search.seed) for block in range(4)]
    assert [0 if order[0] == baseline else 1 for order in orders] == [first for first, _ in drawn]


def test_no_point_is_searched_twice_and_the_space_ends(tmp_path: Path) -> None:
    run = campaign(tmp_path, study(tmp_path, budget=Budget(trials=500)))
    run.run()
    keys = [t.key for t in run.history.trials.values() if t.stage is Stage.SEARCH]
    assert len(keys) == len(set(keys)) == 29, "30 points, the baseline among them"


def test_presets_come_first(tmp_path: Path) -> None:
    run = campaign(tmp_path, study(tmp_path, presets=({"x": 3, "y": 1}, {"x": 7, "y": 0})))
    run.run()
    searched = [t for t in run.history.trials.values() if t.stage is Stage.SEARCH]
    assert [t.point for t in searched[:2]] == [{"x": 3, "y": 1}, {"x": 7, "y": 0}]
    assert searched[0].proposer == "preset"


def test_illegal_points_never_run(tmp_path: Path) -> None:
    question = study(tmp_path, budget=Budget(trials=100))
    question = replace(question, space=replace(question.space, rules=(rule("sum > 5"),)))
    run = campaign(tmp_path, question, refuse=lambda s: "workload says no" if s["y"] == 1 else None)
    run.run()
    assert run.history.trials
    assert all(t.settings["sum"] <= 5 and t.settings["y"] != 1 for t in run.history.trials.values())


def test_a_wrong_result_cannot_win(tmp_path: Path) -> None:
    def act(settings: Settings) -> ScriptedAnswer:
        wrong = settings["x"] == 9
        return ScriptedAnswer(
            {"rate": 1000.0 if wrong else rate(settings).metrics["rate"], "energy": -76.0 + 1e-3 * wrong}
        )

    run = campaign(
        tmp_path, study(tmp_path, guards=guards("energy within 1e-6 of baseline"), budget=Budget(trials=29)), act
    )
    verdict = run.run()
    assert verdict.winner["x"] == 8
    wrong = [r for r in run.history.runs.values() if r.outcome and r.outcome.kind is Kind.WRONG]
    assert len(wrong) == 3
    assert "energy" in wrong[0].outcome.reason  # type: ignore[union-attr]


def test_when_nothing_passes_it_says_so(tmp_path: Path) -> None:
    def act(settings: Settings) -> ScriptedAnswer:
        return (
            ScriptedAnswer({"rate": 1.0})
            if settings["sum"] == 0
            else ScriptedAnswer({"rate": 2.0}, exit_code=3, stderr="boom\n")
        )

    verdict = campaign(tmp_path, study(tmp_path), act).run()
    assert verdict.conclusion == "nothing-passed"
    assert verdict.headline == "no setting but the baseline passed (12 crash, each of them: boom)"


def test_where_settings_fail_for_different_reasons_none_is_named(tmp_path: Path) -> None:
    def act(settings: Settings) -> ScriptedAnswer:
        failed = ScriptedAnswer({"rate": 2.0}, exit_code=3, stderr=f"no sum of {settings['sum']}\n")
        return ScriptedAnswer({"rate": 1.0}) if settings["sum"] == 0 else failed

    verdict = campaign(tmp_path, study(tmp_path), act).run()
    assert verdict.headline == "no setting but the baseline passed (12 crash)"


def test_identical_settings_show_no_difference(tmp_path: Path) -> None:
    noise = count()
    verdict = campaign(
        tmp_path, study(tmp_path), act=lambda job: ScriptedAnswer({"rate": 100.0 + (next(noise) * 7919 % 13)})
    ).run()
    assert verdict.conclusion == "no-difference"
    assert "no detectable difference" in verdict.headline


def test_a_study_may_ask_for_no_confirmation(tmp_path: Path) -> None:
    run = campaign(tmp_path, study(tmp_path, confirm=ConfirmStage(top=0)))
    verdict = run.run()
    assert verdict.conclusion == "unconfirmed"
    assert run.history.count(Stage.CONFIRM) == 0


def test_a_baseline_that_fails_ends_the_campaign(tmp_path: Path) -> None:
    run = campaign(tmp_path, study(tmp_path), lambda s: ScriptedAnswer(exit_code=1, stderr="cannot open input\n"))
    with pytest.raises(NothingFound, match=r"baseline itself did not pass.*cannot open input"):
        run.run()
    assert len(run.history.runs) == 1


def test_a_failed_baseline_says_what_to_change_and_runs_again_when_resumed(tmp_path: Path) -> None:
    advised = Signature(re.compile("out of room"), Kind.OOM_RUN, "no room", advice=(Move("x", -1, "no room"),))
    asked = study(tmp_path, baseline={"x": 5, "y": 0})
    full = lambda s: ScriptedAnswer(exit_code=1, stderr="out of room\n")  # noqa: E731
    for attempt in (1, 2):
        run = campaign(tmp_path, asked, full, signatures=(advised,))
        with pytest.raises(NothingFound, match=r"study\.yaml lower x in `baseline`; then `ridgeline resume .*` runs"):
            run.run()
        assert len(run.history.runs) == attempt
        run.journal.close()
    corrected = campaign(tmp_path, study(tmp_path, baseline={"x": 4, "y": 0}))
    assert corrected.run().winner is not None
    stages = [trial.stage for trial in corrected.history.trials.values()]
    repeats = corrected.study.baseline_stage.repeats
    assert stages[: repeats + 3] == [Stage.BASELINE] * (2 + repeats) + [Stage.SEARCH]


def test_a_baseline_lost_to_the_site_is_the_sites_affair_and_runs_again_when_resumed(tmp_path: Path) -> None:
    lost = campaign(
        tmp_path,
        study(tmp_path),
        lambda s: ScriptedAnswer(exit_code=1, stderr="No space left on device\n"),
        signatures=PROGRAM_FAILURES,
    )
    with pytest.raises(SiteError, match=r"also after 2 retries\. The site did this.*ridgeline resume"):
        lost.run()
    assert len(lost.history.runs) == 3
    lost.journal.close()
    assert campaign(tmp_path, study(tmp_path)).run().winner is not None


@pytest.mark.parametrize("passes", [1, 6], ids=["at once", "in its very last run, when its blocks would do to win"])
def test_a_candidate_that_fails_in_the_confirmation_is_out(tmp_path: Path, passes: int) -> None:
    seen: Counter[str] = Counter()

    def act(job: Job) -> ScriptedAnswer:
        point = re.sub(r"^\d+-", "", job.name)
        seen[point] += 1
        if point == "x9-y2" and seen[point] > passes:
            return ScriptedAnswer({}, exit_code=139, stderr="Segmentation fault\n")
        x, y = map(int, re.findall(r"\d+", point))
        return ScriptedAnswer({"rate": 100.0 + 10 * (x + y)})

    verdict = campaign(tmp_path, study(tmp_path, budget=Budget(trials=29)), act=act).run()
    assert verdict.winner in ({"x": 9, "y": 1}, {"x": 8, "y": 2})
    assert "SIGSEGV" in next(iter(verdict.disqualified.values()))


def test_a_baseline_that_fails_once_in_the_confirmation_stays_the_baseline(tmp_path: Path) -> None:
    seen: Counter[str] = Counter()

    def act(job: Job) -> ScriptedAnswer:
        point = re.sub(r"^\d+-", "", job.name)
        seen[point] += 1
        x, y = map(int, re.findall(r"\d+", point))
        fails = point == "x0-y0" and seen[point] == 7
        return ScriptedAnswer({"rate": 100.0 + 10 * (x + y)}, exit_code=3 if fails else 0)

    run = campaign(tmp_path, study(tmp_path), act=act)
    verdict = run.run()
    assert (run.history.outcomes[Kind.CRASH], run.history.outcomes[Kind.SITE_FAULT]) == (0, 1), "it was run again"
    assert verdict.conclusion == "confirmed"
    assert verdict.comparisons[0].blocks == 3


def test_every_verdict_can_be_read_again(tmp_path: Path) -> None:
    """A baseline that is lost to its nodes in all of the confirmation leaves comparisons without an estimate."""
    seen: Counter[str] = Counter()

    class Losing(MemoryExecutor):
        def _finish(self, ticket: str) -> Ending:
            point = re.sub(r"^\d+-", "", Path(ticket).name)
            seen[point] += 1
            ending = super()._finish(ticket)
            lost = point == "x0-y0" and seen[point] > 5
            return replace(ending, cause=Cause.NODE_FAILED, exit_code=None) if lost else ending

    run = campaign(tmp_path, study(tmp_path), executor=Losing(world=MemorySite()))
    verdict = run.run()
    assert verdict.conclusion == "unconfirmed"
    line = History.replay(tmp_path, run.journal.read()).verdict
    assert line is not None
    assert run.question.verdict_from(line) == verdict


class FaultyNode(MemoryExecutor):
    """The first `faults` jobs of a point end with a node fault on n1; others run on n2."""

    def __init__(self, faults: int, cause: Cause = Cause.NODE_FAILED) -> None:
        super().__init__(world=MemorySite())
        self.faults, self.cause = faults, cause
        self.avoided: list[tuple[str, ...]] = []
        self.left: Counter[str] = Counter()

    def submit(self, job: Job) -> str:
        self.avoided.append(job.avoid_nodes)
        return super().submit(job)

    def _finish(self, ticket: str) -> Ending:
        ending = super()._finish(ticket)
        point = re.sub(r"^\d+-", "", Path(ticket).name)
        if point == "x0-y0" or self.left[point] >= self.faults:
            return replace(ending, nodes=("n2",))
        self.left[point] += 1
        return replace(ending, cause=self.cause, exit_code=None, nodes=("n1",), reason="node died")


def test_a_node_fault_is_retried_elsewhere_and_teaches_nothing(tmp_path: Path) -> None:
    executor = FaultyNode(1)
    run = campaign(tmp_path, study(tmp_path, budget=Budget(trials=4)), executor=executor)
    assert run.run().conclusion == "confirmed"
    retried = [r for r in run.history.runs.values() if r.attempt == 2]
    assert len(retried) >= 4
    assert all(r.outcome and r.outcome.kind is Kind.OK for r in retried)
    assert ("n1",) in executor.avoided


def test_after_two_retries_a_point_is_given_up_and_not_asked_again(tmp_path: Path) -> None:
    executor = FaultyNode(99)
    run = campaign(tmp_path, study(tmp_path, budget=Budget(trials=2)), executor=executor)
    verdict = run.run()
    assert verdict.conclusion == "nothing-passed"
    attempts = Counter(r.trial for r in run.history.runs.values() if run.history.trials[r.trial].stage is Stage.SEARCH)
    assert set(attempts.values()) == {3}, "one try and two retries"


def test_a_site_that_loses_everything_is_not_asked_for_ever(tmp_path: Path) -> None:
    run = campaign(tmp_path, study(tmp_path), executor=FaultyNode(99, Cause.LOST))
    with pytest.raises(SiteError, match="in a row"):
        run.run()
    assert run.history.stopped is not None


@pytest.mark.parametrize("slot_count", [1, 3])
def test_node_hours_are_never_overrun_by_more_than_one_run(tmp_path: Path, slot_count: int) -> None:
    budget = Budget(node_hours=20 / 60)
    question = study(tmp_path, budget=budget, site=slots(slot_count))
    run = campaign(tmp_path, question, lambda s: replace(rate(s), seconds=60.0))
    verdict = run.run()
    assert run.history.node_hours <= 20 / 60 + 1 / 60 + 1e-9
    assert verdict.conclusion == "confirmed", "room was kept for the confirmation"


def test_room_is_kept_for_the_confirmation_in_time_too(tmp_path: Path) -> None:
    run = campaign(tmp_path, study(tmp_path, budget=Budget(trials=1)))
    run.run()
    now = {"s": 0.0}
    run.history.wall_now_s = lambda at: at  # type: ignore[method-assign]
    ledger = Ledger(Budget(wall_s=1000.0), run.history, clock=lambda: now["s"])
    ledger._typical_s, ledger._seconds_by_point = 10.0, {}
    point, asked = run.study.baseline, Reserve(full=20, least=12)
    for now["s"], with_reserve, without in (
        (0.0, True, True),
        (769.0, True, True),
        (771.0, False, True),  # a tenth more than it is expected to take
        (991.0, False, False),
    ):
        assert ledger.fits(point, 1, asked) == with_reserve
        assert ledger.fits(point, 1, Reserve()) == without


def test_runs_of_unequal_length_keep_to_the_budget(tmp_path: Path) -> None:
    question = study(tmp_path, budget=Budget(node_hours=0.5))
    run = campaign(tmp_path, question, lambda s: replace(rate(s), seconds=20.0 + 10 * float(s["sum"] or 0)))
    run.run()
    longest = max(r.node_hours for r in run.history.runs.values())
    assert run.history.node_hours <= 0.5 + longest


def test_several_trials_fly_at_once_where_the_site_allows(tmp_path: Path) -> None:
    world = MemorySite()
    flying: list[int] = []
    question = study(tmp_path, site=slots(4))

    def act(job: Job) -> ScriptedAnswer:
        flying.append(sum(world.now_s < start + a.seconds for _, start, a in world.jobs.values()) + 1)
        x, y = map(int, re.findall(r"\d+", re.sub(r"^\d+-", "", job.name)))
        return ScriptedAnswer({"rate": 100.0 + x + y}, seconds=5.0)

    verdict = campaign(tmp_path, question, act=act, world=world).run()
    assert max(flying) == 4
    assert verdict.conclusion == "confirmed"


def test_the_line_that_decided_is_kept(tmp_path: Path) -> None:
    table = (
        Signature(re.compile("CUDA out of memory"), Kind.OOM_RUN, "out of GPU memory"),
        Signature(re.compile("error"), Kind.CRASH, "an error"),
    )

    def act(settings: Settings) -> ScriptedAnswer:
        return (
            rate(settings)
            if settings["x"] != 9
            else ScriptedAnswer(exit_code=1, stderr="error: x\nCUDA out of memory. 8 GiB\n")
        )

    run = campaign(tmp_path, study(tmp_path, budget=Budget(trials=29)), act, signatures=table)
    run.run()
    failed = [r.outcome for r in run.history.runs.values() if r.outcome and r.outcome.kind is Kind.OOM_RUN]
    assert len(failed) == 3
    assert str(failed[0].evidence) == "stderr:2: CUDA out of memory. 8 GiB"


def test_a_time_out_is_told_from_a_crash(tmp_path: Path) -> None:
    def act(settings: Settings) -> ScriptedAnswer:
        return replace(rate(settings), seconds=1.0 if settings["x"] != 9 else 500.0)

    run = campaign(tmp_path, study(tmp_path, job=JobLimits(limit_s=100.0), budget=Budget(trials=29)), act)
    run.run()
    assert run.history.outcomes[Kind.TIMEOUT] == 3


def test_a_program_that_we_ended_has_not_crashed_by_itself(tmp_path: Path) -> None:
    table = (
        Signature(re.compile("BAD TERMINATION"), Kind.CRASH, "a rank died"),
        Signature(re.compile("out of memory"), Kind.OOM_RUN, "out of memory"),
    )

    def act(settings: Settings) -> ScriptedAnswer:
        late = {8: "BAD TERMINATION\n", 9: "out of memory\nBAD TERMINATION\n"}.get(int(settings["x"] or 0))
        return replace(rate(settings), seconds=500.0 if late else 1.0, stderr=late or "")

    question = study(tmp_path, job=JobLimits(limit_s=100.0), budget=Budget(trials=29))
    run = campaign(tmp_path, question, act, signatures=table)
    run.run()
    assert run.history.outcomes[Kind.TIMEOUT] == 3
    assert run.history.outcomes[Kind.OOM_RUN] == 3


def test_a_budget_for_the_baseline_alone_says_so(tmp_path: Path) -> None:
    run = campaign(tmp_path, study(tmp_path, budget=Budget(node_hours=1e-3)), lambda s: replace(rate(s), seconds=3.0))
    assert "no room beyond the baseline" in run.run().headline


def test_stop_and_go_on_gives_the_same_answer(tmp_path: Path) -> None:
    calm = campaign(tmp_path / "calm", study(tmp_path))
    expected = calm.run()
    world = MemorySite()
    for stop_after in count(1):
        run = campaign(tmp_path / "stopped", study(tmp_path), world=world)
        looks = iter(range(stop_after))
        run.stop_requested = lambda looks=looks: next(looks, None) is None
        try:
            verdict = run.run()
        except Interrupted:
            run.journal.close()
            continue
        break
    assert replace(verdict, repeated=()) == expected
    assert verdict.repeated, "blocks that a stop cut in two were run again"
    runs = [r for r in run.history.runs.values() if r.outcome and r.outcome.kind is not Kind.CANCELLED]
    assert len([r for r in runs if r.trial not in run.history.uncounted]) == len(calm.history.runs)


class FullDisk(MemoryExecutor):
    def submit(self, job: Job) -> str:
        if len(self.world.jobs) == 4:
            raise StoreError("journal.jsonl: the disk is full")
        return super().submit(job)


def test_a_full_disk_ends_the_campaign_with_its_own_message(tmp_path: Path) -> None:
    world = MemorySite()
    run = campaign(tmp_path, study(tmp_path), executor=FullDisk(world=world))
    with pytest.raises(StoreError, match="disk is full"):
        run.run()
    run.journal.close()
    assert campaign(tmp_path, study(tmp_path), world=world).run().conclusion == "confirmed"


class Away(MemoryExecutor):
    """Refuses twice before it takes a job, as a batch system does while it restarts."""

    refusals = 2

    def submit(self, job: Job) -> str:
        if self.refusals:
            self.refusals -= 1
            raise SiteError("slurmctld is restarting", transient=True)
        return super().submit(job)


def test_a_transient_refusal_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ridgeline.executors.base.FIRST_PAUSE_S", 0.0)
    assert campaign(tmp_path, study(tmp_path), executor=Away()).run().conclusion == "confirmed"


def test_a_final_refusal_ends_the_campaign(tmp_path: Path) -> None:
    class Closed(MemoryExecutor):
        def submit(self, job: Job) -> str:
            raise SiteError("account ab12 has no hours left")

    with pytest.raises(SiteError, match="ab12"):
        campaign(tmp_path, study(tmp_path), executor=Closed()).run()


def test_a_job_that_somebody_always_cancels_is_not_run_for_ever(tmp_path: Path) -> None:
    class Cancelling(MemoryExecutor):
        def submit(self, job: Job) -> str:
            ticket = super().submit(job)
            if "x7" in job.name:
                self.cancel(ticket)  # as somebody at the site does, whenever it comes
            return ticket

    question = study(tmp_path, presets=({"x": 7, "y": 0},))
    with pytest.raises(SiteError, match="cancelled 5 times, and not by this campaign"):
        campaign(tmp_path, question, executor=Cancelling(question.site)).run()
    assert campaign(tmp_path, question).run().conclusion, "a resumed campaign tries it again"


def test_a_baseline_that_failed_before_it_was_corrected_is_no_observation(tmp_path: Path) -> None:
    with pytest.raises(NothingFound):
        campaign(tmp_path, study(tmp_path), lambda s: replace(rate(s), exit_code=int(s["sum"] == 0))).run()
    again = campaign(tmp_path, study(tmp_path, budget=Budget(trials=2)))
    again.run()
    assert isinstance(again.agenda, SearchAgenda)
    assert not [point for point, run in again.agenda._observations if run is None], "the search would keep away from it"


class Charging(MemoryExecutor):
    """A batch system that says later what a job is charged; with `dies` its controller does not live to read an id."""

    detached, dies = True, 0

    def submit(self, job: Job) -> str:
        ticket = super().submit(job)
        if len(self.world.jobs) == self.dies:
            raise SystemExit("killed")
        return ticket

    def charged(self, tickets: Collection[str], ask: bool = False) -> Mapping[str, float]:
        return dict.fromkeys(tickets, 7.0)


def test_a_job_that_is_found_again_is_in_the_journal_and_is_charged(tmp_path: Path) -> None:
    world = MemorySite()
    dying = Charging(world=world)
    dying.dies = 2
    with pytest.raises(SystemExit):
        campaign(tmp_path, study(tmp_path), executor=dying).run()
    run = campaign(tmp_path, study(tmp_path), executor=Charging(world=world))
    run.run()
    taken = [event["run"] for event in run.journal.read() if event["event"] == "submitted"]
    assert sorted(taken) == sorted(run.history.runs), "each once, the one that was found too"
    assert {ended.ending.charged_s for ended in run.history.runs.values()} == {7.0}
