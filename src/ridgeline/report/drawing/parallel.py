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
    top, inner, side = 34.0, 270.0, 40.0
    step = (width - 2 * side - 40) / max(1, len(figure.axes) - 1)
    xs = [side + at * step for at in range(len(figure.axes))]
    crowded = max(len(axis.label) for axis in figure.axes) * svg.BOLD_PX > step - 8
    parts = [*_lines(figure, [[(xs[at], top + (1 - p) * inner) for at, p in _known(one)] for one in figure.lines])]
    for at, (axis, x) in enumerate(zip(figure.axes, xs, strict=True)):
        parts.append(svg.line(x, top, x, top + inner, "frame"))
        anchor = "start" if at == 0 else "end" if at == len(xs) - 1 else "middle"
        low = 14 if at % 2 or not crowded else 28  # every other label a line lower, where they would touch
        room = 2 * step - 8 if crowded else step
        parts.append(svg.text(x if at else 0, low, svg.cut(axis.label, room), "axis", anchor))
        ticks = axis.ticks[:: len(axis.ticks) // 9 + 1]
        parts += [
            svg.text(x + 5, top + (1 - place) * inner + 4, svg.cut(told, step - 8), '"tick halo"')
            for place, told in ticks
        ]
    return svg.drawing(width, top + inner + 14, f"{figure.title}. {figure.says}", parts)


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
        for place, told in ticks:
            anchor = "start" if place < 0.1 else "end" if place > 0.9 else "middle"
            parts.append(svg.text(side + place * span, y + 15, svg.cut(told, span / 3), '"tick halo"', anchor))
    return svg.drawing(width, ys[-1] + 24, f"{figure.title}. {figure.says}", parts)


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
