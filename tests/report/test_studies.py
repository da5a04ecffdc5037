"""Two campaigns of one question side by side."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from ridgeline.campaign.status import CampaignStatus
from ridgeline.cli.campaign.compare_studies import studies_lines
from ridgeline.cli.main import run
from ridgeline.errors import InputError
from ridgeline.records.outcome import Kind, Outcome
from ridgeline.records.study import Goal
from ridgeline.report.markdown import markdown
from ridgeline.report.studies import StudySeen, compare_studies, studies_sections
from ridgeline.study.history import read_history
from ridgeline.testing import ScriptedAnswer
from tests.campaign.harness import campaign, study

H200 = Path(__file__).parents[2] / "examples/05-sglang-h200/results"


def seen(root: Path, name: str, speed: float, **changes: object) -> StudySeen:
    question = study(root, **changes)
    ran = campaign(root, question, lambda settings: ScriptedAnswer({"rate": speed * (100.0 + 10 * settings["x"])}))
    ran.run()
    now = CampaignStatus(ran.question, question, read_history(root))
    return StudySeen(name, question, now.history, now.answer)


def test_a_faster_machine_shows_in_every_setting(tmp_path: Path) -> None:
    found = compare_studies(seen(tmp_path / "old", "old", 1.0), seen(tmp_path / "new", "new", 1.2))
    assert len(found.settings) >= 5
    assert all(one.ratio.ratio == pytest.approx(1.2) for one in found.settings)
    assert found.headline.startswith("new against old: 1.2")
    assert found.headline.endswith("better")
    assert found.as_json()["ratio"] == pytest.approx(1.2)


def test_what_differs_is_listed_and_what_is_equal_is_not(tmp_path: Path) -> None:
    found = compare_studies(seen(tmp_path / "old", "old", 1.0), seen(tmp_path / "new", "new", 1.2))
    differing = {what for what, _, _ in found.differences}
    assert "change" in differing
    assert "baseline" not in differing


def test_a_setting_that_passed_on_one_side_only_is_named(tmp_path: Path) -> None:
    old, new = seen(tmp_path / "old", "old", 1.0), seen(tmp_path / "new", "new", 1.0)
    key = next(t.key for t in new.history.trials.values() if t.stage.value == "search")
    for number, one in list(new.history.runs.items()):
        if new.history.trials[one.trial].key == key:
            new.history.runs[number] = replace(one, outcome=Outcome(Kind.OOM_RUN, "full"))
    found = compare_studies(old, new)
    ((_, before, after),) = found.outcomes
    assert (before, after) == ("ok", "out of memory while running")
    assert [(section.key, section.title) for section in studies_sections(found)] == [
        ("verdict", ""), ("settings", "Settings in both"), ("outcomes", "Passed on one side only"),
        ("differences", "What differs"),
    ]  # fmt: skip


def test_other_goals_are_refused(tmp_path: Path) -> None:
    one, other = seen(tmp_path / "a", "a", 1.0), seen(tmp_path / "b", "b", 1.0, goal=Goal("rate", "minimize"))
    with pytest.raises(InputError, match="same goal"):
        compare_studies(one, other)


def test_it_says_that_the_two_were_not_interleaved(tmp_path: Path) -> None:
    found = compare_studies(seen(tmp_path / "old", "old", 1.0), seen(tmp_path / "new", "new", 1.2))
    lines = list(studies_lines(found))
    assert "did not run interleaved" in " ".join(lines)
    assert all(len(line) <= 80 for line in lines if "->" not in line)
    assert "did not run interleaved" in markdown("t", "", studies_sections(found))


def test_the_verb_prints_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = H200 / "llama-8b", tmp_path / "again"
    shutil.copytree(H200 / "llama-8b-compare", b)
    out = tmp_path / "two.html"
    with pytest.raises(SystemExit) as ended:
        run(["study", "diff", str(a), str(b), "--json", "--out", str(out)])
    assert ended.value.code == 0
    told = json.loads(capsys.readouterr().out)
    assert {row["verdict"] for row in told["settings"]} == {"no detectable difference"}
    assert "<svg" in out.read_text()
