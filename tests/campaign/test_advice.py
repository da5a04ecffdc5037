"""After a failure that says which way to move, the next proposal moves that way, whoever samples."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline import catalog
from ridgeline.campaign.advice import LONGEST_CHAIN, PROPOSER, Advice, _stepped
from ridgeline.campaign.controller import Interrupted
from ridgeline.campaign.status import CampaignStatus
from ridgeline.cli.text.wording import status_lines
from ridgeline.errors import StoreError
from ridgeline.records.outcome import Kind, Move, Outcome, Signature
from ridgeline.records.space import Continuous, Discrete, Settings, Space, point_key
from ridgeline.records.study import Budget, ConfirmStage, SearchStage, Study
from ridgeline.records.trial import Stage, Trial
from ridgeline.report.table import rows
from ridgeline.study.history import History
from ridgeline.study.journal import read_events
from ridgeline.testing import MemorySite, ScriptedAnswer
from tests.campaign.harness import campaign, rule, slots, study

SAMPLERS = catalog.names("samplers")
DOWN = Move("mem", -1, "out of memory while running")
UP = Move("mem", +1, "no room for the pool")
TABLE = (
    Signature(re.compile("pool is empty"), Kind.OOM_START, "no room for the pool: raise it", advice=(UP,)),
    Signature(
        re.compile("out of memory"),
        Kind.OOM_RUN,
        "out of memory while running: lower it",
        advice=(Move("not_here", -1, "no knob"), DOWN, Move("batch", -1, "out of memory while running")),
    ),
)
SPACE = Space(
    (Discrete("mem", range(40), ordered=True), Discrete("batch", (8, 16, 32, 64), ordered=True, log=True)),
    {},
)


def question(folder: Path, sampler: str = "random", **changes: Any) -> Study:
    base = {
        "space": SPACE,
        "baseline": {"mem": 12, "batch": 8},
        "budget": Budget(trials=20),
        "search": SearchStage(sampler=sampler, seed=3, sentinel_every=6),
        "confirm": ConfirmStage(top=1, blocks=2),
    }
    return study(folder, **{**base, **changes})


def engine(settings: Settings) -> ScriptedAnswer:
    """Works from 10 to 30, less far with larger batches."""
    mem, batch = settings["mem"], settings["batch"]
    assert isinstance(mem, int)
    assert isinstance(batch, int)
    if mem < 10:
        return ScriptedAnswer(exit_code=1, stderr="pool is empty\n")
    if mem + batch // 8 > 31:
        return ScriptedAnswer(exit_code=1, stderr="out of memory\n")
    return ScriptedAnswer({"rate": 100.0 + mem + batch})


def searched(history: History) -> list[Trial]:
    return [t for t in history.trials.values() if t.stage is Stage.SEARCH]


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_the_next_proposal_is_the_failed_setting_moved_one_step_the_advised_way(tmp_path: Path, sampler: str) -> None:
    run = campaign(tmp_path, question(tmp_path, sampler), engine, signatures=TABLE)
    run.run()
    history, moves = run.history, 0
    tried = {point_key(run.study.baseline)}
    for trial, following in pairwise(searched(history)):
        tried.add(trial.key)
        outcome = history.runs_of[trial.number][-1].outcome
        if outcome is None or not outcome.advice or trial.proposer == PROPOSER:
            continue
        step = next(m.direction for m in outcome.advice if m.knob == "mem")
        there = {**trial.point, "mem": trial.point["mem"] + step}  # type: ignore[operator]
        if there["mem"] in range(40) and point_key(there) not in tried:
            moves += 1
            assert following.point == there
            assert following.proposer == PROPOSER
            way = "up" if step > 0 else "down"
            assert following.why.startswith(f"moved mem {way} after ")
            assert f"of trial {trial.number}: " in following.why
    assert moves > 0, "nothing failed; the test shows nothing"
    assert any(t.proposer == sampler for t in searched(history)[-5:]), "the sampler does not go on"


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("at_once", [1, 3])
def test_stopped_anywhere_and_resumed_it_moves_the_same(tmp_path: Path, sampler: str, at_once: int) -> None:
    asked = question(tmp_path, sampler, site=slots(at_once), budget=Budget(trials=9))
    calm = campaign(tmp_path / "calm", asked, engine, signatures=TABLE)
    expected = calm.run()
    world = MemorySite()
    for stop_after in count(1):
        run = campaign(tmp_path / "stopped", asked, engine, signatures=TABLE, world=world)
        looks = iter(range(stop_after))
        run.stop_requested = lambda looks=looks: next(looks, None) is None  # type: ignore[misc]
        try:
            verdict = run.run()
        except Interrupted:
            run.journal.close()
            continue
        break
    assert any(t.proposer == PROPOSER for t in calm.history.trials.values())
    if at_once == 1:  # with several in flight a stop cancels some, and what is pending differs
        assert replace(verdict, repeated=()) == expected
        told = [[(t.point, t.proposer, t.why) for t in searched(h)] for h in (run.history, calm.history)]
        assert told[0] == told[1]
    assert len({t.key for t in searched(run.history)}) == len(searched(run.history)), "a setting was searched twice"


def test_advice_stands_in_the_journal_and_is_said(tmp_path: Path) -> None:
    run = campaign(tmp_path, question(tmp_path), engine, signatures=TABLE)
    run.run()
    again = History.replay(tmp_path, read_events(tmp_path / "journal.jsonl"))
    told = [r.outcome.advice for r in again.runs.values() if r.outcome and r.outcome.kind is Kind.OOM_START]
    assert told
    assert set(told) == {(UP,)}
    now = CampaignStatus(run.question, run.study, again)
    last = now.moved[-1]
    assert any(last.why in line for line in status_lines(now, now_s=0.0))
    assert now.as_json()["moved"][-1]["why"] == last.why
    assert last.why in [row["why"] for row in rows(again)]


@pytest.mark.parametrize("broken", [[["mem", -1]], [["mem", 0, "why"]], [["mem", "down", "why"]], ["mem"], "mem"])
def test_an_edited_advice_is_named(tmp_path: Path, broken: object) -> None:
    run = campaign(tmp_path, question(tmp_path), engine, signatures=TABLE)
    run.run()
    lines = [json.loads(line) for line in (tmp_path / "journal.jsonl").read_text().splitlines()]
    number = next(n for n, e in enumerate(lines) if e.get("outcome", {}).get("advice"))
    lines[number]["outcome"]["advice"] = broken
    with pytest.raises(StoreError, match=rf"journal.jsonl:{number + 1}:"):
        History.replay(tmp_path, lines)


def failed(point: dict[str, Any], *moves: Move, number: int = 5, proposer: str = "random") -> tuple[Trial, Outcome]:
    return Trial(number, point, point, Stage.SEARCH, proposer), Outcome(Kind.OOM_RUN, "why", advice=moves or (DOWN,))


def asked_of(advice: Advice, *tried: dict[str, Any]) -> dict[str, Any] | None:
    proposal = advice.next({point_key(point) for point in tried})
    return None if proposal is None else dict(proposal.point)


def test_a_move_that_may_not_run_gives_way_to_the_next_of_the_advice() -> None:
    space = Space(SPACE.knobs, {}, (rule("mem < 20"),))
    advice = Advice(space, space.refusal)
    advice.take(*failed({"mem": 20, "batch": 32}, DOWN, Move("batch", -1, "why")))
    assert asked_of(advice) == {"mem": 20, "batch": 16}


def test_at_the_end_of_every_knob_the_sampler_goes_on() -> None:
    advice = Advice(SPACE, SPACE.refusal)
    advice.take(*failed({"mem": 0, "batch": 8}, DOWN, Move("batch", -1, "why"), Move("other", -1, "why")))
    assert asked_of(advice) is None


def test_what_was_tried_is_not_asked_again_and_older_failures_come_first() -> None:
    advice = Advice(SPACE, SPACE.refusal)
    advice.take(*failed({"mem": 35, "batch": 8}))
    advice.take(*failed({"mem": 25, "batch": 8}, number=6))
    assert asked_of(advice) == asked_of(advice) == {"mem": 34, "batch": 8}
    assert asked_of(advice, {"mem": 34, "batch": 8}) == {"mem": 24, "batch": 8}
    assert asked_of(advice, {"mem": 34, "batch": 8}, {"mem": 24, "batch": 8}) is None


def test_a_chain_of_failures_strides_further_then_ends() -> None:
    """A corner in which everything fails must not eat the budget."""
    advice = Advice(SPACE, SPACE.refusal)
    both = (DOWN, Move("batch", -1, "why"))
    point: dict[str, Any] = {"mem": 39, "batch": 64}
    advice.take(*failed(point, *both))
    path, tried = [], [point]
    while (moved := asked_of(advice, *tried)) is not None:
        path.append((moved["mem"], moved["batch"]))
        tried.append(moved)
        advice.take(*failed(moved, *both, proposer=PROPOSER))
    assert path == [(38, 64), (36, 64)]
    assert len(path) == LONGEST_CHAIN


def test_a_move_of_another_kind_begins_with_one_step() -> None:
    advice, smaller = Advice(SPACE, SPACE.refusal), Move("batch", -1, "why")
    advice.take(*failed({"mem": 20, "batch": 64}, DOWN))
    assert asked_of(advice) == {"mem": 19, "batch": 64}
    advice.take(*failed({"mem": 19, "batch": 64}, smaller, proposer=PROPOSER))
    assert asked_of(advice, {"mem": 19, "batch": 64}) == {"mem": 19, "batch": 32}, "nothing was said of batch before"


def test_a_conditional_knob_is_moved_only_where_it_exists() -> None:
    from ridgeline.records.expression import Expression

    only = Discrete("page", (1, 16, 32), ordered=True, when=Expression.parse("mem > 20"))
    space = Space((*SPACE.knobs, only), {})
    advice = Advice(space, space.refusal)
    advice.take(*failed({"mem": 15, "batch": 8}, Move("page", -1, "why")))
    assert asked_of(advice) is None
    advice.take(*failed({"mem": 20, "batch": 8}, Move("mem", +1, "why")))
    assert asked_of(advice) is None, "the move would bring a knob into being for which nobody has a value"


@given(
    values=st.lists(st.integers(-9, 99), min_size=1, max_size=9, unique=True),
    at=st.integers(0, 8),
    steps=st.integers(-5, 5).filter(bool),
)
def test_a_step_goes_the_way_it_says_and_stays_in_the_knob(values: list[int], at: int, steps: int) -> None:
    knob = Discrete("k", values, ordered=True)
    value = values[at % len(values)]
    there = _stepped(knob, value, steps)
    order = sorted(values)
    if there is None:
        assert value == (order[-1] if steps > 0 else order[0])
    else:
        wanted = order.index(value) + steps
        assert there == order[min(max(wanted, 0), len(order) - 1)]


@given(share=st.floats(0, 1), steps=st.integers(-30, 30).filter(bool), log=st.booleans())
def test_a_step_of_a_continuous_knob(share: float, steps: int, log: bool) -> None:
    knob = Continuous("k", 0.5, 0.9, log=log)
    value = knob.at(share)
    assert isinstance(value, float)
    there = _stepped(knob, value, steps)
    if there is None:
        assert value == (knob.high if steps > 0 else knob.low)
    else:
        assert knob.contains(there)
        assert (there > value) == (steps > 0)  # type: ignore[operator]


def test_words_and_unordered_values_have_no_next_step() -> None:
    assert _stepped(Discrete("k", ("a", "b"), ordered=False), "a", 1) is None
    assert _stepped(Discrete("k", (True, False), ordered=False), True, -1) is None
    assert _stepped(Discrete("k", (1, 2, 3), ordered=False), 1, 1) is None
