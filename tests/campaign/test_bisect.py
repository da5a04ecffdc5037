"""`ci bisect`: a planted slow commit of a real C program, builds that fail, ends that are not what they seem."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ridgeline.campaign.assembly import assemble_campaign, assemble_folder
from ridgeline.campaign.check import check_study
from ridgeline.campaign.engine import Campaign, Interrupted
from ridgeline.campaign.kinds.bisect import BisectVerdict, bisect_question
from ridgeline.campaign.status import CampaignStatus, read_status
from ridgeline.errors import ExitCode, InputError, NothingFound
from ridgeline.study.folder import StudyFolder
from tests.command_line import ridgeline

# a sieve that counts its own steps: the count is its 'time', the same on every machine
SIEVE = """\
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int main(int argc, char **argv) {
    int limit = argc > 1 ? atoi(argv[1]) : 1000;
    long steps = 0;
    char *composite = calloc(limit + 1, 1);
    for (int i = 2; i <= limit; i++) {
        if (composite[i]) continue;
        for (long j = FIRST; j <= limit; j += i) { composite[j] = 1; steps++; }
    }
    printf("steps %ld\\n", steps);
    return 0;
}
"""
FAST, SLOW = "(long)i * i", "2L * i"
COMMITS = 10
SLOW_FROM, BROKEN = 6, 4  # which commits, from 0: marks from 2i on from here; does not compile

STUDY = """\
version: 1
name: sieve
builds:
  make: ['git -C REPO archive {commit} | tar x', 'gcc -O1 -o sieve sieve.c']
  keep: [sieve]
workload: {kind: command, run: './sieve 5000', metrics: {steps: {regex: 'steps (.*)'}}}
space: {commit: [COMMITS]}
baseline: {commit: FIRST}
goal: {minimize: steps}
"""


def git(repo: Path, *words: str) -> str:
    command = ["git", "-C", str(repo), "-c", "user.name=a", "-c", "user.email=a@b", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=600).stdout.strip()


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A repository with a planted slow commit and one that does not compile."""
    repo = tmp_path_factory.mktemp("repo")
    git(repo, "init", "-q")
    commits = []
    for number in range(COMMITS):
        source = SIEVE.replace("FIRST", SLOW if number >= SLOW_FROM else FAST)
        source = source if number != BROKEN else source.replace("return 0;", "return 0")
        (repo / "sieve.c").write_text(f"{source}// release {number}\n")
        git(repo, "add", "sieve.c")
        git(repo, "commit", "-q", "-m", f"change {number}")
        commits.append(git(repo, "rev-parse", "--short=10", "HEAD"))
    return repo, commits


def written(home: Path, history: tuple[Path, list[str]]) -> Path:
    repo, commits = history
    names = ", ".join(f"'{commit}'" for commit in commits)
    text = STUDY.replace("REPO", str(repo)).replace("COMMITS", names).replace("FIRST", f"'{commits[0]}'")
    (home / "study.yaml").write_text(text)
    return home / "study.yaml"


def test_the_slow_commit_of_a_c_program_is_named(tmp_path: Path, history: tuple[Path, list[str]]) -> None:
    written(tmp_path, history)
    commits = history[1]
    done = ridgeline("ci", "bisect", "study.yaml", "--over", "commit", cwd=tmp_path)
    assert done.returncode == ExitCode.DONE, done.stderr
    assert f"commit {commits[SLOW_FROM]} is " in done.stdout and f"slower than {commits[SLOW_FROM - 1]}" in done.stdout
    assert f"git log --stat {commits[SLOW_FROM - 1]}..{commits[SLOW_FROM]}" in done.stdout
    assert "diagnose --compare" in done.stdout
    now = read_status(tmp_path / "studies" / "sieve-bisect-commit")
    assert now.answer.facts["bisect"]["changes"][0]["probability"] > 0.95
    page = (now.history.root / "report.html").read_text()
    assert "By commit" in page and f"slower from {commits[SLOW_FROM]}" in page and "What differs" in page
    assert "perfect scaling" not in page and "Block by block" not in page and "Every knob" not in page


# histories made of a number for each version

NUMBERS = """\
version: 1
name: numbers
workload:
  kind: command
  run: 'set -- VALUES; shift {v}; test $1 != x && echo work $1'
  metrics: {work: {regex: 'work (.*)'}}
space: {v: [ALL]}
baseline: {v: 0}
goal: {minimize: work}
"""


def numbers(home: Path, *values: object) -> Path:
    text = NUMBERS.replace("VALUES", " ".join(map(str, values))).replace("ALL", ", ".join(map(str, range(len(values)))))
    (home / "study.yaml").write_text(text)
    return home / "study.yaml"


def finished(
    home: Path, stop: Callable[[Campaign], bool] = lambda campaign: False, **options: object
) -> CampaignStatus:
    found = check_study(home / "study.yaml")
    asked = {"good": None, "bad": None, "slower": 0.03, "most_runs": 400, **options}
    question = bisect_question(found, "v", "baseline", **asked)  # type: ignore[arg-type]
    folder = assemble_folder(found, home / "out", "numbers")
    with assemble_campaign(folder, question) as running:
        running.stop_requested = lambda: stop(running)
        try:
            running.run()
        except Interrupted:
            pass
    return read_status(home / "out")


def verdict_of(now: CampaignStatus) -> BisectVerdict:
    assert now.history.verdict is not None
    verdict = now.question.verdict_from(now.history.verdict)
    assert isinstance(verdict, BisectVerdict)
    return verdict


