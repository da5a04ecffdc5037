"""Any figure as SVG text, at the widths that a page needs, with its legend and the numbers behind it."""

from __future__ import annotations

from html import escape
from importlib.resources import files

from ridgeline.records.exhibit import TextTable
from ridgeline.report.drawing import svg
from ridgeline.report.drawing.plot import parallel, plot
from ridgeline.report.drawing.rows import bars, intervals
from ridgeline.report.figures.shapes import (
    BASELINE,
    WINNER,
    BarFigure,
    Figure,
    IntervalFigure,
    ParallelFigure,
    PlotFigure,
    PlotSeries,
)
from ridgeline.stats.wording import count, metric_text

_PARALLEL_LEGEND = (("p0", "worst"), ("p2", "middle"), ("p4", "best"))
WIDE_PX, HALF_PX, SMALL_PX = 900.0, 460.0, 350.0
_MOST_TOLD = 6  # rows or series, in words


def draw(figure: Figure, width: float = WIDE_PX) -> str:
    """The figure as one `<svg>` element that says what it shows; its colours come from the page's style."""
    match figure:
        case PlotFigure():
            drawn = plot(figure, width)
        case IntervalFigure():
            drawn = intervals(figure, width)
        case BarFigure():
            drawn = bars(figure, width)
        case ParallelFigure():
            drawn = parallel(figure, width)
    text = ". ".join(filter(None, (figure.title, finding(figure))))
    return drawn.replace("<svg ", f'<svg aria-label="{svg.escaped(text)}" ', 1)


def standing_alone(drawn: str) -> str:
    """For a file or a notebook: with the style sheet's part about figures, which a page has once for all of them."""
    style = files("ridgeline.report").joinpath("assets/ridgeline.css").read_text()
    colours = style[style.index(":root{") : style.index("/* type and rhythm")]
    figures = style[style.index("svg text{") : style.index("/* legends")]
    named = drawn.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    head, _, rest = named.partition(">")
    return f"{head}><style>{svg.escaped(colours + figures)}</style>{rest}"


def finding(figure: Figure) -> str:
    """What a figure shows, in words, for those who cannot see it."""
    match figure:
        case IntervalFigure() | BarFigure():
            rows = [f"{row.label}: {row.text}" for row in figure.rows if row.text]
            return "; ".join(rows[-_MOST_TOLD:]) or figure.says
        case PlotFigure():
            failed = [f"{count(len(figure.strip), 'run')} failed"] if figure.strip else []
            limits = [limit.label for limit in figure.limits]
            told = [_course(one) for one in figure.series[:_MOST_TOLD] if one.points and one.look != "ideal"]
            return "; ".join((*told, *limits, *failed)) or figure.says
        case ParallelFigure():
            best = [one.label for one in figure.lines if one.look == WINNER] or [figure.lines[-1].label]
            return f"{figure.says} {figure.chosen or 'Best'}: {best[-1]}"


def _course(series: PlotSeries) -> str:
    values = [point.y for point in series.points]
    low, high = metric_text(min(values)), metric_text(max(values))
    if series.form in ("line", "steps", "both", "dashed") and len(values) > 1:
        return f"{series.name} from {metric_text(values[0])} to {metric_text(values[-1])}"
    return f"{series.name} {low}" if low == high else f"{series.name} {low} to {high}"


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
    if form in ("line", "steps", "dashed"):
        shape = f'<path d="M1 7H21" class="line{" dashed" if form == "dashed" else ""} {kind}"/>'
    elif form == "bar":
        shape = svg.box(4, 2, 14, 10, f"bar {kind}")
    elif form == "ranges":
        shape = f'<path d="M11 1V13" class="whisker {kind}"/>'
    else:
        shape = (f'<path d="M1 7H21" class="line {kind}"/>' if form == "both" else "") + svg.mark(11, 7, look)
    return f'<li><svg viewBox="0 0 22 14" class="key" aria-hidden="true">{shape}</svg>{escape(name)}'


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
