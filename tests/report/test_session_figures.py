"""Figures of sessions: each point stands where its requests say, the knee at the number that was found."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from ridgeline.records.run import PREDICTED
from ridgeline.report.drawing.draw import finding, legend
from ridgeline.report.figures.shapes import FigureGroup, PlotFigure, PlotLimit, PlotPoint, PlotSeries
from ridgeline.serving.figures.section import section
from ridgeline.serving.figures.sessions import PromptHits, SessionRun, against_sessions, figures, session_runs
from ridgeline.serving.planner.sessions import SessionLoad, SessionsPlan, TierAdvice
from ridgeline.serving.traffic.requests import REQUESTS, RequestRecord, Slo, Spread, write_records
from ridgeline.study.history import History
from tests.command_line import ridgeline
from tests.load.scripted import Scripted, tokens
from tests.report.test_drawing import across, draw, upward
from tests.report.test_figures import a_study, add, answer
from tests.twin import deployments as make


def turn(number: int, ttft_ms: float, at_s: float = 0.0, *, found: int = 0, host: int = 0) -> RequestRecord:
    """The prompt is of 100 tokens."""
    first_s = at_s + ttft_ms / 1000
    return RequestRecord(
        0, at_s, at_s, first_s, first_s + 1, 100, 10, session=0, turn=number - 1, cached_tokens=found, host_tokens=host
    )


def drawn(*runs: SessionRun) -> dict[str, PlotFigure | FigureGroup]:
    return {figure.key: figure for figure in figures(runs)}


def plotted(figure: PlotFigure | FigureGroup) -> PlotFigure:
    assert isinstance(figure, PlotFigure)
    return figure


def points(figure: PlotFigure) -> dict[str, list[tuple[float, float]]]:
    return {one.name: [(p.x, round(p.y, 6)) for p in one.points] for one in figure.series}


def test_ttft_stands_at_its_turn_and_the_prediction_beside_it() -> None:
    measured = [turn(1, 100), turn(1, 300), turn(2, 40), turn(7, 60), turn(9, 80), turn(60, 500)]
    predicted = [turn(1, 150), turn(2, 30), turn(3, 20)]
    figure = plotted(drawn(SessionRun("", measured, predicted))["turns"])
    assert [text for _, text in figure.x.ticks] == ["1", "2", "3", "6 to 10", "51 and later"], (
        "none is of turns 4 and 5"
    )
    assert points(figure) == {
        "p50, measured": [(0, 200), (1, 40), (3, 70), (4, 500)],
        "p95, measured": [(0, 290), (1, 40), (3, 79), (4, 500)],
        "p50, predicted": [(0, 150), (1, 30), (2, 20)],
        "p95, predicted": [(0, 150), (1, 30), (2, 20)],
    }  # fmt: skip
    assert {one.name.split(", ")[1]: one.form for one in figure.series} == {"measured": "both", "predicted": "dashed"}
    looks = {one.name: one.look for one in figure.series}
    assert looks["p50, measured"] == looks["p50, predicted"] != looks["p95, measured"] == looks["p95, predicted"]


def test_a_prediction_is_dashed_in_the_drawing_and_in_its_legend() -> None:
    figure = plotted(drawn(SessionRun("", [turn(1, 100), turn(2, 50)], [turn(1, 90), turn(2, 60)]))["turns"])
    assert len(re.findall('class="line dashed', draw(figure))) == 2 == len(re.findall('class="line l', draw(figure)))
    assert len(re.findall('class="line dashed', legend(figure))) == 2
    assert "p50, predicted from 90 to 60" in finding(figure)


def test_hits_are_counted_by_tokens_over_each_stretch_of_the_run() -> None:
    measured = [turn(1, 9, 0.0), turn(1, 9, 1.0), turn(2, 9, 10.5, found=90), turn(3, 9, 24.0, found=80, host=60)]
    figure = plotted(drawn(SessionRun("", measured))["hits"])
    assert points(figure) == {
        "found in a cache, measured": [(0.5, 0), (1.5, 0), (10.5, 90), (23.5, 80)],
        "of it on the GPUs, measured": [(0.5, 0), (1.5, 0), (10.5, 90), (23.5, 20)],
    }
    assert (figure.y.low, figure.y.high) == (0, 100)
    whole = replace(measured[3], input_tokens=300, cached_tokens=300, host_tokens=0, sent_s=23.5)
    mixed = plotted(drawn(SessionRun("", [*measured, whole]))["hits"])
    assert points(mixed)["found in a cache, measured"][-1] == (23.5, 95), (
        "380 of 400 tokens, not the mean of two shares"
    )


def test_a_hit_rate_that_nobody_told_is_not_drawn_as_zero() -> None:
    silent = [turn(1, 9), turn(2, 9, 5.0)]
    assert list(drawn(SessionRun("", silent))) == ["turns"]
    logged = [PromptHits(0.0, 100, 0), PromptHits(24.0, 100, 70)]
    figure = plotted(drawn(SessionRun("", silent, logged=logged))["hits"])
    assert points(figure) == {"found in a cache, measured": [(0.5, 0), (23.5, 70)]}
    sure = plotted(drawn(SessionRun("", predicted=[turn(1, 9), turn(2, 9, 24.0)]))["hits"])
    assert points(sure) == {"found in a cache, predicted": [(0.5, 0), (23.5, 0)]}, "the twin knows that nothing was"


def test_settings_stand_side_by_side_on_one_scale_with_one_legend() -> None:
    first = SessionRun("plain", [turn(1, 50), turn(2, 900, 10.0, found=20)])
    second = SessionRun("tier", [turn(1, 50), turn(2, 90, 10.0, found=80, host=40)], [turn(1, 60), turn(2, 100)])
    for group in drawn(first, second).values():
        assert isinstance(group, FigureGroup)
        one, two = map(plotted, group.figures)
        assert (one.title, two.title) == ("plain", "tier") and (one.y, one.small) == (two.y, True)
        assert [(s.name, s.look) for s in one.series] == [(s.name, s.look) for s in two.series], (
            "the first one's legend"
        )
        assert draw(one, 460) and draw(two, 460)


def load(sessions: int, p50: float, p95: float, tier: float = 0.0, *, holds: bool = True) -> SessionLoad:
    broken = () if holds else ("ttft_p95_ms=500",)
    ttft = Spread(p50, p50, p95, p95, p95)
    return SessionLoad(sessions, holds, broken, 200, ttft, None, 1.0, 0.9, 0.0, 1000, 0.1, 0.0, 10, tier)


LOADS = (
    load(1, 100, 150), load(10, 120, 400), load(11, 130, 700, holds=False),
    load(14, 125, 480, 40.0), load(11, 110, 200, 60.0), load(14, 120, 450, 60.0), load(18, 140, 900, 60.0, holds=False),
)  # fmt: skip


def a_plan(**changes: object) -> SessionsPlan:
    advice = TierAdvice(True, "pays", 14, 40.0, "--hicache-size 40")
    plan = SessionsPlan(
        make.llama(), (Slo.parse("ttft_p95_ms=500"), Slo.parse("tpot_p95_ms=50")), 10, 11, "KV pool", "it is full",
        9000, LOADS, advice, 7,
    )  # fmt: skip
    return replace(plan, **changes)  # type: ignore[arg-type]


def test_the_knee_is_drawn_at_the_most_sessions_that_hold_with_and_without_a_host_tier() -> None:
    figure = against_sessions(a_plan())
    assert points(figure) == {
        "TTFT p50": [(1, 100), (10, 120), (11, 130)],
        "TTFT p95": [(1, 150), (10, 400), (11, 700)],
        "TTFT p50, host tier 60": [(11, 110), (14, 120), (18, 140)],
        "TTFT p95, host tier 60": [(11, 200), (14, 450), (18, 900)],
    }
    assert figure.limits == (
        PlotLimit("limit p95 500 ms", 500.0),
        PlotLimit("knee: 10 sessions", 10, "x"),
        PlotLimit("with host tier: 14 sessions", 14, "x"),
    )
    text = draw(replace(figure, y=replace(figure.y, log=False)))
    x, y = across(text), upward(text)
    limits = [tuple(map(float, f)) for f in re.findall(r"<line x1=(\S+) y1=(\S+) x2=(\S+) y2=(\S+) class=limit", text)]
    upright = sorted(left for left, _, right, _ in limits if left == right)
    assert upright == [pytest.approx(x(10), abs=0.15), pytest.approx(x(14), abs=0.15)]
    assert [top for left, top, right, _ in limits if left != right] == [pytest.approx(y(500), abs=0.15)]
    marks = re.findall(r"<circle cx=(\S+) cy=(\S+) r=4", text)
    assert (pytest.approx(x(10), abs=0.15), pytest.approx(y(120), abs=0.15)) in [(float(a), float(b)) for a, b in marks]


def test_no_knee_is_marked_where_none_was_found() -> None:
    alone = a_plan(loads=LOADS[:1], fails=None, why="", host_tier=None)
    assert [limit.across for limit in against_sessions(alone).limits] == ["y"]
    hopeless = a_plan(loads=LOADS[2:3], sessions=0, host_tier=TierAdvice(False, "does not pay"))
    figure = against_sessions(hopeless)
    assert [limit.across for limit in figure.limits] == ["y"] and "breaks ttft_p95_ms=500" in figure.series[0].points[
        0
    ].label
    slow = a_plan(limits=(Slo.parse("tpot_p95_ms=50"),))
    assert [limit.across for limit in against_sessions(slow).limits] == ["x", "x"], "TPOT is not on this axis"
    assert [one.name for one in against_sessions(slow).series] == ["TTFT p50", "TTFT p50, host tier 60"]


def test_the_texts_above_a_plan_do_not_touch_its_points() -> None:
    for plan in (a_plan(), a_plan(loads=tuple(replace(one, ttft_ms=Spread(*[5.0] * 5)) for one in LOADS))):
        text = draw(against_sessions(plan))
        texts = [float(y) for y in re.findall(r'<text x=\S+ y=(\S+)[^>]*halo">(?:knee|with)', text)]
        marks = [float(y) for y in re.findall(r"<circle cx=\S+ cy=(\S+)", text)]
        assert len(texts) == 2 and max(texts) + 2 < min(marks)


def test_a_limit_is_named_where_no_line_passes() -> None:
    points = (PlotPoint(0, 1.0), PlotPoint(10, 8.6))
    figure = against_sessions(a_plan())
    rising = replace(
        figure, series=(PlotSeries("a", points, "0", "both"),), limits=(PlotLimit("limit p95 8 ms", 8.0),),
        y=replace(figure.y, high=None, log=False),
    )  # fmt: skip
    assert 'anchor=end class="tick halo">limit' not in draw(rising), "the line ends at the right, just above the limit"


def campaign_of_sessions(root: Path) -> tuple[object, History, object]:
    question, past = a_study(root), History(root)
    for mem in (0, 1):
        add(past, {"mem": mem, "kind": "a"}, rate=1.0)
        run = past.runs[mem + 1]
        past.runs[mem + 1] = replace(run, folder=root / f"run-{mem}")
        (root / f"run-{mem}").mkdir(parents=True)
        write_records(root / f"run-{mem}" / REQUESTS, [turn(1, 100 - mem), turn(2, 50, 24.0)])
        write_records(root / f"run-{mem}" / PREDICTED, [turn(1, 90), turn(2, 60, 12.0, found=70, host=30)])
    past.runs_of = {number: [run] for number, run in past.runs.items()}
    return question, past, answer(question, {"mem": 1, "kind": "a"})


def test_a_report_shows_what_was_measured_and_predicted_of_baseline_and_setting(tmp_path: Path) -> None:
    found = session_runs(*campaign_of_sessions(tmp_path))  # type: ignore[arg-type]
    assert [(run.label, run.measured[0].ttft_s, len(run.predicted)) for run in found] == [
        ("the baseline (#1)", pytest.approx(0.1), 2), ("the setting (#2)", pytest.approx(0.099), 2),
    ]  # fmt: skip
    shown = [figure.key for figure in section(*campaign_of_sessions(tmp_path / "b"))]  # type: ignore[arg-type]
    assert shown[:2] == ["turns", "hits"]


def test_an_engines_log_tells_hits_since_the_load_began(tmp_path: Path) -> None:
    question, past, told = campaign_of_sessions(tmp_path)
    lines = [
        f"[2026-11-15 10:00:{second:02}] Prefill batch, #new-seq: 1, #new-token: {new}, #cached-token: {cached}, "
        "token usage: 0.01, #running-req: 1, #queue-req: 0,"
        for second, new, cached in ((1, 500, 500), (2, 100, 0), (26, 25, 75))
    ]
    (tmp_path / "run-0" / "engine.log").write_text("\n".join(lines) + "\n")
    assert session_runs(question, past, told)[0].logged == [], "which lines are of the warm-up is not known"  # type: ignore[arg-type]
    (tmp_path / "run-0" / "measured.json").write_text(json.dumps({"measured_from_line": 1}))
    logged = session_runs(question, past, told)[0].logged  # type: ignore[arg-type]
    assert logged == [PromptHits(0.0, 100, 0), PromptHits(24.0, 100, 75)]


@pytest.mark.parametrize("content", [b"", b"\xff\n", b"[1]\n", b'{"turn": 3}\n{}\n'])
def test_damaged_requests_cost_no_page(tmp_path: Path, content: bytes) -> None:
    question, past, told = campaign_of_sessions(tmp_path)
    for name in (REQUESTS, PREDICTED):
        (tmp_path / "run-0" / name).write_bytes(content)
    assert [run.label for run in session_runs(question, past, told)] == ["the setting (#2)"]  # type: ignore[arg-type]


def chats(path: Path, think_s: float) -> Path:
    rows = [
        {"session": s, "t": t, "think_time": think_s, "input_length": 2048 + 512 * t, "output_length": 20,
         "blocks": 32 + 8 * t, "block_tokens": 64, "shared_with_previous": 32 + 8 * (t - 1) if t else 0}
        for s in range(8) for t in range(4)
    ]  # fmt: skip
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")
    return path


def test_bench_writes_a_page_of_what_it_measured(tmp_path: Path) -> None:
    page, load = tmp_path / "page.html", chats(tmp_path / "chats.jsonl", 0.0)
    with Scripted(tokens(20)) as server:
        done = ridgeline("bench", server.url, "--sessions", 4, "--traffic", load, "--html", page)
    assert done.returncode == 0, done.stderr
    text = page.read_text()
    assert "p95, measured" in text and "predicted" not in text.partition("<main>")[2]
    assert "Cache hit rate" not in text, "the answers said nothing of a cache"


def test_verbs_write_a_page_with_their_figures(tmp_path: Path) -> None:
    chats(tmp_path / "chats.jsonl", 1.0)
    where = ("--model", "llama-8b", "--gpu", "h200", "--gpus-per-node", "1", "--traffic", str(tmp_path / "chats.jsonl"))
    page = tmp_path / "page.html"
    done = ridgeline("twin", "simulate", *where, "--sessions", "4", "--html", str(page))
    assert (
        done.returncode == 0
        and ">TTFT by turn<" in page.read_text()
        and ">Cache hit rate over time<" in page.read_text()
    )
    done = ridgeline("plan", "sessions", *where, "--duration", "60", "--slo", "ttft_p95_ms=200", "--html", str(page))
    most = re.search(r"at most (\d+) sessions", done.stdout)
    assert most is not None and f"knee: {most[1]} session" in page.read_text()
    done = ridgeline("twin", "simulate", *where, "--sessions", "4", "--html", str(tmp_path / "no" / "page.html"))
    assert done.returncode and "--html" in done.stderr and "cannot be written" in done.stderr
    done = ridgeline("bench", "http://127.0.0.1:9", "--find-goodput", "--slo", "ttft_p95_ms=9", "--html", str(page))
    assert done.returncode and "--html draws one run" in done.stderr
