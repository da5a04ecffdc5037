"""The report as a person opens it: one file, no network, the answer on top, a table that can be read."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from ridgeline.campaign.confirmation import changes
from ridgeline.campaign.status import CampaignStatus
from ridgeline.records.exhibit import ComparedSetting
from ridgeline.report import page as room
from ridgeline.report.drawing import comparisons_figure
from ridgeline.report.page import page
from ridgeline.store.history import read_history
from tests.campaign.harness import campaign, study


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(room, "_plotly", list)  # 4 MB that are not ours
    question = replace(study(tmp_path), name="</script><b>", question="a < b & c")
    done = campaign(tmp_path, question)
    done.run()
    now = CampaignStatus(done.question, question, read_history(tmp_path))
    return b"".join(page(question, now.history, now.answer, now.exhibits)).decode()


def test_nothing_is_fetched(text: str) -> None:
    assert not re.search(r"(src|href)\s*=|url\(|@import|https?://", text)


def test_names_cannot_break_the_page(text: str) -> None:
    assert "</script><b>" not in text
    assert "a &lt; b &amp; c" in text
    assert text.count("<script>") == text.count("</script>")


def test_what_was_set_and_measured_stands_before_the_rest(text: str) -> None:
    headings = re.findall(r"<th>([^<]*)", text[text.index("id=runs") :])
    assert headings[:5] == ["run", "trial", "stage", "of block", "outcome"]
    assert headings.index("x") < headings.index("rate") < headings.index("folder")
    assert "leftovers" not in headings, "a column in which nothing stands is left out"


def test_the_setting_is_held_against_the_baseline(text: str) -> None:
    assert re.search(r"<tr class=changed><td>x<td>0<td>\d</tr>", text)
    assert "<pre>" in text


def test_a_candidate_is_labelled_by_what_it_changes() -> None:
    """Whole settings would not fit, and what all candidates share tells none from another."""
    baseline = {"zeta": 1, "alpha": 2, "page": 16}
    assert changes(baseline, {"alpha": 2, "zeta": 8}) == "zeta 8, page absent"
    drawn = comparisons_figure([ComparedSetting("a<b " * 30, 1.2, 1.1, 1.3, "better")])
    words = drawn["layout"]["annotations"][0]["text"].split("<br>")
    assert "a&lt;b" in words[0] and max(len(line) for line in words) < 80
