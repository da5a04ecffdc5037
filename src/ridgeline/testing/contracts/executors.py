"""What every executor promises, whoever wrote it: executors/base.py, as tests.

And what every dialect of a batch system does, without the batch system: executors/dialect.py.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ridgeline import catalog
from ridgeline.executors import batch_script
from ridgeline.executors.base import Executor
from ridgeline.executors.batch import BatchExecutor
from ridgeline.executors.dialect import BATCH_OUTPUT, BatchDialect, JobReply, JobStatus, Phase
from ridgeline.records.run import Cause, Ending, Job, Resources
from ridgeline.records.site import Site
from ridgeline.testing.contracts import mutated

_SITE = Site(
    name="promises",
    queue="q",
    account="p1",
    modules=("gcc/12",),
    setup=("ulimit -s unlimited",),
    env={"A": "it's"},
    scratch="/scratch/$USER",
    cores_per_node=48,
    memory_bytes_per_node=96 * 2**30,
)
_quiet = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.differing_executors]
_few = settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=_quiet)


class DialectContract:
    """Subclasses set `name`, and may give `answers`: what the batch system's commands really printed."""

    name: ClassVar[str]

    def dialect(self) -> BatchDialect:
        executor = catalog.part("executors", self.name)(Site(name=self.name, batch=self.name))
        assert isinstance(executor, BatchExecutor), f"{self.name} is not a batch system"
        return executor.dialect

    def answers(self) -> Sequence[str]:
        return ()

    def test_it_has_the_name_that_site_files_use(self) -> None:
        assert self.dialect().name == self.name
        assert self.dialect().programs

    @_few
    @given(st.text(max_size=300), st.text("0123456789abcdef", min_size=8, max_size=8))
    def test_a_job_name_holds_its_tag_and_is_one_word(self, name: str, tag: str) -> None:
        made = self.dialect().job_name(name, tag)
        assert tag in made
        assert made.isascii() and made.isprintable() and len(made.split()) == 1 and "/" not in made
        assert self.dialect().job_name(name, "")

    def test_directives_are_its_own_and_output_goes_to_where_it_is_looked_for(self, tmp_path: Path) -> None:
        dialect = self.dialect()
        lines = dialect.directives(_wide_job(tmp_path), _SITE)
        assert all(line.startswith(f"{dialect.directive} ") for line in lines)
        submit = dialect.submit_command(tmp_path / "run.sh", "name", _wide_job(tmp_path))
        assert any(BATCH_OUTPUT in text for text in (*lines, *submit))
        assert set(dialect.kept_options) <= {dialect.option(line) for line in lines}

    def test_a_users_directive_wins_but_not_over_what_the_state_files_need(self, tmp_path: Path) -> None:
        dialect = self.dialect()
        ours = dialect.directives(_wide_job(tmp_path), _SITE)
        users = tmp_path / "users.sh"
        users.write_text("#!/bin/sh\n" + "".join(f"{line}\n" for line in ours) + './"$RIDGELINE_COMMAND"\n')
        site = Site(name="promises", queue="q", account="p1", options={"script": str(users)})
        text = batch_script.render(_wide_job(tmp_path), site, dialect).splitlines()
        shown = [line for line in text if line.startswith(f"{dialect.directive} ")]
        assert len({dialect.option(line) for line in shown}) == len(shown)
        kept = [line for line in ours if dialect.option(line) in dialect.kept_options]
        assert set(kept) <= set(shown)

    def test_the_script_is_plain_sh_and_holds_all_the_site_says(self, tmp_path: Path) -> None:
        site = replace(_SITE, directives=(f"{self.dialect().directive} as-it-stands",))
        text = batch_script.render(_wide_job(tmp_path), site, self.dialect())
        for wanted in ("module load gcc/12", "ulimit -s unlimited", "export A=", "/scratch/$USER", "as-it-stands"):
            assert wanted in text
        done = subprocess.run(["sh", "-n"], input=text, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")

    def test_all_jobs_are_asked_for_by_one_command(self, tmp_path: Path) -> None:
        dialect = self.dialect()
        commands = [
            dialect.poll_command(["11", "12", "13"]),
            dialect.cancel_command("11"),
            dialect.submit_command(tmp_path / "run.sh", "name", _wide_job(tmp_path)),
            *dialect.history_commands(["11", "12"]),
            *dialect.find_commands("name"),
        ]
        assert dialect.find_commands("name"), "a job whose controller died cannot be found again"
        assert all(command and all(isinstance(word, str) for word in command) for command in commands)

    def test_a_command_that_failed_without_a_word_is_no_news(self) -> None:
        dialect, silent = self.dialect(), JobReply(1)
        assert dialect.job_id(silent) is None
        assert dialect.read_poll(silent) is None
        assert dialect.read_found(silent, "name") is None

    @_few
    @given(said=st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=3, max_size=40))
    def test_a_refusal_shows_what_was_said_and_what_to_do(self, said: str) -> None:
        refusal = self.dialect().refusal(JobReply(1, "", f"{said}\n"), _SITE)
        assert said in refusal.message
        assert len(refusal.message) > len(said)

    def test_whatever_is_printed_is_read_without_an_error(self) -> None:
        odd = ("", "12\n", "1|2|3|4|5|6|7|8\n", "{}", "Job Id: ", "JobId=")
        texts = [text.encode() for text in (*self.answers(), *odd)]

        @_few
        @given(mutated(texts), st.sampled_from([0, 1, 35, 124, 153]))
        def check(raw: bytes, code: int) -> None:
            text = raw.decode(errors="replace")
            for answer in (JobReply(code, text, ""), JobReply(code, "", text), JobReply(code, text, text)):
                _read_everything(self.dialect(), answer)

        for text in (*self.answers(), *odd):
            _read_everything(self.dialect(), JobReply(0, text, ""))
        check()


def _read_everything(dialect: BatchDialect, answer: JobReply) -> None:
    dialect.job_id(answer)
    dialect.refusal(answer, _SITE)
    dialect.read_found(answer, "name")
    dialect.node_names(answer.stdout)
    dialect.read_output(answer.stdout.splitlines())
    readers: tuple[Callable[[JobReply], object], ...] = (dialect.read_poll, dialect.read_history)
    for read in readers:
        found = read(answer)
        assert found is None or isinstance(found, dict)
        for job_id, seen in (found or {}).items():
            assert isinstance(seen, JobStatus)
            assert seen.job_id == job_id
            assert (seen.phase is Phase.ENDED) == (seen.ending is not None)


def _wide_job(folder: Path) -> Job:
    needs = Resources(nodes=2, ranks_per_node=4, gpus=2)
    return Job("0001 a/b", folder, "echo 'quoted'", resources=needs, limit_s=61.0, on_nodes=("n1", "n2"))


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

    def test_the_script_is_the_same_wherever_the_folder_lies(self, tmp_path: Path) -> None:
        """`study verify` writes it again on another machine, and compares."""
        texts = []
        for place in ("here", "there"):
            (tmp_path / place).mkdir()
            one = _job(tmp_path / place, "echo hello")
            text = (
                self.make().script(one).replace(str(one.folder.resolve()), "FOLDER").replace(str(one.folder), "FOLDER")
            )
            texts.append(re.sub(r"RIDGELINE_RUN=[0-9a-f]+", "RIDGELINE_RUN=ID", text))
        assert texts[0] == texts[1]

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
