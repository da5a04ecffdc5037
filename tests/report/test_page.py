"""The report as text: one file, no network, the answer on top, nothing from a log or a name that breaks it."""

from __future__ import annotations

import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.report import study_text, write_journal
from ridgeline.campaign.status import CampaignStatus, answer_on_paper, read_status_as_far
from ridgeline.errors import RidgelineError
from ridgeline.records.answer import Gain
from ridgeline.records.exhibit import changes
from ridgeline.records.outcome import Kind, Outcome
from ridgeline.records.study import Study
from ridgeline.report.html import Folders, _cell, _key, prose
from ridgeline.report.measured import _facts
from ridgeline.report.page import page, write_report
from ridgeline.report.parts import AnswerCard, Fold
from ridgeline.report.sections import Findings, answer_card, sections
from ridgeline.study.folder import read_history_as_far
from ridgeline.study.history import read_history
from ridgeline.testing import ScriptedAnswer
from tests.campaign.harness import campaign, guards, study

SAMPLES = Path(__file__).parents[1] / "samples/study-folders"
H200 = Path(__file__).parents[2] / "examples/05-sglang-h200/results"


def done(root: Path, question: Study) -> CampaignStatus:
    ran = campaign(root, question)
    ran.run()
    return CampaignStatus(ran.question, question, read_history(root))


def text_of(now: CampaignStatus, out: Path | None = None, notes: tuple[str, ...] = ()) -> str:
    return b"".join(page(Findings(now.study, now.history, now.answer, now.exhibits, notes), out)).decode()


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("page")
    question = replace(study(root), name="</script><b>", question="a < b & c", guards=guards("rate > 50"))
    return text_of(done(root, question), out=root / "report.html")


def test_nothing_is_fetched(text: str) -> None:
    assert not re.search(r"src\s*=|url\(|@import|https?://", text)
    assert not [link for link in re.findall(r"href='([^']*)'", text) if not link.startswith(("#", "runs/"))]


def test_names_cannot_break_the_page(text: str) -> None:
    assert "</script><b>" not in text
    assert "a &lt; b &amp; c" in text
    assert text.count("<script>") == text.count("</script>") == 1


def test_the_answer_has_ratio_before_and_after_and_interval(text: str) -> None:
    card = text.partition("<section id=verdict")[2].partition("</section>")[0]
    assert re.search(r"<p class=ratio><strong>\d\.\d+x</strong> <span>the baseline</span>", card)
    assert re.search(r"<span class=was>100</span> → <span class=now>\d+</span> <small>rate", card)
    assert re.search(r"<p class=sure>Confirmed; 95% interval \d\.\d+x to \d\.\d+x", card)
    assert "<dt>cost</dt>" in card and "node-second" in card
    assert "<button type=button class=copy" in card, "what to type now"
    assert "<figure id=proof-pair" in card


def test_the_goal_stands_before_the_rest(text: str) -> None:
    headings = re.findall(r"<th scope=col[^>]*>([^<]*)", text)
    assert headings[:4] == ["trial", "rate", "outcome", "is"]
    assert headings.index("x") < headings.index("folder")
    assert "leftovers" not in headings, "a column in which nothing stands is left out"


def test_runs_of_the_setting_are_marked_and_those_of_the_confirmation_folded(text: str) -> None:
    before, _, folded = text.partition("<details id=confirm-runs>")
    assert "<tr class=win" in before
    assert folded.count("<tr class=win") >= 3
    assert ">confirm<" not in before


def test_the_setting_is_held_against_the_baseline(text: str) -> None:
    assert re.search(r"<tr class=changed><td>x<td class=num>0<td class=num>\d</tr>", text)


def test_a_candidate_is_labelled_by_what_it_changes() -> None:
    """Whole settings would not fit, and what all candidates share tells none from another."""
    baseline = {"zeta": 1, "alpha": 2, "page": 16}
    assert changes(baseline, {"alpha": 2, "zeta": 8}) == "zeta 8, page absent"


