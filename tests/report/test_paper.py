"""A campaign for a paper: text, table and figures, and that `verify` traces every number of them."""

from __future__ import annotations

import csv
import re
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest

from ridgeline.campaign.status import answer_on_paper, read_status_as_far
from ridgeline.cli.main import run
from ridgeline.report.paper import latex, paper_text, standalone
from ridgeline.report.sections import Findings
from tests.browser import CHROMIUM

ROOT = Path(__file__).parents[2]
H200 = ROOT / "examples/05-sglang-h200/results"
SAMPLES = ROOT / "tests/samples/study-folders"


def ended(*words: str) -> int:
    with pytest.raises(SystemExit) as left:
        run([*words])
    return int(left.value.code or 0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study folder with its paper; without a browser, which PNG alone needs."""
    place = tmp_path_factory.mktemp("paper") / "deepseek-v2-lite"
    shutil.copytree(H200 / "deepseek-v2-lite", place)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shutil, "which", lambda name: None)
        assert ended("report", str(place), "--format", "paper") == 0
    return place


def test_methods_and_results_in_markdown_and_latex(folder: Path) -> None:
    text = (folder / "paper/text.md").read_text()
    assert "## Methods" in text and "## Results" in text
    assert "3 blocks" in text and "95%" in text
    assert re.search(r"\| .*1\.22.*1\.19 to 1\.24", text)
    tex = (folder / "paper/text.tex").read_text()
    assert r"\begin{tabular}" in tex and r"total\_tok\_s" in tex
    assert not re.search(r"(?<!\\)[%#&_](?![^\n]*\\\\)", re.sub(r"(?m)^%.*$", "", tex)), "unescaped"


def test_goodput_is_not_told_without_its_limits() -> None:
    now, notes = read_status_as_far(H200 / "mistral-nemo-serve")
    found = paper_text(Findings(now.study, now.history, answer_on_paper(now), now.exhibits, notes))
    assert "Goodput counts the requests whose TTFT is at most 2000 ms and mean ITL at most 50 ms." in found.methods
    assert {"2000", "50"} <= {number.text for number in found.numbers}


def test_figures_are_standalone_svg_with_their_numbers(folder: Path) -> None:
    drawn = sorted((folder / "paper/figures").glob("*.svg"))
    assert {"proof-pair.svg", "proof-ratios.svg", "progress.svg"} <= {path.name for path in drawn}
    for path in drawn:
        root = ElementTree.fromstring(path.read_text())
        assert root.tag == "{http://www.w3.org/2000/svg}svg" and float(root.attrib["width"]) > 100
        assert "var(" not in path.read_text(), "other programs than browsers know no variables"
        rows = list(csv.reader(path.with_suffix(".csv").open()))
        assert len(rows) > 1 and len({len(row) for row in rows}) == 1


def test_verify_traces_the_numbers(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended("verify", str(folder)) == 0
    assert "numbers of paper/" in capsys.readouterr().out
    for name, old, new in (
        ("text.md", "1.22", "1.31"),
        ("text.tex", "3 blocks", "33 blocks"),
        ("numbers.csv", "1.22", "1.14"),
    ):
        path = folder / "paper" / name
        kept = path.read_text()
        assert old in kept
        path.write_text(kept.replace(old, new))
        assert ended("verify", str(folder)) == 1
        said = capsys.readouterr().out
        assert f"paper/{name}" in said and new.split()[0] in said
        path.write_text(kept)
    (folder / "paper/text.md").write_text("We found 1.13x, reworded by an author.\n")
    assert ended("verify", str(folder)) == 0, "wording is the authors' affair"


@pytest.mark.parametrize("name", ["compare-finished", "edge-finished", "scale-finished", "twin-killed", "search-lost"])
def test_every_kind_of_campaign_has_a_text(name: str) -> None:
    now, _ = read_status_as_far(SAMPLES / name)
    text = paper_text(Findings(now.study, now.history, answer_on_paper(now), now.exhibits))
    assert len(text.methods) >= 2 and text.numbers and text.table.rows


def test_nothing_in_a_name_is_latex_or_leaves_the_folder() -> None:
    assert latex(r"a_b & 5% #1 {x} \input{/etc/passwd} ~ ^ $ <") == (
        r"a\_b \& 5\% \#1 \{x\} \textbackslash{}input\{/etc/passwd\} \textasciitilde{} \textasciicircum{} \$ "
        r"\textless{}"
    )
    svg = '<svg viewBox="0 0 10 5" role=img aria-label="a &lt; b"><text x=1 y=2 class="tick bad">a &amp; b</text></svg>'
    assert ElementTree.fromstring(standalone(svg)).attrib["viewBox"] == "0 0 10 5"


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_with_a_browser_there_are_pictures(tmp_path: Path) -> None:
    assert ended("report", str(H200 / "llama-8b-compare"), "--format", "paper", "--out", str(tmp_path / "out")) == 0
    pictures = [*(tmp_path / "out/figures").glob("*.png")]
    assert pictures and all(path.read_bytes().startswith(b"\x89PNG") for path in pictures)
