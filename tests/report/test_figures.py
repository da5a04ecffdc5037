"""Figures as data: what each shows, held against campaigns whose truth is known."""

from __future__ import annotations

import math
import random
import re
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Literal

import pytest

from ridgeline.campaign.status import CampaignStatus, read_status
from ridgeline.records.answer import Answer, Candidate, Conclusion, Reference
from ridgeline.records.exhibit import Curve, CurveFigure, CurvePoint, Exhibits
from ridgeline.records.guard import parse_guard
from ridgeline.records.measurement import Measurement
from ridgeline.records.outcome import Kind, Outcome
from ridgeline.records.run import Cause, Ending, Resources, Run
from ridgeline.records.space import Discrete, Point, Space
from ridgeline.records.study import Goal, Study, WorkloadChoice
from ridgeline.records.trial import PredictedRange, Stage, Trial
from ridgeline.report.drawing.draw import draw
from ridgeline.report.figures.campaigns import curves, edge_climb, gate_runs
from ridgeline.report.figures.failures import failure_table
from ridgeline.report.figures.knobs import parallel, slices
from ridgeline.report.figures.machine import nodes, predicted, twin_says
from ridgeline.report.figures.progress import progress
from ridgeline.report.figures.proof import proof, proof_blocks, proof_table
from ridgeline.report.figures.shapes import BASELINE, BEST, WINNER, IntervalFigure, PlotFigure
from ridgeline.report.figures.values import goal_axis, knob_scale
from ridgeline.report.measured import guard_table
from ridgeline.report.sections import Findings, answer_card
from ridgeline.serving.engines.sglang.log import DecodeBatch, Stamp
from ridgeline.serving.figures.engine_log import logged_runs, over_time, step_times, whole_engine
from ridgeline.serving.figures.section import against_load, energy_and_cost, within_limits
from ridgeline.study.codec import QuestionLine
from ridgeline.study.history import History
from tests.campaign.harness import campaign, study

SAMPLES = Path(__file__).parents[1] / "samples/study-folders"
H200 = Path(__file__).parents[2] / "examples/05-sglang-h200/results"


def a_study(root: Path, **changes: object) -> Study:
    space = Space((Discrete("mem", tuple(range(10)), ordered=True), Discrete("kind", ("a", "b"), ordered=False)), {})
    goal = Goal("rate", "maximize")
    plain = Study("s", WorkloadChoice("f", {}), space, goal, baseline={"mem": 0, "kind": "a"}, folder=root)
    return replace(plain, **changes)  # type: ignore[arg-type]


def add(past: History, point: Point, stage: Stage = Stage.SEARCH, kind: Kind = Kind.OK, **metrics: float) -> None:
    number = len(past.trials) + 1
    past.trials[number] = Trial(number, point, point, stage, "test")
    ending = Ending(Cause.EXITED, 0, nodes=("n1",), started_s=1000.0 * number, ended_s=1000.0 * number + 360)
    measured = tuple(Measurement(name, value, "1/s") for name, value in metrics.items())
    past.runs[number] = Run(number, number, 1, past.root, Resources(), ending, Outcome(kind, "why"), measured)
    past.runs_of.setdefault(number, []).append(past.runs[number])


def answer(study: Study, point: Point | None = None) -> Answer:
    candidate = None if point is None else Candidate("the setting", 1, point, point, 1.0, confirmed=True)
    return Answer(
        "search", Conclusion.CONFIRMED, "", Reference("the baseline", study.baseline, 1.0), candidate, unit="1/s"
    )


def search_with_an_edge(root: Path) -> History:
    """Rate grows with mem; from 7 on kind b runs out of memory, from 9 on both do."""
    past, rng = History(root), random.Random(3)
    add(past, {"mem": 0, "kind": "a"}, Stage.BASELINE, rate=100.0)
    for mem in range(10):
        for kind in ("a", "b"):
            fails = mem >= (7 if kind == "b" else 9)
            value = 100.0 * 1.1**mem * (1 + rng.gauss(0, 0.002))
            add(
                past,
                {"mem": mem, "kind": kind},
                kind=Kind.OOM_RUN if fails else Kind.OK,
                **({} if fails else {"rate": value}),
            )
    return past


