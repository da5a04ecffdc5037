"""Drawing: ticks that say where they stand, texts that stay inside, marks that differ by form as well as colour."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.report.drawing import draw as drawing
from ridgeline.report.drawing.draw import HALF_PX, legend, standing_alone, table_of
from ridgeline.report.drawing.svg import CHARACTER_PX, mark, pixel_scale, thinned, ticks
from ridgeline.report.figures.shapes import (
    SEARCH,
    Axis,
    BarFigure,
    BarPart,
    BarRow,
    Figure,
    IntervalFigure,
    IntervalRow,
    ParallelAxis,
    ParallelFigure,
    ParallelLine,
    PlotBand,
    PlotFigure,
    PlotLimit,
    PlotPoint,
    PlotSeries,
    PlotSpan,
    StripMark,
)


def draw(figure: Figure, width: float = 900) -> str:
    """Without the quotes that single words do not need, which makes patterns short."""
    return re.sub(r'="([^\s"]+)"', r"=\1", drawing.draw(figure, width)).replace("/>", " />")


numbers = st.floats(-1e12, 1e12, allow_nan=False)


@given(numbers, st.floats(1e-6, 1e9))
def test_a_tick_says_where_it_stands(low: float, width: float) -> None:
    scale = pixel_scale(Axis("x"), [low, low + width], 0, 500)
    for value, told in ticks(Axis("x"), scale, 6):
        factor = {"G": 1e9, "M": 1e6}.get(told[-1], 1.0)
        said = float(told.rstrip("GM").replace(",", "")) * factor
        assert abs(scale(said) - scale(value)) < 5, "within five of 500 pixels"


def test_steps_of_two_and_a_half_keep_their_decimal() -> None:
    scale = pixel_scale(Axis("s", from_zero=True), [0.0, 0.9], 0, 300)
    assert [told for _, told in ticks(Axis("s"), scale, 4)] == ["0.00", "0.25", "0.50", "0.75"]


@pytest.mark.parametrize(
    ("low", "high", "told"),
    [
        (1.0, 1000.0, ["1", "10", "100", "1,000"]),
        (1.0, 100.0, ["1", "10", "100"]),  # three are enough
        (1.0, 99.0, ["1", "3", "10", "30"]),
        (1.0, 9.0, ["1", "2", "5"]),
        (2.0, 7.0, ["2", "3", "5", "7"]),
    ],
)
def test_a_logarithmic_axis_has_the_fewest_round_ticks_that_are_three(low: float, high: float, told: list[str]) -> None:
    scale = pixel_scale(Axis("x", log=True, low=low, high=high), [low, high], 0, 500)
    assert [text for _, text in ticks(Axis("x", log=True), scale, 6)] == told


def test_what_is_counted_has_whole_ticks() -> None:
    scale = pixel_scale(Axis("run", from_zero=True), [0.0, 9.0], 0, 300)
    assert [told for _, told in ticks(Axis("run"), scale, 4)] == ["0", "2", "4", "6", "8"]


def test_a_long_name_at_the_end_of_an_axis_stays_in_the_figure() -> None:
    names = ("a", "a-study-by-name")
    x = Axis("study", ticks=tuple((float(at), name) for at, name in enumerate(names)))
    figure = PlotFigure("k", "t", "s", x, Axis("y"), (PlotSeries("p", (PlotPoint(0, 1), PlotPoint(1, 2))),))
    found = re.search(rf'<text x="?([\d.]+)[^>]*>{names[1]}</text>', draw(figure, 350))
    assert found is not None and float(found[1]) + len(names[1]) * CHARACTER_PX / 2 <= 350.5, "to a tenth of a pixel"


def test_a_narrow_block_is_called_by_its_own_number() -> None:
    spans = (PlotSpan("block 4: n1", 0.5, 40.5, "block"), PlotSpan("block 7: n1", 40.5, 42.5, "block"))
    series = (PlotSeries("p", (PlotPoint(1, 1), PlotPoint(42, 2))),)
    figure = PlotFigure("k", "t", "s", Axis("x"), Axis("y"), series, spans=spans)
    shown = re.findall(r">([^<]+)</text>", draw(figure, 528))
    assert "block 4: n1" in shown and "7" in shown


@given(st.lists(st.floats(1e-9, 1e9), min_size=1, max_size=20))
def test_a_log_axis_orders_values_and_has_ticks(values: list[float]) -> None:
    axis = Axis("y", log=True)
    scale = pixel_scale(axis, values, 0, 300)
    places = [scale(v) for v in sorted(values)]
    assert places == sorted(places)
    assert ticks(axis, scale, 5)


HOSTILE = "</svg><script>&\"'"
FIGURES: list[Figure] = [
    PlotFigure(
        "p", HOSTILE, HOSTILE, Axis(HOSTILE), Axis(HOSTILE),
        (PlotSeries(HOSTILE, (PlotPoint(1, 2, 1, 3, HOSTILE, 7), PlotPoint(2, 3)), "winner", "both"),),
        limits=(PlotLimit(HOSTILE, 2.0), PlotLimit(HOSTILE, 1.5, "x")), strip=(StripMark(1, HOSTILE, HOSTILE, 7),),
    ),
    PlotFigure("empty", "t", "", Axis("x"), Axis("y")),
    PlotFigure("one", "t", "", Axis("x"), Axis("y", log=True), (PlotSeries("s", (PlotPoint(0, 0),)),)),
    IntervalFigure(
        "i", HOSTILE, "", Axis("x"), (IntervalRow(HOSTILE, 1.1, 1.0, 1.2, (1.05,), HOSTILE), IntervalRow("-", None)),
    ),
    BarFigure(
        "b", HOSTILE, "", Axis("x", from_zero=True), (BarRow(HOSTILE, (BarPart(HOSTILE, 2.0), BarPart("b", 1.0))),),
    ),
    ParallelFigure(
        "c", HOSTILE, "", (ParallelAxis(HOSTILE, ((0.0, HOSTILE),)), ParallelAxis("g", ((1.0, "x"),))),
        (ParallelLine((0.0, 1.0), 7, HOSTILE, 1.0), ParallelLine((0.5, None), 8, "failed", None, "failed")),
    ),
]  # fmt: skip


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.key)
@pytest.mark.parametrize("width", [760.0, 350.0])
def test_whatever_a_name_holds_the_drawing_is_whole(figure: Figure, width: float) -> None:
    text = drawing.draw(figure, width)
    assert "<script" not in text
    root = ElementTree.fromstring(text)
    assert not [
        e for e in root.iter() if "nan" in str(e.attrib).lower() or "inf" in str(e.attrib).lower().replace("inf4", "")
    ]
    assert "<script" not in legend(figure)
    alone = ElementTree.fromstring(standing_alone(text))
    assert alone.tag == "{http://www.w3.org/2000/svg}svg" and alone[0].tag.endswith("style")
    assert asdict(figure)["key"] == figure.key
    assert table_of(figure).title == figure.title


def test_even_ticks_stay_even_where_some_are_left_out() -> None:
    axis = Axis("run", ticks=tuple((float(n), str(n)) for n in range(1, 25)))
    scale = pixel_scale(axis, [1.0, 24.0], 0.0, 420.0)
    kept = [value for value, _ in thinned(ticks(axis, scale, 9), scale, 7.0)]
    assert len({b - a for a, b in pairwise(kept)}) == 1 and kept[0] == 1.0


def test_looks_differ_by_form() -> None:
    """So that they can be told apart in grey."""
    forms = {
        look: re.sub(r"class=\"[^\"]*\"", "", mark(0, 0, look))
        for look in ("baseline", "winner", "search", "confirm", "failed")
    }
    assert len(set(forms.values())) == len(forms)


def test_an_axis_leaves_out_a_neutral_value_that_would_hide_the_rows() -> None:
    """Ratios of 2.55 to 2.64 on an axis from 1 are one dot."""
    rows = tuple(IntervalRow(f"block {n}", value, text=f"{value}x") for n, value in enumerate((2.55, 2.6, 2.64)))
    drawn = draw(IntervalFigure("k", "t", "s", Axis("ratio"), rows), 1080)
    places = [float(x) for x in re.findall(r"<circle cx=([0-9.]+)", drawn)]
    assert max(places) - min(places) > 300
    assert "1 lies far to the left" in drawn and "class=neutral" not in drawn
    near = draw(IntervalFigure("k", "t", "s", Axis("ratio"), (*rows, IntervalRow("c", 0.9))), 1080)
    assert "class=neutral" in near and "lies far" not in near


def test_a_figure_standing_alone_brings_the_style_of_each_mark_and_on_a_page_none() -> None:
    """The dashboard allows no inline styles."""
    points = (PlotPoint(1, 1, label="one"), PlotPoint(2, 2, label="two"))
    text = drawing.draw(PlotFigure("k", "t", "s", Axis("x"), Axis("y"), (PlotSeries("a", points, "winner"),)))
    assert "style" not in text and "<title>one</title>" in text
    style = ElementTree.fromstring(standing_alone(text))[0].text or ""
    for rule in (".l-winner{--k:var(--win)}", "--win:#d55e00", ".m{stroke:", ".grid{stroke:var(--line)}", "svg text{"):
        assert rule in style, rule
    assert ".slides" not in style and "body{" not in style


def test_the_text_of_a_figure_says_what_it_shows() -> None:
    rows = (IntervalRow("B", 1.13, 1.06, 1.2, text="1.13x (1.06 to 1.20), better"),)
    text = drawing.draw(IntervalFigure("k", "Block by block", "how to read it", Axis("ratio"), rows))
    assert 'aria-label="Block by block. B: 1.13x (1.06 to 1.20), better"' in text
    best = PlotSeries("best so far", (PlotPoint(1, 10.0), PlotPoint(2, 30.0)), "best", "steps")
    runs = PlotSeries("search", (PlotPoint(1, 30.0), PlotPoint(2, 10.0), PlotPoint(3, 20.0)))
    strip = (StripMark(1, "oom"), StripMark(2, "oom"))
    text = drawing.draw(PlotFigure("k", "Progress", "s", Axis("x"), Axis("y"), (best, runs), strip=strip))
    assert 'aria-label="Progress. best so far from 10 to 30; search 10 to 30; 2 runs failed"' in text


def test_control_characters_of_a_log_do_not_break_the_drawing() -> None:
    strip = (StripMark(1, "oom", "\x1b[31mKilled\x00\ud800"),)
    text = drawing.draw(PlotFigure("k", "t\x07", "s", Axis("x"), Axis("y"), strip=strip))
    assert "[31mKilled" in "".join(ElementTree.fromstring(text).itertext())


def test_the_line_of_a_limit_begins_at_its_own_text() -> None:
    """So that the text of the limit to its right, which has no room elsewhere, is not crossed by it."""
    points = tuple(PlotPoint(x, 1.0 + x / 1000) for x in (16, 64, 512))
    limits = (PlotLimit("for production: 128", 128.0, "x"), PlotLimit("the edge: 256", 256.0, "x"))
    x = Axis("batch", log=True, ticks=tuple((p.x, f"{p.x:g}") for p in points))
    figure = PlotFigure("k", "t", "s", x, Axis("rate"), (PlotSeries("a", points, SEARCH),), limits=limits)
    drawn = draw(figure, 350)
    begins = {
        float(at): float(begin) for at, begin in re.findall(r"<line x1=(\S+) y1=(\S+) x2=\S+ y2=\S+ class=limit", drawn)
    }
    production, edge = sorted(begins)
    text = re.search(r'<text x=(\S+) y=(\S+) text-anchor=end class="tick halo">the edge', drawn)
    assert text is not None and float(text[1]) < edge
    assert begins[edge] < float(text[2]) < begins[production]


def across(drawn: str) -> Callable[[float], float]:
    """Where a value stands from left to right, as the texts below the axis say."""
    return _line(re.findall(r"<text x=(\S+) y=\S+ text-anchor=middle class=tick>([\d.]+)<", drawn))


def upward(drawn: str) -> Callable[[float], float]:
    lines = dict(
        re.findall(r"<line x1=\S+ y1=(\S+) x2=\S+ y2=\S+ class=grid />\s*<text [^>]*class=tick>([\d.]+)<", drawn)
    )
    return _line([*lines.items()])


def _line(told: list[tuple[str, str]]) -> Callable[[float], float]:
    (first, low), *_, (last, high) = [(float(place), float(value)) for place, value in told]
    return lambda value: first + (value - low) * (last - first) / (high - low)


def near(*values: float) -> object:
    return pytest.approx(values, abs=0.15)  # a tenth of a pixel is what is written


@pytest.mark.parametrize("width", [900, HALF_PX])
def test_an_interval_stands_where_its_axis_says_beside_its_own_label(width: float) -> None:
    rows = (
        IntervalRow("first", 1.2, 1.1, 1.35, (1.15, 1.25), "1.2x"),
        IntervalRow("second", 0.8, 0.6, 0.95, text="0.8x"),
        IntervalRow("third", None, text="too few"),
    )
    drawn = draw(IntervalFigure("k", "t", "s", Axis("ratio"), rows), width)
    x = across(drawn)
    marks = re.findall(r'<circle cx=(\S+) cy=(\S+) r=4 class="m l-other"', drawn)
    assert [float(mark[0]) for mark in marks] == near(x(1.2), x(0.8)), "the third says nothing, so nothing is marked"
    whiskers = re.findall(r'd="M(\S+) (\S+)H(\S+?)M(\S+) (\S+)V(\S+?)M(\S+) (\S+)V(\S+)" class="whisker', drawn)
    ends = [tuple(map(float, found)) for found in whiskers]
    assert [(one[0], one[2]) for one in ends] == [near(x(1.1), x(1.35)), near(x(0.6), x(0.95))]
    assert [(one[3], one[6]) for one in ends] == [near(x(1.1), x(1.35)), near(x(0.6), x(0.95))]
    dots = [tuple(map(float, found)) for found in re.findall(r"<circle cx=(\S+) cy=(\S+) r=2.2", drawn)]
    heights = [float(mark[1]) for mark in marks]
    assert dots == [near(x(1.15), heights[0]), near(x(1.25), heights[0])]
    assert [one[1] for one in ends] == heights and heights[0] < heights[1]
    neutral = re.search(r"<line x1=(\S+) y1=\S+ x2=\1 y2=\S+ class=neutral", drawn)
    assert neutral is not None and float(neutral[1]) == pytest.approx(x(1.0), abs=0.15)
    texts = {text: float(y) for y, text in re.findall(r"<text x=\S+ y=(\S+) class=row>(\w+)", drawn)}
    assert texts["first"] < texts["second"] < texts["third"]
    assert abs(texts["second"] - heights[1]) < abs(texts["second"] - heights[0])


@pytest.mark.parametrize("width", [900, HALF_PX])
def test_bars_begin_at_zero_and_their_parts_follow_each_other(width: float) -> None:
    parts = (BarPart("p", 2.0), BarPart("q", 3.0))
    rows = (
        BarRow("one", parts, "5 s"),
        BarRow("two", (BarPart("q", 1.5),)),
        BarRow("three", (BarPart("r", 4.0),), "", "winner"),
    )
    drawn = draw(BarFigure("k", "t", "s", Axis("s"), rows), width)
    x = across(drawn)
    boxes = re.findall(r'<rect x=(\S+) y=(\S+) width=(\S+) height=\S+ class="bar (\S+)"', drawn)
    places = [(float(left), float(left) + float(wide)) for left, _, wide, _ in boxes]
    assert places == [near(x(0), x(2)), near(x(2), x(5)), near(x(0), x(1.5)), near(x(0), x(4))]
    assert [look for *_, look in boxes] == ["l-0", "l-1", "l-1", "l-winner"], "a part looks alike in every bar"
    tops = [float(top) for _, top, _, _ in boxes]
    assert tops[0] == tops[1] < tops[2] < tops[3]


def test_all_of_a_plot_stands_where_its_axes_say() -> None:
    points = (PlotPoint(1, 10.0, low=8.0, high=13.0, label="A", trial=3), PlotPoint(4, 30.0, label="B"))
    figure = PlotFigure(
        "k", "t", "s", Axis("x"), Axis("y"), (PlotSeries("s", points, form="both"),),
        bands=(PlotBand("b", 15.0, 20.0),), limits=(PlotLimit("L", 25.0), PlotLimit("X", 2.0, "x")),
        strip=(StripMark(3, "oom", "C", 7), StripMark(2, "hang", "D", 8), StripMark(1, "oom", "E", 9)),
        spans=(PlotSpan("block 1", 1.0, 2.5, "block"), PlotSpan("block 2", 2.5, 4.0, "block")),
    )  # fmt: skip
    drawn = draw(figure, 700)
    x, y = across(drawn), upward(drawn)
    marks = [tuple(map(float, found)) for found in re.findall(r"<circle cx=(\S+) cy=(\S+) r=4", drawn)]
    assert marks == [near(x(1), y(10)), near(x(4), y(30))] and y(30) < y(10)
    whisker = re.findall(r'd="M(\S+) (\S+)V(\S+)" class="whisker', drawn)
    assert [tuple(map(float, found)) for found in whisker] == [near(x(1), y(8), y(13))]
    line = re.findall(r'd="M(\S+) (\S+)L(\S+) (\S+)" class="line', drawn)
    assert [tuple(map(float, found)) for found in line] == [near(x(1), y(10), x(4), y(30))]
    band = re.findall(r"<rect x=\S+ y=(\S+) width=\S+ height=(\S+) class=band", drawn)
    assert [(float(top), float(top) + float(tall)) for top, tall in band] == [near(y(20), y(15))]
    limits = re.findall(r"<line x1=(\S+) y1=(\S+) x2=(\S+) y2=(\S+) class=limit", drawn)
    (_, level, _, also), (upright, top, same, end) = (tuple(map(float, found)) for found in limits)
    assert (level, also, upright, same) == near(y(25), y(25), x(2), x(2)) and top < end
    spans = re.findall(r"<rect x=(\S+) y=\S+ width=(\S+) height=\S+ class=stripe", drawn)
    assert [(float(left), float(left) + float(wide)) for left, wide in spans] == [
        near(x(1), x(2.5)),
        near(x(2.5), x(4)),
    ]
    failed = re.findall(r'd="M(\S+) (\S+)l7.6[^"]*" class="m l-failed" data-t=(\d)', drawn)
    assert [(int(trial), float(left) + 3.8) for left, _, trial in failed] == [
        (7, pytest.approx(x(3), abs=0.2)), (8, pytest.approx(x(2), abs=0.2)), (9, pytest.approx(x(1), abs=0.2)),
    ]  # fmt: skip
    lanes = {lane: float(down) for down, lane in re.findall(r'y=(\S+) text-anchor=end class="tick bad">(\w+)', drawn)}
    downs = [float(down) for _, down, _ in failed]
    assert downs[0] == downs[2] < downs[1] and lanes["oom"] < lanes["hang"], "one lane for each kind"


@pytest.mark.parametrize("width", [900, HALF_PX])
def test_a_line_of_parallel_coordinates_meets_each_axis_at_its_place(width: float) -> None:
    axes = tuple(ParallelAxis(name, ((0.0, "low"), (1.0, "high"))) for name in ("a", "b", "c"))
    lines = (
        ParallelLine((0.0, 0.5, 1.0), 1, "one", 0.0),
        ParallelLine((1.0, None, 0.25), 2, "two", 0.99),
        ParallelLine((1.0, 1.0, 1.0), 3, "three", None),
        ParallelLine((None, None, 1.0), 4, "four", 0.5),
    )
    drawn = draw(ParallelFigure("k", "t", "s", axes, lines), width)
    frames = [tuple(map(float, f)) for f in re.findall(r"<line x1=(\S+) y1=(\S+) x2=(\S+) y2=(\S+) class=frame", drawn)]
    ends = [((x1, y2), (x2, y1)) for x1, y1, x2, y2 in frames]  # from low at the bottom to high at the top
    paths = re.findall(r'd="M(\S[^"]*)" class="pc (\S+?)" data-t=(\d)', drawn)
    shades = {int(trial): shade for _, shade, trial in paths}
    assert shades == {1: "p0", 2: "p4", 3: "failed"}, "one place is no line"
    found = {int(trial): path for path, _, trial in paths}
    for line in lines[:3]:
        places = [tuple(map(float, place.split())) for place in found[line.trial].split("L")]
        assert places == [
            near(low[0] + place * (high[0] - low[0]), low[1] + place * (high[1] - low[1]))
            for (low, high), place in zip(ends, line.places, strict=True)
            if place is not None
        ]
