"""Figure data to Plotly figures, as plain mappings: nothing here measures or judges."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from textwrap import wrap
from typing import Any

from ridgeline.records.exhibit import ComparedSetting, Curve, CurveFigure
from ridgeline.records.study import Goal
from ridgeline.report.figures import ProgressPoint

STAGE_COLOURS = {"baseline": "#7a8594", "sentinel": "#b3bbc6", "search": "#2f6fb0", "confirm": "#3b8f5a"}
COLOURS = ("#2f6fb0", "#d08a2b", "#3b8f5a", "#8a5aa8", "#7a8594", "#b0563b", "#4aa3a3", "#b3bbc6")
LABEL_WIDTH = 44  # characters: a phone shows about so many
FONT = {"family": "system-ui, sans-serif", "size": 13}


def progress_figure(goal: Goal, points: Sequence[ProgressPoint]) -> dict[str, Any]:
    groups = dict.fromkeys(p.group for p in points if p.value is not None)
    if groups.keys() <= STAGE_COLOURS.keys():
        colours = {stage: colour for stage, colour in STAGE_COLOURS.items() if stage in groups}
    else:
        colours = {group: COLOURS[at % len(COLOURS)] for at, group in enumerate(groups)}
    traces = [_runs_of(group, colour, points) for group, colour in colours.items()]
    found = [p for p in points if p.best is not None]
    if found:
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": "best of the search",
                "x": [p.run for p in found],
                "y": [p.best for p in found],
                "line": {"shape": "hv", "color": "#d08a2b", "width": 2},
            }
        )
    failed = [p for p in points if p.value is None]
    if failed:
        floor = min((p.value for p in points if p.value is not None), default=0.0)
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": "does not count",
                "x": [p.run for p in failed],
                "y": [floor for _ in failed],
                "text": [f"{p.outcome}: {p.label}" for p in failed],
                "marker": {"color": "#a33a2a", "symbol": "x", "size": 9},
            }
        )
    return {"data": traces, "layout": _layout("run", f"{goal.metric} ({goal.direction})", 380)}


def _runs_of(group: str, colour: str, points: Sequence[ProgressPoint]) -> dict[str, Any]:
    runs = [p for p in points if p.group == group and p.value is not None]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": group,
        "x": [p.run for p in runs],
        "y": [p.value for p in runs],
        "text": [p.label for p in runs],
        "marker": {"color": colour, "size": 8},
    }


def curve_figure(figure: CurveFigure) -> dict[str, Any]:
    layout = _layout(figure.x_label, figure.y_label, 360)
    sizes = sorted({point.x for curve in figure.curves for point in curve.points})
    # sizes are doubled more often than counted up; on a log axis a doubling is always the same step
    layout["xaxis"] |= {"type": "log", "tickvals": sizes, "ticktext": [f"{size:g}" for size in sizes]}
    layout["yaxis"] |= {"rangemode": "tozero"}
    return {"data": [_curve(curve) for curve in figure.curves], "layout": layout}


def _curve(curve: Curve) -> dict[str, Any]:
    trace: dict[str, Any] = {
        "type": "scatter",
        "mode": "lines" if curve.ideal else "lines+markers",
        "name": curve.label,
        "x": [p.x for p in curve.points],
        "y": [p.y for p in curve.points],
        "line": {"dash": "dot", "color": "#b3bbc6", "width": 1} if curve.ideal else {"color": "#2f6fb0", "width": 2},
        "marker": {"size": 8},
    }
    if any(p.low is not None and p.high is not None for p in curve.points):
        trace["error_y"] = {
            "type": "data",
            "symmetric": False,
            "array": [0.0 if p.high is None else p.high - p.y for p in curve.points],
            "arrayminus": [0.0 if p.low is None else p.y - p.low for p in curve.points],
        }
    return trace


def comparisons_figure(rows: Sequence[ComparedSetting]) -> dict[str, Any]:
    trace = {
        "type": "scatter",
        "mode": "markers",
        "x": [r.estimate for r in rows],
        "y": list(range(len(rows))),
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [r.high - r.estimate for r in rows],
            "arrayminus": [r.estimate - r.low for r in rows],
        },
        "text": [r.verdict for r in rows],
        "marker": {"color": ["#3b8f5a" if r.verdict == "better" else "#7a8594" for r in rows], "size": 10},
    }
    labels = [wrap(r.label, LABEL_WIDTH) for r in rows]
    row_px = 50 + 17 * max(map(len, labels))
    layout = _layout("ratio (above 1 is better)", "", 100 + row_px * len(rows))
    layout["shapes"] = [
        {
            "type": "line",
            "x0": 1,
            "x1": 1,
            "yref": "paper",
            "y0": 0,
            "y1": 1,
            "line": {"dash": "dot", "color": "#7a8594"},
        }
    ]
    # what a row is stands above it, not beside it: on a phone there would be no room for the figure
    layout["annotations"] = [
        {
            "text": "<br>".join(escape(line) for line in label),
            "align": "left",
            "showarrow": False,
            "xref": "paper",
            "x": 0,
            "xanchor": "left",
            "y": at,
            "yanchor": "bottom",
            "xshift": 6,
            "yshift": 8,
        }
        for at, label in enumerate(labels)
    ]
    layout["yaxis"] |= {"showticklabels": False, "showgrid": False, "zeroline": False, "range": [len(rows) - 0.6, -0.9]}
    layout["margin"] |= {"l": 20}
    return {"data": [trace], "layout": layout}


def _layout(x: str, y: str, height: int) -> dict[str, Any]:
    return {
        "height": height,
        "font": FONT,
        "margin": {"l": 70, "r": 20, "t": 20, "b": 50},
        "xaxis": {"title": {"text": x}, "gridcolor": "#eef1f4", "zeroline": False},
        "yaxis": {"title": {"text": y}, "gridcolor": "#eef1f4"},
        "legend": {"orientation": "h", "y": -0.25, "yanchor": "top"},
        "plot_bgcolor": "#fff",
    }