def shown(figure: PlotFigure | None) -> PlotFigure:
    assert figure is not None
    return figure


def test_failures_are_in_a_strip_and_never_among_the_values(tmp_path: Path) -> None:
    """Also for a time to minimise, where the bottom of the figure is where the winners are."""
    for direction in ("maximize", "minimize"):
        question = a_study(tmp_path, goal=Goal("rate", direction))
        figure = shown(progress(question, search_with_an_edge(tmp_path), answer(question), {}))
        assert len(figure.strip) == 4
        assert {mark.lane for mark in figure.strip} == {"out of memory"}
        drawn = [p.y for series in figure.series for p in series.points]
        assert min(drawn) > 90


def test_a_setting_looks_the_same_in_the_progress_of_every_kind(tmp_path: Path) -> None:
    """Slate for what was before, orange for what the answer is about, whatever its group is called."""
    question, past = a_study(tmp_path), History(tmp_path)
    for mem in (0, 3, 5):
        add(past, {"mem": mem, "kind": "a"}, rate=100.0 + mem)
    figure = shown(progress(question, past, answer(question, {"mem": 5, "kind": "a"}), {1: "A", 2: "between", 3: "B"}))
    assert {one.name: one.look for one in figure.series} == {"A": BASELINE, "between": "1", "B": WINNER}


def test_the_runs_of_a_gate_are_drawn_against_its_reference(tmp_path: Path) -> None:
    question, past = a_study(tmp_path), History(tmp_path)
    for rate in (106.0, 105.0):
        add(past, {"mem": 0, "kind": "a"}, rate=rate)
    held = Answer("gate", "slower", "", Reference("the reference", question.baseline, 100.0), None)
    figure = shown(progress(question, past, held, {1: "run", 2: "run"}))
    assert isinstance(figure, PlotFigure)
    assert [(one.label, one.value) for one in figure.limits] == [("the reference: 100", 100.0)]
    assert figure.bands == (), "these runs are no baseline that others are held against"


@pytest.mark.parametrize("direction", ["maximize", "minimize"])
def test_the_best_so_far_only_gets_better(tmp_path: Path, direction: Literal["maximize", "minimize"]) -> None:
    question = a_study(tmp_path, goal=Goal("rate", direction))
    figure = shown(progress(question, search_with_an_edge(tmp_path), answer(question), {}))
    best = [p.y for series in figure.series if series.look == BEST for p in series.points]
    assert len(best) > 2 and best == sorted(best, reverse=direction == "minimize")


def test_a_wide_range_gets_a_log_axis(tmp_path: Path) -> None:
    past = History(tmp_path)
    for value in (1.0, 10.0, 1000.0):
        add(past, {"mem": 1, "kind": "a"}, rate=value)
    figure = shown(progress(a_study(tmp_path), past, answer(a_study(tmp_path)), {}))
    assert isinstance(figure, PlotFigure) and figure.y.log
    narrow = shown(progress(a_study(tmp_path), search_with_an_edge(tmp_path), answer(a_study(tmp_path)), {}))
    assert isinstance(narrow, PlotFigure) and not narrow.y.log


def test_twice_as_much_looks_like_twice_as_much(tmp_path: Path) -> None:
    asked = a_study(tmp_path)
    assert goal_axis(asked, [100.0, 420.0], "").from_zero
    assert not goal_axis(asked, [100.0, 130.0], "").from_zero, "what differs by a little would be hidden"


def test_names_stand_in_the_order_of_the_study() -> None:
    seen = ["v1", "v12", "v3", None]
    assert [text for _, text in knob_scale("release", seen, ("v1", "v3", "v12")).axis.ticks] == [
        "v1", "v3", "v12", "absent"
    ]  # fmt: skip


