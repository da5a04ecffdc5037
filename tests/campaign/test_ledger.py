"""What a campaign has spent, what a run is expected to take, and whether one more fits: by hand."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ridgeline.campaign import controller
from ridgeline.campaign.kinds.search import SearchQuestion
from ridgeline.campaign.ledger import TRIALS_WITHOUT_BUDGET, Ledger, Reserve, profile_share
from ridgeline.campaign.status import CampaignStatus, _profile_tables
from ridgeline.cli.text.wording import budget_text
from ridgeline.records.outcome import Kind, Outcome
from ridgeline.records.run import Cause, Ending, Resources
from ridgeline.records.study import Budget, ConfirmStage, ProfileStage
from ridgeline.records.trial import Stage, Trial
from ridgeline.study.codec import RunBegun, RunEnded, event_of
from ridgeline.study.history import History
from ridgeline.testing import MemorySite
from tests.campaign.harness import campaign, rate, slots, study

NOW_S = 1_000_000.0


def history(*runs: tuple[int, Stage, float | None, Kind], nodes: int = 1) -> History:
    """Runs by x, stage, seconds and outcome, one trial each; without seconds a run is under way since NOW_S."""
    events: list[Any] = [{"event": "opened", "kind": "search", "question": {}, "asked": {}}]
    for number, (x, stage, seconds, kind) in enumerate(runs, 1):
        events.append(event_of(Trial(number, {"x": x}, {"x": x}, stage, "grid")))
        events.append(event_of(RunBegun(number, number, 1, f"runs/{number}", Resources(nodes=nodes))))
        if seconds is not None:
            ending = Ending(Cause.EXITED, 0, started_s=NOW_S - seconds, ended_s=NOW_S)
            events.append(event_of(RunEnded(number, ending, Outcome(kind), (), {})))
    return History.replay(Path("/nowhere"), [{"at": NOW_S, **event} for event in events])


def ledger(found: History, now_s: float = NOW_S, slots: int = 1, **limits: Any) -> Ledger:
    return Ledger(Budget(**limits), found, clock=lambda: now_s, slots=slots)


def test_a_run_is_expected_to_take_what_its_setting_took_and_else_the_slow_average() -> None:
    seen = ledger(history((1, Stage.BASELINE, 10.0, Kind.OK), (2, Stage.SEARCH, 20.0, Kind.OK)))
    assert seen.expected_s({"x": 1}) == 10.0
    assert seen.expected_s({"x": 2}) == 20.0
    assert seen.expected_s({"x": 3}) == pytest.approx(0.8 * 10 + 0.2 * 20)
    assert ledger(history()).expected_s({"x": 1}) is None


@pytest.mark.parametrize(
    ("stage", "kind"),
    [
        (Stage.SEARCH, Kind.CRASH),
        (Stage.SEARCH, Kind.STOPPED_EARLY),
        (Stage.SEARCH, Kind.UNVERIFIED),
        (Stage.SHORT, Kind.OK),
        (Stage.PROFILE, Kind.OK),
    ],
)
def test_what_failed_or_was_short_or_under_a_profiler_says_nothing_about_a_runs_length(
    stage: Stage, kind: Kind
) -> None:
    seen = ledger(history((1, Stage.BASELINE, 10.0, Kind.OK), (2, stage, 999.0, kind)))
    assert seen.expected_s({"x": 2}) == 10.0


def test_what_profiles_took_is_a_share_of_all_node_hours(tmp_path: Path) -> None:
    without = history((1, Stage.BASELINE, 360.0, Kind.OK))
    assert profile_share(without) is None
    profiles = (1, Stage.PROFILE, 40.0, Kind.OK), (2, Stage.PROFILE, 0.0, Kind.CRASH)
    found = history((1, Stage.BASELINE, 360.0, Kind.OK), *profiles)
    assert profile_share(found) == pytest.approx(0.1)
    now = CampaignStatus(SearchQuestion(), study(tmp_path), found)
    assert budget_text(now).startswith("0.11 node-hours (profile: 10.0% of them), ")
    (table,) = _profile_tables(study(tmp_path), found)
    assert table.notes == ("profile: 10.0% of node-hours, more than the 5% that a campaign should spend on them",)


def test_the_share_of_profiles_is_in_the_status(tmp_path: Path) -> None:
    asked = study(tmp_path, profile=ProfileStage("perf"))
    run = campaign(tmp_path, asked, rate)
    run.run()
    said = CampaignStatus(SearchQuestion(), asked, run.history).as_json()
    assert 0 < said["profile_share"] < 1
    assert said["profile_share"] == profile_share(run.history)


def test_node_hours_count_every_run_on_all_its_nodes_and_those_under_way() -> None:
    found = history(
        (1, Stage.BASELINE, 360.0, Kind.OK), (2, Stage.SEARCH, 360.0, Kind.CRASH), (3, Stage.SEARCH, None, Kind.OK),
        nodes=4,
    )  # fmt: skip
    assert found.node_hours == pytest.approx(0.8), "what failed was paid for as well"
    # 0.8 spent, 0.4 under way, 0.4 for one more on four nodes
    assert ledger(found, node_hours=1.61).fits({"x": 9}, 4, Reserve())
    assert not ledger(found, node_hours=1.59).fits({"x": 9}, 4, Reserve())
    assert ledger(found, node_hours=1.31).fits({"x": 9}, 1, Reserve()), "one node costs a quarter"


def test_the_reserve_is_counted_on_as_many_nodes_as_runs_take() -> None:
    found = history((1, Stage.BASELINE, 360.0, Kind.OK), nodes=4)
    # 0.4 spent, 0.4 for one more, 0.8 for two that are reserved
    assert ledger(found, node_hours=1.61).fits({"x": 9}, 4, Reserve(full=2, least=1))
    assert not ledger(found, node_hours=1.59).fits({"x": 9}, 4, Reserve(full=2, least=1))


def test_wall_time_waits_for_the_longest_run_under_way_and_not_for_all_of_them() -> None:
    found = history(
        (1, Stage.BASELINE, 100.0, Kind.OK), (2, Stage.SEARCH, None, Kind.OK), (3, Stage.SEARCH, None, Kind.OK)
    )
    # 40 s at work, so 60 s are left of those that fly; then 100 s more
    assert ledger(found, NOW_S + 40, wall_s=201.0).fits({"x": 9}, 1, Reserve())
    assert not ledger(found, NOW_S + 40, wall_s=199.0).fits({"x": 9}, 1, Reserve())
    # with a slot that is free it runs beside them
    assert ledger(found, NOW_S + 40, slots=3, wall_s=141.0).fits({"x": 9}, 1, Reserve())
    assert not ledger(found, NOW_S + 40, slots=3, wall_s=139.0).fits({"x": 9}, 1, Reserve())


def test_before_anything_is_known_one_run_at_a_time_is_started_to_learn() -> None:
    assert ledger(history(), wall_s=10.0).fits({"x": 1}, 1, Reserve())
    assert not ledger(history((1, Stage.BASELINE, None, Kind.OK)), wall_s=10.0).fits({"x": 1}, 1, Reserve())
    assert ledger(history(), NOW_S + 11, wall_s=10.0).fits({"x": 1}, 1, Reserve()), "nothing ran: no time was spent"
    crashed = history((1, Stage.BASELINE, 3600.0, Kind.CRASH))
    assert not ledger(crashed, node_hours=1.0).fits({"x": 1}, 1, Reserve())
    assert ledger(history((1, Stage.BASELINE, None, Kind.OK))).fits({"x": 1}, 1, Reserve()), "no limit, no question"


def test_a_confirmation_is_paid_for_at_what_its_settings_took() -> None:
    found = history((1, Stage.BASELINE, 360.0, Kind.OK), (2, Stage.SEARCH, 36.0, Kind.OK))
    pair = [({"x": 1}, 1), ({"x": 2}, 1)]  # 0.11 node-hours, 396 s for one run of each
    assert ledger(found).affords(pair, 6)
    spent_h = found.node_hours
    assert ledger(found, node_hours=spent_h + 0.67).affords(pair, 6)
    assert not ledger(found, node_hours=spent_h + 0.65).affords(pair, 6)
    assert ledger(found, wall_s=6 * 396.0 + 1).affords(pair, 6)
    assert not ledger(found, wall_s=6 * 396.0 - 1).affords(pair, 6)
    assert ledger(found, slots=4, wall_s=2 * 396.0 + 1).affords(pair, 6), "blocks run beside each other"
    assert ledger(history(), wall_s=1.0).affords(pair, 6), "nothing is known yet"


def test_a_reserve_is_at_most_its_fair_share_but_the_least_confirmation_comes_first() -> None:
    asked = Reserve(full=20, least=12)
    assert asked.of(None, 1.0) == 0.0
    assert asked.of(1000.0, 1.0) == 20.0, "all of it where that is little"
    assert asked.of(30.0, 1.0) == 15.0, "half of the budget"
    assert asked.of(20.0, 1.0) == 12.0, "more than half for the smallest one"
    assert asked.of(13.0, 1.0) == 0.0, "nothing where it would leave no room for the baseline and a trial"
    beside = Reserve(full=20, least=12, blocks=5, least_blocks=3)
    assert beside.of(1000.0, 1.0, at_once=1) == 20.0
    assert beside.of(1000.0, 1.0, at_once=2) == 12.0, "three rounds of blocks of four runs"
    assert beside.of(1000.0, 1.0, at_once=8) == 4.0, "all blocks at once"
    assert beside.of(9.0, 1.0, at_once=3) == 4.5, "its fair share"


def test_a_study_without_any_limit_ends_all_the_same() -> None:
    assert ledger(history()).search_trials == TRIALS_WITHOUT_BUDGET
    assert ledger(history(), wall_s=9.0).search_trials is None
    assert ledger(history(), trials=7, wall_s=9.0).search_trials == 7


ENDED = {"ending": {"cause": "exited", "started": 0, "ended": 0}, "outcome": {"kind": "ok"}}


def timed(*events: tuple[float, Any]) -> History:
    return History.replay(Path("/nowhere"), [{"at": at, **event} for at, event in events])


def began(number: int) -> dict[str, Any]:
    return {"event": "run", "run": number, "trial": 1, "attempt": number, "folder": f"runs/{number}", "resources": {}}


def test_only_time_with_a_controller_and_a_run_in_flight_is_spent() -> None:
    opened = {"event": "opened", "kind": "search", "question": {}, "asked": {}}
    first = event_of(Trial(1, {"x": 1}, {"x": 1}, Stage.BASELINE, "baseline"))
    ran = [(0, opened), (3, first), (5, began(1)), (15, {"event": "ended", "run": 1, **ENDED})]
    assert timed(*ran).wall_s == 10, "not the seconds before the run began"
    over = [*ran, (17, {"event": "verdict", "verdict": {"kind": "unconfirmed", "headline": "none"}})]
    assert timed(*over).wall_now_s(1000) == 10, "nothing is in flight"
    extended = {"event": "extended", "trials": 3, "blocks": 0}
    for left in ([], [(18, {"event": "stopped", "reason": "finished"})]):
        later = [*over, *left, (86_400, extended), (86_401, opened), (86_402, began(2))]
        assert timed(*later).wall_s == 10, "a day between verdict and extension is nobody's work"
        assert timed(*later).wall_now_s(86_405) == 13
    killed = [*ran, (20, began(2)), (30, {"event": "submitted", "run": 2, "ticket": "t"}), (900, opened)]
    assert timed(*killed).wall_s == 20, "up to the last sign of the controller that was killed"
    assert timed(*killed, (905, {"event": "submitted", "run": 2, "ticket": "t"})).wall_s == 25
    both = [*ran, (20, began(2)), (22, began(3)), (25, {"event": "ended", "run": 2, **ENDED})]
    assert timed(*both).wall_now_s(30) == 20, "two at once count once"


@pytest.mark.parametrize("slots_", [1, 2, 4])
@pytest.mark.parametrize("limit", ["wall", "node-hours"])
@pytest.mark.parametrize("runs", [3, 5, 8, 13, 14, 16, 20, 25, 40, 80])
def test_what_was_given_is_used_and_the_confirmation_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slots_: int, limit: str, runs: int
) -> None:
    """Runs of 12 s, and a budget of so many of them one after the other."""
    seconds, world = 12.0, MemorySite()
    budget = Budget(wall_s=runs * seconds) if limit == "wall" else Budget(node_hours=runs * seconds / 3600)
    asked = study(tmp_path, budget=budget, site=slots(slots_), confirm=ConfirmStage(top=2, blocks=3))
    run = campaign(tmp_path, asked, lambda settings: replace(rate(settings), seconds=seconds), world=world)
    monkeypatch.setattr(controller, "time", SimpleNamespace(time=lambda: world.now_s, monotonic=time.monotonic))
    run.ledger.clock = lambda: world.now_s
    verdict = run.run()
    found = run.history
    spent = found.wall_s / seconds if limit == "wall" else found.node_hours * 3600 / seconds
    assert spent <= runs + 1e-6
    assert found.count(Stage.SEARCH), "nobody wants to hear that nothing was tried"
    # the baseline, a trial, and one setting against the baseline in three blocks of two rounds
    least = 2 + (12 if limit == "node-hours" else 4 * math.ceil(3 / slots_)) * 1.1
    assert (verdict.conclusion == "confirmed") == (runs >= least), verdict.headline
    everything = found.count(Stage.SEARCH) == 29 or found.count(Stage.CONFIRM) == 18
    assert everything or runs - spent <= max(2, 0.2 * runs), "what is left is too little for anything"


def test_what_people_added_to_the_budget_can_be_spent() -> None:
    found = history((1, Stage.BASELINE, 360.0, Kind.OK))
    short = {"wall_s": 300.0, "node_hours": 0.15}  # 0.1 are spent, and one more run takes as much again
    assert not ledger(found, **short).fits({"x": 9}, 1, Reserve())
    line = {"id": "x" * 8, "act": "extend", "refused": False}
    found.instructions.apply({**line, "wall_s": 100.0})
    assert not ledger(found, **short).fits({"x": 9}, 1, Reserve()), "time alone is not enough"
    found.instructions.apply({**line, "node_hours": 0.1})
    assert ledger(found, **short).fits({"x": 9}, 1, Reserve())
