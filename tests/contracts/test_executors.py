"""What every executor promises, wherever its jobs run.

An executor joins by a `Bench` in `BENCHES`: how to make one (again: a controller that came back), and how
long its site may take to report. Sites that do not know an idea say so in `lacks`.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ridgeline import catalog
from ridgeline.executors.base import Executor
from ridgeline.executors.local import LocalExecutor
from ridgeline.executors.pbs import pbs
from ridgeline.executors.simulated import SimulatedExecutor
from ridgeline.executors.slurm import slurm
from ridgeline.records.run import Cause, Ending, Job
from ridgeline.records.site import Site


@dataclass
class Bench:
    """`make` gives a controller's executor; called again, that of a controller started after the first one died."""

    make: Callable[[], Executor]
    patience_s: float = 60.0
    lacks: frozenset[str] = field(default_factory=frozenset)


def local_bench(request: pytest.FixtureRequest) -> Bench:
    return Bench(lambda: LocalExecutor(Site(), grace_s=0.2))


def slurm_bench(request: pytest.FixtureRequest) -> Bench:
    request.getfixturevalue("slurm")
    site = Site(name="slurm", batch="slurm", queue="debug", poll_s=0.3, options=_IMPATIENT)
    return Bench(lambda: slurm(site), patience_s=120)


def pbs_bench(request: pytest.FixtureRequest) -> Bench:
    request.getfixturevalue("pbs_standin")
    site = Site(name="pbs", batch="pbs", queue="workq", poll_s=0.3, options=_IMPATIENT)
    return Bench(lambda: pbs(site), patience_s=120)


def simulated_bench(request: pytest.FixtureRequest) -> Bench:
    site = Site(name="simulated", batch="simulated", nodes=4)
    return Bench(lambda: SimulatedExecutor(site))


_IMPATIENT = {"lost_after_s": 1.0, "settle_s": 3.0}

# A bench that needs a cluster asks for it by request.getfixturevalue
BENCHES: dict[str, Callable[[pytest.FixtureRequest], Bench]] = {
    "local": local_bench,
    "slurm": slurm_bench,
    "pbs": pbs_bench,
    "simulated": simulated_bench,
}


def test_every_executor_of_the_catalog_is_held_to_these_promises() -> None:
    assert set(catalog.TABLE["executors"]) <= set(BENCHES)


_MARKS = {"slurm": [pytest.mark.slurm]}


@pytest.fixture(params=[pytest.param(make, id=name, marks=_MARKS.get(name, [])) for name, make in BENCHES.items()])
def bench(request: pytest.FixtureRequest) -> Bench:
    made: Bench = request.param(request)
    return made


def job(folder: Path, command: str, name: str = "0001-a", **more: object) -> Job:
    home = folder / name
    home.mkdir()
    return Job(name, home, command, **more)  # type: ignore[arg-type]


def ending(bench: Bench, executor: Executor, ticket: str) -> Ending:
    until = time.monotonic() + bench.patience_s
    while time.monotonic() < until:
        if found := executor.poll([ticket]):
            return found[ticket]
        executor.wait(0.5)
    raise AssertionError(f"no ending of {ticket} in {bench.patience_s} s")


def started(folder: Path, patience_s: float, file: str = "began") -> None:
    until = time.monotonic() + patience_s
    while not (folder / file).exists():
        assert time.monotonic() < until, f"{folder} did not begin"
        time.sleep(0.005)


def test_script_is_what_runs_and_touches_nothing(bench: Bench, tmp_path: Path) -> None:
    executor, one = bench.make(), job(tmp_path, "echo hello", env={"A": 'it\'s "b" $c'})
    text = executor.script(one)
    assert "echo hello" in text
    assert list(one.folder.iterdir()) == []
    ending(bench, executor, executor.submit(one))
    assert (one.folder / "run.sh").read_text() == text


def test_output_environment_and_folder_are_the_jobs(bench: Bench, tmp_path: Path) -> None:
    value = 'it\'s "b" $c\\n'
    one = job(tmp_path, 'printf %s "$A"; pwd >&2; echo made > here', env={"A": value})
    executor = bench.make()
    end = ending(bench, executor, executor.submit(one))
    assert (end.cause, end.exit_code, end.signal) == (Cause.EXITED, 0, None)
    assert (one.folder / "stdout").read_text() == value
    assert (one.folder / "stderr").read_text().strip() == str(one.folder.resolve())
    assert (one.folder / "here").read_text() == "made\n"
    assert end.nodes
    assert abs(end.started_s - time.time()) < 60
    assert 0 <= end.duration_s < bench.patience_s


