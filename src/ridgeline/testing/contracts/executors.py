"""What every executor promises, wherever its jobs run: executors/base.py, as tests."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import ClassVar

import pytest

from ridgeline import catalog
from ridgeline.executors.base import Executor
from ridgeline.records.run import Cause, Ending, Job
from ridgeline.records.site import Site


class ExecutorContract:
    """Subclasses set `name` and where needed give a `site` whose jobs can really run.

    `make` gives a controller's executor; called again, that of a controller started after the first one died.
    `patience_s` is how long the site may take to start a job and to report its end. A subclass that needs a cluster
    asks for it with `@pytest.mark.usefixtures`.
    """

    name: ClassVar[str]
    patience_s: ClassVar[float] = 10.0

    def site(self) -> Site:
        return Site(name=self.name, batch=self.name)

    def make(self) -> Executor:
        made: Executor = catalog.part("executors", self.name)(self.site())
        return made

    def test_script_is_what_runs_and_touches_nothing(self, tmp_path: Path) -> None:
        executor, one = self.make(), _job(tmp_path, "echo hello", env={"A": 'it\'s "b" $c'})
        assert isinstance(executor, Executor), "what it does not say has its default there"
        text = executor.script(one)
        assert "echo hello" in text
        assert list(one.folder.iterdir()) == []
        self._ending(executor, executor.submit(one))
        assert (one.folder / "run.sh").read_text() == text

    def test_output_environment_and_folder_are_the_jobs(self, tmp_path: Path) -> None:
        value = 'it\'s "b" $c\\n'
        one = _job(tmp_path, 'printf %s "$A"; pwd >&2; echo made > here', env={"A": value})
        executor = self.make()
        end = self._ending(executor, executor.submit(one))
        assert (end.cause, end.exit_code, end.signal) == (Cause.EXITED, 0, None)
        assert (one.folder / "stdout").read_text() == value
        assert (one.folder / "stderr").read_text().strip() == str(one.folder.resolve())
        assert (one.folder / "here").read_text() == "made\n"
        assert end.nodes
        assert abs(end.started_s - time.time()) < 60
        assert 0 <= end.duration_s < self.patience_s

    @pytest.mark.parametrize("code", [1, 3, 127])
    def test_exit_codes_come_through(self, tmp_path: Path, code: int) -> None:
        executor = self.make()
        end = self._ending(executor, executor.submit(_job(tmp_path, f"exit {code}")))
        assert (end.cause, end.exit_code, end.signal) == (Cause.EXITED, code, None)

    @pytest.mark.parametrize("number", [6, 9, 11])
    def test_death_by_signal_is_recognised(self, tmp_path: Path, number: int) -> None:
        executor = self.make()
        end = self._ending(executor, executor.submit(_job(tmp_path, f"sh -c 'kill -{number} $$'")))
        assert (end.cause, end.signal) == (Cause.EXITED, number)

    def test_a_job_in_flight_has_no_ending(self, tmp_path: Path) -> None:
        one = _job(tmp_path, "touch began; while [ ! -e go ]; do sleep 0.02; done")
        executor = self.make()
        ticket = executor.submit(one)
        self._wait_for(one.folder / "began")
        assert executor.poll([ticket]) == {}
        (one.folder / "go").touch()
        assert self._ending(executor, ticket).exit_code == 0

    def test_cancel_ends_the_job_and_all_it_started(self, tmp_path: Path) -> None:
        one = _job(tmp_path, "(while :; do touch child; sleep 0.02; done) & touch began; wait")
        executor = self.make()
        ticket = executor.submit(one)
        self._wait_for(one.folder / "began")
        executor.cancel(ticket)
        assert self._ending(executor, ticket).cause is Cause.CANCELLED
        (one.folder / "child").unlink(missing_ok=True)
        time.sleep(0.1)
        assert not (one.folder / "child").exists()

    def test_wall_limit(self, tmp_path: Path) -> None:
        executor = self.make()
        ticket = executor.submit(_job(tmp_path, "echo begun; sleep 120", limit_s=0.3))
        end = self._ending(executor, ticket)
        assert end.cause is Cause.TIME_LIMIT
        assert end.reason
        assert end.duration_s < 60

    def test_find_knows_only_what_was_handed_over(self, tmp_path: Path) -> None:
        executor = self.make()
        never, one = _job(tmp_path, "true", "0001-never"), _job(tmp_path, "true", "0002-one")
        assert executor.find(never) is None
        ticket = executor.submit(one)
        assert executor.find(one) == ticket
        self._ending(executor, ticket)
        assert self.make().find(one) == ticket
        assert self.make().find(never) is None

    def test_a_controller_that_comes_back_gets_the_ending(self, tmp_path: Path) -> None:
        one = _job(tmp_path, "touch began; while [ ! -e go ]; do sleep 0.02; done; echo done; exit 5")
        ticket = self.make().submit(one)
        self._wait_for(one.folder / "began")
        second = self.make()
        assert second.find(one) == ticket
        assert second.poll([ticket]) == {}
        (one.folder / "go").touch()
        end = self._ending(second, ticket)
        assert (end.cause, end.exit_code) == (Cause.EXITED, 5)
        assert (one.folder / "stdout").read_text() == "done\n"

    def test_what_ended_while_nobody_looked_is_not_lost(self, tmp_path: Path) -> None:
        one = _job(tmp_path, "echo result; exit 4")
        ticket = self.make().submit(one)
        self._wait_for(one.folder / "exit")
        end = self._ending(self.make(), ticket)
        assert (end.cause, end.exit_code) == (Cause.EXITED, 4)

    def test_a_ticket_nobody_knows_is_never_called_completed(self, tmp_path: Path) -> None:
        one = _job(tmp_path, "echo done")
        executor = self.make()
        ticket = executor.submit(one)
        self._ending(executor, ticket)
        for file in list(one.folder.iterdir()):
            file.unlink()
        assert self._ending(self.make(), ticket).cause is Cause.LOST

    def test_by_hand_the_script_repeats_the_run_and_leaves_the_record(self, tmp_path: Path) -> None:
        one = _job(tmp_path, "echo again; exit 3")
        executor = self.make()
        self._ending(executor, executor.submit(one))
        before = (one.folder / "exit").read_text()
        again = subprocess.run(["sh", "run.sh"], cwd=one.folder, capture_output=True, text=True, check=False)
        assert again.returncode == 3
        assert "again" in again.stdout
        assert (one.folder / "exit").read_text() == before

    def _ending(self, executor: Executor, ticket: str) -> Ending:
        until = time.monotonic() + self.patience_s
        while time.monotonic() < until:
            if found := executor.poll([ticket]):
                return found[ticket]
            executor.wait(0.5)
        raise AssertionError(f"no ending of {ticket} in {self.patience_s} s")

    def _wait_for(self, file: Path) -> None:
        until = time.monotonic() + self.patience_s
        while not file.exists():
            assert time.monotonic() < until, f"{file} did not appear in {self.patience_s} s"
            time.sleep(0.005)


def _job(folder: Path, command: str, name: str = "0001-a", **more: object) -> Job:
    home = folder / name
    home.mkdir()
    return Job(name, home, command, **more)  # type: ignore[arg-type]
