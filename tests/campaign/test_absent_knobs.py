"""What becomes of a knob where it does not exist, and of expressions that have no answer there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ridgeline.campaign.check import CheckedStudy, check_study
from ridgeline.campaign.point_text import pasted
from ridgeline.cli.main import run
from ridgeline.errors import StudyError
from ridgeline.records.trial import Stage, Trial

HEAD = """\
version: 1
name: s
space:
  me: [hex, umh]
  merange: {values: [16, 32], when: me == "umh"}
  subme: [2, 7]
baseline: {me: hex, subme: 7}
goal: {maximize: rate}
"""
WORKLOAD = """\
workload:
  kind: command
  run: %s
  metrics: {rate: {regex: 'rate (.*)'}}
"""
RUN = WORKLOAD % '"./enc --me {me} [--merange {merange}] --subme {subme}"'


def written(folder: Path, text: str) -> Path:
    path = folder / "study.yaml"
    path.write_text(text)
    return path


def problems(path: Path) -> list[str]:
    with pytest.raises(StudyError) as error:
        check_study(path)
    return list(error.value.problems)


def scripts(found: CheckedStudy, folder: Path) -> dict[str, str]:
    """The command of a run with the knob and of one without."""
    space = found.study.space
    points = {"there": {"me": "umh", "merange": 32, "subme": 2}, "absent": {"me": "hex", "subme": 2}}
    trials = {name: Trial(1, point, space.settings(point), Stage.SEARCH, "test") for name, point in points.items()}
    return {name: found.workload.prepare(trial, folder / name).command for name, trial in trials.items()}


@pytest.mark.parametrize(
    ("text", "line", "place", "remedy"),
    [
        (WORKLOAD % "./enc --merange {merange} --subme {subme} --me {me}", 11, "workload.run", "[--merange {merange}]"),
        (WORKLOAD % "./enc --merange={merange} {subme} {me}", 11, "workload.run", "[--merange={merange}]"),
        (WORKLOAD % "./enc {me} {subme} {merange:04d}", 11, "workload.run", "[{merange:04d}]"),
        (RUN + '  env: {RANGE: "{merange}"}\n', 13, "workload.env.RANGE", "[{merange}]"),
        (RUN + "  inputs:\n    in.txt: 'range = {merange}'\n", 14, "workload.inputs", "[{merange}]"),
        (
            RUN + "builds:\n  make: [cc a.c, 'cc -DR={merange} b.c']\n  keep: [a]\n",
            14,
            "builds.make[1]",
            "[-DR={merange}]",
        ),
        (RUN + "builds:\n  make: cc a.c\n  keep: [a]\n  env: {R: '{merange}'}\n", 16, "builds.env.R", "[{merange}]"),
        (RUN + "job: {modules: ['range/{merange}']}\n", 13, "job.modules[0]", "[{merange}]"),
        (WORKLOAD % "./enc {twice} {me} {subme}" + "derived: {twice: 2 * merange}\n", 11, "workload.run", "[{twice}]"),
    ],
)
def test_a_template_that_would_lose_its_knob_is_refused(tmp_path, text, line, place, remedy):
    (told,) = problems(path := written(tmp_path, HEAD + text))
    assert told.startswith(f"{path}:{line}: {place}")
    assert f"; write {remedy}, which goes with its knob" in told


def test_the_template_of_a_file_is_looked_at_too(tmp_path):
    (tmp_path / "in.template").write_text("range = {merange}\n")
    (told,) = problems(written(tmp_path, HEAD + RUN + "  inputs: {in.txt: {from: in.template}}\n"))
    assert "workload.inputs" in told
    assert "[{merange}]" in told


def test_groups_do_not_nest(tmp_path):
    text = WORKLOAD % "'./enc {me} {subme} [--a {merange} [--b {twice}]]'" + "derived: {twice: 2 * merange}\n"
    (told,) = problems(written(tmp_path, HEAD + text))
    assert "workload.run: [--b {twice}] stands inside another group" in told


def test_a_derived_value_with_an_answer_everywhere_needs_no_group(tmp_path):
    text = WORKLOAD % "./enc {me} {subme} --merange {range}" + 'derived: {range: merange if me == "umh" else 8}\n'
    found = scripts(check_study(written(tmp_path, HEAD + text)), tmp_path)
    assert found == {"there": "./enc umh 2 --merange 32", "absent": "./enc hex 2 --merange 8"}


def test_the_group_goes_with_its_knob_in_runs_and_in_what_is_pasted(tmp_path):
    text = RUN + '  env: {RANGE: "[{merange}]", ALL: "x[,{merange}]"}\n'
    found = check_study(written(tmp_path, HEAD + text))
    assert scripts(found, tmp_path) == {
        "there": "./enc --me umh --merange 32 --subme 2",
        "absent": "./enc --me hex  --subme 2",
    }
    assert "RANGE" not in pasted(found.study, found.workload, found.study.baseline)
    assert "RANGE=16 ALL=x,16 ./enc" in pasted(found.study, found.workload, {"me": "umh", "merange": 16, "subme": 2})


def test_the_program_sees_the_group_or_nothing(tmp_path, capsys):
    """From check over dry-run, tune and best to verify, with a program that refuses a flag without its value."""
    program = tmp_path / "enc"
    program.write_text(
        "#!/bin/sh\nme=$2; shift 2; range=0\n"
        'if [ "$1" = --merange ]; then range=$2; shift 2; fi\n'
        '[ "$1" = --subme ] && [ "$#" = 2 ] && [ "${RANGE-0}" = "$range" ] || exit 9\n'
        'echo "rate $((range + $2))"\n'
    )
    program.chmod(0o755)
    more = '  env: {RANGE: "[{merange}]"}\n  files: [enc]\nbudget: {trials: 6}\nconfirm: {top: 1, blocks: 4}\n'
    study, out = written(tmp_path, HEAD + RUN + more), tmp_path / "out"
    run_quietly("tune", study, "--dry-run")
    assert "--merange  " not in capsys.readouterr().out
    run_quietly("tune", study, "--out", out)
    run_quietly("study", "verify", out)
    capsys.readouterr()
    run_quietly("best", out)
    told = capsys.readouterr().out
    assert "RANGE=32" in told
    assert "--me umh --merange 32 --subme 7" in told


def run_quietly(*arguments: object) -> None:
    with pytest.raises(SystemExit) as leaving:
        run([str(argument) for argument in arguments])
    assert leaving.value.code in (0, None)


# expressions without an answer


EXPRESSIONS = """\
version: 1
name: s
workload: {kind: command, run: './a {opt} {n}', metrics: {rate: {regex: 'rate (.*)'}}}
space:
  opt: [O1, O2, fast]
  n: [0, 1, 2, 4]
  level: [1, auto]
