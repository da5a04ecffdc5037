"""What report and slides show of a kind of campaign is said by the kind itself, also by one of somebody else's."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest

from ridgeline import catalog
from ridgeline.campaign.status import CampaignStatus
from ridgeline.records.answer import Answer, Reference
from ridgeline.records.exhibit import KindShown
from ridgeline.records.study import Study
from ridgeline.report.figures.shapes import Axis, PlotFigure, PlotPoint, PlotSeries
from ridgeline.report.figures.values import kind_shown
from ridgeline.report.parts import AnswerCard, Bullets
from ridgeline.report.sections import Findings, sections
from ridgeline.report.slides import slides
from ridgeline.study.history import History
from tests.campaign.test_kinds import SpreadQuestion, finished

SRC = Path(__file__).parents[2] / "src" / "ridgeline"


def drawn(study: Study, history: History, answer: Answer) -> PlotFigure:
    points = tuple(PlotPoint(at, run.metrics["rate"]) for at, run in enumerate(history.runs.values(), 1))
    return PlotFigure("scatter", "Scatter", "", Axis("run"), Axis(f"{answer.kind} of rate"), (PlotSeries("r", points),))


@dataclass(frozen=True, slots=True)
class DrawnSpreadQuestion(SpreadQuestion):
    shown: ClassVar[KindShown] = KindShown("The scatter", figure=f"{__name__}:drawn", how="{runs} repeats, one by one")


def findings(now: CampaignStatus) -> Findings:
    return Findings(now.study, now.history, now.answer, now.exhibits)


def test_a_kind_that_says_nothing_of_itself_is_not_shown_as_a_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(catalog.TABLE["kinds"], "spread", f"{SpreadQuestion.__module__}:SpreadQuestion")
    found = findings(finished(tmp_path, SpreadQuestion(4)))
    shown = {section.key: section for section in sections(found)}
    assert shown["kind"].title == "What was found" and "Repeats" in str(shown["kind"].parts)
    assert "knobs" not in shown and "proof" not in shown
    (course,) = shown["progress"].parts
    assert isinstance(course, PlotFigure) and {one.name for one in course.series} <= {
        "baseline",
        "runs",
        "the baseline",
    }
    assert "search" not in str(course), "none was made"
    deck = {slide.key: slide for slide in slides(found)}
    assert "search" not in deck and "changes" not in deck
    assert deck["method"].title == "How it was measured" and "The search ran" not in str(deck["method"])
    assert "Repeats" in str(deck["kind"].left)


def test_a_kind_brings_its_title_its_figure_and_how_it_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(catalog.TABLE["kinds"], "spread", f"{__name__}:DrawnSpreadQuestion")
    found = findings(finished(tmp_path, DrawnSpreadQuestion(4)))
    first, *rest = sections(found)
    (card,) = (part for part in first.parts if isinstance(part, AnswerCard))
    assert card.figure is not None and card.figure.key == "scatter", "what the answer rests on, at a glance"
    assert next(section.title for section in rest if section.key == "kind") == "The scatter"
    deck = {slide.key: slide for slide in slides(found)}
    (how,) = deck["method"].left
    assert isinstance(how, Bullets) and "4 repeats, one by one" in how.lines
    (figure,) = deck["kind"].left
    assert isinstance(figure, PlotFigure) and figure.key == "scatter"


def test_one_that_is_not_installed_here_is_no_search_either() -> None:
    told = Answer("somebody-elses", None, "", Reference("the baseline", {}, None), None)
    assert kind_shown(told) == KindShown()
    assert kind_shown(replace(told, kind="search")).searches


def test_the_report_knows_no_kind_by_name() -> None:
    named = re.compile(r"\bkind (?:==|!=|in|not in) ?[\"'(]")
    asked = {
        f"{path.name}: {line.strip()}"
        for path in (SRC / "report").rglob("*.py")
        for line in path.read_text().splitlines()
        if named.search(line) and "answer" in line
    }
    assert not asked