def test_a_long_answer_says_it_first_and_what_it_rests_on_below() -> None:
    said = "No detectable difference (rate -0.8% to +0.3%), 100.2 → 99.92 steps/s; 6 blocks could show 0.7% or more"
    card = AnswerCard(said)
    assert card.lead == "No detectable difference"
    assert card.details == "Rate -0.8% to +0.3%. 100.2 → 99.92 steps/s; 6 blocks could show 0.7% or more"
    card = AnswerCard("Not slower than the reference: work 1,000 → 1,000, slowdown +0.0% (95%: +0.0% to +0.0%)")
    assert card.lead == "Not slower than the reference" and card.details.startswith("Work 1,000")
    assert AnswerCard("Still pays at 4 ranks: speed-up 2.50").details == ""
    named = AnswerCard(
        "no detectable difference (wall_s -91.7% to +53.1%); 3 blocks on 1 node could show 492.3% or more"
    )
    assert named.details.startswith("wall_s -91.7%"), "a metric's name stays as it is"


def test_a_search_that_is_worse_so_far_claims_no_ratio() -> None:
    now, _ = read_status_as_far(SAMPLES / "twin-killed")
    card = answer_card(Findings(now.study, now.history, answer_on_paper(now), now.exhibits))
    assert not card.ratio and "nothing so far is better" in card.statement.lower()


@pytest.mark.parametrize(("value", "noted"), [(200.0, False), (180.0, True)])
def test_a_ratio_that_its_two_values_do_not_give_says_what_it_allows_for(value: float, noted: bool) -> None:
    now, _ = read_status_as_far(SAMPLES / "twin-killed")
    answer = answer_on_paper(now)
    assert answer.candidate is not None
    best = replace(answer.candidate, value=value, gain=Gain(2.0, 1.9, 2.1, 0.95, ""))
    answer = replace(answer, candidate=best, reference=replace(answer.reference, value=100.0))
    card = answer_card(Findings(now.study, now.history, answer, now.exhibits))
    assert card.ratio == "2.00x"
    assert any("as measured; 2.00x allows for" in note for note in card.notes) is noted


def test_a_comparison_has_no_section_with_nothing_but_a_command() -> None:
    now, _ = read_status_as_far(H200 / "llama-8b-compare")
    shown = sections(Findings(now.study, now.history, answer_on_paper(now), now.exhibits))
    assert not [each.key for each in shown if all(isinstance(part, Fold) for part in each.parts)]


def test_every_figure_has_its_numbers_and_its_name(text: str) -> None:
    figures = re.findall(r"<figure .*?</figure>", text, re.DOTALL)
    assert len(figures) >= 5
    for figure in figures:
        assert "<svg" in figure and "aria-label=" in figure
        assert "<summary>the numbers</summary>" in figure


@pytest.mark.parametrize("folder", [*sorted(SAMPLES.glob("*/")), *sorted(H200.glob("*/"))], ids=lambda path: path.name)
def test_no_part_of_a_real_folder_fails(folder: Path) -> None:
    now, notes = read_status_as_far(folder)
    shown = sections(Findings(now.study, now.history, answer_on_paper(now), now.exhibits, notes))
    said = [part.text for section in shown for part in section.parts if hasattr(part, "text")]
    assert not [line for line in said if "could not be worked out" in line]
    assert {"verdict", "progress", "measured"} <= {section.key for section in shown}


def test_a_part_that_fails_says_so_and_the_rest_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = done(tmp_path, study(tmp_path))

    def broken(*_: object) -> None:
        raise ZeroDivisionError("nothing to divide by")

    monkeypatch.setattr("ridgeline.report.sections.importance", broken)
    text = text_of(now)
    assert "This part (knobs) could not be worked out: ZeroDivisionError: nothing to divide by" in text
    assert "All runs" in text