baseline: {opt: O1, n: 1, level: 1}
goal: {maximize: rate}
"""


@pytest.mark.parametrize(
    ("more", "place", "says", "point"),
    [
        ("derived: {x: level + n}", "derived.x", "'auto' is not a number", "n = 0, level = auto"),
        ("derived: {x: 8 / n}", "derived.x", "division by zero", "n = 0"),
        (
            "rules: [{refuse: level > 3, because: b}]",
            "rules[0].refuse",
            "'auto' is text and cannot be ordered",
            "level = auto",
        ),
        (
            "rules: [{refuse: n, because: b}]",
            "rules[0].refuse",
            "at the baseline: 'n' is 1, neither true nor false",
            "",
        ),
        (
            "rules: [{refuse: n - 1, because: b}]",
            "rules[0].refuse",
            "at the baseline: 'n - 1' is 0, neither true nor false",
            "",
        ),
        (
            "derived: {x: n}\nrules: [{refuse: x > 9, because: a}, {refuse: 8 / x > 9, because: b}]",
            "rules[1]",
            "division",
            "n = 0",
        ),
        ("job: {cores: 1 if level == 1 else level * 2}", "job.cores", "'auto' is not a number", "level = auto"),
    ],
)
def test_an_expression_without_an_answer_is_an_error_of_the_study(tmp_path, more, place, says, point):
    text = EXPRESSIONS.replace("{n}'", "{n} {level}'") + more + "\n"
    path = written(tmp_path, text)
    (told,) = problems(path)
    where = text[: text.index(re.split(r"[.\[]", place)[0] + ":")].count("\n") + 1
    assert told.startswith(f"{path}:{where}: {place}")
    assert says in told
    assert not point or f"(at {point})" in told
    with pytest.raises(StudyError):
        run(["tune", str(path), "--out", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "more",
    [
        "rules: [{refuse: n == 0, because: none}, {refuse: 8 / n > 9, because: b}]",  # not asked there
        "derived: {x: 8 / n if n > 0 else 0}",
        "rules: [{refuse: level == 'auto' or level > 3, because: b}]",
    ],
)
def test_an_expression_that_avoids_the_question_is_right(tmp_path, more):
    text = EXPRESSIONS.replace("{n}'", "{n} {level}'") + more + "\n"
    assert check_study(written(tmp_path, text)).study.name == "s"
