"""A machine that is busy with something else is mentioned, from what the run itself left behind."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from ridgeline.campaign.kinds.search import SearchQuestion
from ridgeline.campaign.machine import _busy_text, brief_runs, busy_machine
from ridgeline.campaign.status import CampaignStatus
from ridgeline.cli.campaign.live import TerminalView
from ridgeline.executors.local import LocalExecutor
from ridgeline.records.measurement import Measurement
from ridgeline.records.run import Cause, Ending, Job, Resources, Run
from ridgeline.records.site import LOCAL
from ridgeline.records.study import Goal, Study
from ridgeline.study.history import History
from ridgeline.testing import MemoryExecutor
from tests.campaign.harness import campaign, study


def run(load: float, cpu_s: float, cores: int = 2, threads: int | None = None) -> Run:
    usage = {"load_before": load, "cores": float(cores), "cpu_s": cpu_s}
    ending = Ending(Cause.EXITED, 0, started_s=100.0, ended_s=106.0, usage=usage)
    return Run(1, 1, 1, Path("runs/1"), Resources(cores=threads), ending)


@pytest.mark.parametrize(
    ("seen", "busy"),
    [
        (run(15.0, 1.2), True),
        (run(15.0, 5.9), True),  # it got a core, others wait for theirs
        (run(0.1, 5.9), False),
        (run(0.1, 1.2), False),  # it waits by itself: nobody else wants the cores
        (run(1.5, 1.2), True),
        (run(4.0, 5.9, cores=8), False),
        (run(4.0, 12.0, cores=8, threads=8), True),  # eight threads, four cores free
    ],
)
def test_load_and_processor_time_decide(seen: Run, busy: bool) -> None:
    assert bool(_busy_text(seen)) == busy


def test_without_a_load_average_nothing_is_said() -> None:
    assert _busy_text(replace(run(1, 1), ending=Ending(Cause.EXITED, 0, started_s=1.0, ended_s=9.0))) == ""


def test_a_modelled_run_is_not_slowed_by_its_neighbours() -> None:
    modelled = Measurement("total_tok_s", 9600.0, "tok/s", origin="modelled")
    assert _busy_text(run(15.0, 1.2))
    assert _busy_text(replace(run(15.0, 1.2), measurements=(modelled,))) == ""


def test_a_server_that_waits_for_its_requests_is_not_starved() -> None:
    served = (Measurement("ready_s", 3.0, "s"),)
    assert "of CPU time" in _busy_text(run(1.5, 1.2))
    assert _busy_text(replace(run(1.5, 1.2), measurements=served)) == ""
    crowded = _busy_text(replace(run(15.0, 1.2), measurements=served))
    assert "load average 15.0" in crowded
    assert "CPU time" not in crowded and "cpu_s" not in crowded


def test_runs_of_a_few_milliseconds_time_the_shell_as_well(tmp_path: Path) -> None:
    timed = study(tmp_path, goal=Goal("wall_s", "minimize"))

    def said(*walls_s: float, asked: Study = timed) -> str:
        runs = [(None, SimpleNamespace(metrics={"wall_s": wall_s})) for wall_s in walls_s]
        return brief_runs(asked, SimpleNamespace(ok_runs=lambda *stages: runs))

    assert "a run takes 4 ms" in said(0.004, 0.003, 3.0)
    assert said(0.2, 0.3, 0.001) == said() == said(0.004, asked=study(tmp_path)) == ""


class Crowded(MemoryExecutor):
    def _finish(self, ticket: str) -> Ending:
        usage = {"load_before": 15.0, "cores": 2.0, "cpu_s": 0.2}
        return replace(super()._finish(ticket), usage=usage)


def test_it_is_said_at_the_baseline_and_with_the_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tuning = campaign(tmp_path, study(tmp_path), executor=Crowded())
    face = TerminalView(quiet=False)
    tuning.on_change = face.update
    tuning.run()
    shown = capsys.readouterr().out
    assert shown.count("busy machine: load average 15.0 on 2 cores before the first run") == 1
    assert "got 0.2 s of CPU time in 1.0 s" in shown and "make `cpu_s` the goal" in shown
    past = History.replay(tmp_path, tuning.journal.read())
    goal = tuning.study.goal.metric
    assert busy_machine(past, goal) == busy_machine(tuning.history, goal) != ""
    assert busy_machine(past, goal) in CampaignStatus(SearchQuestion(), tuning.study, past).exhibits.doubts


def test_the_local_executor_keeps_the_load_for_a_controller_that_comes_back(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "0001-x"
    folder.mkdir(parents=True)
    ticket = LocalExecutor(LOCAL).submit(Job("x", folder, "true"))
    later, endings = LocalExecutor(LOCAL), {}
    while not endings:
        endings = dict(later.poll([ticket]))
        later.wait(0.1)
    assert {"load_before", "cores"} <= endings[ticket].usage.keys()


def test_nobody_is_told_to_make_the_goal_what_it_is() -> None:
    assert "make `cpu_s` the goal" in _busy_text(run(15.0, 1.2), "wall_s")
    said = _busy_text(run(15.0, 1.2), "cpu_s")
    assert said.endswith("other programs also make CPU time longer: stop them or pin to free cores")
