"""Rows below each other on one axis: intervals, and bars. What a row is stands above it, so that a phone has room."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap

from ridgeline.report.drawing import svg
from ridgeline.report.drawing.scales import PixelScale, pixel_scale, thinned, ticks
from ridgeline.report.figures.shapes import Axis, BarFigure, IntervalFigure, IntervalRow

ROW_PX, LINE_PX, AXIS_PX, SIDE_PX = 22.0, 15.0, 42.0, 14.0


def intervals(figure: IntervalFigure, width: float) -> str:
    labels = [_lines(row.label, row.text, width) for row in figure.rows]
    height = sum(ROW_PX + LINE_PX * len(lines) + 4 for lines in labels) + 6
    known = [v for r in figure.rows for v in (r.value, r.low, r.high, *r.dots) if v is not None]
    x = pixel_scale(figure.x, [*known, *([] if figure.neutral is None else [figure.neutral])], SIDE_PX, width - SIDE_PX)
    parts = [*_axis(figure.x, x, height, width)]
    top = 4.0
    for row, lines in zip(figure.rows, labels, strict=True):
        for told in lines:
            top += LINE_PX
            parts.append(svg.text(SIDE_PX, top - 3, told, '"row halo"'))
        if figure.neutral is not None:
            parts.append(svg.line(x(figure.neutral), top, x(figure.neutral), top + ROW_PX, "neutral"))
        parts += _interval(row, x, top + ROW_PX / 2)
        top += ROW_PX + 4
    return svg.drawing(width, height + AXIS_PX, f"{figure.title}. {figure.says}", parts)


def _lines(label: str, told: str, width: float) -> list[str]:
    most = max(20, int((width - 2 * SIDE_PX) / svg.CHARACTER_PX))
    whole = f"{label}:  {told}" if told else label
    return [whole] if len(whole) <= most else [*wrap(label, most), *(wrap(told, most) if told else [])]


def _interval(row: IntervalRow, x: PixelScale, y: float) -> Iterator[str]:
    kind = svg.look_class(row.look)
    if row.low is not None and row.high is not None:
        low, high = svg.n(x(row.low)), svg.n(x(row.high))
        ends = f"M{low} {svg.n(y - 4)}V{svg.n(y + 4)}M{high} {svg.n(y - 4)}V{svg.n(y + 4)}"
        yield f'<path d="M{low} {svg.n(y)}H{high}{ends}" class="whisker {kind}">{svg.title(row.text)}</path>'
    yield from (f"<circle cx={svg.n(x(dot))} cy={svg.n(y)} r=2.2 class=dot />" for dot in row.dots)
    if row.value is not None:
        yield svg.mark(x(row.value), y, row.look, f"{row.label} {row.text}")


def _axis(axis: Axis, x: PixelScale, height: float, width: float) -> Iterator[str]:
    for value, told in thinned(ticks(axis, x, max(2, int(width / 90))), x, svg.CHARACTER_PX):
        yield svg.line(x(value), 0, x(value), height, "grid")
        yield svg.text(x(value), height + 16, told, "tick", "middle")
    yield svg.line(x.start, height, x.end, height, "frame")
    yield svg.text(width / 2, height + 34, svg.cut(axis.label, width), "axis", "middle")


def bars(figure: BarFigure, width: float) -> str:
    height = len(figure.rows) * (ROW_PX + LINE_PX + 4) + 6
    totals = [sum(part.value for part in row.parts) for row in figure.rows]
    x = pixel_scale(figure.x, [0.0, *totals], SIDE_PX, width - SIDE_PX)
    names = list(dict.fromkeys(part.name for row in figure.rows for part in row.parts))
    parts, top = [*_axis(figure.x, x, height, width)], 4.0
    for row in figure.rows:
        top += LINE_PX
        parts.append(
            svg.text(SIDE_PX, top - 3, svg.cut(f"{row.label}:  {row.text}", width - 2 * SIDE_PX), '"row halo"')
        )
        start = 0.0
        for part in row.parts:
            kind = svg.look_class(str(names.index(part.name)))
            text = f"{row.label}, {part.name}: {part.value:.4g}"
            parts.append(
                svg.box(x(start), top + 3, x(start + part.value) - x(start), ROW_PX - 8, f'"bar {kind}"', text)
            )
            start += part.value
        top += ROW_PX + 4
    return svg.drawing(width, height + AXIS_PX, f"{figure.title}. {figure.says}", parts)
