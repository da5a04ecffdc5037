"""The report as a person opens it: one file, no network, the answer on top, a table that can be read."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from ridgeline.campaign.confirmation import changes
from ridgeline.campaign.status import CampaignStatus
from ridgeline.records.exhibit import ComparedSetting
from ridgeline.records.space import Discrete, Space
from ridgeline.report import page as room
from ridgeline.report.drawing import comparisons_figure
from ridgeline.report.page import page
from ridgeline.store.history import read_history
from ridgeline.testing import ScriptedAnswer
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


@pytest.mark.browser
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Chromium")
def test_no_value_of_a_knob_hides_what_follows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After `<!--<script>` inside a script element a browser takes the rest of the page for script."""
    monkeypatch.setattr(room, "_plotly", lambda: [b"var Plotly={newPlot(){}}"])
    x = Discrete("x", (0, 1), ordered=True)
    y = Discrete("y", ("<!--<script>", "</script><b>"), ordered=False)
    question = study(tmp_path, space=Space((x, y), {}), baseline={"x": 0, "y": "<!--<script>"})
    done = campaign(tmp_path, question, lambda settings: ScriptedAnswer({"rate": 100.0 + settings["x"]}))
    done.run()
    now = CampaignStatus(done.question, question, read_history(tmp_path))
    file = tmp_path / "report.html"
    file.write_bytes(b"".join(page(question, now.history, now.answer, now.exhibits)))
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", profile, "--dump-dom", file.as_uri()]
    seen = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    body = seen[seen.index('id="runs"') :]
    assert body.count("<tr") == len(now.history.runs) + 1
    assert "&lt;!--&lt;script&gt;" in body
