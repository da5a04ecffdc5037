"""A campaign as slides: what each says, and that each fits."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from ridgeline.campaign.status import CampaignStatus, answer_on_paper, read_status_as_far
from ridgeline.cli.main import run
from ridgeline.errors import InputError
from ridgeline.records.outcome import Kind, Outcome
from ridgeline.report.sections import Findings
from ridgeline.report.slides import deck, next_steps, slides
from ridgeline.study.history import read_history
from ridgeline.testing import ScriptedAnswer
from tests.browser import CHROMIUM
from tests.campaign.harness import campaign, study

ROOT = Path(__file__).parents[2]
H200 = ROOT / "examples/05-sglang-h200/results"
SAMPLES = ROOT / "tests/samples/study-folders"


def made(folder: Path) -> dict[str, str]:
    """Each slide's title, by its key."""
    now, notes = read_status_as_far(folder)
    return {s.key: s.title for s in slides(Findings(now.study, now.history, answer_on_paper(now), now.exhibits, notes))}


def text_of(folder: Path) -> str:
    now, notes = read_status_as_far(folder)
    return b"".join(deck(Findings(now.study, now.history, answer_on_paper(now), now.exhibits, notes))).decode()


def test_a_search_is_told_from_the_question_to_the_cost() -> None:
    found = made(H200 / "llama-8b")
    assert [*found] == ["question", "method", "search", "changes", "proof", "failures", "next", "cost", "use"]
    assert found["question"].endswith("?")
    assert "1.13x" in found["proof"]
    assert re.search(r"\d+ of \d+ runs", found["failures"])


@pytest.mark.parametrize("name", ["compare-finished", "edge-finished", "scale-finished", "twin-killed", "search-lost"])
def test_every_kind_of_campaign_and_an_unfinished_one_has_slides(name: str) -> None:
    found = made(SAMPLES / name)
    assert {"question", "method", "cost"} <= found.keys()
    assert all(title and len(title) < 200 for title in found.values())


def test_a_setting_that_did_not_hold_is_not_called_confirmed(tmp_path: Path) -> None:
    asked = study(tmp_path)
    ran = campaign(tmp_path, asked, lambda settings: ScriptedAnswer({"rate": 100.0}))
    ran.run()
    now = CampaignStatus(ran.question, asked, read_history(tmp_path))
    titles = {s.key: s.title for s in slides(Findings(asked, now.history, now.answer, now.exhibits))}
    assert "confirmed" not in titles["method"] and "nothing better" in titles["search"]


def test_it_is_one_file_that_needs_nothing_and_leads_on_without_scripts() -> None:
    text = text_of(H200 / "llama-8b")
    assert not re.search(r"(src|href)='?https?:", text)
    keys = re.findall(r"<section id=([\w-]+) class=slide", text)
    assert all(f"href='#{key}'" in text for key in keys)
    assert text.count("<h1") == 1


def test_what_to_try_next_names_the_open_questions(tmp_path: Path) -> None:
    """A knob at the end of its range, failures with a remedy, and what nobody measured."""
    asked = study(tmp_path)
    ran = campaign(tmp_path, asked, lambda settings: ScriptedAnswer({"rate": 100.0 + 10 * settings["x"]}))
    ran.run()
    now = CampaignStatus(ran.question, asked, read_history(tmp_path))
    now.history.runs[4] = replace(
        now.history.runs[4], outcome=Outcome(Kind.OOM_RUN, "no memory", remedy="lower the batch")
    )
    said = next_steps(Findings(asked, now.history, now.answer, now.exhibits))
    assert any(line.startswith("At an end of what the study allows: x 9") for line in said), said
    assert any("lower the batch" in line for line in said), said


def test_a_slide_that_fails_says_so_and_the_others_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("nothing to divide by")

    monkeypatch.setattr("ridgeline.report.slides.failure_counts", broken)
    found = made(H200 / "llama-8b")
    assert found["failures"] == "A slide is missing"
    assert {"question", "proof", "use"} <= found.keys()


def test_html_in_a_name_is_text(tmp_path: Path) -> None:
    asked = study(tmp_path, name="<img src=x>", question="<script>alert(1)</script>?")
    ran = campaign(tmp_path, asked)
    ran.run()
    now = CampaignStatus(ran.question, asked, read_history(tmp_path))
    text = b"".join(deck(Findings(asked, now.history, now.answer, now.exhibits))).decode()
    assert "<img" not in text and "<script>alert" not in text


def test_the_verb_writes_html_and_by_the_ending_of_its_name_pdf(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "study"
    shutil.copytree(H200 / "llama-8b", folder)
    with pytest.raises(SystemExit) as ended:
        run(["report", str(folder), "--format", "slides"])
    assert ended.value.code == 0
    assert (folder / "slides.html").read_text().startswith("<!doctype html>")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(InputError, match="needs Chromium"):
        run(["report", str(folder), "--format", "slides", "--out", str(tmp_path / "deck.pdf")])


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_a_pdf_has_a_page_for_each_slide(tmp_path: Path) -> None:
    out = tmp_path / "deck.pdf"
    with pytest.raises(SystemExit):
        run(["report", str(H200 / "llama-8b"), "--format", "slides", "--out", str(out)])
    content = out.read_bytes()
    assert len(re.findall(rb"/Type\s*/Page\b", content)) == len(made(H200 / "llama-8b"))
    assert re.search(rb"/MediaBox\s*\[0 0 960[.0-9]* 540", content), "16:9"