def test_what_has_names_is_drawn_by_name_with_its_change(tmp_path: Path) -> None:
    points = tuple(CurvePoint(at, y) for at, y in enumerate((10.0, 10.0, 13.0)))
    names, marks = ("v1", "v2", "v3"), ((1.5, "slower from v3"),)
    figure = CurveFigure("By release", "release", "rate", (Curve("mean", points),), "Each.", names, marks)
    drawn = curves(figure, "curve-0", a_study(tmp_path), History(tmp_path), "GF/s")
    assert drawn.y.label == "rate (GF/s), higher is better"
    assert [text for _, text in drawn.x.ticks] == ["v1", "v2", "v3"]
    assert drawn.says == "Each." and [limit.label for limit in drawn.limits] == ["slower from v3"]
    assert drawn.series[0].points[2].label == "v3: 13"


def test_a_machine_that_changed_is_shaded_from_then_on(tmp_path: Path) -> None:
    question, past = a_study(tmp_path), History(tmp_path)
    for at in range(24):
        stage = Stage.SENTINEL if at else Stage.BASELINE
        add(past, {"mem": 0, "kind": "a"}, stage, rate=(100.0 if at < 12 else 80.0) * (1 + 0.002 * (at % 3)))
    figure = shown(progress(question, past, answer(question), {}))
    (span,) = figure.spans
    assert (span.look, span.start, span.end) == ("drift", 13, 24)
    assert "20" in figure.notes[0] and "slower" in figure.notes[0]
    assert not shown(progress(question, search_with_an_edge(tmp_path), answer(question), {})).notes


def failed(question: Study, past: History) -> tuple[str, ...]:
    table = failure_table(question, past)
    assert table is not None
    return table.notes


def test_failures_that_lie_together_are_told_with_their_place(tmp_path: Path) -> None:
    (note,) = failed(a_study(tmp_path), search_with_an_edge(tmp_path))
    assert note == (
        "All 4 failures (out of memory) are at mem 7 to 9; where exactly depends on kind, and beyond it nothing passed."
    )


def test_two_unlike_failures_have_no_pattern(tmp_path: Path) -> None:
    past = History(tmp_path)
    for mem in range(8):
        for kind in ("a", "b"):
            failed = Kind.WRONG if (mem, kind) == (2, "b") else Kind.OK
            add(past, {"mem": mem, "kind": kind}, kind=failed, **({} if failed is not Kind.OK else {"rate": 1.0}))
    add(past, {"mem": 9, "kind": "a"}, kind=Kind.OOM_RUN)  # alone at the end of mem: one failure is no pattern
    question = a_study(tmp_path)
    table = failure_table(question, past)
    assert table is not None
    assert table.notes == ("2 failures (wrong result, out of memory) not explained by any knob.",)
    assert [row[0] for row in table.rows] == ["wrong result", "out of memory while running"]


def test_a_knob_is_named_only_where_no_success_speaks_against_it(tmp_path: Path) -> None:
    """Two failures of one kind at mem 3 and 7, with passes between them: neither knob tells them apart."""
    past = History(tmp_path)
    for mem in range(8):
        for kind in ("a", "b"):
            fails = (mem, kind) in ((3, "a"), (7, "b"))
            add(
                past,
                {"mem": mem, "kind": kind},
                kind=Kind.CRASH if fails else Kind.OK,
                **({} if fails else {"rate": 1.0}),
            )
    assert failed(a_study(tmp_path), past) == ("2 failures (crash) not explained by any knob.",)


def test_one_kind_of_failure_has_its_place_and_another_none(tmp_path: Path) -> None:
    past = History(tmp_path)
    for mem in range(10):
        for kind in ("a", "b"):
            ended = Kind.OOM_RUN if mem >= 8 else Kind.WRONG if (mem, kind) == (1, "b") else Kind.OK
            add(past, {"mem": mem, "kind": kind}, kind=ended, **({} if ended is not Kind.OK else {"rate": 1.0}))
    assert failed(a_study(tmp_path), past) == (
        "All 4 failures (out of memory) are at mem 8 to 9, where nothing passed.",
        "1 failure (wrong result) not explained by any knob.",
    )


