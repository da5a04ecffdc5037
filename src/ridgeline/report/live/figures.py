"""The one place where the report's figures become part of a live page.

Takes the report's own numbers, so that page and report never disagree; draws them as SVG, which needs no script.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape

from ridgeline.records.exhibit import ComparedSetting, Exhibits, TextTable
from ridgeline.records.study import Study
from ridgeline.report.figures.progress import ProgressPoint, progress_points
from ridgeline.study.history import History

WIDTH, HEIGHT, LEFT, STRIP, TOP = 760.0, 300.0, 78.0, 26.0, 12.0


def live_figures(study: Study, history: History, exhibits: Exhibits) -> str:
    """HTML: progress, what was compared, and the tables of this kind of campaign."""
    points = progress_points(study, history, groups=exhibits.groups)
    parts = [*_progress(points, f"{study.goal.metric} ({study.goal.direction})")]
    if exhibits.comparisons:
        parts += [f"<h2>{escape(exhibits.comparisons_title)}</h2>", *_comparisons(exhibits.comparisons)]
    for table in exhibits.tables:
        parts += [f"<h2>{escape(table.title)}</h2>", *_table(table)]
    return "".join(parts)


def _progress(points: Sequence[ProgressPoint], axis: str) -> Iterable[str]:
    values = [p.value for p in points if p.value is not None]
    yield "<h2>Progress</h2>"
    if not values:
        yield "<p class=sub>No run has passed yet.</p>"
        return
    low, high = min(values), max(values)
    pad = (high - low) * 0.06 or abs(high) * 0.05 or 1.0
    low, high = low - pad, high + pad
    bottom = HEIGHT - 58

    def x(at: int) -> float:
        return LEFT + (WIDTH - LEFT - 14) * (at + 0.5) / len(points)

    def y(value: float) -> float:
        return TOP + (bottom - TOP) * (1 - (value - low) / (high - low))

    yield f"<svg class=figure viewBox='0 0 {WIDTH:g} {HEIGHT:g}' role=img aria-label='{escape(axis)} of each run'>"
    for tick in _ticks(low, high):
        at = y(tick)
        yield f"<line class=grid x1={LEFT:g} x2={WIDTH:g} y1={at:.1f} y2={at:.1f} />"
        yield f"<text x={LEFT - 8:g} y={at + 4:.1f} text-anchor=end>{tick:,.6g}</text>"
    found = [(x(at), y(p.best)) for at, p in enumerate(points) if p.best is not None]
    if found:
        steps = [f"M{found[0][0]:.1f} {found[0][1]:.1f}", *(f"H{a:.1f}V{b:.1f}" for a, b in found[1:])]
        yield f"<path class=best d='{''.join(steps)}' />"
    groups = list(dict.fromkeys(p.group for p in points if p.value is not None))
    for at, p in enumerate(points):
        said = f"<title>run {p.run}, {escape(p.group)}: {_said(p)}</title>"
        if p.value is None:
            a, b = x(at), bottom + STRIP / 2
            yield f"<path class=failed d='M{a - 4:.1f} {b - 4:g}l8 8m0 -8l-8 8'>{said}</path>"
        else:
            yield f"<circle class=g{groups.index(p.group) % 6} cx={x(at):.1f} cy={y(p.value):.1f} r=4>{said}</circle>"
    yield f"<line class=axis x1={LEFT:g} x2={WIDTH:g} y1={bottom:g} y2={bottom:g} />"
    if any(p.value is None for p in points):
        yield f"<text x={LEFT - 8:g} y={bottom + STRIP / 2 + 4:g} text-anchor=end>failed</text>"
    yield f"<text x={LEFT:g} y={HEIGHT - 8:g}>runs, oldest first; y: {escape(axis)}</text></svg>"
    keys = "".join(f"<span><i class=g{at % 6}></i>{escape(group)}</span>" for at, group in enumerate(groups))
    yield f"<p class=legend>{keys}{'<span><i class=line></i>best of the search</span>' if found else ''}</p>"


def _said(point: ProgressPoint) -> str:
    value = point.outcome if point.value is None else f"{point.value:.6g}"
    return f"{escape(value)} ({escape(point.label)})"


def _ticks(low: float, high: float) -> list[float]:
    raw = (high - low) / 5
    size = 10 ** math.floor(math.log10(raw))
    step = next(size * n for n in (1, 2, 5, 10) if size * n >= raw)
    return [step * n for n in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _comparisons(rows: Sequence[ComparedSetting]) -> Iterable[str]:
    rows = [r for r in rows if math.isfinite(r.low) and math.isfinite(r.high)]
    low, high = min([1.0, *(r.low for r in rows)]), max([1.0, *(r.high for r in rows)])
    pad = (high - low) * 0.08 or 0.05
    low, high = low - pad, high + pad

    def x(value: float) -> float:
        return 300 * (value - low) / (high - low)

    yield "<div class=scroll><table><tr><th>setting<th>ratio<th>interval<th>verdict</tr>"
    for r in rows:
        look = "better" if r.verdict == "better" else "same"
        bar = (
            f"<svg class=interval viewBox='0 0 300 20'><line class=grid x1={x(1):.1f} x2={x(1):.1f} y1=0 y2=20 />"
            f"<line class={look} x1={x(r.low):.1f} x2={x(r.high):.1f} y1=10 y2=10 />"
            f"<circle class={look} cx={x(r.estimate):.1f} cy=10 r=5 /></svg>"
        )
        text = f"{r.low:.3g} to {r.high:.3g}"
        yield f"<tr><td>{escape(r.label)}<td class=num>{r.estimate:.3g}<td>{bar}{text}<td>{escape(r.verdict)}</tr>"
    yield "</table></div><p class=sub>Above 1 is better.</p>"


def _table(table: TextTable) -> Iterable[str]:
    yield f"<div class=scroll><table><tr>{''.join(f'<th>{escape(name)}' for name in table.head)}</tr>"
    for at, row in enumerate(table.rows):
        look = " class=bad" if at in table.failed else " class=changed" if at in table.changed else ""
        yield f"<tr{look}>{''.join(f'<td>{escape(cell)}' for cell in row)}</tr>"
    yield "</table></div>" + "".join(f"<p class=sub>{escape(note)}</p>" for note in table.notes)
