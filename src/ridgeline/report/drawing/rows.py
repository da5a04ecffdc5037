"""Rows below each other on one axis: intervals, and bars. What a row is stands beside it, or above it on a phone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from textwrap import wrap

from ridgeline.report.drawing import svg
from ridgeline.report.drawing.scales import PixelScale, pixel_scale, thinned, ticks
from ridgeline.report.figures.shapes import Axis, BarFigure, IntervalFigure, IntervalRow

ROW_PX, LINE_PX, AXIS_PX, SIDE_PX = 22.0, 15.0, 42.0, 14.0
_BESIDE_PX = 480.0  # from this width on, labels stand left of the plot and values right of it
_FAR = 2.0  # times the spread of the rows: a neutral value further off than that would squeeze them to dots


@dataclass(frozen=True, slots=True)
class _RowText:
    """The lines of a row's label and of its value, as they are drawn."""

    label: list[str]
    value: list[str]

    @property
    def lines(self) -> int:
        return max(len(self.label), len(self.value))


def intervals(figure: IntervalFigure, width: float) -> str:
    beside = width >= _BESIDE_PX
    known = [v for r in figure.rows for v in (r.value, r.low, r.high, *r.dots) if v is not None]
    neutral = figure.neutral if figure.neutral is not None and _is_near(figure.neutral, known) else None
    axis = figure.x if neutral == figure.neutral else replace(figure.x, label=_says_where(figure, known))
    left, right = _columns(figure, width) if beside else (SIDE_PX, SIDE_PX)
    x = pixel_scale(axis, [*known, *([] if neutral is None else [neutral])], left, width - right)
    texts = [_row_text(row, left if beside else width, right if beside else 0.0, beside) for row in figure.rows]
    heights = [max(ROW_PX, LINE_PX * t.lines + 6) if beside else ROW_PX + LINE_PX * t.lines + 4 for t in texts]
    height = sum(heights) + 6
    marks, bands, top = [], [(0.0, height)] if beside else [], 4.0
    for row, text, tall in zip(figure.rows, texts, heights, strict=True):
        if beside:
            middle = top + tall / 2
            marks += _stacked(text.label, 0.0, middle) + _stacked(text.value, width - right + 12, middle)
        else:
            lines = [*text.label, *text.value]
            marks += [svg.text(SIDE_PX, top + LINE_PX * (at + 1) - 3, line, "row") for at, line in enumerate(lines)]
            middle = top + LINE_PX * len(lines) + ROW_PX / 2
            bands.append((middle - ROW_PX / 2, middle + ROW_PX / 2))
        marks += _interval(row, x, middle)
        top += tall
    lines = [] if neutral is None else [_upright(x(neutral), bands, "neutral")]
    parts = [*_axis(axis, x, height, width, bands), *lines, *marks]
    return svg.drawing(width, height + AXIS_PX, svg.alt_text(figure.title, figure.says), parts)


def _upright(x: float, bands: Sequence[tuple[float, float]], kind: str) -> str:
    """A line that leaves out what lies between the bands: the texts of rows."""
    path = "".join(f"M{svg.n(x)} {svg.n(top)}V{svg.n(end)}" for top, end in bands)
    return f'<path d="{path}" class={kind} />'


def _is_near(neutral: float, known: Sequence[float]) -> bool:
    """Whether an axis that holds the neutral value still shows how the rows differ."""
    if not known:
        return True
    low, high = min(known), max(known)
    gap = max(low - neutral, neutral - high, 0.0)
    return gap <= _FAR * (high - low)


def _says_where(figure: IntervalFigure, known: Sequence[float]) -> str:
    assert figure.neutral is not None
    side = "left" if figure.neutral < min(known) else "right"
    return f"{figure.x.label.partition(' (')[0]}; {figure.neutral:g} lies far to the {side}"


def _columns(figure: IntervalFigure, width: float) -> tuple[float, float]:
    """What labels and values need beside the plot; longer ones are wrapped."""
    label = max((len(row.label) for row in figure.rows), default=0) * svg.WIDEST_PX + 16
    value = max((len(row.text) for row in figure.rows), default=0) * svg.SIGNS_PX + 16
    return min(0.3 * width, max(label, SIDE_PX)), min(0.3 * width, max(value, SIDE_PX))