def test_versions_that_do_not_run_are_skipped_and_named_beside_the_change(tmp_path: Path) -> None:
    numbers(tmp_path, 100, 100, 100, "x", "x", 110, 110, 110)
    found = verdict_of(finished(tmp_path))
    (change,) = found.changes
    assert (change.before, change.after, change.skipped) == (2, 5, (3, 4))
    assert "or one of those between them that do not run: 3, 4" in found.headline


def test_every_block_is_run_with_the_pair_that_it_was_begun_with(tmp_path: Path) -> None:
    """Whatever the runs in it took: what they cost must not change the choice half-way."""
    numbers(tmp_path, *[100] * 9, *[104] * 7)
    now = finished(tmp_path)
    blocks: dict[int, list[object]] = {}
    for trial in now.history.trials.values():
        if trial.block:
            blocks.setdefault(trial.block, []).append(trial.point["v"])
    for order in blocks.values():
        assert order == order[::-1] and len(set(order)) == 2, "A B B A"


def test_a_slow_stretch_that_was_mended_is_two_changes(tmp_path: Path) -> None:
    numbers(tmp_path, 100, 100, 120, 120, 120, 108, 108, 108)
    found = verdict_of(finished(tmp_path))
    assert [(change.before, change.after) for change in found.changes] == [(1, 2), (4, 5)]
    assert "is 20.0% slower" in found.headline and "is 10.0% faster" in found.headline


@pytest.mark.parametrize(
    ("values", "conclusion", "says"),
    [
        ((100, 100, 100), "not-reproduced", "not reproduced here: 2 against 0"),
        ((100, 100, 50), "not-reproduced", "2 is faster: --good 2 --bad 0 finds where that came from"),
        ((100, 100, 80), "not-reproduced", "slowdown -20.0%"),
        ((100, 100, "x"), "nothing-passed", "the bad end, v 2, does not run"),
        ((100, 0, 110), "unresolved", "work is not above 0 in every run"),
    ],
)
def test_histories_without_an_answer_say_why(
    tmp_path: Path, values: tuple[object, ...], conclusion: str, says: str
) -> None:
    numbers(tmp_path, *values)
    now = finished(tmp_path)
    assert (now.answer.conclusion, now.answer.undecided) == (conclusion, conclusion == "unresolved")
    assert says in now.answer.headline and now.answer.lacks
    assert len(now.history.trials) < 40, "what cannot be answered is found out early"


def test_runs_that_end_first_leave_it_unresolved_with_what_is_known(tmp_path: Path) -> None:
    numbers(tmp_path, *[100] * 8, *[110] * 8)
    now = finished(tmp_path, most_runs=9)
    assert now.answer.undecided and "not resolved after" in now.answer.headline
    assert "the change lies between" in now.answer.headline


def test_a_stopped_bisection_goes_on_to_the_same_pair(tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    values = [100] * 5 + [105] * 7
    numbers(tmp_path / "whole", *values)
    whole = verdict_of(finished(tmp_path / "whole"))
    numbers(tmp_path, *values)
    stopped = finished(tmp_path, stop=lambda campaign: len(campaign.history.runs) >= 6)
    assert stopped.history.verdict is None
    with assemble_campaign(StudyFolder.open(tmp_path / "out")) as again:
        again.run()
    found = verdict_of(read_status(tmp_path / "out"))
    assert [(c.before, c.after) for c in found.changes] == [(c.before, c.after) for c in whole.changes] == [(4, 5)]
    assert json.loads(json.dumps(found.details()))["skipped"] == {}


@pytest.mark.parametrize(
    ("space", "options", "says"),
    [
        ("[0]", {}, "one value has nothing to be compared with"),
        ("{from: 0.0, to: 1.0}", {}, "is a range; list its values"),
        ("[0, 1, 2]", {"good": "7"}, "--good 7: not a value of v"),
        ("[0, 1, 2]", {"good": "1", "bad": "1"}, "one value has nothing to be compared with"),
    ],
)
def test_an_axis_that_is_none_is_refused_before_anything_runs(
    tmp_path: Path, space: str, options: dict[str, str], says: str
) -> None:
    path = numbers(tmp_path, 1, 1, 1)
    path.write_text(path.read_text().replace("[0, 1, 2]", space))
    with pytest.raises(InputError, match=says):
        finished(tmp_path, **options)
    assert not (tmp_path / "out").exists()


def test_a_history_of_which_nothing_runs_says_so_and_keeps_what_it_tried(tmp_path: Path) -> None:
    numbers(tmp_path, "x", "x", "x")
    with pytest.raises(NothingFound, match="the baseline itself did not pass"):
        finished(tmp_path)
    assert read_status(tmp_path / "out").history.runs, "resume goes on from here once it is mended"


def test_packages_of_the_two_are_compared_and_the_hint_can_be_pasted(tmp_path: Path) -> None:
    home = tmp_path / "my work"
    home.mkdir()
    study = numbers(home, 100, 100, 130, 130)
    recorded = 'printf "torch==2.%s\\nnumpy==2.1\\n" $(( {v} / 2 )) > packages; set --'
    study.write_text(study.read_text().replace("'set --", f"'{recorded}"))
    now = finished(home)
    shown = now.exhibits
    packages = next(table for table in shown.tables if table.title == "Packages that differ")
    assert packages.rows == (("torch", "2.0", "2.1"),) and packages.notes == ("1 other package the same",)
    words = shlex.split(next(note for note in shown.notes if "diagnose --compare" in note).partition("ridgeline ")[2])
    assert words[:2] == ["diagnose", "--compare"] and all(Path(word).is_file() for word in words[2:]) and words[3:]
