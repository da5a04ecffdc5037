"""What a campaign has spent, what a run is expected to take, and whether one more fits: by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ridgeline.campaign.ledger import TRIALS_WITHOUT_BUDGET, Ledger, Reserve
from ridgeline.records.outcome import Kind, Outcome
from ridgeline.records.run import Cause, Ending, Resources
from ridgeline.records.study import Budget
from ridgeline.records.trial import Stage, Trial
from ridgeline.store.events import ended_event, run_event, trial_event
from ridgeline.store.history import History

NOW_S = 1_000_000.0


def history(*runs: tuple[int, Stage, float | None, Kind], nodes: int = 1) -> History:
    """Runs by x, stage, seconds and outcome, one trial each; without seconds a run is under way since NOW_S."""
    events: list[Any] = [{"event": "opened", "kind": "search", "question": {}, "asked": {}}]
    for number, (x, stage, seconds, kind) in enumerate(runs, 1):
        events.append(trial_event(Trial(number, {"x": x}, {"x": x}, stage, "grid")))
        events.append(run_event(number, number, 1, Path(f"runs/{number}"), Resources(nodes=nodes), ()))
        if seconds is not None:
            ending = Ending(Cause.EXITED, 0, started_s=NOW_S - seconds, ended_s=NOW_S)
            events.append(ended_event(number, ending, Outcome(kind), (), {}))
    return History.replay(Path("/nowhere"), [{"at": NOW_S, **event} for event in events])


def ledger(found: History, now_s: float = NOW_S, **limits: Any) -> Ledger:
    return Ledger(Budget(**limits), found, clock=lambda: now_s)


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
    assert ledger(found, node_hours=1.61).fits({"x": 9}, 4, Reserve(full=2, least=2))
    assert not ledger(found, node_hours=1.59).fits({"x": 9}, 4, Reserve(full=2, least=2))


def test_wall_time_waits_for_the_longest_run_under_way_and_not_for_all_of_them() -> None:
    found = history(
        (1, Stage.BASELINE, 100.0, Kind.OK), (2, Stage.SEARCH, None, Kind.OK), (3, Stage.SEARCH, None, Kind.OK)
    )
    # 40 s at work, so 60 s are left of those that fly; then 100 s more
    assert ledger(found, NOW_S + 40, wall_s=201.0).fits({"x": 9}, 1, Reserve())
    assert not ledger(found, NOW_S + 40, wall_s=199.0).fits({"x": 9}, 1, Reserve())


def test_before_anything_is_known_one_run_at_a_time_is_started_to_learn() -> None:
    assert ledger(history(), wall_s=10.0).fits({"x": 1}, 1, Reserve())
    assert not ledger(history((1, Stage.BASELINE, None, Kind.OK)), wall_s=10.0).fits({"x": 1}, 1, Reserve())
    assert not ledger(history(), NOW_S + 11, wall_s=10.0).fits({"x": 1}, 1, Reserve())
    crashed = history((1, Stage.BASELINE, 3600.0, Kind.CRASH))
    assert not ledger(crashed, node_hours=1.0).fits({"x": 1}, 1, Reserve())
    assert ledger(history((1, Stage.BASELINE, None, Kind.OK))).fits({"x": 1}, 1, Reserve()), "no limit, no question"


def test_what_more_can_be_afforded_is_the_lesser_of_time_and_node_hours() -> None:
    found = history((1, Stage.BASELINE, 360.0, Kind.OK))
    assert ledger(found).affordable_runs(1) == float("inf")
    assert ledger(found, wall_s=3600.0).affordable_runs(1) == pytest.approx(10)
    assert ledger(found, wall_s=3600.0, node_hours=0.9).affordable_runs(2) == pytest.approx(4)
    assert ledger(history(), wall_s=1.0).affordable_runs(1) == float("inf")


def test_a_reserve_is_at_most_its_fair_share_but_the_least_confirmation_comes_first() -> None:
    asked = Reserve(full=20, least=12)
    assert asked.of(None, 1.0) == 0.0
    assert asked.of(1000.0, 1.0) == 20.0, "all of it where that is little"
    assert asked.of(30.0, 1.0) == 15.0, "half of the budget"
    assert asked.of(20.0, 1.0) == 12.0, "more than half for the smallest one"
    assert asked.of(10.0, 1.0) == 8.0, "but never all"


def test_a_study_without_any_limit_ends_all_the_same() -> None:
    assert ledger(history()).search_trials == TRIALS_WITHOUT_BUDGET
    assert ledger(history(), wall_s=9.0).search_trials is None
    assert ledger(history(), trials=7, wall_s=9.0).search_trials == 7


def test_what_people_added_to_the_budget_can_be_spent() -> None:
    found = history((1, Stage.BASELINE, 360.0, Kind.OK))
    short = {"wall_s": 300.0, "node_hours": 0.15}  # 0.1 are spent, and one more run takes as much again
    assert not ledger(found, **short).fits({"x": 9}, 1, Reserve())
    line = {"id": "x" * 8, "act": "extend", "refused": False}
    found.heeded.apply({**line, "wall_s": 100.0})
    assert not ledger(found, **short).fits({"x": 9}, 1, Reserve()), "time alone is not enough"
    found.heeded.apply({**line, "node_hours": 0.1})
    assert ledger(found, **short).fits({"x": 9}, 1, Reserve())
    assert ledger(found, **short).affordable_runs(1) == pytest.approx(400 / 360)
