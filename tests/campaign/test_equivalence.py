"""A campaign that may end in a null result: which settings it compares, when it stops, and what it says then."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ridgeline.campaign.confirmation import ConfirmationVerdict, equivalence_table
from ridgeline.campaign.kinds.search import SearchQuestion
from ridgeline.errors import StudyError
from ridgeline.records.answer import Conclusion
from ridgeline.records.space import Settings
from ridgeline.records.study import Budget, ConfirmStage, SearchStage, Study
from ridgeline.records.trial import Stage
from ridgeline.study.history import read_history
from ridgeline.study.study_file import read_study_file
from ridgeline.testing import ScriptedAnswer
from tests.campaign.harness import campaign, study


def null_study(folder: Path, blocks: int = 12) -> Study:
    plain = study(
        folder,
        budget=Budget(trials=6),
        search=SearchStage(sampler="grid", sentinel_every=0),
        confirm=ConfirmStage(blocks=blocks, warmup="never"),
        equivalent_within=0.015,
    )
    return SearchQuestion().applied_to(plain)


def noisy(seed: int, noise: float, effect: Callable[[Settings], float]) -> Callable[[Settings], ScriptedAnswer]:
    rng = random.Random(seed)
    return lambda settings: ScriptedAnswer({"rate": 100.0 * (1 + effect(settings)) * (1 + rng.gauss(0, noise))})


def test_settings_that_make_no_difference_end_the_campaign_early(tmp_path: Path) -> None:
    run = campaign(tmp_path, null_study(tmp_path), noisy(1, 0.002, lambda settings: 0.0))
    verdict = run.run()
    assert isinstance(verdict, ConfirmationVerdict)
    assert verdict.conclusion == Conclusion.EQUIVALENT
    assert verdict.headline.startswith(
        "none of these 6 settings differs from the baseline by more than 1.5% (95%, corrected for 6 comparisons); "
        "6 blocks"
    )
    assert "node-hours" in verdict.headline
    assert {run.history.trials[r.trial].block for r in run.history.runs.values()} == {None, *range(6)}, "of 12 planned"


def test_it_reads_back_from_the_journal_and_every_face_says_it(tmp_path: Path) -> None:
    asked = null_study(tmp_path)
    run = campaign(tmp_path, asked, noisy(1, 0.002, lambda settings: 0.0))
    verdict = run.run()
    history = read_history(tmp_path)
    assert history.verdict is not None
    again = ConfirmationVerdict.from_line(history.verdict)
    assert isinstance(verdict, ConfirmationVerdict)
    assert again.equivalence == verdict.equivalence
    answer = SearchQuestion().answer(asked, history)
    assert answer.keep
    assert answer.headline == f"{verdict.headline}; keep the baseline"
    table = SearchQuestion().exhibits(asked, history).tables[-1]
    assert table.title == "Equivalence"
    assert [row[3] for row in table.rows] == ["within 1.5%"] * 6
    assert "are ruled out for each of them" in table.notes[-1]


def test_a_worse_setting_is_named_and_the_others_still_count(tmp_path: Path) -> None:
    asked = null_study(tmp_path)
    run = campaign(tmp_path, asked, noisy(2, 0.002, lambda s: -0.05 if s["y"] == 2 else 0.0))
    verdict = run.run()
    assert isinstance(verdict, ConfirmationVerdict)
    assert verdict.conclusion != Conclusion.EQUIVALENT
    worse = sum(t.point["y"] == 2 for t in run.history.trials.values() if t.stage is Stage.SEARCH)
    assert worse
    assert f"{6 - worse} of 6 settings within 1.5% of the baseline" in verdict.headline
    assert f"{worse} worse" in verdict.headline
    rows = equivalence_table(asked, run.history, verdict).rows
    assert sum(row[3] == "worse" for row in rows) == worse


def test_noise_leaves_them_undecided_and_says_what_would_decide(tmp_path: Path) -> None:
    run = campaign(tmp_path, null_study(tmp_path, blocks=3), noisy(3, 0.02, lambda settings: 0.0))
    verdict = run.run()
    assert verdict.conclusion not in (Conclusion.EQUIVALENT, Conclusion.KEEP_BASELINE)
    assert "undecided" in verdict.headline


def test_a_better_setting_is_still_the_answer(tmp_path: Path) -> None:
    run = campaign(tmp_path, null_study(tmp_path), noisy(4, 0.002, lambda s: 0.05 if s["x"] == 0 else 0.0))
    verdict = run.run()
    assert isinstance(verdict, ConfirmationVerdict)
    # the baseline has x = 0 as well, so all others are worse by 5% or as good
    assert verdict.winner is None
    better = campaign(tmp_path / "b", null_study(tmp_path), noisy(4, 0.002, lambda s: 0.05 if s["y"] == 1 else 0.0))
    found = better.run()
    assert isinstance(found, ConfirmationVerdict)
    assert found.winner is not None and found.winner["y"] == 1
    assert found.equivalence is not None


STUDY = """version: 1
name: null-result
workload: {kind: command, run: "echo rate 1", metrics: {rate: {from: stdout, after: rate}}}
space: {x: [1, 2]}
baseline: {x: 1}
goal: {maximize: rate}
"""


def test_the_rule_is_read_from_the_study(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(STUDY + "stop_when: equivalent within 1.5%\n")
    found = read_study_file(path).study
    assert found.equivalent_within == pytest.approx(0.015)
    assert SearchQuestion().applied_to(replace(found, budget=Budget(trials=24))).confirm.top == 24


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ("bored", "'bored' is not a rule to stop by; write `equivalent within 1.5%`"),
        ("equivalent within 90%", "the margin must be above 0% and below 50%"),
        ("equivalent within 1%\nconfirm: {blocks: 2}", "needs a confirmation of at least 3 blocks"),
    ],
)
def test_a_wrong_rule_is_refused_with_its_line(tmp_path: Path, rule: str, says: str) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(f"{STUDY}stop_when: {rule}\n")
    with pytest.raises(StudyError, match=f"study.yaml:7: stop_when: .*{says.replace('(', '.').replace(')', '.')}"):
        read_study_file(path)
