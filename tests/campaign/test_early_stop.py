"""Clearly bad search runs are ended early: said so, never counted as measured, and safe against a killed controller."""

from __future__ import annotations

from pathlib import Path

import pytest

from ridgeline import catalog
from ridgeline.campaign.early_stop import EarlyStops
from ridgeline.campaign.engine import Campaign, Interrupted
from ridgeline.campaign.status import read_status
from ridgeline.records.outcome import Kind
from ridgeline.records.run import Resources
from ridgeline.records.trial import Stage
from ridgeline.study.codec import EarlyStop, event_of
from ridgeline.study.history import History, OpenRun, read_history
from ridgeline.testing import MemoryExecutor, MemorySite
from tests.campaign.harness import campaign, study
from tests.command_line import ridgeline

# the rate is printed as the program goes; bad settings would then last until their limit
PRINTING = """\
version: 1
name: printing
workload:
  kind: command
  run: |
    for i in 1 2 3 4 5 6 7 8; do echo rate {x}; done
    [ {x} -ge 50 ] || exec sleep 300
  metrics: {rate: {regex: 'rate (.*)', unit: steps/s}}
space: {x: [100, 110, 50, 20, 10]}
goal: {maximize: rate}
baseline: {x: 100}
job: {limit: 200 s}
search: {sampler: grid, stop_early: 3}
stages: {baseline: {repeats: 1}}
confirm: {top: 1, blocks: 3, repeats: 1}
"""
# the time is the goal: what has lasted three times as long as the best cannot win
LASTING = """\
version: 1
name: lasting
workload: {kind: command, run: 'sleep {x}'}
space: {x: [0.3, 300]}
goal: {minimize: wall_s}
baseline: {x: 0.3}
job: {limit: 200 s}
search: {sampler: grid, stop_early: 3}
stages: {baseline: {repeats: 1}}
confirm: {top: 1, blocks: 3, repeats: 1}
"""


def tuned(folder: Path, text: str) -> History:
    (folder / "study.yaml").write_text(text)
    ridgeline("tune", "study.yaml", "--out", "out", cwd=folder)
    return read_history(folder / "out")


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("printed")
    tuned(folder, PRINTING)
    return folder


def test_a_clearly_bad_run_is_ended_and_nothing_of_it_is_measured(printed: Path) -> None:
    history = read_history(printed / "out")
    ended = {history.trials[run.trial].point["x"]: run for run in history.runs.values()}
    bad = [ended[x] for x in (20, 10)]
    assert [run.outcome.kind for run in bad if run.outcome] == [Kind.STOPPED_EARLY] * 2
    assert all(not run.measurements for run in bad) and all(run.ending.duration_s < 100 for run in bad)
    stop = history.early_stops[ended[20].number]
    assert stop.ratio * history.runs[stop.than].metrics["rate"] == pytest.approx(20), "what the sampler is told"
    assert "0.2 times that of the best" in str(ended[20].outcome)
    assert ended[50].outcome is not None and ended[50].outcome.kind is Kind.OK, "twice as bad is not three times"
    assert history.verdict is not None and history.verdict.details["winner"] == {"x": 110}
    assert ridgeline("study", "verify", "out", cwd=printed).returncode == 0
    assert "2 stopped early" in ridgeline("status", "out", cwd=printed).stdout


def test_a_run_that_has_lasted_too_long_is_ended_where_time_is_the_goal(tmp_path: Path) -> None:
    history = tuned(tmp_path, LASTING)
    kinds = [run.outcome.kind for run in history.runs.values() if run.outcome]
    assert kinds.count(Kind.STOPPED_EARLY) == 1


def test_a_controller_that_went_between_saying_and_stopping_stops_it_when_it_comes_back(tmp_path: Path) -> None:
    class Queue(MemoryExecutor):
        detached = True  # the job goes on without a controller

    def goes(run: Campaign) -> None:
        flying = [open_run for open_run in run.history.open_runs.values() if open_run.ticket]
        if flying and run.history.trials[flying[0].trial].stage is Stage.SEARCH:
            run.on_change = lambda run: None
            run.record(event_of(EarlyStop(flying[0].number, 1, 0.3, "clearly worse")))
            raise Interrupted

    world, question = MemorySite(), study(tmp_path)
    first = campaign(tmp_path, question, executor=Queue(question.site, world))
    first.on_change = goes
    with pytest.raises(Interrupted):
        first.run()
    (number,) = first.history.early_stops
    again = campaign(tmp_path, question, executor=Queue(question.site, world))
    again.run()
    outcome = again.history.runs[number].outcome
    assert outcome is not None and (outcome.kind, outcome.reason) == (Kind.STOPPED_EARLY, "clearly worse")
    assert len(again.history.runs_of[again.history.runs[number].trial]) == 1, "it is not tried again"


def test_only_runs_of_the_search_are_stopped_however_bad_the_others_are(printed: Path) -> None:
    now = read_status(printed / "out")
    stopped = min(now.history.early_stops)
    bad = now.history.runs[stopped]
    looks = EarlyStops(now.study, now.history, catalog.part("workloads", now.study.workload.kind)(now.study))

    def found(trial: int, run: int) -> EarlyStop | None:
        return looks.found(OpenRun(run, trial, 1, bad.folder, Resources(), 0.0))

    assert found(bad.trial, stopped) is not None
    stages = {trial.stage: number for number, trial in now.history.trials.items() if trial.stage is not Stage.SEARCH}
    assert stages.keys() >= {Stage.BASELINE, Stage.CONFIRM}
    assert [found(trial, 1000 + trial) for trial in stages.values()] == [None] * len(stages)


def test_a_study_whose_runs_show_nothing_before_the_end_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(PRINTING.replace("unit: steps/s", "unit: steps/s, pick: max"))
    told = ridgeline("check", "study.yaml", cwd=tmp_path)
    assert told.returncode == 2
    assert "stop_early" in told.stderr and "shows its rate before the end" in " ".join(told.stderr.split())
