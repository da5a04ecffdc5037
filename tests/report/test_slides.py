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
from ridgeline.records.answer import Gain, Use
from ridgeline.records.exhibit import EQUIVALENCE, TASK_RULES, TextTable
from ridgeline.records.outcome import Kind, Outcome
from ridgeline.records.trial import Stage
from ridgeline.report.parts import AnswerCard, Bullets, CodeText, Paragraph
from ridgeline.report.sections import Findings, answer_card
from ridgeline.report.slides import Slide, deck, next_steps, slides
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


def test_a_search_is_told_from_the_question_to_the_command() -> None:
    found = made(H200 / "qwen2.5-7b")
    assert [*found] == ["question", "method", "search", "changes", "proof", "failures", "next", "use"]
    assert found["question"].endswith("?")
    assert "1.13x" in found["proof"]
    assert re.search(r"\d+ of \d+ runs", found["failures"])


def test_what_to_try_next_has_a_slide() -> None:
    said = with_tables(H200 / "deepseek-v2-lite")["next"].left[0]
    assert isinstance(said, Bullets)
    assert said.lines[0].startswith("At an end of what the study allows")


def test_the_deck_says_how_often_the_baseline_ran_and_not_how_often_it_was_to_run(tmp_path: Path) -> None:
    asked = study(tmp_path)
    asked = replace(asked, search=replace(asked.search, sentinel_every=3))
    ran = campaign(tmp_path, asked, lambda settings: ScriptedAnswer({"rate": 100.0 + settings["x"]}))
    ran.run()
    now = CampaignStatus(ran.question, asked, read_history(tmp_path))
    again = sum(trial.stage is Stage.SENTINEL for trial in now.history.trials.values())
    found = Findings(asked, now.history, now.answer, now.exhibits)
    text = b"".join(deck(found)).decode()
    assert again > 1 and f"again {again} times during the search" in text and "again every" not in text
    for number in [n for n, trial in now.history.trials.items() if trial.stage is Stage.SENTINEL]:
        now.history.trials[number] = replace(now.history.trials[number], stage=Stage.SEARCH)
    assert "during the search" not in b"".join(deck(found)).decode(), "it never did"


def test_the_limits_stand_on_the_slide_of_the_answer() -> None:
    said = with_tables(H200 / "mistral-nemo-serve")["question"].left[-1]
    assert isinstance(said, Paragraph)
    assert said.text.startswith("Limits: TTFT p95 at most 2000 ms; ITL p95 at most 50 ms; failed_requests == 0")


def test_a_broken_limit_is_in_the_title_of_the_proof() -> None:
    found = with_tables(H200 / "mistral-nemo-serve")
    assert found["search"].title.endswith("requests/s (goodput)")
    assert "over the limit: TTFT p95" in found["proof"].title


def test_what_to_try_next_names_limits_that_are_broken_and_no_slots_beyond_what_is_sent() -> None:
    now, notes = read_status_as_far(H200 / "mistral-nemo-serve")
    found = Findings(now.study, now.history, answer_on_paper(now), now.exhibits, notes)
    said = next_steps(found)
    assert any(
        "is over the limit: TTFT p95" in line and "ridgeline bench URL --find-goodput --slo ttft_p95_ms=2000" in line
        for line in said
    ), said
    assert not [line for line in said if line.startswith("At an end of what the study allows")]
    more = replace(now.study.workload, options={**now.study.workload.options, "concurrency": 1000})
    said = next_steps(replace(found, study=replace(now.study, workload=more)))
    assert [line for line in said if line.startswith("At an end of what the study allows: max_running_requests")]


def test_a_comparison_shows_what_differs_and_each_kind_its_own_question() -> None:
    found = with_tables(H200 / "llama-8b-compare")
    assert found["question"].title.startswith("Is ") and "kind" not in found
    edge = with_tables(SAMPLES / "edge-finished")
    assert edge["question"].title == "How far can mem be raised?"
    assert "failures" not in edge, "its figure shows each of them"
    (varied,) = edge["method"].right
    assert isinstance(varied, TextTable) and [row[0] for row in varied.rows] == ["mem"]


def with_tables(folder: Path, *tables: TextTable) -> dict[str, Slide]:
    now, _ = read_status_as_far(folder)
    found = Findings(now.study, now.history, answer_on_paper(now), replace(now.exhibits, tables=tables))
    return {slide.key: slide for slide in slides(found)}


def test_the_rules_of_a_task_are_a_slide_and_a_broken_one_is_its_title() -> None:
    rows = (
        ("seed 2025", "yes", "study.yaml"),
        ("at most 10m a job", "no", "run 3: 12m"),
        ("journal", "", "3 lines"),
    )
    table = TextTable(TASK_RULES, ("rule", "kept", "evidence"), rows, notes=("signature 37c",))
    slide = with_tables(H200 / "deepseek-v2-lite", table)["rules"]
    assert slide.title == "1 of 2 rules of the task was not kept"
    shown, signature, *_ = slide.left
    assert isinstance(shown, TextTable) and [row[0] for row in shown.rows] == ["at most 10m a job", "seed 2025"]
    assert shown.failed == {0}
    assert isinstance(signature, Paragraph) and signature.text == "Signature 37c"
    kept = with_tables(H200 / "deepseek-v2-lite", replace(table, rows=rows[:1]))["rules"]
    assert kept.title == "The task's 1 rule: all kept"
    assert "rules" not in with_tables(H200 / "deepseek-v2-lite")


