"""Any figure as SVG text, at the widths that a page needs, with its legend and the numbers behind it."""

from __future__ import annotations

import re
from html import escape

from ridgeline.records.exhibit import TextTable
from ridgeline.report.drawing import svg
from ridgeline.report.drawing.grid import heat
from ridgeline.report.drawing.parallel import parallel
from ridgeline.report.drawing.plot import plot
from ridgeline.report.drawing.rows import bars, intervals
from ridgeline.report.figures.shapes import (
    BASELINE,
    WINNER,
    BarFigure,
    Figure,
    HeatFigure,
    IntervalFigure,
    ParallelFigure,
    PlotFigure,
)  # fmt: skip

_PARALLEL_LEGEND = (
    ("p0", "worst"),
    ("p2", "middle"),
    ("p4", "best"),
)
WIDE_PX, MID_PX, HALF_PX, NARROW_PX = 1080.0, 740.0, 528.0, 350.0
_LARGEST_TWICE = 60_000  # characters: a larger drawing is scaled for tablets and paper instead of drawn again
_TITLE = re.compile(r"<title>.*?</title>", re.DOTALL)


def draw(figure: Figure, width: float = WIDE_PX) -> str:
    """The figure as one `<svg>` element; its colours come from the page's style."""
    match figure:
        case PlotFigure():
            return plot(figure, width)
        case IntervalFigure():
            return intervals(figure, width)
        case BarFigure():
            return bars(figure, width)
        case HeatFigure():
            return heat(figure, width)
        case ParallelFigure():
            return parallel(figure, width)


def drawn(figure: Figure, half: bool = False) -> str:
    """For a page: one drawing for each width the figure's place can have, of which the style shows one.

    Phones have nothing to hover with, so theirs carries no titles. Small ones are the same everywhere.
    """
    if isinstance(figure, PlotFigure) and figure.small and not half:
        return draw(figure, NARROW_PX)
    narrow = f"<div class=narrow>{_TITLE.sub('', draw(figure, NARROW_PX))}</div>"
    wide = draw(figure, HALF_PX if half else WIDE_PX)
    if half:
        return f"<div class=wide>{wide}</div>{narrow}"
    if len(wide) > _LARGEST_TWICE:
        return f"<div class='wide all'>{wide}</div>{narrow}"
    return f"<div class=wide>{wide}</div><div class=mid>{draw(figure, MID_PX)}</div>{narrow}"


def legend(figure: Figure) -> str:
    """What the marks mean, as a list that wraps; empty where one kind of mark speaks for itself."""
    items: list[str] = []
    if isinstance(figure, PlotFigure):
        items += [_item(series.form, series.look, series.name) for series in figure.series]
        items += [f"<li><i class=key-band></i>{escape(band.label)}" for band in figure.bands]
        if figure.strip:
            items.append(_item("points", "failed", "failed"))
        if len(items) < 2 and not any(series.form == "line" for series in figure.series):
            return ""
    elif isinstance(figure, BarFigure):
        names = dict.fromkeys(part.name for row in figure.rows for part in row.parts)
        items = [_item("bar", str(at), name) for at, name in enumerate(names)] if len(names) > 1 else []
    elif isinstance(figure, ParallelFigure):
        known = {BASELINE: "baseline", WINNER: figure.chosen}
        looks = [look for look in known if any(one.look == look for one in figure.lines)]
        kinds = (*_PARALLEL_LEGEND, *((svg.look_class(look), known[look]) for look in looks))
        items = [f"<li><i class='key-line {kind}'></i>{escape(told)}" for kind, told in kinds]
    return f"<ul class=legend>{''.join(items)}</ul>" if items else ""


def _item(form: str, look: str, name: str) -> str:
    kind = svg.look_class(look)
    if form in ("line", "steps"):
        shape = f'<path d="M1 7H21" class="line {kind}"/>'
    elif form == "bar":
        shape = svg.box(4, 2, 14, 10, f'"bar {kind}"')
    elif form == "ranges":
        shape = f'<path d="M11 1V13" class="whisker {kind}"/>'
    else:
        shape = (f'<path d="M1 7H21" class="line {kind}"/>' if form == "both" else "") + svg.mark(11, 7, look)
    return f'<li><svg viewBox="0 0 22 14" class=key aria-hidden=true>{shape}</svg>{escape(name)}'


def table_of(figure: Figure) -> TextTable:
    """The numbers behind a figure, for those who cannot see it or do not trust it."""
    match figure:
        case PlotFigure():
            return _plot_table(figure)
        case IntervalFigure():
            rows = tuple((r.label, _n(r.value), _n(r.low), _n(r.high), r.text) for r in figure.rows)
            return TextTable(figure.title, ("", figure.x.label, "low", "high", "in words"), rows)
        case BarFigure():
            parts = tuple((row.label, part.name, _n(part.value)) for row in figure.rows for part in row.parts)
            return TextTable(figure.title, ("", "part", figure.x.label), parts)
        case HeatFigure():
            lines = tuple(
                (line, *(cell.text or "–" for cell in row))
                for line, row in zip(figure.lines, figure.cells, strict=True)
            )
            return TextTable(figure.title, (f"{figure.y_label} \\ {figure.x_label}", *figure.columns), lines)
        case ParallelFigure():
            return TextTable(figure.title, ("setting",), tuple((one.label,) for one in figure.lines))


def _plot_table(figure: PlotFigure) -> TextTable:
    rows = [
        (series.name, _tick(figure, p.x), _n(p.y), _n(p.low), _n(p.high), p.label)
        for series in figure.series
        for p in series.points
    ]
    rows += [(mark.lane, _tick(figure, mark.x), "failed", "–", "–", mark.label) for mark in figure.strip]
    head = ("", figure.x.label, figure.y.label, "low", "high", "what")
    kept = [at for at in range(6) if at < 3 or any(row[at] not in ("–", "") for row in rows)]
    return TextTable(figure.title, tuple(head[at] for at in kept), tuple(tuple(row[at] for at in kept) for row in rows))


def _tick(figure: PlotFigure, x: float) -> str:
    return next((told for place, told in figure.x.ticks if place == x), _n(x))


def _n(value: float | None) -> str:
    return "–" if value is None else f"{value:.6g}"