def test_failures_are_counted_with_the_first_story(tmp_path: Path) -> None:
    table = failure_table(a_study(tmp_path), search_with_an_edge(tmp_path))
    assert table is not None
    assert table.rows == (("out of memory while running", "4", "#17: out of memory while running; why"),)


def test_slices_and_parallel_show_every_setting(tmp_path: Path) -> None:
    question, past = a_study(tmp_path), search_with_an_edge(tmp_path)
    told = answer(question, {"mem": 8, "kind": "a"})
    group, lines = slices(question, past, told), parallel(question, past, told)
    assert group is not None and lines is not None
    assert [figure.title for figure in group.figures] == ["mem", "kind"]
    assert len(lines.lines) == 20
    assert [one.look for one in lines.lines].count("failed") == 4
    best = max(lines.lines, key=lambda one: one.share if one.share is not None else -1)
    assert best.label.startswith("#18 mem 8")


def test_the_line_of_the_setting_is_drawn_on_top_even_where_another_ran_faster_once(tmp_path: Path) -> None:
    question, past = a_study(tmp_path), History(tmp_path)
    for mem, rate in ((0, 100.0), (3, 130.0), (5, 140.0), (1, 90.0)):
        add(past, {"mem": mem, "kind": "b" if mem == 1 else "a"}, rate=rate)
    found = parallel(question, past, answer(question, {"mem": 3, "kind": "a"}))
    assert found is not None
    assert [line.look for line in found.lines][-2:] == [BASELINE, WINNER]
    assert found.lines[-1].share != 1.0, "its rank stays what it is"


def test_names_of_a_knob_stand_in_the_order_of_the_study_whichever_ran_first(tmp_path: Path) -> None:
    kinds = Discrete("kind", ("slow", "fast", "auto"), ordered=False)
    question = a_study(tmp_path, space=Space((Discrete("mem", (0, 1), ordered=True), kinds), {}))
    past = History(tmp_path)
    for at, kind in enumerate(("auto", "fast", "slow", "auto")):
        add(past, {"mem": at % 2, "kind": kind}, rate=10.0 + at)
    group, lines = slices(question, past, answer(question)), parallel(question, past, answer(question))
    assert group is not None and lines is not None
    assert [(figure.key, figure.title) for figure in group.figures] == [("slice-mem", "mem"), ("slice-kind", "kind")]
    of_kind = group.figures[1]
    assert isinstance(of_kind, PlotFigure)
    assert of_kind.x.ticks == ((0.0, "slow"), (1.0, "fast"), (2.0, "auto"))
    assert {(p.x, p.y) for series in of_kind.series for p in series.points} == {(2, 10), (1, 11), (0, 12), (2, 13)}
    assert [told for _, told in lines.axes[1].ticks] == ["slow", "fast", "auto"]


def test_a_line_of_a_setting_ends_at_the_mean_of_its_runs(tmp_path: Path) -> None:
    """Not at its latest run: another setting would look better by luck."""
    question, past = a_study(tmp_path), History(tmp_path)
    add(past, {"mem": 0, "kind": "a"}, Stage.BASELINE, rate=10.0)
    add(past, {"mem": 1, "kind": "b"}, rate=19.0)
    for rate in (22.0, 18.0):
        add(past, {"mem": 2, "kind": "a"}, Stage.CONFIRM, rate=rate)
    found = parallel(question, past, answer(question, {"mem": 2, "kind": "a"}))
    assert found is not None
    assert {line.look: line.places[-1] for line in found.lines}[WINNER] == 1.0
    assert found.axes[-1].ticks[-1] == (1.0, "20")
    assert "failed" not in found.says


