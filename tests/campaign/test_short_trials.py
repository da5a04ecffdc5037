"""Most settings run short, those that promise run whole; only whole runs are ranked, confirmed and compared."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from ridgeline.campaign.short_trials import ShortTrials, short_problems, shortened
from ridgeline.records.outcome import Kind
from ridgeline.records.study import Goal
from ridgeline.records.trial import Stage
from ridgeline.study.history import History, read_history
from ridgeline.study.study_file import read_study_file
from tests.command_line import ridgeline

# a short run shows 60% of a whole one's rate; what passed is counted in work done
Direction = Literal["maximize", "minimize"]
STUDY = """\
version: 1
name: shortened
workload:
  kind: command
  run: |
    echo {steps} >> ../../work
    echo "steps {steps}"
    awk 'BEGIN { r = 180 - {x}; if ({steps} < 1000) r = 0.6 * r; print "rate", r }'
  metrics: {rate: {regex: "rate (.*)", unit: steps/s}, done: {regex: "steps (.*)"}}
space: {x: [0, 20, 30, 40, 50, 60, 70, 80]}
derived: {steps: 1000}
goal: {maximize: rate}
guards: [done within 1 of baseline]
baseline: {x: 80}
search: {sampler: grid, short: {steps: 100}}
stages: {baseline: {repeats: 1}}
confirm: {top: 1, blocks: 3, repeats: 1}
"""


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("short")
    (folder / "study.yaml").write_text(STUDY)
    told = ridgeline("tune", "study.yaml", "--out", "out", cwd=folder)
    assert told.returncode == 0, told.stderr
    return folder


def stages(history: History, stage: Stage) -> list[object]:
    return [trial.point["x"] for trial in history.trials.values() if trial.stage is stage]


def test_every_setting_runs_short_and_few_run_whole(tuned: Path) -> None:
    history = read_history(tuned / "out")
    assert stages(history, Stage.SHORT)[0] == 80, "the baseline tells what short means"
    assert stages(history, Stage.SHORT)[1:] == [0, 20, 30, 40, 50, 60, 70]
    whole = stages(history, Stage.SEARCH)
    assert whole == [0], "settings that promise nothing are not run whole"
    assert set(history.outcomes) == {Kind.OK}, "guards hold short runs against the short baseline"


def test_the_answer_comes_of_whole_runs_alone(tuned: Path) -> None:
    found = json.loads(ridgeline("best", "out", "--json", cwd=tuned).stdout)["best"]
    assert found["point"] == {"x": 0} and found["rate"] == pytest.approx(180)
    history = read_history(tuned / "out")
    assert all(trial.stage is not Stage.SHORT for trial, _ in history.ok_runs(*Stage))
    assert ridgeline("study", "verify", "out", cwd=tuned).returncode == 0
    work = [int(line) for line in (tuned / "out" / "work").read_text().split()]
    assert work.count(100) == 8


def test_what_short_means_is_learned(tuned: Path) -> None:
    history = read_history(tuned / "out")
    short = ShortTrials(read_study_file(tuned / "study.yaml").study, history)
    ratio = short.ratio()
    assert ratio is not None and ratio.whole(60.0) == pytest.approx(100.0)
    assert ratio.settings == len(stages(history, Stage.SEARCH)) + 1


def test_a_resumed_campaign_goes_on_alike(tuned: Path, tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(STUDY)
    lines = (tuned / "out" / "journal.jsonl").read_text().splitlines()
    cut = next(i for i, line in enumerate(lines) if '"trial":6' in line.replace(" ", ""))
    shutil.copytree(tuned / "out", tmp_path / "out", symlinks=True)
    (tmp_path / "out" / "journal.jsonl").write_text("\n".join(lines[:cut]) + "\n")
    for folder in (tmp_path / "out" / "runs").iterdir():
        if int(folder.name[:4]) >= 6:
            shutil.rmtree(folder)
    ridgeline("resume", "out", cwd=tmp_path)
    one, other = read_history(tuned / "out"), read_history(tmp_path / "out")
    assert [(t.stage, t.point) for t in one.trials.values()] == [(t.stage, t.point) for t in other.trials.values()]


@pytest.mark.parametrize(
    ("short", "told"),
    [
        ("{stepps: 100}", "neither a derived value nor a number of the workload; name one of steps"),
        ("[100]", "mapping"),
    ],
)
def test_what_cannot_be_shortened_is_refused(tmp_path: Path, short: str, told: str) -> None:
    (tmp_path / "study.yaml").write_text(STUDY.replace("{steps: 100}", short))
    said = ridgeline("check", "study.yaml", cwd=tmp_path)
    assert said.returncode == 2 and told in " ".join(said.stderr.split())


def test_a_baseline_that_does_not_pass_short_says_what_to_change(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(STUDY.replace("done within 1 of baseline", "done == 1000"))
    said = ridgeline("tune", "study.yaml", "--out", "out", cwd=tmp_path)
    told = " ".join(said.stderr.split())
    assert said.returncode == 1 and "passes whole, but not short (steps: 100)" in told and "search.short" in told


def promises(
    direction: Direction, short: dict[str, float], whole: dict[str, float], tried: int = 9, at_least: int = 0
) -> object:
    """The x that is to run whole, where these settings ran short and those whole; `tried` of them in the search."""
    study = read_study_file(Path("examples/04-deepseek-r1-16-gpus/study.yaml")).study
    trials = ShortTrials(replace(study, goal=Goal("rate", direction)), History(Path("/s")))
    trials._short_values = lambda: short  # type: ignore[method-assign]
    trials._whole_values = lambda: whole  # type: ignore[method-assign]
    trials._points = lambda: {key: {"x": key} for key in short}  # type: ignore[method-assign]
    trials._failed_whole = set  # type: ignore[method-assign]
    trials._ran_whole = lambda: {str(n) for n in range(tried)}  # type: ignore[method-assign]
    found = trials.promising(at_least)
    return None if found is None else found[0]["x"]


@pytest.mark.parametrize(("direction", "better", "worse"), [("maximize", 1.2, 0.8), ("minimize", 0.8, 1.2)])
def test_what_may_beat_the_best_runs_whole_in_either_direction(
    direction: Direction, better: float, worse: float
) -> None:
    """The baseline shows 50 short and 100 whole; settings differ by about 5%, as long as nothing else is known."""
    base, whole = {"base": 50.0}, {"base": 100.0}
    assert promises(direction, {**base, "a": 50.0 * worse, "b": 50.0 * better}, whole) == "b", "the better one first"
    assert promises(direction, {**base, "a": 50.0 * worse}, whole) is None
    slightly = 1 + (worse - 1) / 5
    assert promises(direction, {**base, "a": 50.0 * slightly}, whole) == "a", "4% behind, where 5% are uncertain"
    assert promises(direction, {**base, "a": 50.0 * worse}, whole, tried=1, at_least=2) == "a", "some run whole anyway"
    assert promises(direction, {**base, "a": 50.0 * worse}, whole, tried=2, at_least=2) is None


def test_a_number_within_the_workload_s_mappings_can_be_less() -> None:
    study = read_study_file(Path("examples/04-deepseek-r1-16-gpus/study.yaml")).study
    asked = replace(study, search=replace(study.search, short={"traffic.requests": 200}))
    assert not short_problems(asked)
    assert shortened(asked).workload.options["traffic"] == {"dataset": "sharegpt", "requests": 200, "seed": 2025}
    assert shortened(asked).space.derived == study.space.derived
