"""What every kind of campaign shows before anything has run, and how often the baseline runs first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ridgeline.campaign.check import check_study
from ridgeline.campaign.kinds.base import CampaignQuestion
from ridgeline.campaign.kinds.compare import ComparisonQuestion
from ridgeline.records.answer import Answer, Progress
from ridgeline.records.exhibit import Exhibits
from ridgeline.records.study import BaselineStage, ConfirmStage, SearchStage
from ridgeline.records.trial import Stage
from ridgeline.study.history import History
from ridgeline.testing import ScriptedAnswer
from tests.campaign.harness import campaign, study
from tests.campaign.test_kinds import QUESTIONS, STUDY, finished


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.kind)
def test_every_kind_can_be_shown_before_anything_ran(tmp_path: Path, question: CampaignQuestion) -> None:
    (tmp_path / "study.yaml").write_text(STUDY)
    asked = question.applied_to(check_study(tmp_path / "study.yaml").study)
    history = History(tmp_path)
    answer = question.answer(asked, history)
    assert isinstance(answer, Answer) and answer.conclusion is None and not answer.confirmed
    assert isinstance(question.progress(asked, history), Progress)
    assert isinstance(question.exhibits(asked, history), Exhibits)


@pytest.mark.parametrize("repeats", [1, 2, 5])
def test_the_baseline_runs_as_often_as_the_study_says_before_anything_else(tmp_path: Path, repeats: int) -> None:
    asked = study(
        tmp_path,
        baseline_stage=BaselineStage(repeats),
        search=SearchStage("random", seed=1, sentinel_every=0),
        confirm=ConfirmStage(top=0),
    )
    found = campaign(tmp_path, asked)
    found.run()
    stages = [trial.stage for trial in found.history.trials.values()]
    assert stages[:repeats] == [Stage.BASELINE] * repeats and Stage.BASELINE not in stages[repeats:]


def test_of_a_baseline_that_failed_at_first_only_the_runs_after_count(tmp_path: Path) -> None:
    asked = study(
        tmp_path,
        baseline_stage=BaselineStage(2),
        search=SearchStage("random", seed=1, sentinel_every=0),
        confirm=ConfirmStage(top=0),
    )
    broken = [True]

    def answered(settings: Any) -> ScriptedAnswer:
        return ScriptedAnswer({"rate": 100.0}, exit_code=int(broken[0]))

    with pytest.raises(Exception, match="the baseline itself did not pass"):
        campaign(tmp_path, asked, answered).run()
    broken[0] = False
    again = campaign(tmp_path, asked, answered)
    again.run()
    assert again.history.count(Stage.BASELINE) == 3, "the one that failed, and two more"


def test_a_comparison_shows_both_settings_and_what_they_measured(tmp_path: Path) -> None:
    status = finished(tmp_path, ComparisonQuestion({"x": 0, "mode": "plain"}, {"x": 3, "mode": "plain"}, 3))
    (table, *_) = status.exhibits.tables
    assert [row[0] for row in table.rows] == ["x", "mode", "rate"]
    assert table.rows[0][1:] == ("0", "3") and table.rows[-1][1:] == ("100", "103")