@pytest.mark.parametrize("code", [1, 3, 127])
def test_exit_codes_come_through(bench: Bench, tmp_path: Path, code: int) -> None:
    executor = bench.make()
    end = ending(bench, executor, executor.submit(job(tmp_path, f"exit {code}")))
    assert (end.cause, end.exit_code, end.signal) == (Cause.EXITED, code, None)


@pytest.mark.parametrize("number", [6, 9, 11])
def test_death_by_signal_is_told_apart(bench: Bench, tmp_path: Path, number: int) -> None:
    executor = bench.make()
    end = ending(bench, executor, executor.submit(job(tmp_path, f"sh -c 'kill -{number} $$'")))
    assert (end.cause, end.signal) == (Cause.EXITED, number)


def test_a_job_in_flight_has_no_ending(bench: Bench, tmp_path: Path) -> None:
    one = job(tmp_path, "touch began; while [ ! -e go ]; do sleep 0.02; done")
    executor = bench.make()
    ticket = executor.submit(one)
    started(one.folder, bench.patience_s)
    assert executor.poll([ticket]) == {}
    (one.folder / "go").touch()
    assert ending(bench, executor, ticket).exit_code == 0


def test_cancel_ends_the_job_and_all_it_started(bench: Bench, tmp_path: Path) -> None:
    one = job(tmp_path, "(while :; do touch child; sleep 0.02; done) & touch began; wait")
    executor = bench.make()
    ticket = executor.submit(one)
    started(one.folder, bench.patience_s)
    executor.cancel(ticket)
    assert ending(bench, executor, ticket).cause is Cause.CANCELLED
    (one.folder / "child").unlink(missing_ok=True)
    time.sleep(0.1)
    assert not (one.folder / "child").exists()


def test_wall_limit(bench: Bench, tmp_path: Path) -> None:
    if "limits in seconds" in bench.lacks:
        pytest.skip("limits of this site are minutes")
    executor = bench.make()
    ticket = executor.submit(job(tmp_path, "echo begun; sleep 120", limit_s=0.3))
    end = ending(bench, executor, ticket)
    assert end.cause is Cause.TIME_LIMIT
    assert end.reason
    assert end.duration_s < 60


def test_find_knows_only_what_was_handed_over(bench: Bench, tmp_path: Path) -> None:
    executor = bench.make()
    never, one = job(tmp_path, "true", "0001-never"), job(tmp_path, "true", "0002-one")
    assert executor.find(never) is None
    ticket = executor.submit(one)
    assert executor.find(one) == ticket
    ending(bench, executor, ticket)
    assert bench.make().find(one) == ticket
    assert bench.make().find(never) is None


def test_a_controller_that_comes_back_gets_the_ending(bench: Bench, tmp_path: Path) -> None:
    one = job(tmp_path, "touch began; while [ ! -e go ]; do sleep 0.02; done; echo done; exit 5")
    ticket = bench.make().submit(one)
    started(one.folder, bench.patience_s)
    second = bench.make()
    assert second.find(one) == ticket
    assert second.poll([ticket]) == {}
    (one.folder / "go").touch()
    end = ending(bench, second, ticket)
    assert (end.cause, end.exit_code) == (Cause.EXITED, 5)
    assert (one.folder / "stdout").read_text() == "done\n"


def test_what_ended_while_nobody_looked_is_not_lost(bench: Bench, tmp_path: Path) -> None:
    one = job(tmp_path, "echo result; exit 4")
    first = bench.make()
    ticket = first.submit(one)
    started(one.folder, bench.patience_s, "exit")
    end = ending(bench, bench.make(), ticket)
    assert (end.cause, end.exit_code) == (Cause.EXITED, 4)


def test_a_ticket_nobody_knows_is_never_called_completed(bench: Bench, tmp_path: Path) -> None:
    one = job(tmp_path, "echo done")
    executor = bench.make()
    ticket = executor.submit(one)
    ending(bench, executor, ticket)
    for file in list(one.folder.iterdir()):
        file.unlink()
    if "forgets" in bench.lacks:
        pytest.skip("this site remembers finished jobs by itself")
    assert ending(bench, bench.make(), ticket).cause is Cause.LOST


def test_by_hand_the_script_repeats_the_run_and_leaves_the_record(bench: Bench, tmp_path: Path) -> None:
    one = job(tmp_path, "echo again; exit 3")
    executor = bench.make()
    ending(bench, executor, executor.submit(one))
    before = (one.folder / "exit").read_text()
    again = subprocess.run(["sh", "run.sh"], cwd=one.folder, capture_output=True, text=True, check=False)
    assert again.returncode == 3
    assert "again" in again.stdout
    assert (one.folder / "exit").read_text() == before