@pytest.fixture(scope="module")
def confirmed(tmp_path_factory: pytest.TempPathFactory) -> CampaignStatus:
    root = tmp_path_factory.mktemp("confirmed")
    question = study(root)
    ran = campaign(root, question)
    ran.run()
    return CampaignStatus(ran.question, question, ran.history)


def test_the_proof_shows_every_run_of_every_block_in_order(confirmed: CampaignStatus) -> None:
    runs, ratios = proof(confirmed.study, confirmed.history, confirmed.answer)
    assert isinstance(runs, PlotFigure) and isinstance(ratios, IntervalFigure)
    drawn = [p.x for series in runs.series for p in series.points]
    assert sorted(drawn) == [*range(1, confirmed.history.count(Stage.CONFIRM) + 1)]
    assert len(runs.spans) == 3
    blocks = proof_blocks(confirmed.study, confirmed.history)
    assert [block.number for block in blocks] == [0, 1, 2]
    for block in blocks:
        keys = [trial.key for trial, _ in block.runs]
        size = len(set(keys))
        rounds = [keys[at : at + size] for at in range(0, len(keys), size)]
        assert size > 1 and len(rounds) > 1
        assert all(sorted(each) == sorted(set(keys)) for each in rounds), "every round runs each setting once"


def test_the_proof_agrees_with_the_verdict(confirmed: CampaignStatus) -> None:
    _, ratios = proof(confirmed.study, confirmed.history, confirmed.answer)
    assert isinstance(ratios, IntervalFigure) and confirmed.answer.candidate is not None
    gain = confirmed.answer.candidate.gain
    row = next(row for row in ratios.rows if row.label == "B, the setting, 3 blocks")
    assert gain is not None
    assert (row.value, row.low, row.high) == (gain.ratio, gain.low, gain.high)
    assert row.dots == pytest.approx([gain.ratio] * 3, rel=0.05)
    table = proof_table(confirmed.study, confirmed.history, confirmed.answer)
    assert table is not None and len(table.rows) == 3
    assert table.title == "Every block: rate", "what its numbers are"


def test_a_time_that_fell_is_a_ratio_above_one(tmp_path: Path) -> None:
    question = a_study(tmp_path, goal=Goal("rate", "minimize"))
    past = History(tmp_path)
    for mem, value in ((0, 10.0), (1, 8.0), (1, 8.0), (0, 10.0)):
        add(past, {"mem": mem, "kind": "a"}, Stage.CONFIRM, rate=value)
        past.trials[len(past.trials)] = replace(past.trials[len(past.trials)], block=0)
    (block,) = proof_blocks(question, past)
    assert [*block.ratios.values()] == pytest.approx([1.25])


def test_a_guard_tells_its_worst_margin(tmp_path: Path) -> None:
    question = a_study(tmp_path, guards=tuple(map(parse_guard, ("loss < 0.5", "energy within 1e-6 of baseline"))))
    past = History(tmp_path, reference={"energy": -76.0})
    for loss, off in ((0.1, 0.0), (0.4, 5e-7)):
        add(past, {"mem": 1, "kind": "a"}, rate=1.0, loss=loss, energy=-76.0 + off)
    table = guard_table(question, past)
    assert table is not None
    assert [row[2] for row in table.rows] == [
        "0.4 at #2, 20% of the limit to spare",
        "off by 5e-07 at #2, 50% of the tolerance used",
    ]


def test_nodes_need_two(tmp_path: Path) -> None:
    assert nodes(a_study(tmp_path), search_with_an_edge(tmp_path)) is None


def test_what_was_predicted_is_held_against_what_was_measured(tmp_path: Path) -> None:
    past = History(tmp_path)
    for said, was in ((110.0, 100.0), (90.0, 100.0), (120.0, 100.0)):
        add(past, {"mem": 1, "kind": "a"}, rate=was, predicted_rate=said)
    assert [*twin_says(past)] == [
        "The twin predicted rate of 3 runs before they ran: half of them within 10%, off by +7% on average."
    ]
    assert predicted(a_study(tmp_path), past) is None, "no range was stated of the trials"


