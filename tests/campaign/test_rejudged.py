"""Verdicts of earlier releases by today's rules: which rules hold for blocks whose order nobody drew."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from ridgeline.campaign.controller import Campaign
from ridgeline.campaign.verdict import judged_today
from ridgeline.records.run import Job
from ridgeline.records.study import ConfirmStage
from ridgeline.records.trial import Stage
from ridgeline.study.history import History
from ridgeline.testing import ScriptedAnswer
from tests.campaign.harness import campaign, study

_BASE = "x0-y0"


def earlier(root: Path, protocol: int, speed: Callable[[Campaign, Job], float], blocks: int = 4) -> Campaign:
    """A campaign that an earlier release began: its confirmation is of that protocol."""
    asked = study(root, confirm=ConfirmStage(top=1, blocks=blocks))
    run = campaign(root, asked)
    run.run()
    run.journal.close()
    path = root / "journal.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    at = next(number for number, line in enumerate(lines) if line["event"] == "confirm")
    lines[at]["protocol"] = protocol
    if protocol < 2:  # which knew of neither
        del lines[at]["protocol"], lines[at]["seed"]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines[: at + 1]))
    again = campaign(root, asked, act=lambda job: ScriptedAnswer({"rate": speed(again, job)}))
    again.run()
    return again


def steady(gain: float) -> Callable[[Campaign, Job], float]:
    def speed(_: Campaign, job: Job) -> float:
        dice = random.Random(job.folder.name)
        return (100 if job.name.endswith(_BASE) else 100 * gain) * (1 + dice.gauss(0, 0.002))

    return speed


def place(run: Campaign) -> int:
    """Which run of its block this is, from 0."""
    last = [*run.history.trials.values()][-1]
    return sum(trial.block == last.block and trial.stage is Stage.CONFIRM for trial in run.history.trials.values()) - 1


@pytest.mark.parametrize("protocol", [1, 2])
def test_palindromes_are_judged_by_their_blocks_and_not_by_coins(tmp_path: Path, protocol: int) -> None:
    """Three blocks are six rounds, of which coins could show 1 in 32 at most: no such figure is stated of them."""
    run = earlier(tmp_path, protocol, steady(1.05), blocks=3)
    now = judged_today("search", run.study, run.history)
    assert now.verdict is not None and now.verdict.conclusion == "confirmed"
    (row,) = now.verdict.details["comparisons"]
    assert not row["notes"] and 1.03 < row["low"] < 1.05 < row["high"] < 1.07
    assert run.history.verdict is not None and now is not run.history


def test_todays_own_verdict_is_left_as_it_is(tmp_path: Path) -> None:
    run = campaign(tmp_path, study(tmp_path))
    run.run()
    assert judged_today("search", run.study, run.history) is run.history
    assert judged_today("edge", run.study, run.history) is run.history


def test_a_cold_first_run_of_the_baseline_is_no_gain(tmp_path: Path) -> None:
    """Protocol 1: the baseline began every block. What it lost there is not what the setting gains."""

    def cold(run: Campaign, job: Job) -> float:
        return steady(1.0)(run, job) * (0.9 if run.history.candidates and place(run) == 0 else 1.0) + (
            0 if run.history.candidates or job.name.endswith(_BASE) else 5
        )

    run = earlier(tmp_path, 1, cold)
    assert run.history.verdict is not None and run.history.verdict.conclusion == "confirmed"
    now = judged_today("search", run.study, run.history).verdict
    assert now is not None and now.conclusion == "unconfirmed"
    assert now.headline.startswith("not provable: by today's rules the same runs show no detectable difference")


def test_without_its_first_run_a_drift_does_not_cancel_so_both_must_agree(tmp_path: Path) -> None:
    """Slower by 2% a run: without the first, the baseline's only run is the last one, and the setting seems to gain."""

    def slowing(run: Campaign, job: Job) -> float:
        worth = steady(1.0005)(run, job)
        return worth * (1 - 0.02 * place(run)) if run.history.candidates else worth

    run = earlier(tmp_path, 1, slowing, blocks=8)
    line = run.history.verdict
    assert line is not None
    told = {**line.details["comparisons"][0], "verdict": "better"}  # as if its release had been surer
    run.history.verdict = type(line)("confirmed", line.headline, {**line.details, "comparisons": [told]})
    now = judged_today("search", run.study, run.history).verdict
    assert now is not None and now.conclusion == "unconfirmed" and "not provable" in now.headline


def test_a_history_without_a_verdict_stays(tmp_path: Path) -> None:
    history = History(tmp_path)
    assert judged_today("search", study(tmp_path), history) is history
