"""Rows below each other, with what each is beside it: intervals and bars on one axis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from textwrap import wrap

from ridgeline.report.drawing import svg
from ridgeline.report.drawing.svg import PixelScale, pixel_scale, thinned, ticks
from ridgeline.report.figures.shapes import Axis, BarFigure, IntervalFigure, IntervalRow

ROW_PX, LINE_PX, AXIS_PX, SIDE_PX = 22.0, 15.0, 42.0, 14.0
_NEUTRAL = 1.0  # a ratio at which nothing changes
_FAR = 2.0  # times the spread of the rows: a neutral value further off than that would squeeze them to dots


def intervals(figure: IntervalFigure, width: float) -> str:
    known = [v for r in figure.rows for v in (r.value, r.low, r.high, *r.dots) if v is not None]
    near = _is_near(known)
    axis = figure.x if near else replace(figure.x, label=_says_where(figure, known))
    left, right = _columns(figure, width)
    x = pixel_scale(axis, [*known, *([_NEUTRAL] if near else [])], left, width - right)
    most, room = max(16, int((left - 12) / svg.WIDEST_PX)), max(12, int((right - 12) / svg.SIGNS_PX))
    texts = [(wrap(row.label, most), wrap(row.text, room)) for row in figure.rows]
    heights = [max(ROW_PX, LINE_PX * max(map(len, text)) + 6) for text in texts]
    height = sum(heights) + 6
    marks, top = [], 4.0
    for row, (label, value), tall in zip(figure.rows, texts, heights, strict=True):
        middle = top + tall / 2
        marks += _stacked(label, 0.0, middle) + _stacked(value, width - right + 12, middle)
        marks += _interval(row, x, middle)
        top += tall
    lines = [svg.line(x(_NEUTRAL), 0, x(_NEUTRAL), height, "neutral")] if near else []
    return svg.drawing(width, height + AXIS_PX, [*_axis(axis, x, height, width), *lines, *marks])


def _is_near(known: Sequence[float]) -> bool:
    """Whether an axis that holds the neutral value still shows how the rows differ."""
    if not known:
        return True
    low, high = min(known), max(known)
    gap = max(low - _NEUTRAL, _NEUTRAL - high, 0.0)
    return gap <= _FAR * (high - low)


def _says_where(figure: IntervalFigure, known: Sequence[float]) -> str:
    side = "left" if min(known) > _NEUTRAL else "right"
    return f"{figure.x.label.partition(' (')[0]}; {_NEUTRAL:g} lies far to the {side}"


def _columns(figure: IntervalFigure, width: float) -> tuple[float, float]:
    """What labels and values need beside the plot; longer ones are wrapped."""
    label = max((len(row.label) for row in figure.rows), default=0) * svg.WIDEST_PX + 16
    value = max((len(row.text) for row in figure.rows), default=0) * svg.SIGNS_PX + 16
    return min(0.3 * width, max(label, SIDE_PX)), min(0.3 * width, max(value, SIDE_PX))


def _stacked(lines: Sequence[str], x: float, middle: float) -> list[str]:
    first = middle + 4 - LINE_PX * (len(lines) - 1) / 2
    return [svg.text(x, first + LINE_PX * at, line, "row") for at, line in enumerate(lines)]


def _interval(row: IntervalRow, x: PixelScale, y: float) -> Iterator[str]:
    kind = svg.look_class(row.look)
    if row.low is not None and row.high is not None:
        low, high = svg.n(x(row.low)), svg.n(x(row.high))
        ends = f"M{low} {svg.n(y - 4)}V{svg.n(y + 4)}M{high} {svg.n(y - 4)}V{svg.n(y + 4)}"
        yield f'<path d="M{low} {svg.n(y)}H{high}{ends}" class="whisker {kind}">{svg.title(row.text)}</path>'
    yield from (f'<circle cx="{svg.n(x(dot))}" cy="{svg.n(y)}" r="2.2" class="dot"/>' for dot in row.dots)
    if row.value is not None:
        yield svg.mark(x(row.value), y, row.look, f"{row.label} {row.text}")


def _axis(axis: Axis, x: PixelScale, height: float, width: float) -> Iterator[str]:
    for value, told in thinned(ticks(axis, x, max(2, int((x.end - x.start) / 70))), x, svg.CHARACTER_PX):
        yield svg.line(x(value), 0, x(value), height, "grid")
        yield svg.text(x(value), height + 16, told, "tick", "middle")
    yield svg.line(x.start, height, x.end, height, "frame")
    room = min(width, 2 * min((x.start + x.end) / 2, width - (x.start + x.end) / 2))
    yield svg.text((x.start + x.end) / 2, height + 34, svg.cut(axis.label, room), "axis", "middle")


def bars(figure: BarFigure, width: float) -> str:
    labels = max((len(f"{row.label}  {row.text}") for row in figure.rows), default=0) * svg.CHARACTER_PX + 16
    left, tall = min(0.4 * width, labels), ROW_PX + 4
    height = len(figure.rows) * tall + 6
    totals = [sum(part.value for part in row.parts) for row in figure.rows]
    x = pixel_scale(figure.x, [0.0, *totals], left, width - SIDE_PX)
    names = list(dict.fromkeys(part.name for row in figure.rows for part in row.parts))
    parts, top = [*_axis(figure.x, x, height, width)], 4.0
    for row in figure.rows:
        text = f"{row.label}:  {row.text}" if row.text else row.label
        parts.append(svg.text(0, top + ROW_PX / 2 + 3, svg.cut(text, left - 8), "row"))
        start = 0.0
        for part in row.parts:
            kind = svg.look_class(row.look or str(names.index(part.name)))
            told = f"{row.label}, {part.name}: {part.value:.4g}"
            wide = x(start + part.value) - x(start)
            parts.append(svg.box(x(start), top + 3, wide, ROW_PX - 8, f"bar {kind}", told))
            start += part.value
        top += tall
    return svg.drawing(width, height + AXIS_PX, parts)
