"""What people tell a running campaign: obeyed once and answered in the journal, or refused with a reason."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ridgeline.campaign import controller
from ridgeline.campaign.controller import Campaign, Interrupted
from ridgeline.campaign.status import CampaignStatus
from ridgeline.cli.campaign.live import TerminalView
from ridgeline.records.run import Cause
from ridgeline.records.study import Budget
from ridgeline.records.trial import Stage
from ridgeline.study.history import History, read_history
from ridgeline.study.instructions import (
    INSTRUCTIONS,
    AppliedInstructions,
    instruction_from,
    leave_instruction,
    put_away,
    waiting_instructions,
)
from ridgeline.testing import MemorySite
from tests.campaign.harness import campaign, rule, slots, study


def tell(root: Path, name: str, act: str, **more: Any) -> None:
    leave_instruction(root, instruction_from({"id": f"{name:-<8}", "act": act, **more}))


def answers(root: Path) -> list[Mapping[str, Any]]:
    lines = [json.loads(line) for line in (root / "journal.jsonl").read_text().splitlines()]
    return [line for line in lines if line["event"] == "instruction"]


def when(running: Campaign, happens: Callable[[Campaign], bool], act: Callable[[], None]) -> None:
    """Act once, at the first journal line at which this holds."""
    done: list[bool] = []

    def look(now: Campaign) -> None:
        if not done and happens(now):
            done.append(True)
            act()

    running.on_change = look


def searched(now: Campaign) -> int:
    return now.history.count(Stage.SEARCH)


def search_run(now: Campaign) -> int | None:
    flying = now.history.open_runs.values()
    return next((r.number for r in flying if r.ticket and now.history.trials[r.trial].stage is Stage.SEARCH), None)


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ({"act": "extend", "trials": 5}, Budget(trials=5)),
        ({"act": "extend", "wall_s": 90.5}, Budget(wall_s=90.5)),
        ({"act": "extend", "node_hours": 2}, Budget(node_hours=2)),
        ({"act": "extend", "trials": 3, "wall_s": 60, "node_hours": 0.5}, Budget(3, 60, 0.5)),
        ({"act": "cancel", "run": 7}, Budget()),
        ({"act": "try", "point": {"x": 1, "y": "a"}}, Budget()),
        ({"act": "pause"}, Budget()),
    ],
)
def test_an_instruction_is_read_as_it_was_written(said: dict[str, Any], meant: Budget) -> None:
    line = {"id": "12345678", **said}
    read = instruction_from(line)
    assert (read.act, read.run, read.point) == (said["act"], said.get("run"), said.get("point", {}))
    assert Budget(read.trials, read.wall_s, read.node_hours) == meant
    assert read.as_line() == line


def test_a_wanted_setting_is_tried_next_and_says_who_wanted_it(tmp_path: Path) -> None:
    running = campaign(tmp_path, study(tmp_path))
    when(running, lambda now: searched(now) == 3, lambda: tell(tmp_path, "wish", "try", point={"x": 7}))
    running.run()
    trials = [t for t in read_history(tmp_path).trials.values() if t.stage is Stage.SEARCH]
    assert [(t.proposer, dict(t.point)) for t in trials if t.proposer == "person"] == [("person", {"x": 7, "y": 0})]
    assert [t.proposer for t in trials].index("person") == 3
    assert len(trials) == 12, "it counts as one trial of the budget"
    assert not waiting_instructions(tmp_path)


@pytest.mark.parametrize(
    ("point", "why"),
    [
        ({"z": 1}, "z is not a knob of this study; it has x, y"),
        ({"x": 99}, "x=99 is outside"),
        ({"x": True}, "x=True is outside"),
        ({"x": 0, "y": 0}, "tried already"),
        ({"x": 9, "y": 2}, "refused: because"),
    ],
)
def test_a_setting_that_cannot_run_is_refused_with_the_reason(tmp_path: Path, point: Any, why: str) -> None:
    question = study(tmp_path)
    question = replace(question, space=replace(question.space, rules=(rule("sum > 10"),)))
    running = campaign(tmp_path, question)
    when(running, lambda now: searched(now) == 1, lambda: tell(tmp_path, "wish", "try", point=point))
    running.run()
    (answer,) = answers(tmp_path)
    assert answer["refused"] and why in answer["told"]


def test_told_twice_it_is_done_once(tmp_path: Path) -> None:
    running = campaign(tmp_path, study(tmp_path))
    tell_it = {"trials": 4}
    when(running, lambda now: searched(now) == 2, lambda: tell(tmp_path, "more", "extend", **tell_it))
    again: list[bool] = []

    def late(now: Campaign) -> bool:
        if searched(now) == 5 and not again:
            again.append(True)
            tell(tmp_path, "more", "extend", **tell_it)
        return False

    first = running.on_change
    running.on_change = lambda now: (first(now), late(now), None)[-1]
    running.run()
    assert again
    assert searched(running) == 16
    assert len(answers(tmp_path)) == 1


def test_time_and_node_hours_are_extended_and_every_face_says_so(tmp_path: Path) -> None:
    question = study(tmp_path, budget=Budget(trials=12, wall_s=10_000.0))
    running = campaign(tmp_path, question)
    when(running, lambda now: searched(now) == 2, lambda: tell(tmp_path, "more", "extend", wall_s=500))
    running.run()
    assert running.ledger.limits.wall_s == 10_500
    now = CampaignStatus(running.question, question, read_history(tmp_path))
    assert now.as_json()["budget"] == {"trials": 12, "wall_s": 10_500, "node_hours": None, "grant": ""}


def test_what_was_added_twice_is_there_twice(tmp_path: Path) -> None:
    """Two people, or one who asks again for more: each instruction has an id of its own."""
    question = study(tmp_path, budget=Budget(trials=12, wall_s=10_000.0, node_hours=50.0))
    running = campaign(tmp_path, question)
    more = [("one", {"wall_s": 500}), ("two", {"wall_s": 300, "node_hours": 2}), ("three", {"trials": 2})]
    more += [("four", {"trials": 3}), ("five", {"node_hours": 0.5})]
    when(running, lambda now: searched(now) == 2, lambda: [tell(tmp_path, n, "extend", **m) for n, m in more] and None)
    running.run()
    assert not any(answer["refused"] for answer in answers(tmp_path))
    assert (running.ledger.limits.wall_s, running.ledger.limits.node_hours) == (10_800, 52.5)
    assert searched(running) == 17
    assert read_history(tmp_path).instructions.budget(question.budget) == Budget(12, 10_800, 52.5), (
        "as its journal says"
    )


def test_what_was_refused_changes_nothing() -> None:
    applied = AppliedInstructions()
    line = {"id": "x" * 8, "refused": True, "wall_s": 9.0, "run": 1, "point": {"x": 1}}
    for act in ("pause", "stop", "cancel", "try", "extend"):
        applied.apply({**line, "act": act})
    assert (applied.paused, applied.stopping, applied.cancelled, applied.wanted, applied.more_wall_s) == (
        False, False, set(), [], 0.0,
    )  # fmt: skip


def test_instructions_are_obeyed_in_the_order_in_which_they_were_left(tmp_path: Path) -> None:
    """Whatever they are called: pause and then resume is not resume and then pause."""
    for place, (name, act) in enumerate([("zz", "pause"), ("mm", "stop"), ("aa", "resume"), ("qq", "pause")]):
        tell(tmp_path, name, act)
        os.utime(tmp_path / INSTRUCTIONS / f"{name:-<8}.json", ns=(10**18 + place, 10**18 + place))
    assert [*waiting_instructions(tmp_path)] == ["zz------", "mm------", "aa------", "qq------"]
    for _ in range(2):  # somebody else may have put it away
        put_away(tmp_path, "mm------")
    assert [*waiting_instructions(tmp_path)] == ["zz------", "aa------", "qq------"]


def test_what_has_no_limit_cannot_be_extended(tmp_path: Path) -> None:
    running = campaign(tmp_path, study(tmp_path))
    when(running, lambda now: searched(now) == 2, lambda: tell(tmp_path, "more", "extend", node_hours=1.5))
    running.run()
    assert "no limit of node-hours" in answers(tmp_path)[0]["told"]


def test_more_trials_after_the_search_are_refused_and_the_way_is_named(tmp_path: Path) -> None:
    running = campaign(tmp_path, study(tmp_path))
    confirming = lambda now: now.history.count(Stage.CONFIRM) == 2  # noqa: E731
    when(running, confirming, lambda: tell(tmp_path, "more", "extend", trials=3))
    running.run()
    (answer,) = answers(tmp_path)
    assert answer["refused"] and "ridgeline resume --trials" in answer["told"]


def test_a_cancelled_run_is_not_tried_again_and_teaches_nothing(tmp_path: Path) -> None:
    running = campaign(tmp_path, study(tmp_path))
    number: list[int] = []

    def cancel() -> None:
        number.append(search_run(running) or 0)
        tell(tmp_path, "cancel", "cancel", run=number[0])

    when(running, lambda now: searched(now) == 4 and search_run(now) is not None, cancel)
    running.run()
    run = running.history.runs[number[0]]
    assert str(run.outcome) == "cancelled; a person asked for it"
    assert len(running.history.runs_of[run.trial]) == 1
    key = running.history.trials[run.trial].key
    assert sum(trial.key == key for trial in running.history.trials.values()) == 1


def test_a_cancelled_run_stays_cancelled_after_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller dies after the line in the journal, before the site is told."""
    world = MemorySite()
    running = campaign(tmp_path, study(tmp_path), world=world)

    def killed(ticket: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(running.executor, "cancel", killed)
    monkeypatch.setattr(running, "_leave", lambda error: None)
    ready = lambda now: searched(now) == 2 and search_run(now) is not None  # noqa: E731
    when(running, ready, lambda: tell(tmp_path, "cancel", "cancel", run=search_run(running)))
    with pytest.raises(KeyboardInterrupt):
        running.run()
    number = answers(tmp_path)[0]["run"]
    running.journal.close()
    again = campaign(tmp_path, study(tmp_path), world=world)
    again.run()
    assert str(again.history.runs[number].outcome) == "cancelled; a person asked for it"
    assert again.history.runs[number].ending.cause is Cause.CANCELLED, "the site is told after all"
    assert len(again.history.runs_of[again.history.runs[number].trial]) == 1
    assert len(answers(tmp_path)) == 1
    assert not waiting_instructions(tmp_path)


@pytest.mark.parametrize("stage", [Stage.BASELINE, Stage.CONFIRM])
def test_what_all_others_are_compared_with_cannot_be_cancelled(tmp_path: Path, stage: Stage) -> None:
    running = campaign(tmp_path, study(tmp_path))

    def flying(now: Campaign) -> int | None:
        runs = now.history.open_runs.values()
        return next((r.number for r in runs if r.ticket and now.history.trials[r.trial].stage is stage), None)

    when(running, lambda now: flying(now) is not None, lambda: tell(tmp_path, "c", "cancel", run=flying(running)))
    running.run()
    (answer,) = answers(tmp_path)
    assert answer["refused"] and "stop the campaign instead" in answer["told"]


def test_a_pause_starts_nothing_and_is_no_work_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    running = campaign(tmp_path, study(tmp_path, site=slots(2)))
    when(running, lambda now: searched(now) == 3, lambda: tell(tmp_path, "pause", "pause"))
    idle: list[tuple[int, float]] = []

    def sleep(seconds: float) -> None:
        history = running.history
        assert history.instructions.paused and not history.open_runs
        assert history.count(Stage.SEARCH) <= 4, "one more may have been started before the file was seen"
        idle.append((len(history.trials), history.wall_now_s(9e9 * (len(idle) + 1))))
        if len(idle) == 3:
            tell(tmp_path, "resume", "resume")

    monkeypatch.setattr(controller.time, "sleep", sleep)
    running.run()
    assert len(idle) == 3
    assert len(set(idle)) == 1, "no trial was started, and no time was spent"
    assert [answer["act"] for answer in answers(tmp_path)] == ["pause", "resume"]
    assert running.history.verdict is not None


def test_the_terminal_of_the_campaign_says_what_somebody_else_told_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    running = campaign(tmp_path, study(tmp_path))
    face = TerminalView(quiet=False)
    face.title(running)
    when(running, lambda now: searched(now) == 2, lambda: tell(tmp_path, "wish", "try", point={"x": 99}))
    act = running.on_change
    running.on_change = lambda now: (act(now), face.update(now), None)[-1]
    running.run()
    assert "  instruction: try x 99: refused: x=99 is outside the study's space" in capsys.readouterr().out


def test_stop_leaves_as_ctrl_c_does_and_the_campaign_goes_on_later(tmp_path: Path) -> None:
    running = campaign(tmp_path, study(tmp_path))
    when(running, lambda now: searched(now) == 3, lambda: tell(tmp_path, "stop", "stop"))
    with pytest.raises(Interrupted):
        running.run()
    assert running.history.stopped is not None and running.history.stopped.reason == "interrupted"
    running.journal.close()
    again = campaign(tmp_path, study(tmp_path))
    again.run()
    assert again.history.verdict is not None


def test_a_stop_left_to_a_controller_that_is_gone_does_not_stop_the_next_one(tmp_path: Path) -> None:
    campaign(tmp_path, study(tmp_path)).journal.close()
    tell(tmp_path, "stop", "stop")
    tell(tmp_path, "wish", "try", point={"x": 4, "y": 1})
    running = campaign(tmp_path, study(tmp_path))
    running.run()
    told = {answer["act"]: answer for answer in answers(tmp_path)}
    assert told["stop"]["refused"] and "before the campaign was taken up" in told["stop"]["told"]
    assert not told["try"]["refused"]
    assert "person" in {trial.proposer for trial in running.history.trials.values()}


def test_answered_and_not_put_away_it_is_not_obeyed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed between the journal's line and the removal of the file."""
    running = campaign(tmp_path, study(tmp_path))
    when(running, lambda now: searched(now) == 2, lambda: tell(tmp_path, "more", "extend", trials=3))
    where = "ridgeline.campaign.instruction_handler.put_away"

    def killed(root: Path, name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(where, killed)
    with pytest.raises(KeyboardInterrupt):
        running.run()
    assert [*waiting_instructions(tmp_path)] == ["more----"]
    running.journal.close()
    monkeypatch.setattr(where, put_away)
    again = campaign(tmp_path, study(tmp_path))
    again.run()
    assert searched(again) == 15
    assert len(answers(tmp_path)) == 1 and not waiting_instructions(tmp_path)


def test_what_comes_after_the_verdict_is_refused(tmp_path: Path) -> None:
    running = campaign(tmp_path, study(tmp_path))
    over = lambda now: now.history.verdict is not None  # noqa: E731
    when(running, over, lambda: tell(tmp_path, "late", "pause"))
    running.run()
    (answer,) = answers(tmp_path)
    assert answer["refused"] and "over" in answer["told"]


@pytest.mark.parametrize(
    "text", ["", "[1]", '{"act": "fly"}', '{"act": "cancel"}', "\0\xff", '{"act": "pause", "a": 1}']
)
def test_a_file_that_is_no_instruction_is_answered_and_put_away(tmp_path: Path, text: str) -> None:
    (tmp_path / INSTRUCTIONS).mkdir()
    (tmp_path / INSTRUCTIONS / "nonsense.json").write_text(text)
    (tmp_path / INSTRUCTIONS / ".half.json.partial").write_text("{")
    (tmp_path / INSTRUCTIONS / "link.json").symlink_to("/etc/hostname")
    campaign(tmp_path, study(tmp_path)).run()
    (answer,) = answers(tmp_path)
    assert answer["refused"] and "nonsense.json is not an instruction" in answer["told"]
    assert read_history(tmp_path).verdict is not None


@pytest.mark.parametrize(
    "line",
    [
        {"id": "short", "act": "pause"},
        {"id": "../../etc/x", "act": "pause"},
        {"id": "x" * 8, "act": "pause", "run": 3},
        {"id": "x" * 8, "act": "extend"},
        {"id": "x" * 8, "act": "extend", "trials": -1},
        {"id": "x" * 8, "act": "extend", "trials": 2.5},
        {"id": "x" * 8, "act": "extend", "wall_s": float("nan")},
        {"id": "x" * 8, "act": "extend", "node_hours": True},
        {"id": "x" * 8, "act": "try", "point": {"x": [1]}},
        {"id": "x" * 8, "act": "cancel", "run": "1"},
    ],
)
def test_nonsense_is_no_instruction(line: Any) -> None:
    with pytest.raises(ValueError, match=r"\w+"):
        instruction_from(line)


def test_a_run_that_is_over_or_never_was_cannot_be_cancelled(tmp_path: Path) -> None:
    running = campaign(tmp_path, study(tmp_path))
    when(running, lambda now: searched(now) > 2, lambda: (
        tell(tmp_path, "over", "cancel", run=1), tell(tmp_path, "never", "cancel", run=999)
    ))  # fmt: skip
    running.run()
    told = {line["run"]: line for line in answers(tmp_path)}
    assert all(line["refused"] for line in told.values())
    assert "run 1 is over" in told[1]["told"] and "run 999 does not exist" in told[999]["told"]


@pytest.mark.parametrize("act", ["pause", "stop"])
def test_a_campaign_that_is_taken_up_again_is_neither_paused_nor_stopping(act: str) -> None:
    opened = {"at": 1.0, "event": "opened", "kind": "search", "question": {}, "asked": {}}
    told = {"at": 2.0, "event": "instruction", "id": "x" * 8, "act": act, "told": "so be it", "refused": False}
    before, after = (History.replay(Path("/s"), [opened, told, *more]).instructions for more in ((), (opened,)))
    assert before.paused or before.stopping
    assert not after.paused and not after.stopping, "whoever starts it wants it to go on"