def test_how_many_trials_lie_in_their_stated_range_is_counted(tmp_path: Path) -> None:
    past = History(tmp_path)
    for measured in (100.0, 104.0, 90.0, 120.0):
        add(past, {"mem": 1, "kind": "a"}, rate=measured)
        stated = PredictedRange(100.0, 95.0, 105.0, 0.03, in_logs=True)
        past.trials[len(past.trials)] = replace(past.trials[len(past.trials)], predicted=stated)
    figure = predicted(a_study(tmp_path), past)
    assert figure is not None and figure.notes == ("2 of 4 trials inside their stated 90% range.",)
    assert [(p.low, p.y, p.high) for p in figure.series[0].points] == [(95.0, 100.0, 105.0)] * 4


def test_latency_against_load_has_limit_and_knee(tmp_path: Path) -> None:
    space = Space((Discrete("concurrency", (1, 2, 4, 8, 16), ordered=True),), {})
    workload = WorkloadChoice("f", {"slo": ["ttft_p95_ms=200"]})
    question = a_study(tmp_path, space=space, workload=workload, baseline={"concurrency": 1})
    past = History(tmp_path)
    for load, ms in ((1, 50.0), (2, 60.0), (4, 90.0), (8, 180.0), (16, 900.0)):
        add(past, {"concurrency": load}, rate=1.0, ttft_p95_ms=ms, ttft_p50_ms=ms / 2)
    group = against_load(question, past, answer(question))
    assert group is not None
    figure = group.figures[0]
    assert isinstance(figure, PlotFigure)
    assert {(limit.label, limit.value) for limit in figure.limits} == {
        ("limit p95 200 ms", 200.0),
        ("knee at 8", 8.0),
    }


def served(root: Path) -> tuple[Study, History, Answer]:
    """A goal of goodput: the setting serves hardly more, but more of it in time."""
    workload = WorkloadChoice("f", {"slo": ["ttft_p95_ms=2000", "itl_p95_ms=50"]})
    question, past = a_study(root, workload=workload, goal=Goal("goodput", "maximize")), History(root)
    add(past, {"mem": 0, "kind": "a"}, goodput=4.0, requests_s=16.0, ttft_p95_ms=5000.0, itl_p95_ms=40.0)
    add(past, {"mem": 1, "kind": "a"}, goodput=12.0, requests_s=20.0, ttft_p95_ms=2200.0, itl_p95_ms=60.0)
    add(past, {"mem": 1, "kind": "a"}, goodput=16.0, requests_s=20.0, ttft_p95_ms=2400.0, itl_p95_ms=60.0)
    return question, past, answer(question, {"mem": 1, "kind": "a"})


def test_goodput_says_its_share_of_all_requests(tmp_path: Path) -> None:
    (share,) = within_limits(*served(tmp_path))
    assert "requests whose TTFT is at most 2000 ms and mean ITL at most 50 ms: " in share
    assert share.endswith(": 25% of the baseline's, 70% of the setting's.")
    question, past, told = served(tmp_path)
    group = against_load(replace(question, goal=Goal("requests_s", "maximize")), past, told)
    assert group is not None and group.notes[0] == share
    card = answer_card(Findings(question, past, told, Exhibits()))
    assert card.notes[-1:] == (share,)


@pytest.mark.parametrize("width", [300, 900])
def test_the_label_of_a_limit_hides_no_mark(tmp_path: Path, width: int) -> None:
    question, past, told = served(tmp_path)
    group = against_load(question, past, told)
    assert group is not None
    figure = group.figures[0]
    assert isinstance(figure, PlotFigure)
    text = draw(figure, width)
    found = re.search(r"<text ([^>]*)>limit p95 2000 ms", text)
    assert found is not None, text
    assert "end" not in found[1], "the marks of the setting are at the right end"


