"""The history of a folder of studies."""

from __future__ import annotations

from pathlib import Path

from ridgeline.campaign.status import answer_on_paper, read_status_as_far
from ridgeline.records.exhibit import TextTable
from ridgeline.report.html import Folders
from ridgeline.report.page import whole_page
from ridgeline.report.project import project_sections
from ridgeline.report.studies import StudySeen

RESULTS = Path(__file__).parents[2] / "examples/05-sglang-h200/results"


def seen(name: str) -> StudySeen:
    now, _ = read_status_as_far(RESULTS / name)
    return StudySeen(name, now.study, now.history, answer_on_paper(now))


def test_several_studies_become_one_page_with_answers_costs_and_knobs() -> None:
    studies = [seen("llama-8b"), seen("deepseek-v2-lite")]
    shown = project_sections(studies)
    tables = {section.key: part for section in shown for part in section.parts if isinstance(part, TextTable)}
    assert {row[0] for row in tables["studies"].rows} == {"llama-8b", "deepseek-v2-lite"}
    assert any(row[3].startswith("1.13x (1.01 to 1.25") for row in tables["studies"].rows)
    assert {row[0] for row in tables["knobs"].rows if row[1] == "llama-8b"} >= {"max_running_requests"}
    page = b"".join(whole_page("project", "", shown, Folders(RESULTS, None))).decode()
    assert ">Studies</a></h2>" in page and "node-hour" in page
