"""One setting over the values of a knob: the order of runs, what is left out and why, and going on after a stop."""

from __future__ import annotations

from pathlib import Path

import pytest

from ridgeline.campaign.assembly import assemble_campaign, assemble_folder
from ridgeline.campaign.check import check_study
from ridgeline.campaign.controller import Campaign, Interrupted
from ridgeline.campaign.kinds.scale import ScalingQuestion, ScalingVerdict, scaling_question
from ridgeline.campaign.status import read_answer, read_status
from ridgeline.cli.text.answer import answer_lines
from ridgeline.errors import InputError, NothingFound
from ridgeline.records.trial import Stage
from ridgeline.study.folder import StudyFolder

STUDY = """\
version: 1
name: scaled
workload:
  kind: command
  run: TEST
  env: {MODE: '{mode}', RANKS: '{ranks}'}
  metrics: {seconds: {regex: 'took (\\S+)'}}
space:
  ranks: [1, 2, 4, 8]
  mode: [plain, other]
rules:
  - {refuse: ranks > 4, because: a node has 4 cores}
goal: {minimize: seconds}
baseline: {ranks: 2, mode: plain}
budget: {trials: 1}
job: {limit: 20}
"""
AMDAHL = "echo took $(( 1000 / {ranks} + 1000 ))"  # half of it does not get faster


def write(folder: Path, run: str = AMDAHL, **changes: str) -> Path:
    text = STUDY.replace("TEST", run)
    for old, new in changes.items():
        text = text.replace(old, new)
    (folder / "study.yaml").write_text(text)
    return folder / "study.yaml"


def open_folder(
    study: Path, over: str | None = None, at: str = "baseline", repeats: int = 2
) -> tuple[StudyFolder, ScalingQuestion]:
    found = check_study(study)
    question = scaling_question(found, over, at, repeats)
    return assemble_folder(found, study.parent / "out", "scale"), question


def scale(
    study: Path, over: str | None = None, at: str = "baseline", repeats: int = 2
) -> tuple[ScalingVerdict, Campaign]:
    with assemble_campaign(*open_folder(study, over, at, repeats)) as campaign:
        verdict = campaign.run()
        assert isinstance(verdict, ScalingVerdict)
        return verdict, campaign


def sizes(campaign: Campaign) -> list[object]:
    return [campaign.history.trials[run.trial].point["ranks"] for run in campaign.history.runs.values()]


def test_every_size_is_run_there_and_back_after_a_warm_up_and_judged(tmp_path: Path) -> None:
    verdict, campaign = scale(write(tmp_path), repeats=3)
    warm, *runs = sizes(campaign)
    assert campaign.history.trials[1].stage is Stage.WARM_UP and warm == 1, "the first run, which is cold, is no size's"
    assert sorted(runs[:3]) == sorted(runs[6:]) == [1, 2, 4] and runs[3:6] == runs[2::-1]
    assert [step.runs for step in verdict.steps] == [3, 3, 3]
    assert verdict.conclusion == "scaling"
    assert verdict.over == "ranks"
    assert verdict.setting == {"mode": "plain"}
    assert [step.speedup for step in verdict.steps] == pytest.approx([1, 2000 / 1500, 2000 / 1250])
    assert [step.efficiency for step in verdict.steps] == pytest.approx([1, 2 / 3, 0.4])
    assert verdict.pays_to == 1
    assert verdict.law.serial == pytest.approx(0.5, abs=0.01)
    assert verdict.failed == {"8": "a node has 4 cores"}
    text = "\n".join(answer_lines(*read_answer(tmp_path / "out")))
    assert "no result at 8 ranks: a node has 4 cores" in text
    assert "stops paying after 1 rank" in text


def test_a_study_may_do_without_the_warm_up(tmp_path: Path) -> None:
    study = write(tmp_path)
    study.write_text(study.read_text() + "confirm: {warmup: never}\n")
    _, campaign = scale(study)
    assert len(sizes(campaign)) == 6 and not campaign.history.count(Stage.WARM_UP)


def test_another_setting_and_another_knob(tmp_path: Path) -> None:
    run = "test {mode} = other && echo took $(( 1000 / {ranks} ))"
    verdict, _ = scale(write(tmp_path, run), over="ranks", at="mode=other")
    assert verdict.setting == {"mode": "other"}
    assert verdict.pays_to is None
    assert "still pays at 4 ranks" in verdict.headline


def test_a_size_that_fails_is_run_once_and_named(tmp_path: Path) -> None:
    verdict, campaign = scale(write(tmp_path, f"test {{ranks}} -lt 4 || exit 3; {AMDAHL}"))
    assert sizes(campaign).count(4) == 1
    assert [step.size for step in verdict.steps] == [1, 2]
    assert "exit code 3" in verdict.failed["4"]


def test_nothing_is_claimed_when_the_smallest_size_fails(tmp_path: Path) -> None:
    with pytest.raises(NothingFound, match="the baseline itself did not pass"):
        scale(write(tmp_path, "exit 3"))


def test_one_size_is_no_scaling(tmp_path: Path) -> None:
    verdict, _ = scale(write(tmp_path, f"test {{ranks}} = 1 || exit 3; {AMDAHL}"))
    assert verdict.conclusion == "nothing-passed"
    assert "1 passed" in verdict.headline


def test_a_stopped_one_goes_on_where_it_was(tmp_path: Path) -> None:
    folder, question = open_folder(write(tmp_path))
    seen: list[Campaign] = []

    def enough() -> bool:
        return bool(seen) and len(seen[-1].history.runs) >= 2

    with assemble_campaign(folder, question, seen.append, enough) as first, pytest.raises(Interrupted):
        first.run()
    with assemble_campaign(StudyFolder.open(tmp_path / "out")) as second:
        verdict = second.run()
    warm, *runs = sizes(second)
    assert sorted(runs[:3]) == [1, 2, 4] and runs[3:] == runs[2::-1] and warm == 1
    assert verdict.conclusion == "scaling"
    assert read_status(tmp_path / "out").answer.headline == verdict.headline


@pytest.mark.parametrize(
    ("over", "changes", "says"),
    [
        ("rank", {}, "not a knob of the study"),
        ("mode", {}, "has 0 legal whole numbers"),
        (None, {"ranks": "count"}, "name the one to scale with --over"),
        ("ranks", {"ranks > 4": "ranks > 1 and ranks != 2"}, ""),
        ("ranks", {"[1, 2, 4, 8]": "[2, 8]"}, "8: a node has 4 cores"),
    ],
)
def test_what_cannot_be_scaled_is_refused(tmp_path: Path, over: str | None, changes: dict[str, str], says: str) -> None:
    study = write(tmp_path, **changes)
    if not says:
        open_folder(study, over, repeats=1)
        return
    with pytest.raises(InputError, match=says):
        open_folder(study, over, repeats=1)
    assert not (tmp_path / "out").exists()