def test_energy_is_per_million_tokens(tmp_path: Path) -> None:
    question, past = a_study(tmp_path), History(tmp_path)
    add(past, {"mem": 0, "kind": "a"}, rate=1.0, joules_per_token=0.036)
    (figure,) = energy_and_cost(question, past, answer(question))
    assert math.isclose(figure.rows[0].parts[0].value, 10.0)
    assert figure.x.label == "Wh per million tokens"


def test_an_engines_log_becomes_its_course() -> None:
    now = read_status(H200 / "deepseek-v2-lite")
    logged = logged_runs(now.study, now.history, now.answer)
    assert [one.look for one in logged] == ["baseline", "winner"]
    group, steps = over_time(logged), step_times(logged)
    assert group is not None and steps is not None
    assert [figure.title for figure in group.figures] == ["running requests", "KV in use", "output tokens"]
    assert group.notes == ("Not shown, since nothing but 0 was logged: queue.",)
    running = group.figures[0]
    assert isinstance(running, PlotFigure)
    assert max(p.y for p in running.series[0].points) == now.history.runs[1].metrics["peak_running"]
    assert any("without CUDA graph" in series.name for series in steps.series)


def test_an_edge_and_a_scaling_answer_their_own_question() -> None:
    edge = read_status(SAMPLES / "edge-finished")
    climb = edge_climb(edge.study, edge.history, edge.answer)
    assert climb is not None
    assert [(limit.label, limit.value) for limit in climb.limits] == [
        ("for production: 12", 12.0),
        ("largest that passed: 13", 13.0),
    ]
    assert min(mark.x for mark in climb.strip) == 14
    scale = read_status(SAMPLES / "scale-finished")
    assert scale.history.verdict is not None
    figure = curves(scale.exhibits.figures[0], "speed", scale.study, scale.history, "")
    law = next(series for series in figure.series if series.name.startswith("Amdahl"))
    measured = next(series for series in figure.series if series.name == "measured")
    assert law.points[-1].y == pytest.approx(measured.points[-1].y, rel=0.02)


def test_a_gate_shows_its_runs_beside_those_of_the_reference(tmp_path: Path) -> None:
    past = History(tmp_path)
    past.question = QuestionLine("gate", {"stored": [100.0, 102.0, 98.0], "slower": 0.05})
    for rate in (90.0, 91.0):
        add(past, {"mem": 0, "kind": "a"}, Stage.SEARCH, rate=rate)
    figure = gate_runs(a_study(tmp_path), past, Answer("gate", None, "", Reference("the reference", {}, 100.0), None))
    assert figure is not None
    assert [(series.name, [p.x for p in series.points]) for series in figure.series] == [
        ("the reference", [1, 2, 3]), ("now", [4, 5])
    ]  # fmt: skip
    (limit,) = figure.limits
    assert (limit.across, limit.label) == ("y", "5% slower than the reference")
    assert limit.value == pytest.approx(100 / 1.05), "a rate that is lower"


def test_engines_of_several_ranks_are_compared_whole() -> None:
    def step(second: int, rank: str, running: int) -> DecodeBatch:
        stamp = Stamp(1, datetime(2026, 1, 1, 0, 0, second), (rank, "TP0"))
        return DecodeBatch(stamp, running, 10 * running, 0.5, True, 100.0, 3)

    alone = [step(0, "DP0", 4), step(1, "DP0", 5)]
    steps, note = whole_engine(alone, 4)
    assert [(s.running, s.queued, s.gen_tok_s, s.token_usage) for s in steps] == [
        (16, 12, 400.0, 0.5), (20, 12, 400.0, 0.5),
    ]  # fmt: skip
    assert note == ", 4 ranks taken to be like DP0"
    both = [step(0, "DP0", 4), step(0, "DP1", 6), step(1, "DP0", 5)]
    steps, note = whole_engine(both, 2)
    assert [s.running for s in steps] == [11] and note == ", 2 ranks together"
    assert whole_engine(alone, 1) == (tuple(alone), "")