def _row_text(row: IntervalRow, left: float, right: float, beside: bool) -> _RowText:
    most = max(16, int((left - 12 if beside else left - 2 * SIDE_PX) / svg.WIDEST_PX))
    if beside:
        room = max(12, int((right - 12) / svg.SIGNS_PX))
        return _RowText(wrap(row.label, most) or [""], wrap(row.text, room) if row.text else [])
    whole = f"{row.label}:  {row.text}" if row.text else row.label
    if len(whole) <= most:
        return _RowText([], [whole])
    return _RowText([], [*wrap(row.label, most), *(wrap(row.text, most) if row.text else [])])


def _stacked(lines: Sequence[str], x: float, middle: float) -> list[str]:
    first = middle + 4 - LINE_PX * (len(lines) - 1) / 2
    return [svg.text(x, first + LINE_PX * at, line, "row") for at, line in enumerate(lines)]


def _interval(row: IntervalRow, x: PixelScale, y: float) -> Iterator[str]:
    kind = svg.look_class(row.look)
    if row.low is not None and row.high is not None:
        low, high = svg.n(x(row.low)), svg.n(x(row.high))
        ends = f"M{low} {svg.n(y - 4)}V{svg.n(y + 4)}M{high} {svg.n(y - 4)}V{svg.n(y + 4)}"
        yield f'<path d="M{low} {svg.n(y)}H{high}{ends}" class="whisker {kind}">{svg.title(row.text)}</path>'
    yield from (f"<circle cx={svg.n(x(dot))} cy={svg.n(y)} r=2.2 class=dot />" for dot in row.dots)
    if row.value is not None:
        yield svg.mark(x(row.value), y, row.look, f"{row.label} {row.text}")


def _axis(
    axis: Axis, x: PixelScale, height: float, width: float, bands: Sequence[tuple[float, float]]
) -> Iterator[str]:
    for value, told in thinned(ticks(axis, x, max(2, int((x.end - x.start) / 70))), x, svg.CHARACTER_PX):
        yield _upright(x(value), bands, "grid")
        yield svg.text(x(value), height + 16, told, "tick", "middle")
    yield svg.line(x.start, height, x.end, height, "frame")
    room = min(width, 2 * min((x.start + x.end) / 2, width - (x.start + x.end) / 2))
    yield svg.text((x.start + x.end) / 2, height + 34, svg.cut(axis.label, room), "axis", "middle")


def bars(figure: BarFigure, width: float) -> str:
    beside = width >= _BESIDE_PX
    labels = max((len(f"{row.label}  {row.text}") for row in figure.rows), default=0) * svg.CHARACTER_PX + 16
    left = min(0.4 * width, labels) if beside else SIDE_PX
    tall = ROW_PX + 4 if beside else ROW_PX + LINE_PX + 4
    height = len(figure.rows) * tall + 6
    totals = [sum(part.value for part in row.parts) for row in figure.rows]
    x = pixel_scale(figure.x, [0.0, *totals], left, width - SIDE_PX)
    names = list(dict.fromkeys(part.name for row in figure.rows for part in row.parts))
    bands = [(0.0, height)] if beside else [(4 + at * tall + LINE_PX, (at + 1) * tall) for at in range(len(totals))]
    parts, top = [*_axis(figure.x, x, height, width, bands)], 4.0
    for row in figure.rows:
        text = f"{row.label}:  {row.text}" if row.text else row.label
        if beside:
            parts.append(svg.text(0, top + ROW_PX / 2 + 3, svg.cut(text, left - 8), "row"))
        else:
            top += LINE_PX
            parts.append(svg.text(SIDE_PX, top - 3, svg.cut(text, width - 2 * SIDE_PX), "row"))
        start = 0.0
        for part in row.parts:
            kind = svg.look_class(row.look or str(names.index(part.name)))
            told = f"{row.label}, {part.name}: {part.value:.4g}"
            wide = x(start + part.value) - x(start)
            parts.append(svg.box(x(start), top + 3, wide, ROW_PX - 8, f'"bar {kind}"', told))
            start += part.value
        top += ROW_PX + 4
    return svg.drawing(width, height + AXIS_PX, svg.alt_text(figure.title, figure.says), parts)
