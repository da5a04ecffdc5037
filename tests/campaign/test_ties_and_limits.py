"""What is exactly as good, exactly enough or exactly used up: by histories written by hand, for both directions."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ridgeline.campaign.confirmation import (
    ConfirmationVerdict,
    _weaker,
    blocks_so_far,
    choose,
    error_share,
    level_after,
    nodes_of_block,
    reserve,
    runs_needed,
    why_warm_up,
)
from ridgeline.campaign.elsewhere import carry
from ridgeline.campaign.extension import parse_extension
from ridgeline.campaign.front import best_at
from ridgeline.campaign.ledger import Ledger, Reserve
from ridgeline.campaign.scores import better_than_baseline, looked_like, mean_value, ranking
from ridgeline.errors import NothingFound
from ridgeline.records.outcome import Kind, Outcome
from ridgeline.records.run import Cause, Ending, Measurement, Resources
from ridgeline.records.study import Budget, ConfirmStage, Goal, Study
from ridgeline.records.trial import Stage, Trial
from ridgeline.stats.verdict import Comparison, Verdict
from ridgeline.study.codec import Extension, RunBegun, RunEnded, VerdictLine, event_of
from ridgeline.study.history import History
from tests.campaign.harness import slots, study

NOW_S = 1_000_000.0
Ran = tuple[Stage, int, float]  # stage, x, value


def told(*runs: Ran, blocks: dict[int, int] | None = None, nodes: dict[int, tuple[str, ...]] | None = None) -> History:
    """One good trial a run, in this order; `blocks` says of runs by place in which block they were."""
    events: list[Any] = [{"event": "opened", "kind": "search", "question": {}, "asked": {}}]
    for number, (stage, x, value) in enumerate(runs, 1):
        point = {"x": x, "y": 0}
        events.append(event_of(Trial(number, point, point, stage, "grid", block=(blocks or {}).get(number))))
        events.append(event_of(RunBegun(number, number, 1, f"runs/{number}", Resources())))
        there = (nodes or {}).get(number, ("n1",))
        ending = Ending(Cause.EXITED, 0, started_s=NOW_S - 60, ended_s=NOW_S, nodes=there)
        events.append(event_of(RunEnded(number, ending, Outcome(Kind.OK), (Measurement("rate", value),), {})))
    return History.replay(Path("/nowhere"), [{"at": NOW_S, **event} for event in events])


def asked(tmp_path: Path, direction: str = "maximize", **changes: Any) -> Study:
    return study(tmp_path, goal=Goal("rate", direction), **changes)  # type: ignore[arg-type]


def xs(points: Any) -> list[Any]:
    return [point["x"] for point in points]


@pytest.mark.parametrize(("direction", "order"), [("maximize", [5, 2, 3, 1, 4]), ("minimize", [4, 1, 2, 3, 5])])
def test_settings_as_good_as_each_other_stay_in_the_order_they_were_tried(
    tmp_path: Path, direction: str, order: list[int]
) -> None:
    """2 and 3 are alike; of 1 the mean of both runs counts; the baseline is no setting of the search."""
    values = [(0, 30.0), (2, 20.0), (3, 20.0), (1, 10.0), (1, 20.0), (4, 5.0), (5, 25.0)]
    history = told(*((Stage.SEARCH, x, value) for x, value in values))
    ranked = ranking(asked(tmp_path, direction), history)
    assert xs(point for point, _ in ranked) == order
    assert {point["x"]: abs(score) for point, score in ranked}[1] == 15.0
    assert [score for _, score in ranked] == sorted((score for _, score in ranked), reverse=True)


@pytest.mark.parametrize(("direction", "better"), [("maximize", [3]), ("minimize", [1])])
def test_as_good_as_the_baseline_is_not_better(tmp_path: Path, direction: str, better: list[int]) -> None:
    """The baseline is the mean of its runs and of its sentinels."""
    runs = [(Stage.BASELINE, 0, 10.0), (Stage.SENTINEL, 0, 14.0)]
    history = told(*runs, (Stage.SEARCH, 1, 11.0), (Stage.SEARCH, 2, 12.0), (Stage.SEARCH, 3, 13.0))
    own = asked(tmp_path, direction)
    assert xs(better_than_baseline(own, history)) == better
    assert mean_value(own, history, Stage.BASELINE, Stage.SENTINEL) == 12.0
    sign = 1 if direction == "maximize" else -1
    assert looked_like(own, history, sign * 24.0) == pytest.approx(2.0 if sign > 0 else 0.5)
    assert looked_like(own, history, sign * 6.0) == pytest.approx(0.5 if sign > 0 else 2.0)
    assert looked_like(own, history, -sign * 6.0) is None and looked_like(own, history, 0.0) is None
    assert looked_like(own, told((Stage.SEARCH, 1, 1.0)), 1.0) is None, "there is no baseline yet"


def test_the_best_settings_are_confirmed_first_fewer_settings_then_fewer_blocks(tmp_path: Path) -> None:
    history = told((Stage.BASELINE, 0, 1.0), *((Stage.SEARCH, x, 1.0 + x) for x in (1, 4, 2, 3)))
    own = asked(tmp_path, confirm=ConfirmStage(top=3, blocks=5))

    def plan(most: float) -> tuple[list[int], int]:
        found = choose(own, history, lambda points, blocks: (len(points) + 1) * blocks <= most)
        return xs(found.candidates), found.blocks

    assert plan(math.inf) == ([4, 3, 2], 5) and plan(20) == ([4, 3, 2], 5)
    assert plan(19) == ([4, 3], 5) and plan(15) == ([4, 3], 5)
    assert plan(14) == ([4], 5) and plan(10) == ([4], 5)
    assert plan(9) == ([4], 4) and plan(6) == ([4], 3)
    assert plan(5) == ([], 0), "two blocks give no verdict"


@pytest.mark.parametrize(
    ("changes", "full", "least"),
    [
        ({"top": 3, "blocks": 5, "repeats": 2, "warmup": "never"}, 2 * 4 * 5, 2 * 2 * 3),
        ({"top": 1, "blocks": 3, "repeats": 1, "warmup": "never"}, 6, 6),
        ({"top": 2, "blocks": 4, "repeats": 2, "warmup": "always"}, (2 * 3 + 1) * 4, (2 * 2 + 1) * 3),
        ({"top": 0, "blocks": 5}, 0, 0),
    ],
)
def test_what_a_confirmation_takes_is_kept_back(tmp_path: Path, changes: Any, full: int, least: int) -> None:
    own = asked(tmp_path, confirm=ConfirmStage(**changes))
    kept = reserve(own)
    assert (kept.full, kept.least) == (full, least)
    assert runs_needed(own, 0, 5) == 0, "nothing to compare takes nothing"
    if changes["top"]:
        assert (kept.blocks, kept.least_blocks) == (changes["blocks"], 3)
        assert runs_needed(own, changes["top"], changes["blocks"]) == full
    auto = asked(tmp_path, confirm=ConfirmStage(top=1, blocks=3), site=slots(1, nodes=2))
    assert runs_needed(auto, 1, 3) == (2 * 2 + 1) * 3 and runs_needed(auto, 1, 3, warm_ups=False) == 12
    assert runs_needed(asked(tmp_path, confirm=ConfirmStage(top=1, blocks=3)), 1, 3) == 12, "one node stays warm"


def test_a_run_that_uses_up_the_budget_to_the_last_second_still_fits() -> None:
    """One run of a minute is over; the budget is spent when nothing of it is left."""
    history = told((Stage.BASELINE, 0, 1.0))

    def fits(reserve: Reserve = Reserve(), now_s: float = NOW_S, slots: int = 1, **limits: Any) -> bool:
        return Ledger(Budget(**limits), history, clock=lambda: now_s, slots=slots).fits({"x": 1, "y": 0}, 2, reserve)

    assert history.wall_now_s(NOW_S) == 0.0 and history.node_hours == pytest.approx(1 / 60)
    assert fits(wall_s=60.0) and not fits(wall_s=59.9)
    assert fits(node_hours=3 / 60 + 1e-12) and not fits(node_hours=3 / 60 - 1e-9), "two nodes for a minute more"
    one = Reserve(full=1, least=1)
    assert fits(one, wall_s=60.0), "nothing is kept for a confirmation that does not fit beside two runs"
    assert fits(Reserve(trials=1), wall_s=126.0 + 1e-9) and not fits(Reserve(trials=1), wall_s=125.9)
    assert fits(wall_s=60.0, node_hours=1.0) and not fits(wall_s=60.0, node_hours=0.01), "both limits bind"
    assert not fits(wall_s=59.0, node_hours=1.0)


@pytest.mark.parametrize(("direction", "wins"), [("maximize", 3), ("minimize", 1)])
@pytest.mark.parametrize(("bound", "sure"), [(5.0, True), (4.0, True), (3.99, None)])
def test_a_setting_exactly_at_the_limit_keeps_it(
    tmp_path: Path, direction: str, wins: int, bound: float, sure: bool | None
) -> None:
    """Of the second goal, cost: 4 for all; the first goal decides among those that keep it."""
    events: list[Any] = [{"event": "opened", "kind": "search", "question": {}, "asked": {}}]
    for number, x in enumerate((1, 2, 3, 1, 2, 3), 1):
        point = {"x": x, "y": 0}
        events.append(event_of(Trial(number, point, point, Stage.SEARCH, "grid")))
        events.append(event_of(RunBegun(number, number, 1, f"runs/{number}", Resources())))
        measured = (Measurement("rate", 10.0 * x), Measurement("cost", 4.0))
        ending = Ending(Cause.EXITED, 0, started_s=NOW_S - 60, ended_s=NOW_S, nodes=("n1",))
        events.append(event_of(RunEnded(number, ending, Outcome(Kind.OK), measured, {})))
    history = History.replay(Path("/nowhere"), [{"at": NOW_S, **event} for event in events])
    for second, limit in (("minimize", bound), ("maximize", 8.0 - bound)):
        own = asked(tmp_path, direction, second_goal=Goal("cost", second))  # type: ignore[arg-type]
        if sure is None:
            with pytest.raises(NothingFound, match=r"at or (below|above)"):
                best_at(own, history, f"cost={limit}")
        else:
            one, text = best_at(own, history, f"cost={limit}")
            assert f'"x":{wins}' in one.setting.replace(" ", "") and text == "its whole interval keeps the limit"


@pytest.mark.parametrize(("direction", "gains"), [("maximize", [2.0, 1.5]), ("minimize", [4.0, 2.0])])
def test_the_best_settings_of_the_stand_in_are_carried_with_their_gains(
    tmp_path: Path, direction: str, gains: list[float]
) -> None:
    history = told(
        (Stage.BASELINE, 0, 10.0), *((Stage.SEARCH, x, v) for x, v in ((1, 5.0), (2, 20.0), (3, 15.0), (4, 2.5)))
    )
    own = asked(tmp_path, direction)
    carried, searched, behind = carry(own, history, own, 2)
    assert [each["gain"] for each in carried] == pytest.approx(gains)
    assert xs(each["point"] for each in carried) == ([2, 3] if direction == "maximize" else [4, 1])
    assert searched["runs"] == 5 and searched["node_hours"] == pytest.approx(5 / 60, abs=1e-6) and not behind
    everything, _, _ = carry(own, history, own, 9)
    assert len(everything) == 4


def looking(looks: int, protocol: int = 2) -> Any:
    return SimpleNamespace(looks=looks, protocol=protocol)


def test_each_look_spends_three_quarters_of_what_the_first_left() -> None:
    assert [error_share(looking(n)) for n in (1, 2, 3, 4)] == pytest.approx([0.8, 0.15, 0.0375, 0.009375])
    assert [level_after(0.95, looking(n)) for n in (1, 2, 3)] == [0.95, 0.975, 0.984]


@pytest.mark.parametrize(
    ("words", "extension"),
    [
        (("+20", None, None, None), Extension(trials=20)),
        ((None, "+3", "+30m", "+2.5"), Extension(blocks=3, wall_s=1800.0, node_hours=2.5)),
        ((None, "+1", "90s", "2"), Extension(blocks=1, wall_s=90.0, node_hours=2.0)),
        ((None, None, None, None), None),
    ],
)
def test_what_is_typed_is_what_is_added(words: Any, extension: Extension | None) -> None:
    assert parse_extension(*words) == extension


def compared(low: float, scale: str = "ratio") -> Comparison:
    return Comparison("c", Verdict.BETTER, scale, low + 0.1, low, low + 0.2, 0.95, 5, 1, 0.01, 0.0, 0.0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("before", "now", "weaker"),
    [
        (1.05, 1.04, True),
        (1.05, 1.05, False),
        (1.05, 1.06, False),
        (None, 1.01, False),
        (1.05, None, True),
    ],
)
def test_an_answer_is_weaker_that_shows_less_at_the_least(
    before: float | None, now: float | None, weaker: bool
) -> None:
    def verdict(low: float | None) -> ConfirmationVerdict:
        conclusion = "no-difference" if low is None else "confirmed"
        return ConfirmationVerdict(conclusion, "told", None, () if low is None else (compared(low),))

    was = verdict(before)
    assert _weaker(verdict(now), VerdictLine(was.conclusion, was.headline, was.details())) is weaker


def in_blocks(history: History) -> History:
    history.blocks = 3
    return history


def test_a_block_holds_its_own_runs_first_to_last(tmp_path: Path) -> None:
    """Values by block and setting; the opening is the first run of the block and the last one of the same setting."""
    values = [
        (0, 0, 10.0),
        (0, 1, 20.0),
        (0, 1, 21.0),
        (0, 0, 11.0),
        (1, 1, 30.0),
        (1, 0, 12.0),
        (1, 0, 13.0),
        (1, 1, 31.0),
    ]
    history = told(
        *((Stage.CONFIRM, x, value) for _, x, value in values),
        blocks={number: block for number, (block, _, _) in enumerate(values, 1)},
        nodes={number: (f"n{block}",) for number, (block, _, _) in enumerate(values, 1)},
    )
    own = asked(tmp_path)
    found = blocks_so_far(own, history)
    assert [
        (b.number, list(b.baseline), [list(v) for v in b.candidates.values()], b.opening, b.nodes) for b in found
    ] == [
        (0, [10.0, 11.0], [[20.0, 21.0]], (10.0, 11.0), ("n0",)),
        (1, [12.0, 13.0], [[30.0, 31.0]], (30.0, 31.0), ("n1",)),
    ]


def test_later_runs_of_a_block_go_where_the_first_wide_enough_one_was() -> None:
    runs = [(Stage.CONFIRM, x, 1.0) for x in (0, 1, 2, 3)]
    nodes = {1: ("a",), 2: ("c", "b", "d"), 3: ("e", "f"), 4: ("g", "h")}
    history = told(*runs, blocks=dict.fromkeys((1, 2, 3), 0) | {4: 1}, nodes=nodes)
    assert nodes_of_block(history, 0, 1) == ("a",)
    assert nodes_of_block(history, 0, 2) == ("e", "f"), "as few as are enough"
    assert nodes_of_block(history, 0, 3) == ("c", "b", "d") and nodes_of_block(history, 0, 4) == ()
    assert nodes_of_block(history, 1, 1) == ("g",) and nodes_of_block(history, 2, 1) == ()
    warm = told((Stage.WARM_UP, 0, 1.0), (Stage.WARM_UP, 0, 1.0), blocks={1: 0, 2: 0}, nodes={1: ("a",), 2: ("b",)})
    assert nodes_of_block(warm, 0, 1) == ("b",), "where the last warm-up was"


@pytest.mark.parametrize(("idle_s", "warms"), [(119.0, False), (120.0, False), (121.0, True)])
def test_a_machine_is_cold_after_two_minutes_without_a_run(tmp_path: Path, idle_s: float, warms: bool) -> None:
    history = told((Stage.SEARCH, 1, 1.0))
    history.protocol, history.busy_until_s = 2, NOW_S
    own = asked(tmp_path)
    assert bool(why_warm_up(own, history, 0, NOW_S + idle_s)) is warms
    always, never = (replace(own, confirm=replace(own.confirm, warmup=way)) for way in ("always", "never"))  # type: ignore[arg-type]
    assert why_warm_up(always, history, 0, NOW_S) and not why_warm_up(never, history, 0, NOW_S + 999)
    history.protocol = 1
    assert not why_warm_up(always, history, 0, NOW_S), "campaigns that began without go on without"
