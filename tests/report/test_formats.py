"""Markdown for a pull request, and PDF where there is a browser."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from ridgeline.cli.main import run
from ridgeline.errors import InputError, StoreError
from ridgeline.records.exhibit import TextTable
from ridgeline.report import pdf
from ridgeline.report.markdown import markdown
from ridgeline.report.parts import CodeText, Paragraph, Section
from tests.browser import CHROMIUM

H200 = Path(__file__).parents[2] / "examples/05-sglang-h200/results"


def written(folder: Path, form: str, out: Path) -> bytes:
    with pytest.raises(SystemExit) as ended:
        run(["report", str(folder), "--format", form, "--out", str(out)])
    assert ended.value.code == 0
    return out.read_bytes()


def test_markdown_has_verdict_setting_and_proof(tmp_path: Path) -> None:
    text = written(H200 / "deepseek-v2-lite", "md", tmp_path / "report.md").decode()
    assert text.startswith("# deepseek-v2-lite-h200\n")
    assert re.search(r"\*\*Confirmed: 9,637 → 11,723 tok/s, 1\.22x", text)
    assert "```sh\n(\nexport HF_HUB_OFFLINE=1\n" in text
    assert '--model-path "${WEIGHTS:?benchmark only' in text and "model make" not in text, "dummies are not served"
    assert "| block | nodes | order |" in text
    assert len(text) < 60_000


def test_tables_of_markdown_have_as_many_cells_as_headings(tmp_path: Path) -> None:
    text = written(H200 / "deepseek-v2-lite", "md", tmp_path / "report.md").decode()
    width = 0
    for line in text.splitlines():
        if line.startswith("|---"):
            width = line.count("|")
        elif line.startswith("| ") and width:
            assert len(re.findall(r"(?<!\\)\|", line)) == width, line
        elif not line:
            width = 0


def test_markdown_says_what_is_a_heading_a_note_and_the_headline() -> None:
    parts = (Paragraph("big", "headline"), Paragraph("plain"), Paragraph("mind", "note"))
    text = markdown("n", "q", [Section("k", "Title", parts), Section("l", "", (Paragraph("end"),))])
    assert text == "# n\n\nq\n\n## Title\n\n**big**\n\nplain\n\n> mind\n\nend\n"


def test_nothing_in_a_name_becomes_markup() -> None:
    hostile = "a|b <script> `x` [l](http://x) # *b* \n## more"
    table = TextTable("t", (hostile,), ((hostile,),))
    text = markdown(hostile, hostile, [Section("k", hostile, (Paragraph(hostile), table, CodeText("```\nrm\n````")))])
    assert "<script>" not in text.replace("\\<script\\>", "")
    assert "\n## more" not in text
    assert "\n`````sh\n```\nrm\n````\n`````\n" in text


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_a_pdf_is_printed(tmp_path: Path) -> None:
    content = written(H200 / "llama-8b", "pdf", tmp_path / "report.pdf")
    assert content.startswith(b"%PDF-")
    assert len(re.findall(rb"/Type\s*/Page\b", content)) >= 3


def test_without_a_browser_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(InputError, match=r"needs Chromium or Chrome .* laid out for paper"):
        pdf.browser_path()
    out = tmp_path / "report.pdf"
    with pytest.raises(InputError):
        run(["report", str(H200 / "llama-8b"), "--format", "pdf", "--out", str(out)])
    assert not out.exists()


def test_a_browser_that_fails_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "chromium"
    broken.write_text("#!/bin/sh\necho no display >&2\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(StoreError, match="did not print the report \\(no display\\)"):
        pdf.write_pdf(tmp_path / "page.html", tmp_path / "out.pdf")
