"""Whatever a program writes or a study is called, the page shows it as text: no markup comes of it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

from ridgeline.campaign.status import CampaignStatus
from ridgeline.records.exhibit import Exhibits, TextTable
from ridgeline.records.outcome import Kind, Outcome
from ridgeline.records.space import Continuous, Discrete, Knob
from ridgeline.records.study import Goal
from ridgeline.report.live.page import index_page, live_html, study_page
from ridgeline.report.live.snapshot import EventLine, Gauge, RunningRun, Snapshot, State
from ridgeline.report.sections import Findings
from ridgeline.study.history import read_history
from ridgeline.testing import ScriptedAnswer
from tests.campaign.harness import campaign, study

HOSTILE = "</script></title><img src=x onerror=a>\"'><b onclick='a'>&amp;"
SAID = EventLine(HOSTILE, HOSTILE, True)
SNAPSHOT = Snapshot(
    name=HOSTILE,
    state=State.RUNNING,
    state_text=HOSTILE,
    question=HOSTILE,
    headline=HOSTILE,
    gauges=(Gauge(HOSTILE, HOSTILE, 0.5),),
    running=(RunningRun(1, HOSTILE, HOSTILE, HOSTILE, HOSTILE, HOSTILE),),
    runs=((HOSTILE,), (HOSTILE,)),
    answers=(SAID,),
    waiting=(HOSTILE,),
    note=HOSTILE,
    steerable=True,
)
KNOBS: tuple[Knob, ...] = (Discrete(HOSTILE, (HOSTILE, "b"), ordered=False), Continuous("c", 0.0, 1.0))


class Seen(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.values: set[str | None] = set()
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.values |= {value for _, value in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


def test_nothing_on_a_page_of_a_study_becomes_markup() -> None:
    page = study_page("a'b", SNAPSHOT, KNOBS, {HOSTILE: HOSTILE, "c": HOSTILE}, True)
    seen = Seen(page)
    assert "img" not in seen.tags
    assert not {name for name in seen.attributes if name.startswith("on")}
    assert seen.text.count(HOSTILE) >= 10, "it is shown all the same"
    assert page.count("<script") == 2
    assert "/study/a'b/" in seen.values, "where its events come from"
    assert {"/study/a'b/report", json.dumps(HOSTILE)} <= seen.values


def test_nothing_in_the_list_of_studies_becomes_markup() -> None:
    page = index_page({"a'b": SNAPSHOT}, HOSTILE)
    seen = Seen(page)
    assert "img" not in seen.tags
    assert not {name for name in seen.attributes if name.startswith("on")}
    assert page.count("<script") == 2
    assert "/study/a'b/" in seen.values
    assert "img" not in Seen(index_page({}, HOSTILE)).tags


def test_nothing_in_the_figures_becomes_markup(tmp_path: Path) -> None:
    asked = study(tmp_path, goal=Goal(HOSTILE, "maximize"))
    run = campaign(tmp_path, asked, lambda settings: ScriptedAnswer({HOSTILE: 100.0 + float(settings["sum"] or 0)}))
    run.run()
    table = TextTable(HOSTILE, (HOSTILE,), ((HOSTILE,),), notes=(HOSTILE,))
    exhibits = Exhibits(
        tables=(table,),
        groups=dict.fromkeys(run.history.trials, HOSTILE),
    )
    answer = CampaignStatus(run.question, asked, read_history(tmp_path)).answer
    found = Findings(asked, run.history, answer, exhibits)
    number, one = next(iter(run.history.runs.items()))
    run.history.runs[number] = replace(one, outcome=Outcome(Kind.CRASH, HOSTILE))
    drawn = live_html(found)
    assert HOSTILE in Seen(drawn["crashes"]).text
    seen = Seen(drawn["progress"] + drawn["figures"] + drawn["crashes"])
    assert "img" not in seen.tags
    assert not {name for name in seen.attributes if name.startswith("on")}
    assert seen.text.count(HOSTILE) >= 7


def test_nobody_is_offered_what_nobody_would_do() -> None:
    """Pause, stop and cancel are for a controller that runs; what may wait for the next one stays."""
    run = RunningRun(6, "#6 search", "x 1", "", "log")
    page = {
        state: study_page("s", Snapshot("s", state, "", running=[run], steerable=True), (), {}, several=False)
        for state in (State.RUNNING, State.GONE)
    }
    acts = {state: set(re.findall(r"data-act=(\w+)", text)) for state, text in page.items()}
    assert acts[State.RUNNING] == {"pause", "stop", "cancel", "extend"}
    assert acts[State.GONE] == {"extend"}


def test_the_list_says_why_a_study_was_stopped_and_shows_the_latest_first() -> None:
    why = "the baseline did not pass: no licence"
    stopped = Snapshot("old", State.STOPPED, f"{why}; see `log`", headline=why, updated_s=1.0)
    later = Snapshot("new", State.FINISHED, "", headline="keep the baseline", updated_s=2.0)
    text = index_page({"old": stopped, "new": later}, "here")
    assert "<b>The baseline did not pass: no licence</b>" in text
    assert text.index(">new<") < text.index(">old<")
