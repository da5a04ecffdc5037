"""Points, lines, bands and strips on two axes; parallel coordinates, an axis for each knob and a line a setting."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

from ridgeline.report.drawing import svg
from ridgeline.report.drawing.svg import PixelScale, pixel_scale, thinned, ticks
from ridgeline.report.figures.shapes import ParallelFigure, ParallelLine, PlotFigure, PlotLimit, PlotSeries

_LANE_PX = 17.0
_STRIP_GAP_PX = 8.0  # below the axis, whose lowest tick may have its text there
_DENSE, _SMALL_PX = 200, 500.0  # marks, from which on whole pixels are near enough, and every third in a small figure
TOP_PX, AXIS_PX, RIGHT_PX = 26.0, 40.0, 14.0
_BETWEEN_PX = 8.0  # from one place of a line to the next, where a text might be in its way
_SHADES = 5  # of parallel lines, from the worst to the best


def plot(figure: PlotFigure, width: float) -> str:
    lanes = list(dict.fromkeys(mark.lane for mark in figure.strip))
    inner = 190.0 if figure.small or width < 500 else 260.0 if width < 600 else 290.0
    top = TOP_PX + (14.0 if figure.spans and figure.spans[0].look == "block" else 0.0)
    bottom = top + inner
    strip_end = bottom + (_STRIP_GAP_PX + _LANE_PX * len(lanes) + 1 if lanes else 0)
    named = not figure.small or figure.x.label != figure.title  # else its title already says what x is
    height = strip_end + (AXIS_PX if named else AXIS_PX - 16)
    y = pixel_scale(figure.y, _ys(figure), bottom, top)
    marks = ticks(figure.y, y, 6 if inner > 200 else 4)
    widest = max([len(t) for _, t in marks] + [min(len(lane), 14) for lane in lanes] + [3])
    left = min(0.3 * width, widest * svg.CHARACTER_PX + 12)
    x = pixel_scale(figure.x, _xs(figure), left, width - RIGHT_PX)
    parts = [
        *_spans(figure, x, top, strip_end),
        *_y_axis(marks, x, y),
        *_bands(figure, x, y),
        *_x_axis(figure, x, bottom, strip_end, named),
        *_strip(figure, lanes, x, bottom),
        *(part for series in figure.series for part in _series(series, x, y)),
        *_limits(figure, x, y, strip_end),
        svg.text(0, 13, svg.cut(figure.y.label, width), "axis"),
    ]
    return svg.drawing(width, height, parts)


def _ys(figure: PlotFigure) -> Iterator[float]:
    for series in figure.series:
        for p in series.points:
            yield from (v for v in (p.y, p.low, p.high) if v is not None)
    for band in figure.bands:
        yield from (band.low, band.high)
    yield from (limit.value for limit in figure.limits if limit.across == "y")


def _xs(figure: PlotFigure) -> Iterator[float]:
    yield from (p.x for series in figure.series for p in series.points)
    yield from (mark.x for mark in figure.strip)
    for span in figure.spans:
        yield from (span.start, span.end)
    yield from (limit.value for limit in figure.limits if limit.across == "x")


def _y_axis(marks: list[tuple[float, str]], x: PixelScale, y: PixelScale) -> Iterator[str]:
    for value, told in marks:
        yield svg.line(x.start, y(value), x.end, y(value), "grid")
        yield svg.text(x.start - 6, y(value) + 4, svg.cut(told, x.start), "tick", "end")


def _x_axis(figure: PlotFigure, x: PixelScale, bottom: float, end: float, named: bool) -> Iterator[str]:
    yield svg.line(x.start, bottom, x.end, bottom, "frame")
    most, reached = max(2, int((x.end - x.start) / 70)), -1.0
    for value, told in thinned(ticks(figure.x, x, most), x, svg.CHARACTER_PX):
        yield svg.line(x(value), end, x(value), end + 4, "frame")
        short = svg.cut(told, 110)
        half = len(short) * svg.CHARACTER_PX / 2
        centre = min(max(x(value), half), x.end + RIGHT_PX - half)  # a long name ends with the figure
        if centre - half > reached:
            yield svg.text(centre, end + 17, short, "tick", "middle")
            reached = centre + half
    if named:
        yield svg.text((x.start + x.end) / 2, end + 34, svg.cut(figure.x.label, x.end - x.start), "axis", "middle")


def _spans(figure: PlotFigure, x: PixelScale, top: float, end: float) -> Iterator[str]:
    for at, span in enumerate(figure.spans):
        start, stop = x(span.start), x(span.end)
        kind = "drift" if span.look == "drift" else "stripe" if at % 2 else "stripe0"
        yield svg.box(start, top, stop - start, end - top, kind, span.label)
        room = stop - start
        if span.look == "block" and room > 14:
            text = span.label if len(span.label) * svg.CHARACTER_PX < room else span.label.split(":")[0]
            text = text if len(text) * svg.CHARACTER_PX < room else text.removeprefix("block ")
            yield svg.text((start + stop) / 2, top - 4, text, "tick", "middle")
        elif span.look == "drift":
            yield svg.text(start + 4, top + 12, svg.cut(span.label, max(60.0, room)), "tick")


def _bands(figure: PlotFigure, x: PixelScale, y: PixelScale) -> Iterator[str]:
    for band in figure.bands:
        high, low = y(band.high), y(band.low)
        yield svg.box(x.start, high, x.end - x.start, max(1.5, low - high), "band", band.label)


def _strip(figure: PlotFigure, lanes: list[str], x: PixelScale, bottom: float) -> Iterator[str]:
    for at, lane in enumerate(lanes):
        top = bottom + _STRIP_GAP_PX + at * _LANE_PX
        yield svg.box(x.start, top, x.end - x.start, _LANE_PX - 2, "lane")
        yield svg.text(x.start - 6, top + 12, svg.cut(lane, x.start), "tick bad", "end")
    for mark in figure.strip:
        centre = bottom + _STRIP_GAP_PX + lanes.index(mark.lane) * _LANE_PX + (_LANE_PX - 2) / 2
        yield svg.mark(x(mark.x), centre, "failed", mark.label, mark.trial)


def _series(series: PlotSeries, x: PixelScale, y: PixelScale) -> Iterator[str]:
    kind = svg.look_class(series.look)
    if series.form in ("line", "both", "steps", "dashed") and len(series.points) > 1:
        dashed = " dashed" if series.form == "dashed" else ""
        yield f'<path d="{_path(series, x, y)}" class="line{dashed} {kind}"/>'
    for p in series.points:
        if p.low is not None and p.high is not None:
            whisker = f'<path d="M{svg.n(x(p.x))} {svg.n(y(p.low))}V{svg.n(y(p.high))}" class="whisker {kind}">'
            yield f"{whisker}{svg.title(p.label)}</path>"
    if series.form in ("points", "both") or (series.form in ("line", "dashed") and len(series.points) == 1):
        seen: set[tuple[int, int]] = set()
        dense = len(series.points) > _DENSE
        grid = 3 if dense and x.end < _SMALL_PX else 1
        yield f'<g class="m {kind}">'
        for p in series.points:
            across, down = x(p.x), y(p.y)
            if not (math.isfinite(across) and math.isfinite(down)):  # of a journal that was damaged
                continue
            place = (round(across / grid), round(down / grid))
            if place not in seen:  # nobody can see or point at a mark under another
                seen.add(place)
                across, down = (round(across), round(down)) if dense else (across, down)
                yield svg.mark(across, down, series.look, p.label, p.trial, grouped=True)
        yield "</g>"


def _path(series: PlotSeries, x: PixelScale, y: PixelScale) -> str:
    first, *rest = series.points
    text = f"M{svg.n(x(first.x))} {svg.n(y(first.y))}"
    for p in rest:
        text += f"H{svg.n(x(p.x))}V{svg.n(y(p.y))}" if series.form == "steps" else f"L{svg.n(x(p.x))} {svg.n(y(p.y))}"
    return text


def _limits(figure: PlotFigure, x: PixelScale, y: PixelScale, end: float) -> Iterator[str]:
    for limit in figure.limits:
        if limit.across == "y":
            yield svg.line(x.start, y(limit.value), x.end, y(limit.value), "limit")
            across, down, anchor = _beside_the_line(figure, x, y, limit)
            yield svg.text(across, down, limit.label, "tick halo", anchor)
    # the last one's text is highest, and each line begins at its own text: those to the left pass below it
    upright = sorted((each for each in figure.limits if each.across == "x"), key=lambda each: -x(each.value))
    free = x.end + RIGHT_PX
    for row, limit in enumerate(upright):
        at, begin = x(limit.value), y.end + 14 * row
        room = len(limit.label) * svg.CHARACTER_PX + 6
        right = at + room < free or at - room < 0
        yield svg.line(at, begin, at, end, "limit")
        yield svg.text(at + (4 if right else -4), begin + 11, limit.label, "tick halo", "start" if right else "end")
        free = at


def _beside_the_line(figure: PlotFigure, x: PixelScale, y: PixelScale, limit: PlotLimit) -> tuple[float, float, str]:
    """Where the label of a level line hides the fewest marks: above it or below it, at its right or its left end."""
    room, at = len(limit.label) * svg.CHARACTER_PX, y(limit.value)
    marks = [mark for series in figure.series for mark in _passed(series, x, y)]

    def hidden(place: tuple[float, float, str]) -> int:
        across, down, anchor = place
        begin = across - room if anchor == "end" else across
        return sum(begin - 4 < px < begin + room + 4 and down - 15 < py < down + 6 for px, py in marks)

    places = [
        (side, at + step, anchor) for step in (-4, 13) for side, anchor in ((x.end - 2, "end"), (x.start + 2, "start"))
    ]
    return min(places, key=hidden)


def _passed(series: PlotSeries, x: PixelScale, y: PixelScale) -> Iterator[tuple[float, float]]:
    """Its marks and, of a line, places between them."""
    marks = [(x(p.x), y(p.y)) for p in series.points]
    yield from marks
    for (x1, y1), (x2, y2) in pairwise(marks) if series.form != "points" else ():
        steps = math.ceil(math.dist((x1, y1), (x2, y2)) / _BETWEEN_PX) if math.isfinite(x1 + y1 + x2 + y2) else 0
        yield from ((x1 + (x2 - x1) * n / steps, y1 + (y2 - y1) * n / steps) for n in range(1, steps))


def parallel(figure: ParallelFigure, width: float) -> str:
    inner, side = 270.0, 40.0
    step = (width - 2 * side - 40) / max(1, len(figure.axes) - 1)
    # labels take turns on as many lines as keep them apart; the outermost stand inside the figure
    longest = max(len(axis.label) for axis in figure.axes) * svg.BOLD_PX
    lines = next((n for n in (1, 2) if 1.5 * longest <= n * step + 30), 3)
    room = (lines * step + 30) / 1.5 * svg.CHARACTER_PX / svg.BOLD_PX
    top = 26.0 + 14.0 * lines
    xs = [side + at * step for at in range(len(figure.axes))]
    parts = [
        *_parallel_lines(figure, [[(xs[at], top + (1 - p) * inner) for at, p in _known(one)] for one in figure.lines])
    ]
    for at, (axis, x) in enumerate(zip(figure.axes, xs, strict=True)):
        parts.append(svg.line(x, top, x, top + inner, "frame"))
        anchor = "start" if at == 0 else "end" if at == len(xs) - 1 else "middle"
        parts.append(svg.text(x if at else 0, 14.0 * (1 + at % lines), svg.cut(axis.label, room), "axis", anchor))
        ticks = axis.ticks[:: len(axis.ticks) // 9 + 1]
        parts += [
            svg.text(x + 5, top + (1 - place) * inner + 4, svg.cut(told, step - 8), "tick halo")
            for place, told in ticks
        ]
    return svg.drawing(width, top + inner + 14, parts)


def _known(one: ParallelLine) -> list[tuple[int, float]]:
    return [(at, place) for at, place in enumerate(one.places) if place is not None]


def _parallel_lines(figure: ParallelFigure, drawn: list[list[tuple[float, float]]]) -> Iterator[str]:
    for one, places in zip(figure.lines, drawn, strict=True):
        if len(places) < 2:
            continue
        path = "M" + "L".join(f"{svg.n(x)} {svg.n(y)}" for x, y in places)
        shade = "failed" if one.share is None else f"p{min(_SHADES - 1, int(one.share * _SHADES))}"
        special = f" l-{one.look}" if one.look in ("baseline", "winner") else ""
        yield f'<path d="{path}" class="pc {shade}{special}" data-t="{one.trial}">{svg.title(one.label)}</path>'
