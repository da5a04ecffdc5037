"""The history of a folder of studies."""

from __future__ import annotations

from pathlib import Path

from ridgeline.campaign.status import answer_on_paper, read_status_as_far
from ridgeline.records.exhibit import TextTable
from ridgeline.report.html import Folders
from ridgeline.report.page import whole_page
from ridgeline.report.parts import Paragraph
from ridgeline.report.studies import StudySeen, project_sections

RESULTS = Path(__file__).parents[2] / "examples/05-sglang-h200/results"


def seen(name: str) -> StudySeen:
    now, _ = read_status_as_far(RESULTS / name)
    return StudySeen(name, now.study, now.history, answer_on_paper(now))


def test_several_studies_become_one_page_with_answers_costs_and_knobs() -> None:
    studies = [seen("qwen2.5-7b"), seen("deepseek-v2-lite")]
    shown = project_sections(studies)
    tables = {section.key: part for section in shown for part in section.parts if isinstance(part, TextTable)}
    assert {row[0] for row in tables["studies"].rows} == {"qwen2.5-7b", "deepseek-v2-lite"}
    assert all(row[1] == "measured" for row in tables["studies"].rows)
    assert any(row[2].startswith("1.13x (1.06 to 1.20") for row in tables["studies"].rows)
    assert {row[0] for row in tables["knobs"].rows if row[1] == "qwen2.5-7b"} >= {"max_running_requests"}
    page = b"".join(whole_page("project", "", shown, Folders(RESULTS, None))).decode()
    assert ">Studies</a></h2>" in page and "node-hour" in page


def test_the_page_says_first_how_many_studies_found_how_much() -> None:
    first = project_sections([seen("qwen2.5-7b"), seen("deepseek-v2-lite"), seen("llama-8b-serve")])[0].parts[0]
    assert first == Paragraph(
        "2 of 3 measured studies confirmed a better setting: 1.13x to 1.22x the baseline", "headline"
    )
    none = project_sections([seen("llama-8b-serve")])[0].parts[0]
    assert none == Paragraph("No better setting confirmed in 1 measured study", "headline")
