"""Parallel coordinates: an axis for each knob, a line for each setting. Narrow pages have the axes below each other."""

from __future__ import annotations

from collections.abc import Iterator

from ridgeline.report.drawing import svg
from ridgeline.report.figures.shapes import ParallelFigure, ParallelLine

NARROW_PX = 500.0
SHADES = 5


def parallel(figure: ParallelFigure, width: float) -> str:
    return _below(figure, width) if width < NARROW_PX else _beside(figure, width)


def _beside(figure: ParallelFigure, width: float) -> str:
    inner, side = 270.0, 40.0
    step = (width - 2 * side - 40) / max(1, len(figure.axes) - 1)
    # labels take turns on as many lines as keep them apart; the outermost stand inside the figure
    longest = max(len(axis.label) for axis in figure.axes) * svg.BOLD_PX
    lines = next((n for n in (1, 2) if 1.5 * longest <= n * step + 30), 3)
    room = (lines * step + 30) / 1.5 * svg.CHARACTER_PX / svg.BOLD_PX
    top = 26.0 + 14.0 * lines
    xs = [side + at * step for at in range(len(figure.axes))]
    parts = [*_lines(figure, [[(xs[at], top + (1 - p) * inner) for at, p in _known(one)] for one in figure.lines])]
    for at, (axis, x) in enumerate(zip(figure.axes, xs, strict=True)):
        parts.append(svg.line(x, top, x, top + inner, "frame"))
        anchor = "start" if at == 0 else "end" if at == len(xs) - 1 else "middle"
        parts.append(svg.text(x if at else 0, 14.0 * (1 + at % lines), svg.cut(axis.label, room), "axis", anchor))
        ticks = axis.ticks[:: len(axis.ticks) // 9 + 1]
        parts += [
            svg.text(x + 5, top + (1 - place) * inner + 4, svg.cut(told, step - 8), '"tick halo"')
            for place, told in ticks
        ]
    return svg.drawing(width, top + inner + 14, svg.alt_text(figure.title, figure.says), parts)


def _below(figure: ParallelFigure, width: float) -> str:
    row, side = 52.0, 16.0
    ys = [34.0 + at * row for at in range(len(figure.axes))]
    span = width - 2 * side
    parts = [*_lines(figure, [[(side + p * span, ys[at]) for at, p in _known(one)] for one in figure.lines])]
    for axis, y in zip(figure.axes, ys, strict=True):
        parts.append(svg.line(side, y, side + span, y, "frame"))
        parts.append(svg.text(0, y - 12, svg.cut(axis.label, width), '"axis halo"'))
        ticks = (
            [*axis.ticks] if len(axis.ticks) < 4 else [axis.ticks[0], axis.ticks[len(axis.ticks) // 2], axis.ticks[-1]]
        )
        free = 0.0  # from where on there is room for another text
        for place, told in ticks:
            anchor = "start" if place < 0.1 else "end" if place > 0.9 else "middle"
            text, at = svg.cut(told, span / 3), side + place * span
            long = len(text) * svg.BOLD_PX
            start = at - long * {"start": 0.0, "middle": 0.5, "end": 1.0}[anchor]
            if start >= free:
                parts.append(svg.text(at, y + 15, text, '"tick halo"', anchor))
                free = start + long + 6
    return svg.drawing(width, ys[-1] + 24, svg.alt_text(figure.title, figure.says), parts)


def _known(one: ParallelLine) -> list[tuple[int, float]]:
    return [(at, place) for at, place in enumerate(one.places) if place is not None]


def _lines(figure: ParallelFigure, drawn: list[list[tuple[float, float]]]) -> Iterator[str]:
    for one, places in zip(figure.lines, drawn, strict=True):
        if len(places) < 2:
            continue
        path = "M" + "L".join(f"{svg.n(x)} {svg.n(y)}" for x, y in places)
        shade = "failed" if one.share is None else f"p{min(SHADES - 1, int(one.share * SHADES))}"
        special = f" l-{one.look}" if one.look in ("baseline", "winner") else ""
        yield f'<path d="{path}" class="pc {shade}{special}" data-t={one.trial}>{svg.title(one.label)}</path>'