def test_an_empty_study_and_one_that_runs_are_shown_with_a_note(tmp_path: Path) -> None:
    for name, note in (("search-killed", "The study is not over"), ("empty", "Nothing has happened")):
        folder = tmp_path / name
        shutil.copytree(SAMPLES / "search-killed", folder)
        if name == "empty":
            (folder / "journal.jsonl").write_text("")
            shutil.rmtree(folder / "runs")
        now, notes = read_status_as_far(folder)
        text = text_of(now, notes=notes)
        assert f"<p class=note>{note}" in text
        assert "no verdict yet" in text.lower()
        assert ("continue with: <code>ridgeline resume " in text) == (name == "search-killed")


def test_an_interrupted_campaign_says_so_and_how_to_go_on() -> None:
    now, notes = read_status_as_far(H200 / "llama-8b-serve")
    text = text_of(now, notes=notes)
    assert "it was interrupted, continue with: <code>ridgeline resume " in text


def test_a_damaged_journal_is_shown_up_to_the_damage(tmp_path: Path) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(SAMPLES / "search-finished", folder)
    journal = folder / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([*lines[:30], b"\0\xff garbage <b>\n", *lines[30:]]))
    now, notes = read_status_as_far(folder)
    text = text_of(now, notes=notes)
    assert "Only what comes before a damaged line is shown" in text
    assert "journal.jsonl:31" in text
    assert text.count("data-t=") > 5


def test_a_torn_last_line_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "torn"
    shutil.copytree(SAMPLES / "search-finished", folder)
    journal = folder / "journal.jsonl"
    journal.write_bytes(journal.read_bytes()[:-20])
    history, notes = read_history_as_far(folder)
    assert history.runs and "last line is incomplete" in notes[0]
    assert read_history_as_far(SAMPLES / "search-finished")[1] == ()


