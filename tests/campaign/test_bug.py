"""A failed run as a bug report, and the fewest changes that still fail, found by running it again."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

import ridgeline
from ridgeline.campaign.bug import bug_report, failed_run
from ridgeline.campaign.kinds.shrink import NOT_REPRODUCED, ShrinkQuestion, ShrinkVerdict, shrink, shrink_question
from ridgeline.cli.main import run as command_line
from ridgeline.errors import InputError
from ridgeline.records.space import point_key
from ridgeline.study.history import History, read_history

PROGRAM = """
import sys
a, b, c, d = map(int, sys.argv[1:])
for n in range(40):
    print("step", n, file=sys.stderr)
if a > 1 and d == 4:
    print("api_key=sk-abc123def456ghi", file=sys.stderr)
    print("RuntimeError: tile of 4 with several streams", file=sys.stderr)
    sys.exit(1)
print("rate", 10 + a + b + c + d)
"""
STUDY = """version: 1
name: solver
workload:
  kind: command
  run: python3 solver.py {a} {b} {c} {d}
  files: [solver.py]
  metrics: {rate: {regex: "rate ([0-9]+)"}}
space: {a: [1, 2], b: [0, 1], c: [0, 1], d: [1, 4]}
baseline: {a: 1, b: 0, c: 0, d: 1}
presets: [{a: 2, b: 1, c: 1, d: 4}]
goal: {maximize: rate}
budget: {trials: 1}
confirm: {top: 0}
stages: {baseline: {repeats: 1}}
search: {sentinel_every: 0}
"""


@pytest.mark.parametrize("size", range(1, 7))
def test_shrinking_finds_exactly_what_is_needed(size: int) -> None:
    names = [f"k{at}" for at in range(size)]
    for wanted in itertools.chain.from_iterable(itertools.combinations(names, n) for n in range(1, size + 1)):
        asked: list[Sequence[str]] = []
        known: dict[frozenset[str], bool] = {}
        while True:
            found, part = shrink(names, lambda part, known=known: known.get(frozenset(part)))  # type: ignore[misc]
            if part is None:
                break
            assert frozenset(part) not in known, "nothing is run twice"
            asked.append(part)
            known[frozenset(part)] = set(wanted) <= set(part)
        assert set(found) == set(wanted)
        assert len(asked) <= size * size + size


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("bug")
    (home / "solver.py").write_text(PROGRAM)
    (home / "study.yaml").write_text(STUDY)
    ridgeline.tune(home / "study.yaml", out=home / "out")
    return home / "out"


def failing(folder: Path) -> Path:
    return next(path for path in sorted((folder / "runs").iterdir()) if "a2" in path.name)


def test_the_report_has_what_a_maintainer_asks_for_and_no_secret(folder: Path) -> None:
    text = bug_report(*failed_run(failing(folder)))
    assert "```sh\npython3 solver.py 2 1 1 4\n```" in text
    assert "> RuntimeError: tile of 4 with several streams" in text
    assert "step 39" in text and "step 3\n" not in text, "around the deciding line"
    assert "It ended so in 1 of 1 run" in text
    assert "sk-abc123" not in text and "(hidden)" in text
    assert "- python: " in text
    assert "The baseline passes. Changed from it: a 2, b 1, c 1, d 4." in text


def test_shrink_runs_it_again_with_fewer_changes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command_line_quietly(["study", "bug", str(failing(folder)), "--shrink"])
    shown = capsys.readouterr()
    assert "2 changes of 4 are enough for crash: a 2, d 4" in shown.out
    assert "```sh\npython3 solver.py 2 0 0 4\n```" in shown.out, "the command is the shrunk one"
    beside = folder.parent / f"{folder.name}-shrink-{failing(folder).name[:4]}"
    runs = len(read_history(beside).runs)
    command_line_quietly(["study", "bug", str(failing(folder)), "--shrink"])
    assert len(read_history(beside).runs) == runs, "asked again, it has its answer"


def command_line_quietly(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as left:
        command_line(arguments)
    assert left.value.code in (0, None)


def test_what_earlier_runs_showed_is_not_run_again(folder: Path) -> None:
    now, run = failed_run(failing(folder))
    asked = shrink_question(now.study, now.history, now.history.trials[run.trial])
    assert asked.failure == "crash"
    assert json.dumps(asked.known)
    assert asked.known[now.history.trials[1].key] == "ok"


@pytest.mark.parametrize(
    ("known", "run", "enough"),
    [
        ({}, {"2001", "1004", "2004"}, "2 changes of 4 are enough for crash: a 2, d 4"),
        # a smaller setting failed before, so nothing with b is run
        ({"2014": "crash"}, {"2001", "1004", "2004"}, "2 changes of 4 are enough for crash: a 2, d 4"),
        ({"2004": "crash", "2001": "ok"}, {"1004"}, "2 changes of 4 are enough for crash: a 2, d 4"),
        ({"2004": "crash", "2001": "ok", "1004": "ok"}, set(), "2 changes of 4 are enough for crash: a 2, d 4"),
        # another failure is not this one
        ({"2004": "hang"}, {"2014"}, "3 changes of 4 are enough for crash: a 2, "),
    ],
)
def test_only_what_earlier_runs_do_not_say_is_run(
    folder: Path, tmp_path: Path, known: dict[str, str], run: set[str], enough: str
) -> None:
    def point(digits: str) -> dict[str, int]:
        return dict(zip("abcd", map(int, digits), strict=True))

    asked = ShrinkQuestion(point("2114"), "crash", {point_key(point(at)): ended for at, ended in known.items()})
    verdict, history = shrunk(folder, tmp_path, asked)
    first, second, *others = ("".join(str(t.point[name]) for name in "abcd") for t in history.trials.values())
    assert (first, second) == ("1001", "2114"), "the baseline, then whether it still fails"
    assert run <= set(others) and not set(others) & set(known) and len(set(others)) == len(others)
    assert verdict.headline.startswith(enough)
    if "crash" in known.values():
        assert not [at for at in others if at[1] == "1"], "b was not needed before"


def shrunk(folder: Path, tmp_path: Path, asked: ShrinkQuestion) -> tuple[ShrinkVerdict, History]:
    from ridgeline.campaign.assembly import assemble_campaign, assemble_or_resume
    from ridgeline.campaign.check import check_study

    found = check_study(folder.parent / "study.yaml")
    made, question = assemble_or_resume(found, tmp_path / "out", "out", asked)
    with assemble_campaign(made, question) as campaign:
        verdict = campaign.run()
    assert isinstance(verdict, ShrinkVerdict)
    return verdict, read_history(tmp_path / "out")


def test_a_failure_that_does_not_come_back_is_said_to(folder: Path, tmp_path: Path) -> None:
    """The question claims that a setting failed that passes."""
    verdict, _ = shrunk(folder, tmp_path, ShrinkQuestion({"a": 2, "b": 1, "c": 0, "d": 1}, "crash"))
    assert verdict.conclusion == NOT_REPRODUCED
    assert verdict.headline == "not reproduced: it had ended as crash, and now as ok"


def test_what_is_no_failed_run_is_named(folder: Path) -> None:
    with pytest.raises(InputError, match="is not a run folder; name one of a study's runs, such as"):
        failed_run(folder)
    with pytest.raises(InputError, match="this run passed, so there is nothing to report"):
        failed_run(folder / "runs" / sorted(p.name for p in (folder / "runs").iterdir())[0])
