"""Cells in rows and columns, shaded by their value, each with its number in it."""

from __future__ import annotations

from math import ceil

from ridgeline.report.drawing import svg
from ridgeline.report.figures.shapes import HeatCell, HeatFigure

CELL_PX, TOP_PX, BOTTOM_PX = 34.0, 22.0, 44.0
SHADES = 5


def heat(figure: HeatFigure, width: float) -> str:
    longest = max(len(label) for label in figure.lines)
    left = min(0.4 * width, max(longest, 4) * svg.CHARACTER_PX + 14)
    cell = min(110.0, (width - left - 4) / len(figure.columns))
    rows = len(figure.lines)
    height = TOP_PX + rows * CELL_PX + BOTTOM_PX
    values = [c.value for row in figure.cells for c in row if c.value is not None]
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    if not figure.higher_is_better:
        low, high = 0.0, 1.0  # a share that failed
    parts = [svg.text(0, 13, svg.cut(figure.y_label, width), "axis")]
    for at, row in enumerate(figure.cells):
        top = TOP_PX + (rows - 1 - at) * CELL_PX
        parts.append(svg.text(left - 8, top + CELL_PX / 2 + 4, svg.cut(figure.lines[at], left - 8), "tick", "end"))
        parts += [
            p
            for c, one in enumerate(row)
            for p in _cell(one, left + c * cell, top, cell, low, high, figure.higher_is_better)
        ]
        edge = figure.edges[at] if at < len(figure.edges) else None
        if edge is not None:
            place = left + (edge + 1) * cell
            parts.append(svg.line(place, top, place, top + CELL_PX, "edge"))
    end = TOP_PX + rows * CELL_PX
    every = max(1, ceil((max(len(c) for c in figure.columns) * svg.BOLD_PX + 6) / cell))
    for c, told in enumerate(figure.columns):
        if c % every == 0:
            parts.append(svg.text(left + (c + 0.5) * cell, end + 16, told, "tick", "middle"))
    parts.append(
        svg.text(
            left + len(figure.columns) * cell / 2, end + 34, svg.cut(figure.x_label, width - left), "axis", "middle"
        )
    )
    return svg.drawing(width, height, svg.alt_text(figure.title, figure.says), parts)


def _cell(one: HeatCell, x: float, y: float, width: float, low: float, high: float, good: bool) -> list[str]:
    if one.value is None:
        return [svg.box(x + 1, y + 1, width - 2, CELL_PX - 2, '"cell empty"')]
    share = 0.5 if high <= low else (one.value - low) / (high - low)
    shade = min(SHADES - 1, int(share * SHADES))
    kind = f'"cell {"heat" if good else "fail"}{shade}"'
    text = one.text if len(one.text) * svg.WIDEST_PX < width - 6 else one.text.split(" ")[0]
    text = text if len(text) * svg.CHARACTER_PX < width - 2 else ""
    drawn = [svg.box(x + 1, y + 1, width - 2, CELL_PX - 2, kind, one.label or one.text)]
    if text:
        drawn.append(svg.text(x + width / 2, y + CELL_PX / 2 + 4, text, f"in{'' if good else 'f'}{shade}", "middle"))
    return drawn
