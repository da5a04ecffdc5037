"""What every workload promises: workloads/base.py, as tests."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest

from ridgeline import catalog
from ridgeline.records.expression import Value
from ridgeline.records.run import Cause, Ending, Resources, Run
from ridgeline.records.study import Study
from ridgeline.records.trial import Stage, Trial
from ridgeline.workloads.base import Workload, WorkloadFactory


@dataclass(frozen=True)
class WorkloadExample:
    """A study the workload accepts. `write_run` leaves in a folder what a good run of its baseline would leave there.

    `log` is the file of it that holds the goal's metric, `value` that metric in it; `pasted` is a setting whose values
    must show in what `paste` gives.
    """

    study: Study
    write_run: Callable[[Path], object]
    value: float
    pasted: Mapping[str, Value]
    log: str = "stdout"


class WorkloadContract:
    """Subclasses set `name` and give an `example` in a folder of its own.

    `factory` is looked up in the catalog; override it for what is not registered.
    """

    name: ClassVar[str]

    def example(self, folder: Path) -> WorkloadExample:
        raise NotImplementedError("give a study that this workload accepts")

    def factory(self) -> WorkloadFactory:
        found: WorkloadFactory = catalog.part("workloads", self.name)
        return found

    @pytest.fixture
    def given(self, tmp_path: Path) -> WorkloadExample:
        home = tmp_path / "study"
        home.mkdir()
        return self.example(home)

    def test_a_good_study_has_no_problems_and_its_baseline_is_not_refused(self, given: WorkloadExample) -> None:
        workload = self._make(given)
        assert isinstance(workload, Workload), "what it does not say has its default there"
        assert workload.problems() == []
        assert workload.refusal(given.study.space.settings(given.study.baseline)) is None

    def test_prepare_twice_writes_the_same_files_and_the_same_job(self, given: WorkloadExample, tmp_path: Path) -> None:
        folder = tmp_path / "runs" / "0001"
        first = self._make(given).prepare(_trial(given), folder)
        files = _content(folder)
        second = self._make(given).prepare(_trial(given), folder)
        assert first == second
        assert _content(folder) == files
        assert first.folder == folder
        assert first.command.strip()

    def test_prepare_in_another_folder_differs_only_by_the_folder(self, given: WorkloadExample, tmp_path: Path) -> None:
        workload = self._make(given)
        one = workload.prepare(_trial(given), tmp_path / "runs" / "0001")
        two = workload.prepare(_trial(given, 2), tmp_path / "runs" / "0002")
        assert _content(one.folder) == _content(two.folder)
        assert replace(two, name=one.name, folder=one.folder) == one

    def test_limits_of_the_study_reach_the_job(self, given: WorkloadExample, tmp_path: Path) -> None:
        limits = replace(given.study.job, limit_s=7.0, silence_limit_s=3.0)
        job = self.factory()(replace(given.study, job=limits)).prepare(_trial(given), tmp_path / "run")
        assert (job.limit_s, job.silence_limit_s) == (7.0, 3.0)

    def test_reading_twice_gives_the_same(self, given: WorkloadExample, tmp_path: Path) -> None:
        workload, folder = self._make(given), tmp_path / "run"
        workload.prepare(_trial(given), folder)
        given.write_run(folder)
        reading = workload.read(_run(folder))
        assert reading.problem == ""
        assert reading.metrics[given.study.goal.metric] == given.value
        assert self._make(given).read(_run(folder)) == reading

    @pytest.mark.parametrize("output", [None, b"", b"\xff\xfe\x00 rate nan", b"rate fast", b"{" * 5000, b"\0" * 5000])
    def test_bad_output_is_a_problem_in_words_never_an_exception(
        self, given: WorkloadExample, tmp_path: Path, output: bytes | None
    ) -> None:
        workload, folder = self._make(given), tmp_path / "run"
        workload.prepare(_trial(given), folder)
        if output is not None:
            (folder / given.log).write_bytes(output)
        reading = workload.read(_run(folder))
        assert reading.problem
        assert given.study.goal.metric not in reading.metrics

    def test_a_deleted_folder_is_a_problem_in_words(self, given: WorkloadExample, tmp_path: Path) -> None:
        assert self._make(given).read(_run(tmp_path / "gone")).problem

    def test_paste_names_the_values(self, given: WorkloadExample) -> None:
        text = self._make(given).paste(given.pasted)
        for value in given.pasted.values():
            assert str(value) in text

    def _make(self, given: WorkloadExample) -> Workload:
        return self.factory()(given.study)


def _trial(given: WorkloadExample, number: int = 1) -> Trial:
    point = given.study.baseline
    return Trial(number, point, given.study.space.settings(point), Stage.BASELINE, "user")


def _run(folder: Path) -> Run:
    ending = Ending(Cause.EXITED, exit_code=0, started_s=10.0, ended_s=12.0)
    return Run(1, 1, 1, folder, Resources(), ending)


def _content(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): str(path.readlink())
        if path.is_symlink()
        else hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if not path.is_dir()
    }
