"""`ridgeline ci bisect --between`: the fewest variables of a slow host's environment that make a program slow."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from ridgeline.campaign.check import check_study
from ridgeline.campaign.engine import Campaign, Interrupted
from ridgeline.campaign.kinds.environment import (
    EnvironmentAgenda,
    EnvironmentQuestion,
    EnvironmentVerdict,
    environment_question,
)
from ridgeline.errors import ExitCode, InputError
from ridgeline.records.study import NOT_SET
from ridgeline.testing import ScriptedAnswer
from tests.campaign.harness import campaign, study
from tests.command_line import ridgeline

STUDY = """\
version: 1
name: solver
workload:
  kind: command
  run: 'sh SOLVER {size}'
  metrics: {work: {regex: 'work (.*)'}}
space: {size: [1, 2]}
baseline: {size: 1}
goal: {minimize: work}
"""
SOLVER = """\
work=1000
[ -n "$OMP_NUM_THREADS" ] || work=1600
echo work $work
"""
GOOD = "HOME=/home/a\nLD_BIND_NOW=1\nOMP_NUM_THREADS=16\nexport OMP_PROC_BIND='close'\nsize=1\nMKL_DYNAMIC=FALSE\n"
BAD = "HOME=/home/b\nOMP_PROC_BIND=spread\nMKL_DYNAMIC=TRUE\nMALLOC_ARENA_MAX=2\nsize=1\n"
BAD += "HF_TOKEN=hf_secret0123456789abcdef\n"


def written(folder: Path) -> Path:
    (folder / "solver.sh").write_text(SOLVER)
    (folder / "study.yaml").write_text(STUDY.replace("SOLVER", str(folder / "solver.sh")))
    (folder / "good.env").write_text(GOOD)
    (folder / "bad.env").write_text(BAD)
    return folder


def asked(folder: Path) -> EnvironmentQuestion:
    found = check_study(folder / "study.yaml")
    return environment_question(found, folder / "good.env", folder / "bad.env", "baseline", 0.03, 400)


def test_a_missing_variable_is_named_and_the_others_are_not(tmp_path: Path) -> None:
    home = written(tmp_path)
    words = ("ci", "bisect", "study.yaml", "--between", "good.env", "bad.env", "--json")
    done = ridgeline(*words, cwd=home)
    assert done.returncode == ExitCode.DONE, done.stderr
    answer = json.loads(done.stdout)
    assert answer["environment"]["needed"] == ["OMP_NUM_THREADS"]
    assert "OMP_NUM_THREADS not set (good: 16) makes it slow, of 5 differences" in answer["headline"]
    again = ridgeline(*words, cwd=home)
    assert json.loads(again.stdout)["headline"] == answer["headline"], "asked again, it does not run again"
    everything = "".join(path.read_text(errors="replace") for path in (home / "studies").rglob("*") if path.is_file())
    assert "hf_secret0123456789abcdef" not in everything


def test_what_cannot_be_a_cause_and_what_must_not_be_kept_is_left_out(tmp_path: Path) -> None:
    found = asked(written(tmp_path))
    assert list(found.good) == ["LD_BIND_NOW", "MALLOC_ARENA_MAX", "MKL_DYNAMIC", "OMP_NUM_THREADS", "OMP_PROC_BIND"]
    assert found.good["OMP_PROC_BIND"] == "close", "as `export -p` writes it"
    assert found.bad["OMP_NUM_THREADS"] == NOT_SET
    assert list(found.left_out) == ["HF_TOKEN (looks like a secret)", "HOME"]
    (tmp_path / "bad.env").write_text(BAD.replace("size=1", "size=2"))
    assert (asked(tmp_path).good["size"], asked(tmp_path).bad["size"]) == (1, 2), "a knob of the study is one here too"


@pytest.mark.parametrize(
    ("good", "bad", "says"),
    [
        (GOOD, GOOD.replace("/home/a", "/home/b"), "do not differ in anything that can be tried; left out .*HOME"),
        (GOOD, "no variables here\n", "bad.env: holds no variable; write it on that host: env > bad.env"),
        (GOOD, None, "bad.env: cannot be read .*; write it on that host: env > bad.env"),
    ],
)
def test_files_that_say_nothing_are_refused(tmp_path: Path, good: str, bad: str | None, says: str) -> None:
    written(tmp_path)
    (tmp_path / "good.env").write_text(good)
    (tmp_path / "bad.env").unlink()
    if bad is not None:
        (tmp_path / "bad.env").write_text(bad)
    with pytest.raises(InputError, match=says):
        asked(tmp_path)


NAMES = "ABCDEFGH"


def question(most_runs: int = 2000) -> EnvironmentQuestion:
    good = dict.fromkeys(NAMES, "good")
    return EnvironmentQuestion({"x": 0, "y": 0}, good, dict.fromkeys(NAMES, "bad"), list(NAMES), most_runs=most_runs)


def searched(
    folder: Path, slow: Callable[[set[str]], float], noise: float = 0.0, stop_after: int | None = None
) -> tuple[EnvironmentVerdict | None, Campaign]:
    rng = random.Random(1)

    def answer(settings: Mapping[str, object]) -> ScriptedAnswer:
        bad = {name for name in NAMES if settings[name] == "bad"}
        return ScriptedAnswer({"rate": 100.0 / slow(bad) * (1 + rng.gauss(0, noise))})

    asks = question()
    asked_of = asks.applied_to(study(folder))
    run = campaign(folder, asked_of, answer)
    run.question, run.agenda = asks, EnvironmentAgenda(asked_of, run.history, run.ledger, asks)
    if stop_after is not None:
        run.stop_requested = lambda: len(run.history.runs) >= stop_after
    try:
        return run.run(), run  # type: ignore[return-value]
    except Interrupted:
        return None, run


@pytest.mark.parametrize("noise", [0.0, 0.01])
@pytest.mark.parametrize(
    ("needed", "slow"),
    [
        ("D", lambda bad: 1.3 if "D" in bad else 1.0),
        ("CG", lambda bad: 1.3 if {"C", "G"} <= bad else 1.0),  # neither of them alone
        ("BF", lambda bad: 1 + 0.2 * ("B" in bad) + 0.2 * ("F" in bad)),  # each of them
        ("ADH", lambda bad: 1.3 if {"A", "D", "H"} <= bad else 1.0),
    ],
)
def test_the_fewest_variables_that_make_it_slow(
    tmp_path: Path, needed: str, slow: Callable[[set[str]], float], noise: float
) -> None:
    verdict, _ = searched(tmp_path, slow, noise)
    assert verdict is not None and verdict.conclusion == "found"
    assert sorted(verdict.needed) == list(needed)


def test_environments_that_do_not_differ_say_so(tmp_path: Path) -> None:
    verdict, _ = searched(tmp_path, lambda bad: 1.0)
    assert verdict is not None and verdict.conclusion == "not-reproduced"
    assert "3% was looked for" in verdict.headline


def test_a_stopped_search_goes_on_to_the_same_answer(tmp_path: Path) -> None:
    def slow(bad: set[str]) -> float:
        return 1.3 if {"C", "G"} <= bad else 1.0

    whole, undisturbed = searched(tmp_path / "whole", slow)
    assert whole is not None
    for stop_after in (2, 9):
        folder = tmp_path / str(stop_after)
        assert searched(folder, slow, stop_after=stop_after)[0] is None
        resumed, run = searched(folder, slow)
        assert resumed is not None and resumed.needed == whole.needed
        assert [t.key for t in run.history.trials.values()][:8] == [t.key for t in undisturbed.history.trials.values()][
            :8
        ]
