"""A knob that changes nothing is found before anything runs, and no job is run twice as two settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from ridgeline.campaign.check import check_study
from ridgeline.errors import StudyError

STUDY = """\
version: 1
name: s
workload: {{kind: command, run: {run}, metrics: {{rate: {{regex: 'rate (.*)'}}}}}}
space: {space}
baseline: {baseline}
goal: {{maximize: rate}}
"""


def written(folder: Path, run: str, space: str, baseline: str, more: str = "") -> Path:
    path = folder / "study.yaml"
    path.write_text(STUDY.format(run=run, space=space, baseline=baseline) + more)
    return path


def problem(path: Path) -> str:
    with pytest.raises(StudyError) as error:
        check_study(path)
    (found,) = error.value.problems
    return found


def test_a_knob_that_nothing_reads_is_an_error(tmp_path: Path) -> None:
    rules = "rules: [{refuse: threads > b, because: too many}]\n"
    path = written(tmp_path, "'./app {b}'", "{b: [4, 8], threads: [1, 2]}", "{b: 4, threads: 1}", rules)
    told = problem(path)
    assert "space.threads" in told
    assert "`threads` isn't used anywhere; remove it or put {threads} into run" in told


@pytest.mark.parametrize(
    ("run", "space", "more"),
    [
        ("./app {a}", "{a: [1, 2]}", ""),
        ("./app {twice}", "{a: [1, 2]}", "derived: {twice: 2 * a}\n"),
        ("./app [{b}]", "{a: [1, 2], b: {values: [3, 4], when: a > 1}}", ""),
        ("./app {b} {c}", "{a: [1, 2], b: [1, 2], c: [x, y]}", "job: {cores: a}\n"),
        ("./app", "{a: [1, 2]}", "builds: {make: 'cc -O{a} a.c -o app', keep: [app]}\n"),
        ("./app", "{a: [1, 2]}", "builds: {make: make, env: {OPT: '{a}'}, keep: [app]}\n"),
        ("./app {b} {use}", "{b: [no, yes], a: [1, 2]}", "derived: {use: a if b == 'yes' else 0}\n"),
    ],
)
def test_what_reaches_the_job_by_any_way_is_used(tmp_path: Path, run: str, space: str, more: str) -> None:
    baseline = "{a: 1, b: 1, c: x}" if "c:" in space else "{a: 1, b: no}" if "no" in space else "{a: 1}"
    assert check_study(written(tmp_path, repr(run), space, baseline, more)).study.name == "s"


def test_ranks_without_a_launcher_change_nothing(tmp_path: Path) -> None:
    job = "job: {ranks_per_node: ranks}\n"
    told = problem(written(tmp_path, "'{launch} ./app'", "{ranks: [1, 2, 4]}", "{ranks: 1}", job))
    assert "{launch} is empty, because the site has no launcher" in told
    site = "site: {batch: local, launcher: openmpi}\n"
    assert check_study(written(tmp_path, "'{launch} ./app'", "{ranks: [1, 2, 4]}", "{ranks: 1}", job + site))


def test_a_value_that_is_lost_on_the_way_is_told(tmp_path: Path) -> None:
    derived = "derived: {cut: 'min(a, 1)'}\n"
    told = problem(written(tmp_path, "'./app {cut}'", "{a: [1, 2, 3]}", "{a: 1}", derived))
    assert "`a` changes nothing: all its values give the same job" in told