def test_missing_run_folders_are_told_and_not_linked(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    shutil.copytree(SAMPLES / "search-finished", folder)
    now, notes = read_status_as_far(folder)
    first = next(iter(now.history.runs.values())).folder
    first.mkdir(parents=True, exist_ok=True)
    with_links = text_of(now, out=folder / "report.html")
    assert f"href='runs/{first.name}'" in with_links
    shutil.rmtree(folder / "runs")
    text = text_of(now, out=folder / "report.html", notes=notes)
    assert "href='runs/" not in text
    assert "can no longer be found" in text


def test_links_start_where_the_page_lies(tmp_path: Path) -> None:
    now = done(tmp_path / "study", study(tmp_path / "study"))
    run = next(iter(now.history.runs.values()))
    run.folder.mkdir(parents=True, exist_ok=True)
    out = tmp_path / "elsewhere" / "page.html"
    out.parent.mkdir()
    text = write_report(Findings(now.study, now.history, now.answer, now.exhibits), out).read_text()
    assert f"href='../study/runs/{run.folder.name}'" in text


@pytest.mark.parametrize(
    "garbage", [b"", b"\0\xff\xfe" * 5000, b"[2026-11-15 17:59:53 TP0] Decode batch, #running-req: 1" * 9]
)
def test_garbage_in_a_log_costs_no_page(tmp_path: Path, garbage: bytes) -> None:
    folder = tmp_path / "garbage"
    shutil.copytree(H200 / "llama-8b", folder)
    for run in (folder / "runs").iterdir():
        for name in ("engine.log", "samples.csv", "run.sh"):
            (run / name).write_bytes(garbage)
    now, notes = read_status_as_far(folder)
    text = text_of(now, notes=notes)
    assert "could not be worked out" not in text
    assert ">The proof</a></h2>" in text


def test_html_in_a_reason_is_text(tmp_path: Path) -> None:
    now = done(tmp_path, study(tmp_path))
    run = now.history.runs[5]
    now.history.runs[5] = replace(run, outcome=Outcome(Kind.CRASH, "<img src=x onerror=alert(1)>"))
    text = text_of(now)
    assert "<img" not in text
    assert "&lt;img src=x onerror=alert(1)&gt;" in text.replace("src=x", "src=x")


def test_names_of_metrics_and_knobs_make_harmless_anchors_and_cells() -> None:
    assert _key("ttft_p95-ms") == "ttft_p95-ms"
    assert _key("a b' onclick=x ><b>") == "a-b--onclick-x---b-"
    folders = Folders(Path("/s"), None)
    assert _cell("why", None, folders) == "<td>"
    assert _cell("why", "<b>", folders) == "<td>&lt;b&gt;"
    assert _cell("rate", 1234.56789, folders) == "<td>1234.57"


def test_how_it_was_measured_names_nodes_versions_and_dates(tmp_path: Path) -> None:
    asked = study(tmp_path)
    run = campaign(tmp_path, asked)
    run.run()
    first = run.history.runs[1]
    run.history.runs[1] = replace(first, texts={"engine_version": "0.5.6", "model": "m"})
    never = replace(first.ending, nodes=("n9",), started_s=0.0, ended_s=0.0)
    run.history.runs[2] = replace(run.history.runs[2], ending=never, texts={"engine_version": "0.5.7"})
    facts = dict(_facts(asked, run.history))
    assert facts["nodes"] == "memory, n9"
    assert facts["engine version"] == "0.5.6, 0.5.7"
    assert facts["when (UTC)"].startswith("2023-11-14 22:13 to 2023-11-14 22:"), "a run that never began has no date"
    assert facts["proof"] == "interleaved blocks, 2 runs of each setting in each; 95% intervals"
    assert "resumed" not in facts


def test_a_thousand_runs_are_a_page_that_can_be_mailed(tmp_path: Path) -> None:
    """As benchmarks/report.py makes them: eight knobs, twenty metrics, failures, a confirmation."""
    (tmp_path / "study.yaml").write_text(study_text())
    write_journal(tmp_path, 1000)
    now, notes = read_status_as_far(tmp_path)
    assert len(now.history.runs) == 1000
    assert len(text_of(now, notes=notes).encode()) < 1_500_000


def test_what_a_sentence_has_in_backticks_is_code_and_still_escaped() -> None:
    assert prose("run `ridgeline study steps` & see") == "run <code>ridgeline study steps</code> &amp; see"
    assert prose("`<b>` and ` alone") == "<code>&lt;b&gt;</code> and ` alone"


def test_a_page_names_no_path_of_the_machine_that_wrote_it() -> None:
    now, notes = read_status_as_far(H200 / "deepseek-v2-lite")
    shown = Findings(now.study, now.history, answer_on_paper(now), now.exhibits, notes)
    assert '--model-path "${WEIGHTS:?benchmark only' in answer_card(shown).command
    assert sys.executable not in b"".join(page(shown)).decode()


def test_a_campaign_that_was_stopped_says_why_and_draws_nothing_from_nothing(tmp_path: Path) -> None:
    asked = study(tmp_path)
    ran = campaign(tmp_path, asked, lambda settings: ScriptedAnswer(exit_code=3, stderr="no licence"))
    with pytest.raises(RidgelineError):
        ran.run()
    now = CampaignStatus(ran.question, asked, read_history(tmp_path))
    why = f"the baseline itself did not pass: crash; no licence; then `ridgeline resume {tmp_path}` runs it again"
    shown = Findings(asked, now.history, replace(now.answer, stopped=why), now.exhibits)
    text = b"".join(page(shown)).decode()
    card = text.partition("<section id=verdict")[2].partition("</section>")[0]
    assert "<p class=headline>The baseline did not pass: exit code 3</p>" in card
    assert card.index("class=headline") < card.index("no licence"), "what happened first, then what to do"
    assert str(tmp_path) not in card and "`" not in card
    assert "No run has passed yet." in text and "id=progress-0" not in text


def test_large_numbers_of_a_run_have_no_exponent() -> None:
    folders = Folders(Path(), None)
    assert _cell("got.max_rss_bytes", 14020608.0, folders) == "<td>14020608"
    assert _cell("got.rate", 1234.5678, folders) == "<td>1234.57"
    assert _cell("outcome", "oom-run", folders) == "<td>out of memory while running"