def test_a_null_result_lists_each_setting_with_its_decision() -> None:
    head = ("setting", "change", "blocks", "decision", "why")
    rows = tuple((f"x {at}", "+0.1%", "6", "within 1.5%", "") for at in range(9))
    found = with_tables(
        H200 / "deepseek-v2-lite", TextTable(EQUIVALENCE, head, rows, notes=("tests", "above 1.1% ruled out"))
    )
    assert "all of them run again" in found["method"].title
    (table,) = found["proof"].right
    assert isinstance(table, TextTable)
    assert table.head == ("setting", "change", "decision") and table.rows[0] == ("x 0", "+0.1%", "within 1.5%")
    assert table.notes == ("above 1.1% ruled out", "2 more are in the report")


def test_a_command_too_long_for_a_slide_is_written_as_a_script(monkeypatch: pytest.MonkeyPatch) -> None:
    card = answer_card

    def long(found: Findings) -> AnswerCard:
        return replace(card(found), command="\n".join(f"line {at}" for at in range(40)))

    monkeypatch.setattr("ridgeline.report.slides.answer_card", long)
    code = with_tables(H200 / "deepseek-v2-lite")["use"].left[0]
    assert isinstance(code, CodeText)
    assert code.text == "ridgeline best deepseek-v2-lite --script run.sh\nsh run.sh"


def test_a_folder_is_named_from_studies_on(tmp_path: Path) -> None:
    folder = tmp_path / "studies" / "challenge" / "llama"
    shutil.copytree(H200 / "deepseek-v2-lite", folder)
    assert (
        "In the folder that holds <code>studies</code>, <code>ridgeline study verify studies/challenge/llama<"
        in text_of(folder)
    )
    assert str(tmp_path) not in text_of(folder)


def test_a_folder_that_came_from_elsewhere_is_named_as_it_lies_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "downloads" / "llama"
    shutil.copytree(H200 / "deepseek-v2-lite", folder)
    said = "In the folder that holds <code>llama</code>, <code>ridgeline study verify llama<"
    assert said in text_of(folder)
    monkeypatch.chdir(folder)
    assert said in text_of(Path())


@pytest.mark.parametrize("name", ["compare-finished", "edge-finished", "scale-finished", "twin-killed", "search-lost"])
def test_every_kind_of_campaign_and_an_unfinished_one_has_slides(name: str) -> None:
    found = made(SAMPLES / name)
    assert {"question", "method"} <= found.keys()
    assert all(title and len(title) < 200 for title in found.values())


def test_a_setting_that_did_not_hold_is_not_called_confirmed(tmp_path: Path) -> None:
    asked = study(tmp_path)
    ran = campaign(tmp_path, asked, lambda settings: ScriptedAnswer({"rate": 100.0}))
    ran.run()
    now = CampaignStatus(ran.question, asked, read_history(tmp_path))
    titles = {s.key: s.title for s in slides(Findings(asked, now.history, now.answer, now.exhibits))}
    assert "confirmed" not in titles["method"] and "nothing better" in titles["search"]


def test_it_is_one_file_that_needs_nothing_and_leads_on_without_scripts() -> None:
    text = text_of(H200 / "deepseek-v2-lite")
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
    now.history.search_ended = "the budget is used up: 8 trials; with more trials: 8% chance of more"
    said = next_steps(Findings(asked, now.history, now.answer, now.exhibits))
    assert said[-1] == "More trials (the budget is used up: 8 trials): 8% chance of more"


def test_a_gain_that_was_seen_but_not_shown_asks_for_more_blocks(tmp_path: Path) -> None:
    asked_for = study(tmp_path)
    ran = campaign(tmp_path, asked_for, lambda settings: ScriptedAnswer({"rate": 100.0 + 10 * settings["x"]}))
    ran.run()
    now = CampaignStatus(ran.question, asked_for, read_history(tmp_path))
    assert now.answer.candidate is not None
    for ratio, high, asked in ((2.81, 12.1, True), (1.01, 1.02, False), (0.9, 1.4, False)):
        candidate = replace(now.answer.candidate, gain=Gain(ratio, 0.65, high, 0.95, ""))
        answer = replace(now.answer, conclusion="no-difference", use=Use.REFERENCE, candidate=candidate)
        said = next_steps(Findings(now.study, now.history, answer, now.exhibits))
        assert any("more blocks, where nothing else runs" in line for line in said) is asked


def test_a_slide_that_fails_says_so_and_the_others_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("nothing to divide by")

    monkeypatch.setattr("ridgeline.report.slides.failure_table", broken)
    found = made(H200 / "deepseek-v2-lite")
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
    shutil.copytree(H200 / "deepseek-v2-lite", folder)
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
        run(["report", str(H200 / "deepseek-v2-lite"), "--format", "slides", "--out", str(out)])
    content = out.read_bytes()
    assert len(re.findall(rb"/Type\s*/Page\b", content)) == len(made(H200 / "deepseek-v2-lite"))
    assert re.search(rb"/MediaBox\s*\[0 0 960[.0-9]* 540", content), "16:9"
