"""What a report shows of every run and every setting: no row is left out, and each number is of what it says."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ridgeline.records.answer import Answer, Candidate, Gain, Reference
from ridgeline.records.outcome import Kind
from ridgeline.records.space import Point
from ridgeline.records.study import Goal
from ridgeline.records.trial import Stage
from ridgeline.report.figures.campaigns import _fitted, edge_climb, gate_runs
from ridgeline.report.figures.progress import progress
from ridgeline.report.figures.values import counted_axis, goal_axis, judged_runs, knob_scale, needs_log
from ridgeline.report.parts import FactTiles
from ridgeline.report.studies import StudySeen, compare_studies, project_sections
from ridgeline.report.table import columns, rows, write_csv, write_json
from ridgeline.study.codec import QuestionLine, VerdictLine
from ridgeline.study.history import History
from tests.report.test_figures import a_study, add

A, B, C = ({"mem": n, "kind": "a"} for n in (0, 1, 2))


def answered(point: Point | None = B, ratio: float = 2.0, confirmed: bool = True, **more: Any) -> Answer:
    gain = Gain(ratio, ratio - 0.1, ratio + 0.1, 0.95, "told")
    candidate = (
        None if point is None else Candidate("the setting", 2, point, point, 20.0, confirmed=confirmed, gain=gain)
    )
    conclusion = "confirmed" if confirmed else "unconfirmed"
    return Answer("search", conclusion, "told", Reference("the baseline", A, 10.0), candidate, unit="1/s", **more)


def searched(root: Path) -> History:
    """The baseline, three of the search (one failed), and two of the confirmation."""
    past = History(root)
    add(past, A, Stage.BASELINE, rate=10.0)
    add(past, B, rate=18.0)
    add(past, C, kind=Kind.CRASH)
    add(past, {"mem": 3, "kind": "b"}, rate=12.0)
    add(past, A, Stage.CONFIRM, rate=10.0)
    add(past, B, Stage.CONFIRM, rate=20.0)
    past.node_hours = 0.6
    return past


def test_every_run_has_its_row_with_what_the_answer_says_of_its_setting(tmp_path: Path) -> None:
    table = rows(searched(tmp_path), answered())
    assert [(r["run"], r["trial"], r["stage"], r["outcome"]) for r in table] == [
        (1, 1, "baseline", "ok"),
        (2, 2, "search", "ok"),
        (3, 3, "search", "crash"),
        (4, 4, "search", "ok"),
        (5, 5, "confirm", "ok"),
        (6, 6, "confirm", "ok"),
    ]
    assert [r["answer.is"] for r in table] == ["reference", "candidate", "", "", "reference", "candidate"]
    assert [r.get("answer.ratio") for r in table] == [None, 2.0, None, None, None, 2.0]
    assert (table[1]["answer.low"], table[1]["answer.high"], table[1]["answer.verdict"]) == (1.9, 2.1, "confirmed")
    assert [r.get("got.rate") for r in table] == [10.0, 18.0, None, 12.0, 10.0, 20.0]
    assert [r["set.mem"] for r in table] == [0, 1, 2, 3, 0, 1] and table[3]["set.kind"] == "b"
    assert [r["duration_s"] for r in table] == [360.0] * 6 and table[0]["node_hours"] == pytest.approx(0.1)
    assert not any(name.startswith("answer.") for name in rows(searched(tmp_path))[0])


def test_csv_and_json_hold_every_column_and_every_row(tmp_path: Path) -> None:
    table = rows(searched(tmp_path), answered())
    named = columns(table)
    assert len(set(named)) == len(named) and set(named) == {name for row in table for name in row}
    text = io.StringIO()
    write_csv(table, text)
    head, *lines = text.getvalue().splitlines()
    assert head.split(",") == named and len(lines) == 6
    text = io.StringIO()
    write_json(table, answered(), text)
    read = json.loads(text.getvalue())
    assert [row["run"] for row in read["runs"]] == [1, 2, 3, 4, 5, 6] and read["answer"]["confirmed"] is True


@pytest.mark.parametrize(
    ("direction", "best"), [("maximize", [18.0, 18.0, 18.0, 18.0, 18.0]), ("minimize", [18.0, 18.0, 12.0, 12.0, 12.0])]
)
def test_progress_holds_every_run_in_order(tmp_path: Path, direction: Any, best: list[float]) -> None:
    study = a_study(tmp_path, goal=Goal("rate", direction))
    figure = progress(study, searched(tmp_path), answered(), {})
    assert figure is not None
    drawn = {one.look: [(p.x, p.y) for p in one.points] for one in figure.series if one.look != "best"}
    baseline, search = [(1, 10.0), (5, 10.0)], [(2, 18.0), (4, 12.0)]
    assert drawn == {"baseline": baseline, "search": search, "winner": [(6, 20.0)]}
    assert sum(len(one.points) for one in figure.series if one.look != "best") == 5
    assert [mark.x for mark in figure.strip] == [3.0]
    assert [(band.low, band.high) for band in figure.bands] == [(10.0, 10.0)]
    assert "range of 2 baseline runs" in figure.bands[0].label
    (course,) = (one for one in figure.series if one.look == "best")
    assert [(p.x, p.y) for p in course.points] == [*enumerate(best, 2)], "as it stood after each run"


def test_short_runs_and_warm_ups_are_not_shown(tmp_path: Path) -> None:
    past = searched(tmp_path)
    add(past, C, Stage.SHORT, rate=99.0)
    add(past, C, Stage.WARM_UP, rate=99.0)
    add(past, C, rate=11.0)
    figure = progress(a_study(tmp_path), past, answered(), {})
    assert figure is not None
    assert sum(len(one.points) for one in figure.series if one.look != "best") + len(figure.strip) == 7
    assert max(p.x for one in figure.series for p in one.points) == 7
    assert len(rows(past)) == 9, "the table has them all"


def test_what_says_something_of_a_setting(tmp_path: Path) -> None:
    past = searched(tmp_path)
    add(past, C, kind=Kind.NODE_FAULT)
    assert [run.number for _, run in judged_runs(past)] == [1, 2, 3, 4, 5, 6]


# axes


@pytest.mark.parametrize(
    ("values", "log", "from_zero"),
    [([1.0, 20.0], True, True), ([1.0, 19.9], False, True), ([10.0, 20.0], False, True), ([10.1, 20.0], False, False),
     ([0.0, 20.0], False, False), ([], False, False), ([-1.0, 5.0], False, False)],
)  # fmt: skip
def test_an_axis_is_logarithmic_from_twenty_times_and_from_zero_where_values_double(
    tmp_path: Path, values: list[float], log: bool, from_zero: bool
) -> None:
    axis = goal_axis(a_study(tmp_path), values, "1/s")
    assert (axis.log, axis.from_zero, axis.label) == (log, from_zero, "rate (1/s), higher is better")
    assert needs_log(values) is log
    assert goal_axis(a_study(tmp_path, goal=Goal("rate", "minimize")), values, "").label == "rate, lower is better"


def test_knobs_stand_where_they_belong() -> None:
    numbers = knob_scale("x", [4, 1, 2, 2])
    assert [numbers.place(n) for n in (1, 2, 4)] == [1.0, 2.0, 4.0] and not numbers.axis.log
    assert numbers.axis.ticks == ((1.0, "1"), (2.0, "2"), (4.0, "4"))
    assert knob_scale("x", [1, 2, 8]).axis.log and not knob_scale("x", [1, 8]).axis.log
    assert knob_scale("x", range(1, 8)).axis.ticks and not knob_scale("x", range(1, 9)).axis.ticks
    names = knob_scale("x", ["b", "a", None], ["a", "b"])
    assert [names.place(v) for v in ("a", "b", None)] == [0.0, 1.0, 2.0]
    assert (names.axis.low, names.axis.high) == (-0.5, 2.5)
    assert [at for at, _ in counted_axis("run", 20).ticks] == [float(n) for n in range(1, 21)]
    assert counted_axis("run", 21).ticks == ()


# figures of other kinds


@pytest.mark.parametrize(("direction", "level"), [("maximize", 10.0 / 1.25), ("minimize", 12.5)])
def test_a_gate_shows_the_slowdown_that_it_looks_for(tmp_path: Path, direction: Any, level: float) -> None:
    past = History(tmp_path)
    add(past, A, rate=9.0)
    add(past, A, rate=9.5)
    past.question = QuestionLine("gate", {"stored": [10.0, 9.0, 11.0], "slower": 0.25})
    figure = gate_runs(a_study(tmp_path, goal=Goal("rate", direction)), past, answered())
    assert figure is not None and figure.limits[0].value == pytest.approx(level)
    before, now = figure.series
    assert [(p.x, p.y) for p in before.points] == [(1, 10.0), (2, 9.0), (3, 11.0)]
    assert [(p.x, p.y) for p in now.points] == [(4, 9.0), (5, 9.5)]


def test_an_edge_shows_every_value_that_ran_and_those_that_failed_below(tmp_path: Path) -> None:
    past = searched(tmp_path)
    past.question = QuestionLine("edge", {"knob": "mem"})
    past.verdict = VerdictLine("edge", "told", {"edge": 3, "production": 1})
    figure = edge_climb(a_study(tmp_path), past, answered())
    assert figure is not None
    assert [(p.x, p.y) for p in figure.series[0].points] == [(0, 10.0), (1, 18.0), (3, 12.0), (0, 10.0), (1, 20.0)]
    assert [(mark.x, mark.trial) for mark in figure.strip] == [(2.0, 3)]
    assert [(one.label, one.value) for one in figure.limits] == [
        ("for production: 1", 1.0),
        ("largest that passed: 3", 3.0),
    ]
    assert figure.y.high == pytest.approx(20.0 + 0.3 * 10.0)
    lacking = History(tmp_path, question=past.question)
    for point in ({"kind": "a"}, A, {"kind": "b"}, B):
        add(lacking, point, rate=10.0)
    without = edge_climb(a_study(tmp_path), lacking, answered())
    assert without is not None and [(p.x, p.trial) for p in without.series[0].points] == [(0, 2), (1, 4)]
    past.verdict = VerdictLine("edge", "told", {"edge": 3, "production": 3})
    again = edge_climb(a_study(tmp_path), past, answered())
    assert again is not None and len(again.limits) == 1, "one line for one value"


def test_the_fitted_law_is_gunthers_from_the_smallest_size_on() -> None:
    law = {"serial": 0.1, "crosstalk": 0.01}
    points = _fitted(law, [2.0, 4.0, 8.0], efficiency=False)
    assert len(points) == 25 and (points[0].x, points[0].y) == (2.0, 1.0) and points[-1].x == pytest.approx(8.0)
    assert points[-1].y == pytest.approx(4 / (1 + 0.1 * 3 + 0.01 * 4 * 3))
    assert _fitted(law, [2.0, 8.0], efficiency=True)[-1].y == pytest.approx(points[-1].y / 4)


# a folder of studies, and two side by side


def seen(
    root: Path, name: str, *, direction: Any = "maximize", history: History | None = None, **more: Any
) -> StudySeen:
    return StudySeen(name, a_study(root, goal=Goal("rate", direction)), history or searched(root), answered(**more))


def test_a_project_holds_every_study_with_its_cost_and_sums_them(tmp_path: Path) -> None:
    later = searched(tmp_path)
    for number, run in list(later.runs.items()):
        ending = replace(run.ending, started_s=run.ending.started_s + 1e6, ended_s=run.ending.ended_s + 1e6)
        later.runs[number] = replace(run, ending=ending)
    later.node_hours = 1.4
    one, two = seen(tmp_path, "one"), seen(tmp_path, "two", history=later, ratio=1.5, point=C)
    open_ = seen(tmp_path, "three", point=None, confirmed=False)
    first, table, *rest = project_sections([two, one, open_])
    assert "2 of 3 measured studies confirmed a better setting: 1.50x to 2.00x the baseline" in str(first)
    tiles = next(part.facts for part in first.parts if isinstance(part, FactTiles))
    assert tiles[0][:2] == ("studies", "3") and tiles[1][1:] == ("2.6 node-hours", "18 runs, measured")
    assert tiles[2][1] == "1 node"
    shown = table.parts[0]
    assert [row[0] for row in shown.rows] == ["one", "three", "two"], "by when they began"
    assert [row[1] for row in shown.rows] == ["measured"] * 3
    assert [row[2] for row in shown.rows if row[0] != "three"] == ["2.00x (1.90 to 2.10)", "1.50x (1.40 to 1.60)"]
    assert [row[6] for row in shown.rows] == ["0.6 node-hours", "0.6 node-hours", "1.4 node-hours"]
    assert shown.changed == frozenset({0, 2})
    knobs = next(section for section in rest if section.key == "knobs").parts[-1]
    assert [row[:5] for row in knobs.rows] == [
        ("mem", "one", "measured", "0", "1"),
        ("mem", "two", "measured", "0", "2"),
    ]


@pytest.mark.parametrize(("direction", "ratio"), [("maximize", 1.5), ("minimize", 1 / 1.5)])
def test_two_studies_are_held_against_each_other_by_their_confirmed_runs(
    tmp_path: Path, direction: Any, ratio: float
) -> None:
    faster = History(tmp_path)
    add(faster, A, Stage.BASELINE, rate=1.0)
    add(faster, A, Stage.CONFIRM, rate=15.0)
    add(faster, B, rate=27.0)
    add(faster, C, rate=12.0)
    add(faster, {"mem": 3, "kind": "b"}, kind=Kind.CRASH)
    first = seen(tmp_path, "old", direction=direction)
    second = seen(tmp_path, "new", direction=direction, history=faster)
    found = compare_studies(first, second)
    assert [dict(one.point) for one in found.settings] == [A, B], "those that passed in both"
    base, other = found.settings
    assert base.values == (10.0, 15.0), "the confirmation's run alone"
    assert base.ratio.ratio == pytest.approx(ratio) and base.ratio.runs == (1, 1)
    assert other.values == (20.0, 27.0)
    assert set(found.outcomes) == {("mem 2", "crash", "ok"), ("mem 3, kind b", "ok", "crash")}
    told = found.as_json()
    assert [row["first"] for row in told["settings"]] == [10.0, 20.0] and told["metric"] == "rate"
    back = compare_studies(second, first)
    assert back.settings[0].ratio.ratio == pytest.approx(1 / ratio)
