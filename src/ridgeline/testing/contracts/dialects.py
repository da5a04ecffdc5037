"""What every dialect of a batch system promises, without the batch system: executors/dialect.py, as tests.

`contracts.executors` holds the same dialect to what jobs need, where its batch system can be asked.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ridgeline import catalog
from ridgeline.executors import batch_script
from ridgeline.executors.batch import BatchExecutor
from ridgeline.executors.dialect import BATCH_OUTPUT, BatchDialect, JobReply, JobStatus, Phase
from ridgeline.records.run import Job, Resources
from ridgeline.records.site import Site
from ridgeline.testing.contracts.torn import mutated

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
        lines = dialect.directives(_job(tmp_path), _SITE)
        assert all(line.startswith(f"{dialect.directive} ") for line in lines)
        submit = dialect.submit_command(tmp_path / "run.sh", "name", _job(tmp_path))
        assert any(BATCH_OUTPUT in text for text in (*lines, *submit))
        assert set(dialect.kept_options) <= {dialect.option(line) for line in lines}

    def test_a_users_directive_wins_but_not_over_what_the_state_files_need(self, tmp_path: Path) -> None:
        dialect = self.dialect()
        ours = dialect.directives(_job(tmp_path), _SITE)
        users = tmp_path / "users.sh"
        users.write_text("#!/bin/sh\n" + "".join(f"{line}\n" for line in ours) + './"$RIDGELINE_COMMAND"\n')
        site = Site(name="promises", queue="q", account="p1", options={"script": str(users)})
        text = batch_script.render(_job(tmp_path), site, dialect).splitlines()
        shown = [line for line in text if line.startswith(f"{dialect.directive} ")]
        assert len({dialect.option(line) for line in shown}) == len(shown)
        kept = [line for line in ours if dialect.option(line) in dialect.kept_options]
        assert set(kept) <= set(shown)

    def test_the_script_is_plain_sh_and_holds_all_the_site_says(self, tmp_path: Path) -> None:
        site = replace(_SITE, directives=(f"{self.dialect().directive} as-it-stands",))
        text = batch_script.render(_job(tmp_path), site, self.dialect())
        for wanted in ("module load gcc/12", "ulimit -s unlimited", "export A=", "/scratch/$USER", "as-it-stands"):
            assert wanted in text
        done = subprocess.run(["sh", "-n"], input=text, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")

    def test_all_jobs_are_asked_for_by_one_command(self, tmp_path: Path) -> None:
        dialect = self.dialect()
        commands = [
            dialect.poll_command(["11", "12", "13"]),
            dialect.cancel_command("11"),
            dialect.submit_command(tmp_path / "run.sh", "name", _job(tmp_path)),
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
        odd = ("", "12\n", "1|2|3|4|5|6|7|8\n", '{"Jobs": {"1.a": {}}}\n', '{"Jobs": [1]}\n', "Job Id: ", "JobId=")
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


def _job(folder: Path) -> Job:
    needs = Resources(nodes=2, ranks_per_node=4, gpus=2)
    return Job("0001 a/b", folder, "echo 'quoted'", resources=needs, limit_s=61.0, on_nodes=("n1", "n2"))
